"""Storing chunks: each once, in order, verified, in bounded blocks; and what an error leaves."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
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
from ohdiff.delta.frames import Base, compress
from ohdiff.errors import IntegrityError, StorageError
from ohdiff.repository import chunk_writer, index_feed
from ohdiff.repository.block_encoder import BlockEncoder
from ohdiff.repository.chunk_reader import ChunkReader
from ohdiff.repository.chunk_writer import ChunkWriter, Deduplicator, DrySink
from ohdiff.repository.encoding import Encoded, Encoder
from ohdiff.repository.index import open_index
from ohdiff.repository.open_block import OpenBlock
from ohdiff.storage import MemoryStorage
from ohdiff_format.blocks import CODEC_DELTA, CODEC_ZSTD, decode_block
from ohdiff_format.index import PackRecord
from ohdiff_format.pack import BlockRecord

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


def test_chunks_that_were_indexed_meanwhile_are_known_for_the_rest_of_a_buffer(vault: Vault) -> None:
    chunk, other = text_bytes(3_000, 1), text_bytes(3_000, 2)
    with desk(vault) as work:
        dedup = Deduplicator(work.index)
        ids = work.id_of(chunk) + work.id_of(other) + work.id_of(chunk)
        assert dedup.new_in(ids, 0, 1) == ([ids[:16]], [True])
        work.add([chunk])
        work.writer.finish()
        block = BlockRecord(0, CODEC_ZSTD, [len(chunk)], ids[:16])
        dedup.settle([PackRecord(bytes(32), 0, 0, False, [block])])
        assert dedup.new_in(ids, 1, 3) == ([ids[32:48], ids[64:80]], [True, False])
        assert dedup.new_in(ids, 0, 3)[1] == [False, False, False]


class Seen:
    """Notes the first byte of every block that it is shown."""

    def __init__(self) -> None:
        self.blocks: list[int] = []

    def remember(self, plain: memoryview, sizes: Sequence[int], prefixes: Sequence[bytes], depth: int) -> None:
        self.blocks.append(plain[0])


def test_blocks_that_are_nearly_their_base_are_not_shown_for_their_resemblance() -> None:
    seen = Seen()
    encoder = Encoder(3, seen)
    base = random_bytes(200_000, 1)
    for first, changed_size in ((1, 10), (2, 20_000), (3, 200_000)):
        plain = bytes([first]) + base[1:-changed_size] + text_bytes(changed_size, first)
        block = OpenBlock(plan=Resembling(lambda view: delta_of(view, base)))
        block.append(memoryview(plain), bytes(16))
        encoded = encoder.encode(block)
        assert (encoded.codec == CODEC_DELTA) == (first < 3)
    assert seen.blocks == [2, 3]


def delta_of(plain: memoryview, base: bytes) -> Encoded:
    payload = compress(plain, Base(bytes(16), base, 1))
    return Encoded(CODEC_DELTA, payload, len(plain), bytes(16), b"\1", base)


class Resembling:
    """Says of every new chunk that it resembles something, and plans deltas that do as they are told."""

    def __init__(self, encode: Callable[[memoryview], Encoded | None]) -> None:
        self.encode = encode

    def note_duplicate(self, prefix: bytes, start: int) -> None:
        pass

    def candidates(self, start: int, end: int) -> Sequence[bytes]:
        return [bytes(16)]

    def plan(self, candidates: Sequence[bytes], *, is_metadata: bool) -> Resembling:
        return self

    def settle(self, *, is_taken: bool) -> None:
        pass


@contextmanager
def delta_desk(
    vault: Vault, monkeypatch: pytest.MonkeyPatch, encode: Callable[[memoryview], Encoded | None] = lambda _: None
) -> Iterator[tuple[Desk, Callable[[Sequence[bytes]], None]]]:
    """A desk whose writer plans deltas of up to 8 KiB, and runs of up to 32 KiB; with what adds chunks to it."""
    monkeypatch.setattr(chunk_writer, "_DELTA_BLOCK_SIZE_BYTES", 8 * KiB)
    monkeypatch.setattr(chunk_writer, "_DELTA_RUN_SIZE_BYTES", 32 * KiB)
    bases = Resembling(encode)
    with ThreadPoolExecutor(2) as executor:
        work = Desk(vault, executor)
        work.writer = ChunkWriter(
            work.repository, work.index, executor, level=3, queue_depth=2, planner=bases, on_encoded=None
        )

        def add(chunks: Sequence[bytes]) -> None:
            buffer, cuts, ids = work.buffer(chunks)
            work.writer.add_chunks(buffer, cuts, ids, 0, len(cuts), bases)
            work.writer.end_buffer(buffer)

        try:
            yield work, add
        finally:
            work.index.close()


def test_neighbouring_delta_blocks_are_encoded_by_one_worker(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    workers: dict[int, int] = {}
    chunks = [number.to_bytes(4, "little") + random_bytes(3_996, number) for number in range(60)]

    def encode(plain: memoryview) -> None:
        workers[int.from_bytes(plain[:4], "little")] = threading.get_ident()

    with delta_desk(vault, monkeypatch, encode) as (work, add):
        for first in range(0, 60, 2):
            add(chunks[first : first + 2])
        work.writer.finish()
        work.assert_readable(chunks)
        assert {block.plain_size for block in work.index.blocks()} == {8_000}
    # Two chunks to a block, four blocks to a run.
    assert sorted(workers) == list(range(0, 60, 2))
    runs: dict[int, set[int]] = {}
    for chunk, worker in workers.items():
        runs.setdefault(chunk // 8, set()).add(worker)
    assert all(len(run) == 1 for run in runs.values())


def test_a_run_of_deltas_ends_after_many_chunks(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()

    def encode(plain: memoryview) -> None:
        begun.set()

    monkeypatch.setattr(chunk_writer, "_DELTA_RUN_CHUNKS_MAX", 100)
    chunks = [text_bytes(80, number) for number in range(150)]
    with delta_desk(vault, monkeypatch, encode) as (work, add):
        # In a buffer of which they are little.
        work.pool = BufferPool(1 << 20, 2)
        add(chunks)
        assert begun.wait(60)
        work.writer.finish()
        work.assert_readable(chunks)


def test_runs_of_deltas_in_flight_are_bounded(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, gate = threading.Semaphore(0), threading.Event()

    def encode(plain: memoryview) -> None:
        begun.release()
        assert gate.wait(60)

    chunks = [random_bytes(7_000, number) for number in range(60)]
    with delta_desk(vault, monkeypatch, encode) as (work, add):
        added: list[int] = []

        def feed() -> None:
            for number, chunk in enumerate(chunks):
                add([chunk])
                added.append(number)

        feeder = threading.Thread(target=feed)
        feeder.start()
        for _ in range(2):
            assert begun.acquire(timeout=60)
        feeder.join(0.5)
        # Two runs that are encoded and one that waits, 32 KiB each.
        assert feeder.is_alive()
        assert len(added) * 7_000 < 4 * 32 * KiB
        gate.set()
        feeder.join(60)
        work.writer.finish()
        work.assert_readable(chunks)


def test_a_run_of_deltas_holds_on_to_no_buffer_that_it_has_little_of(
    vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()

    def encode(plain: memoryview) -> None:
        assert gate.wait(60)

    chunks = [random_bytes(3_000, number) for number in range(10)]
    with delta_desk(vault, monkeypatch, encode) as (work, add):
        for chunk in chunks:
            add([chunk])
        # All of them went back to the pool at once, so that one was enough.
        assert len(work.pool._free) == 1
        gate.set()
        work.writer.finish()
        work.assert_readable(chunks)


def test_a_run_of_deltas_that_fills_its_buffer_is_encoded_without_waiting_for_more(
    vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()

    def encode(plain: memoryview) -> None:
        begun.set()

    chunks = [random_bytes(7_000, number) for number in range(4)]
    with delta_desk(vault, monkeypatch, encode) as (work, add):
        monkeypatch.setattr(chunk_writer, "_DELTA_RUN_SIZE_BYTES", 1 << 30)
        work.pool = BufferPool(32 * KiB, 2)
        add(chunks)
        # It is copied all the same.
        assert len(work.pool._free) == 1
        assert begun.wait(60)
        work.writer.finish()
        work.assert_readable(chunks)


def test_what_fails_in_a_run_of_deltas_is_raised_where_the_writer_finishes(
    vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = itertools.count()

    def encode(plain: memoryview) -> None:
        if next(calls) == 2:
            raise IntegrityError("damaged")

    with delta_desk(vault, monkeypatch, encode) as (work, add):
        for number in range(4):
            add([random_bytes(7_000, number)])
        with pytest.raises(IntegrityError, match="damaged"):
            work.writer.finish()
        work.writer.abort()
    assert object_names(vault.storage, ["packs", "index"]) == []


def test_aborting_amid_a_run_of_deltas_ends_and_stores_nothing(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, gate = threading.Event(), threading.Event()

    def encode(plain: memoryview) -> None:
        begun.set()
        assert gate.wait(60)

    with delta_desk(vault, monkeypatch, encode) as (work, add):
        for number in range(5):
            add([random_bytes(7_000, number)])
        assert begun.wait(60)
        aborting = threading.Thread(target=work.writer.abort)
        aborting.start()
        gate.set()
        aborting.join(60)
        assert not aborting.is_alive()
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
