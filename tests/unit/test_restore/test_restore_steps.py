"""Blocks that stand on others: each is decoded once, whatever is gathered for it, and never from what is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3
from support.description import describe_folder, differences
from support.small_tensors import lower_limits, safetensors, stepped, weights
from support.sources import random_bytes, write
from support.vault import Vault, chunker, replace_object

from ohdiff.errors import IntegrityError
from ohdiff.operations.restore import steps as restore_steps
from ohdiff.operations.restore.block_source import BlockSource
from ohdiff.operations.restore.folders import Folder
from ohdiff.operations.restore.steps import Step, Steps, _are_sound
from ohdiff.operations.restore.write import Bucket, WholeFiles
from ohdiff.repository import chunk_writer
from ohdiff.repository.chunk_reader import ChunkReader
from ohdiff.repository.index_segment import BlockLocation
from ohdiff.storage import MemoryStorage
from ohdiff_format.blocks import CODEC_RAW, CODEC_ZSTD
from ohdiff_format.tree import Content, Listing

VERSIONS = 3


def edited(data: bytes, seed: int) -> bytes:
    """A few bytes changed all over."""
    changed = bytearray(data)
    for at in range(seed * 500, len(data), 3_000):
        changed[at] ^= 1 + seed
    return bytes(changed)


@pytest.fixture
def stored(library: Any, source: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The last of some snapshots, whose blocks stand on those of the ones before, often on several."""
    lower_limits(monkeypatch)
    monkeypatch.setattr(chunk_writer, "BLOCK_SIZE_BYTES", 20_000)
    monkeypatch.setattr(chunk_writer, "_FULL_BLOCK_SIZE_BYTES", 16_000)
    monkeypatch.setattr(chunk_writer, "_DELTA_BLOCK_SIZE_BYTES", 16_000)
    files = {number: random_bytes(60_000, number) for number in range(6)}
    values = weights(4_096, 7)
    for step in range(VERSIONS):
        for number, data in files.items():
            write(source / f"{number}", data)
        write(source / f"{step}.safetensors", safetensors({"w": ("F32", values.tobytes())}))
        snapshot = library.vault.store(source)
        files = {number: edited(data, step) if number != 5 else data for number, data in files.items()}
        values = stepped(values, step)
    return snapshot


def blocks(library: Any) -> list[BlockLocation]:
    with library.vault.opened() as (_, index):
        return [block for block in index.blocks() if not block.is_metadata]


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[tuple[bytes, int]]]:
    """How often each block is decoded, for itself or for what stands on it."""
    counted: Counter[tuple[bytes, int]] = Counter()
    load, load_by_reader = BlockSource.load, ChunkReader._load

    def count(self: BlockSource, location: BlockLocation, base: Any = None) -> Any:
        counted[(location.pack_id, location.number)] += 1
        return load(self, location, base)

    def count_by_reader(self: ChunkReader, location: BlockLocation, chain: int) -> Any:
        counted[(location.pack_id, location.number)] += not location.is_metadata
        return load_by_reader(self, location, chain)

    monkeypatch.setattr(BlockSource, "load", count)
    monkeypatch.setattr(ChunkReader, "_load", count_by_reader)
    yield counted


def assert_restored(library: Any, stored: Any, source: Path, target: Path, **options: Any) -> None:
    assert library.restore(stored, target, **options).errors == []
    assert differences(describe_folder(target), describe_folder(source)) == {}


def test_every_block_of_a_chain_is_decoded_once(
    library: Any, stored: Any, source: Path, tmp_path: Path, loads: Counter[Any]
) -> None:
    found = blocks(library)
    assert max(block.depth for block in found) >= 2
    with library.vault.opened() as (_, index):
        steps = Steps(index, [Bucket(block) for block in found if block.depth])
        assert max(step.waiting for step in steps._steps.values()) >= 2
    loads.clear()
    assert_restored(library, stored, source, tmp_path / "target")
    assert len(loads) >= len(found) // 2
    assert {place: count for place, count in loads.items() if count > 1} == {}


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize(("gathered", "job"), [(0, 1 << 20), (1 << 20, 1), (20_000, 30_000)])
def test_what_is_not_gathered_or_not_gone_on_with_is_restored_as_well(
    library: Any,
    stored: Any,
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    gathered: int,
    job: int,
    workers: int,
) -> None:
    monkeypatch.setattr(restore_steps, "GATHERED_SIZE_BYTES_MAX", gathered)
    monkeypatch.setattr(restore_steps, "_JOB_SIZE_BYTES_MAX", job)
    monkeypatch.setattr(restore_steps, "_BASES_PER_PLAN", 3)
    assert_restored(library, stored, source, tmp_path / "target", workers=workers)


def test_nothing_is_kept_when_all_is_done(
    library: Any, stored: Any, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[Steps, list[Step]]] = []
    plan = Steps._plan

    def note(self: Steps) -> None:
        plan(self)
        made.append((self, list(self._steps.values())))

    monkeypatch.setattr(Steps, "_plan", note)
    assert_restored(library, stored, source, tmp_path / "target")
    assert any(step.base_size for _, planned in made for step in planned)
    for steps, planned in made:
        assert steps._gathered_size == 0
        assert all(step.gathered is step.sole is None and not step.waiting for step in planned)


def test_nothing_is_made_of_bases_that_are_not_what_they_should_be(
    library: Any, stored: Any, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_bucket, take_base = restore_steps.take_bucket, Steps.take_base
    given = {"wrong": 0, "gathered": 0}

    def take_wrong(run: Any, bucket: Bucket, base: Any) -> Any:
        outcome, plain = take_bucket(run, bucket, base)
        if bucket.entry_count or bucket.location is None or bucket.location.depth:
            return outcome, plain
        given["wrong"] += 1
        return outcome, bytes(byte ^ 1 for byte in plain)

    def count(self: Steps, step: Step) -> Any:
        base = take_base(self, step)
        given["gathered"] += base is not None
        return base

    monkeypatch.setattr(restore_steps, "take_bucket", take_wrong)
    monkeypatch.setattr(Steps, "take_base", count)
    assert_restored(library, stored, source, tmp_path / "target")
    assert given["wrong"] > 2
    # Those above still get what was right.
    assert given["gathered"] > 0


@pytest.mark.parametrize(
    ("at", "size", "is_sound"), [(0, 100, True), (100, 50, True), (100, 51, False), (1, 99, False)]
)
def test_bases_are_checked_unless_they_were_when_they_were_written(at: int, size: int, is_sound: bool) -> None:
    data, key = random_bytes(150), bytes(32)
    folder = Folder(None, b"")
    listing = Listing([b"a"], sizes=[100], contents=[Content(blake3(data[:100], key=key).digest(), (100,))])
    bucket = Bucket(None, [WholeFiles(folder, listing, [0], [0])])
    step = Step(bucket, None)
    for start, length in ((0, 100), (100, 50)):
        step.bases[(start, length)] = blake3(data[start : start + length], key=key).digest(16)
    assert _are_sound(key, step, memoryview(data))
    step.bases[(at, size)] = blake3(data[at : at + size] if is_sound else b"", key=key).digest(16)
    assert _are_sound(key, step, memoryview(data)) == is_sound
    # What was checked before is not hashed again; its name must be the same, though.
    assert _are_sound(key, step, memoryview(bytes(100) + data[100:])) == is_sound
    step.bases[(0, 100)] = bytes(16)
    assert not _are_sound(key, step, memoryview(data))


def test_a_damaged_block_breaks_what_stands_on_it_and_nothing_else(
    library: Any, stored: Any, source: Path, tmp_path: Path
) -> None:
    block = next(block for block in blocks(library) if not block.depth)
    name = f"packs/{block.pack_id.hex()}"
    data = bytearray(library.vault.storage.read(name))
    data[block.offset + block.sealed_size // 2] ^= 1
    replace_object(library.vault.storage, name, bytes(data))
    target = tmp_path / "target"
    result = library.restore(stored, target)
    assert {type(error) for error in result.errors} == {IntegrityError}
    assert all(block.pack_id.hex()[:16] in str(error) for error in result.errors)
    broken = {Path(error.item).name for error in result.errors}
    expected = {path.name: path.read_bytes() for path in source.iterdir() if path.name not in broken}
    assert {path.name: path.read_bytes() for path in target.iterdir()} == expected
    assert 0 < len(broken) < len(list(source.iterdir()))


@pytest.mark.parametrize("encryption", ["none", "chacha20-poly1305"])
def test_raw_and_compressed_blocks_of_every_cipher_are_opened(
    library: Any, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encryption: str
) -> None:
    monkeypatch.setattr(ChunkReader, "load_block", lambda *_: pytest.fail("it was not opened at the first try"))
    monkeypatch.setattr(chunk_writer, "BLOCK_SIZE_BYTES", 20_000)
    library.vault = Vault(MemoryStorage("cipher")).create(chunker(avg_size=4 << 10), encryption)
    write(source / "random", random_bytes(50_000, 1))
    write(source / "text", b"".join(b"line %d\n" % number for number in range(5_000)))
    stored = library.vault.store(source)
    assert {block.codec for block in blocks(library)} == {CODEC_RAW, CODEC_ZSTD}
    assert_restored(library, stored, source, tmp_path / "target")
