"""Snapshots whose chunks stand on each other, stopped at every storage step: nothing known stands on what is not there.

Packs are so small that a difference and what it stands on, from the parent or from the same run, lie in different
ones, and index objects are stored all the time.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from faulty_storage import Crash, CrashError, CrashPlan, Faults, FaultyStorage, crash_plans, storage_steps
from support.chains import assert_chains, blocks_of
from support.description import Description, describe_folder, differences
from support.small_tensors import bf16, lower_limits, safetensors, stepped, weights
from support.sources import random_bytes, write
from support.vault import Told, Vault, chunker

from ohdiff.errors import StorageError
from ohdiff.operations.observer import Progress
from ohdiff.repository import chunk_writer, index_feed, packs
from ohdiff.repository.lost_bases import split_prefixes
from ohdiff.storage import MemoryStorage, Storage
from ohdiff_format.blocks import CODEC_DELTA, CODEC_NUMBERS

HONEST = (Crash.BEFORE, Crash.AFTER, Crash.TORN)
Folder = dict[bytes, Description]


@dataclass
class Life:
    """A repository after its first snapshot, and a source that has changed since."""

    vault: Vault
    source: Path
    first: Folder
    second: Folder

    def start(self) -> MemoryStorage:
        assert isinstance(self.vault.storage, MemoryStorage)
        return self.vault.storage.copy()

    def snapshot(self, storage: Storage) -> None:
        self.vault.over(storage).snapshot(self.source)


@pytest.fixture(scope="module", autouse=True)
def _small_everything() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        lower_limits(patch)
        patch.setattr(chunk_writer, "BLOCK_SIZE_BYTES", 24_000)
        patch.setattr(chunk_writer, "_FULL_BLOCK_SIZE_BYTES", 20_000)
        patch.setattr(chunk_writer, "_DELTA_BLOCK_SIZE_BYTES", 20_000)
        patch.setattr(packs, "PACK_SIZE_BYTES", 6_000)
        patch.setattr(index_feed, "_PACKS_PER_INDEX", 1)
        yield


def write_step(source: Path, number: int, values: array[float]) -> None:
    write(source / f"step {number}" / "model.safetensors", safetensors({"w": ("F32", values.tobytes())}))
    write(source / f"step {number}" / "copy.safetensors", safetensors({"w": ("BF16", bf16(values))}))


def edited(data: bytes) -> bytes:
    changed = bytearray(data)
    for at in range(100, len(data), 5_000):
        changed[at] ^= 9
    return bytes(changed)


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Life:
    source = tmp_path_factory.mktemp("life") / "source"
    run = [weights(4_096, 1)]
    for number in range(3):
        run.append(stepped(run[-1], number))
    for number in range(2):
        write(source / f"file {number}", random_bytes(50_000, number))
    write_step(source, 0, run[0])
    vault = Vault(MemoryStorage("life")).create(chunker(4096, 1024, 16_384))
    vault.store(source)
    first = describe_folder(source)
    for number in range(2):
        write(source / f"file {number}", edited(random_bytes(50_000, number)))
    write(source / "news", random_bytes(30_000, 9))
    for number in (1, 2, 3):
        write_step(source, number, run[number])
    return Life(vault, source, first, describe_folder(source))


def crash(life: Life, plan: CrashPlan) -> Vault:
    """What the next process finds; a run may also end before the planned step, since packs are drawn at random."""
    storage = FaultyStorage(life.start(), Faults(crash=plan))
    with suppress(CrashError):
        life.snapshot(storage)
    return life.vault.over(storage.inner)


def assert_bases_are_stored(vault: Vault) -> None:
    """Every base chunk of every block that the index knows is in the index, and its pack is there."""
    assert_chains(vault)
    with vault.opened() as (_, index):
        for block in list(index.blocks()):
            assert vault.storage.exists(f"packs/{block.pack_id.hex()}")
            for place in index.find(split_prefixes(block.base_prefixes)):
                assert place is not None
                assert vault.storage.exists(f"packs/{place.block.pack_id.hex()}")


def assert_goes_on(life: Life, vault: Vault) -> None:
    """Every committed snapshot reads back as its source was, and the next one succeeds."""
    stored = vault.snapshots()
    assert 1 <= len(stored) <= 2
    for item, folder in zip(stored, (life.first, life.second), strict=False):
        assert differences(vault.read(item, life.source), folder) == {}
    vault.assert_sound()
    assert differences(vault.read(vault.store(life.source), life.source), life.second) == {}
    vault.assert_sound()
    assert_bases_are_stored(vault)


def test_the_life_has_what_the_tests_are_about(life: Life) -> None:
    storage = life.start()
    before = {block.pack_id for block in blocks_of(life.vault)}
    steps = storage_steps(life.snapshot, storage)
    assert sum(step.name.startswith("index/") for step in steps) >= 2
    vault = life.vault.over(storage)
    new = [block for block in blocks_of(vault) if block.pack_id not in before]
    with vault.opened() as (_, index):
        of_the_run, of_the_parent = set(), set()
        for block in new:
            for place in index.find(split_prefixes(block.base_prefixes)):
                assert place is not None
                if place.block.pack_id != block.pack_id:
                    (of_the_parent if place.block.pack_id in before else of_the_run).add(block.codec)
    assert of_the_parent == {CODEC_DELTA, CODEC_NUMBERS}
    assert CODEC_NUMBERS in of_the_run
    assert any(block.is_metadata and block.base_prefixes for block in new)
    assert_goes_on(life, vault)


def test_a_snapshot_stopped_at_any_step_leaves_no_difference_without_its_base(life: Life) -> None:
    # What is known changes where an object appears, and nowhere else.
    plans = list(crash_plans(storage_steps(life.snapshot, life.start()), (Crash.AFTER,)))
    assert len(plans) > 7
    for plan in plans:
        assert_bases_are_stored(crash(life, plan))


def test_a_snapshot_stopped_at_any_step_loses_nothing_and_the_next_one_is_whole(life: Life) -> None:
    plans = list(crash_plans(storage_steps(life.snapshot, life.start()), HONEST))
    assert len(plans) > 40
    share = len(plans) // 6
    for place, plan in enumerate(plans):
        if place % share == 0 or place >= len(plans) - 3:
            assert_goes_on(life, crash(life, plan))


@pytest.mark.parametrize("share", [0.2, 0.6, 0.95])
def test_a_full_disk_leaves_no_difference_without_its_base(life: Life, share: float) -> None:
    counting = FaultyStorage(life.start())
    life.snapshot(counting)
    full = FaultyStorage(life.start(), Faults(capacity_bytes=int(counting.used_bytes * share)))
    with pytest.raises(StorageError):
        life.snapshot(full)
    vault = life.vault.over(full.inner)
    assert_bases_are_stored(vault)
    assert_goes_on(life, vault)


class Impatient(Told):
    """An observer with whom the user interrupts after so many reports."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._left = count

    def progress(self, progress: Progress) -> None:
        self._left -= 1
        if self._left == 0:
            raise KeyboardInterrupt


def test_a_snapshot_interrupted_at_any_report_leaves_no_difference_without_its_base(life: Life) -> None:
    count = 1
    while True:
        vault = life.vault.over(life.start())
        try:
            vault.snapshot(life.source, observer=Impatient(count))
        except KeyboardInterrupt:
            assert_bases_are_stored(vault)
            if count % 6 == 1:
                assert_goes_on(life, vault)
            count += 2
            continue
        break
    assert count > 6
