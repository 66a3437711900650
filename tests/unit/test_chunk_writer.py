"""Storing chunks: each once, in order, verified, in bounded blocks; and what an error leaves."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sources import random_bytes, text_bytes
from support.vault import Vault, object_names

from ohdiff.buffers import BufferPool, PooledBuffer
from ohdiff.errors import IntegrityError, StorageError
from ohdiff.repository import chunk_writer, index_feed
from ohdiff.repository.block_encoder import BlockEncoder
from ohdiff.repository.chunk_reader import ChunkReader
from ohdiff.repository.chunk_writer import ChunkWriter, DrySink
from ohdiff.repository.index import open_index
from ohdiff.storage import MemoryStorage
from ohdiff_format.blocks import decode_block

KiB = 1 << 10


class Desk:
    """A writer with its repository, and buffers of chunks for it."""

    def __init__(self, vault: Vault, executor: ThreadPoolExecutor, depth: int = 2, level: int | None = 3) -> None:
        self.repository = vault.open()
        self.index = open_index(self.repository)
        self.writer = ChunkWriter(self.repository, self.index, executor, level=level, queue_depth=depth)
        self.pool = BufferPool(64 * KiB, 2)

    def buffer(self, chunks: Sequence[bytes]) -> tuple[PooledBuffer, list[int], bytes]:
        """Chunks back to back in a buffer of the pool, with their cuts and ids."""
        data = b"".join(chunks)
        buffer = self.pool.take(len(data))
        buffer.data[: len(data)] = data
        return buffer, list(itertools.accumulate(map(len, chunks))), b"".join(map(self.id_of, chunks))

    def id_of(self, chunk: bytes) -> bytes:
        return blake3(chunk, key=self.repository.chunk_id_key).digest()

    def add(self, chunks: Sequence[bytes]) -> None:
        buffer, cuts, ids = self.buffer(chunks)
        self.writer.add_chunks(buffer, cuts, ids, 0, len(cuts))
        self.writer.end_buffer(buffer)

    def assert_readable(self, chunks: Sequence[bytes]) -> None:
        reader = ChunkReader(self.repository, self.index)
        for chunk in chunks:
            assert reader.read(self.id_of(chunk)) == chunk


@contextmanager
def desk(vault: Vault, **options: Any) -> Iterator[Desk]:
    with ThreadPoolExecutor(2) as executor:
        made = Desk(vault, executor, **options)
        try:
            yield made
        finally:
            made.index.close()


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_writer, "BLOCK_SIZE_BYTES", 32 * KiB)
    monkeypatch.setattr(chunk_writer, "_FULL_BLOCK_SIZE_BYTES", 28 * KiB)
    monkeypatch.setattr(chunk_writer, "METADATA_BLOCK_SIZE_BYTES", 8 * KiB)


def test_chunks_come_back_and_equal_ones_are_stored_once(vault: Vault) -> None:
    chunks = [text_bytes(3_000 + number, number) for number in range(40)]
    with desk(vault) as work:
        work.add(chunks[:25])
        work.add(chunks)
        work.add(chunks[::-1])
        work.writer.finish()
        work.assert_readable(chunks)
        assert work.index.chunk_count == 40
        assert work.writer.counts.added_chunks == 40
        assert work.writer.counts.added_size == sum(map(len, chunks))
        assert work.writer.counts.stored_size == sum(info.size for info in vault.storage.list_objects("packs"))
    with desk(vault) as later:
        later.add(chunks)
        later.writer.finish()
        assert later.writer.counts.added_chunks == 0
    assert len(object_names(vault.storage, ["index"])) == 1


@settings(deadline=None, max_examples=25)
@given(
    batches=st.lists(
        st.lists(st.tuples(st.integers(0, 30), st.integers(1, 20_000)), min_size=1, max_size=12), max_size=8
    ),
    level=st.sampled_from([None, 3]),
)
def test_any_batches_read_back(batches: list[list[tuple[int, int]]], level: int | None) -> None:
    vault = Vault(MemoryStorage("any")).create()
    made = [[text_bytes(size, seed) for seed, size in batch] for batch in batches]
    with desk(vault, level=level) as work:
        for batch in made:
            work.add(batch)
        work.writer.finish()
        distinct = set(itertools.chain.from_iterable(made))
        work.assert_readable(sorted(distinct))
        assert work.index.chunk_count == len(distinct)


def test_only_the_chosen_chunks_of_a_buffer_are_stored(vault: Vault) -> None:
    chunks = [random_bytes(1_000, number) for number in range(10)]
    with desk(vault) as work:
        buffer, cuts, ids = work.buffer(chunks)
        work.writer.add_chunks(buffer, cuts, ids, 2, 5)
        work.writer.add_chunks(buffer, cuts, ids, 7, 10)
        work.writer.end_buffer(buffer)
        work.writer.finish()
        work.assert_readable([*chunks[2:5], *chunks[7:]])
        assert [place is None for place in work.index.find([work.id_of(chunk) for chunk in chunks])] == [
            row not in (2, 3, 4, 7, 8, 9) for row in range(10)
        ]


def test_blocks_and_their_chunks_keep_the_order_in_which_they_were_added(vault: Vault) -> None:
    chunks = [random_bytes(5_000, number) for number in range(30)]
    with desk(vault) as work:
        work.add(chunks)
        work.writer.finish()
        places = work.index.find([work.id_of(chunk) for chunk in chunks])
        by_block: dict[object, list[int]] = {}
        for place in places:
            assert place is not None
            assert not place.block.is_metadata
            by_block.setdefault(place.block, []).append(place.offset)
        assert all(offsets == sorted(offsets) for offsets in by_block.values())
        assert len(by_block) == 5
        assert all(block.plain_size <= 32 * KiB for block in work.index.blocks())


def test_a_chunk_larger_than_a_block_gets_one_of_its_own(vault: Vault) -> None:
    chunks = [random_bytes(1_000, 1), random_bytes(100 * KiB, 2), random_bytes(1_000, 3)]
    with desk(vault) as work:
        work.add(chunks)
        work.writer.finish()
        work.assert_readable(chunks)


def test_metadata_has_packs_of_its_own(vault: Vault) -> None:
    with desk(vault) as work:
        work.add([random_bytes(10_000, number) for number in range(9)])
        ids = [work.writer.add_metadata(text_bytes(3_000, 50 + number)) for number in range(9)]
        assert work.writer.add_metadata(text_bytes(3_000, 50)) == ids[0]
        work.writer.finish()
        packs: dict[bytes, set[bool]] = {}
        for block in work.index.blocks():
            packs.setdefault(block.pack_id, set()).add(block.is_metadata)
        assert all(len(kinds) == 1 for kinds in packs.values())
        assert {kind for kinds in packs.values() for kind in kinds} == {True, False}
        reader = ChunkReader(work.repository, work.index)
        assert [reader.read(chunk_id) for chunk_id in ids] == [text_bytes(3_000, 50 + number) for number in range(9)]


def test_buffers_go_back_to_their_pool(vault: Vault) -> None:
    with desk(vault) as work:
        for number in range(12):
            work.add([random_bytes(20_000, number), random_bytes(20_000, number)])
        work.writer.finish()
        first, second = work.pool.take(1), work.pool.take(1)
        assert first.data is not second.data
        assert len(work.pool._free) == 0
        first.release()
        second.release()
        assert len(work.pool._free) == 2


def test_work_in_flight_is_bounded(vault: Vault) -> None:
    gate = threading.Event()
    encoding = threading.Semaphore(0)

    class Slow(ThreadPoolExecutor):
        def submit(self, function: Any, *arguments: Any) -> Any:  # type: ignore[override]
            def run() -> Any:
                encoding.release()
                assert gate.wait(60)
                return function(*arguments)

            return super().submit(run)

    with Slow(8) as executor:
        work = Desk(vault, executor, depth=2)
        feeder = threading.Thread(target=lambda: [work.add([random_bytes(30 * KiB, number)]) for number in range(12)])
        feeder.start()
        for _ in range(3):
            assert encoding.acquire(timeout=60)
        feeder.join(0.5)
        assert feeder.is_alive(), "the feeder waits until a block is written"
        gate.set()
        feeder.join(60)
        work.writer.finish()
        work.assert_readable([random_bytes(30 * KiB, number) for number in range(12)])
        work.index.close()


def test_what_fails_in_the_background_is_raised_where_chunks_are_added(vault: Vault) -> None:
    class Full(MemoryStorage):
        def open_writer(self, folder: str) -> Any:
            raise StorageError("full")

    storage = Full("full")
    storage._folders = vault.storage._folders  # type: ignore[attr-defined]
    with desk(vault.over(storage)) as work:
        with pytest.raises(StorageError):
            for number in range(50):
                work.add([random_bytes(30 * KiB, number)])
            work.writer.finish()
        work.writer.abort()
    assert object_names(vault.storage, ["packs", "index"]) == []


def test_a_block_that_does_not_survive_compression_is_an_integrity_error(
    vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = BlockEncoder(3).encode(text_bytes(20_000, 2), 1)
    monkeypatch.setattr(BlockEncoder, "encode", lambda *_: broken)
    with desk(vault) as work:
        work.add([text_bytes(20_000, 1)])
        with pytest.raises(IntegrityError):
            work.writer.finish()
        work.writer.abort()
    assert object_names(vault.storage, ["packs", "index"]) == []


def test_aborting_keeps_no_open_pack(vault: Vault) -> None:
    with desk(vault) as work:
        work.add([random_bytes(20_000, number) for number in range(10)])
        work.writer.abort()
    assert object_names(vault.storage, ["packs", "index"]) == []


def test_the_index_is_written_now_and_then_in_a_long_run(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_feed, "_PACKS_PER_INDEX", 1)
    monkeypatch.setattr("ohdiff.repository.packs.PACK_SIZE_BYTES", 64 * KiB)
    with desk(vault, depth=1) as work:
        chunks = [random_bytes(10_000, number) for number in range(60)]
        for chunk in chunks:
            work.add([chunk])
        work.writer.finish()
        assert len(object_names(vault.storage, ["index"])) > 2
        work.assert_readable(chunks)
        assert work.index.chunk_count == 60


def test_a_dry_sink_counts_what_a_writer_would_add(vault: Vault) -> None:
    chunks = [text_bytes(3_000, number % 7) for number in range(20)]
    with desk(vault) as work:
        dry = DrySink(work.repository, work.index)
        buffer, cuts, ids = work.buffer(chunks)
        dry.add_chunks(buffer, cuts, ids, 0, 12)
        dry.add_chunks(buffer, cuts, ids, 12, 20)
        dry.end_buffer(buffer)
        work.add(chunks)
        assert dry.add_metadata(b"leaf") == work.writer.add_metadata(b"leaf")
        work.writer.finish()
        dry.finish()
        assert (dry.counts.added_chunks, dry.counts.added_size) == (
            work.writer.counts.added_chunks,
            work.writer.counts.added_size,
        )


@pytest.mark.parametrize("level", [None, -5, 1, 3, 19])
@pytest.mark.parametrize("size", [0, 1, 1000, 300_000])
@pytest.mark.parametrize("make", [text_bytes, random_bytes, bytes])
def test_every_level_decodes_and_never_grows(level: int | None, size: int, make: Any) -> None:
    plain = make(size)
    codec, payload = BlockEncoder(level).encode(plain, 1 + size // 20_000)
    assert len(payload) <= len(plain)
    assert bytes(decode_block(codec, payload, size)) == plain


def test_dense_data_is_compressed_with_less_effort_and_text_is_not() -> None:
    dice = random_bytes(1 << 20, 1)
    dense = bytes(byte & 0x7F for byte in dice)
    text = text_bytes(1 << 20, 1)
    light, full = BlockEncoder(1), BlockEncoder(9)
    assert abs(len(full.encode(dense, 9)[1]) - len(light.encode(dense, 9)[1])) < 16
    assert len(full.encode(text, 9)[1]) < len(light.encode(text, 9)[1])
