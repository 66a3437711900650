"""The repository stopped at every storage step of its life: what was committed stays readable, and work goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from faulty_storage import Crash, CrashError, CrashPlan, Faults, FaultyStorage, crash_plans, storage_steps
from support.description import Description, describe_folder, differences
from support.sources import random_bytes, text_bytes, write
from support.vault import Vault, object_names

from ohdiff.errors import (
    IntegrityError,
    NoRepositoryError,
    ObjectMissingError,
    OhdiffError,
    StorageError,
    WrongKeyError,
)
from ohdiff.operations.snapshot import SnapshotResult
from ohdiff.repository import chunk_writer, keys
from ohdiff.repository.keys import KeyDescription, generate_key_file
from ohdiff.storage import LocalStorage, MemoryStorage, Storage

MiB = 1 << 20
# What a disk that keeps its promises may leave; the others are for what is not under a content name.
HONEST = (Crash.BEFORE, Crash.AFTER, Crash.TORN)
Folder = dict[bytes, Description]


@dataclass
class Life:
    """A repository after its first snapshot, and a source that has changed since."""

    vault: Vault
    source: Path
    first: Folder
    second: Folder


@pytest.fixture(scope="module", autouse=True)
def _small_blocks() -> Iterator[None]:
    """Several blocks of one file, so that there are steps between them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunk_writer, "BLOCK_SIZE_BYTES", 256 << 10)
        patch.setattr(chunk_writer, "_FULL_BLOCK_SIZE_BYTES", 200 << 10)
        yield


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Life:
    source = tmp_path_factory.mktemp("life") / "source"
    write(source / "large", random_bytes(MiB, 1))
    for number in range(30):
        write(source / "folder" / f"{number}", text_bytes(3_000, number))
    vault = Vault(MemoryStorage("life")).create()
    vault.store(source)
    first = describe_folder(source)
    write(source / "large", random_bytes(MiB - 5, 2))
    (source / "folder" / "7").unlink()
    write(source / "folder" / "new", text_bytes(100_000, 99))
    return Life(vault, source, first, describe_folder(source))


def snapshot(life: Life, storage: Storage) -> SnapshotResult:
    return life.vault.over(storage).snapshot(life.source)


def told(life: Life, storage: Storage) -> OhdiffError:
    """What a snapshot ends with, or has to tell when only the base of a delta could not be read."""
    try:
        (error, *_) = snapshot(life, storage).errors
    except OhdiffError as raised:
        return raised
    return error


def copied(storage: Storage) -> MemoryStorage:
    assert isinstance(storage, MemoryStorage)
    return storage.copy()


def crash(run: Callable[[Storage], object], start: MemoryStorage, plan: CrashPlan) -> Storage:
    """What the next process finds; blocks go to packs at random, so a run may also end before the planned step."""
    storage = FaultyStorage(start, Faults(crash=plan))
    with suppress(CrashError):
        run(storage)
    assert storage.is_dead or len(storage.steps) <= plan.step
    return storage.inner


def assert_goes_on(life: Life, vault: Vault) -> None:
    """Every committed snapshot reads back as its source was, and the next one succeeds."""
    stored = vault.snapshots()
    assert 1 <= len(stored) <= 2
    for item, folder in zip(stored, (life.first, life.second), strict=False):
        assert differences(vault.read(item, life.source), folder) == {}
    assert vault.check().problems == []
    assert differences(vault.read(vault.store(life.source), life.source), life.second) == {}
    assert vault.check().problems == []


def sampled(plans: list[CrashPlan], count: int) -> list[CrashPlan]:
    """Evenly spread plans, with the first and the last ones, where everything is decided."""
    step = max(1, len(plans) // count)
    return [plan for place, plan in enumerate(plans) if place % step == 0 or place < 2 or place >= len(plans) - 7]


def test_a_snapshot_stopped_at_any_step_loses_nothing(life: Life) -> None:
    start = copied(life.vault.storage)
    plans = list(crash_plans(storage_steps(lambda storage: snapshot(life, storage), start.copy()), HONEST))
    assert len(plans) > 15
    for plan in sampled(plans, 16):
        found = crash(lambda storage: snapshot(life, storage), start.copy(), plan)
        assert_goes_on(life, life.vault.over(found))


def test_a_first_snapshot_stopped_at_any_step_leaves_an_empty_or_a_full_repository(life: Life) -> None:
    vault = Vault(MemoryStorage("new")).create()
    start = copied(vault.storage)

    def run(storage: Storage) -> None:
        vault.over(storage).snapshot(life.source)

    for plan in sampled(list(crash_plans(storage_steps(run, start.copy()), HONEST)), 12):
        after = vault.over(crash(run, start.copy(), plan))
        for item in after.snapshots():
            assert differences(after.read(item, life.source), life.second) == {}
        after.assert_sound()
        assert differences(after.read(after.store(life.source), life.source), life.second) == {}


def test_a_repository_whose_making_was_stopped_opens_or_is_absent(life: Life) -> None:
    vault = Vault(MemoryStorage("made"))

    def run(storage: Storage) -> None:
        vault.over(storage).create()

    steps = storage_steps(run, MemoryStorage("steps"))
    assert [step.name.partition("/")[0] for step in steps] == ["keys", "config"]
    for plan in crash_plans(steps, HONEST):
        found = crash(run, MemoryStorage("made"), plan)
        after = vault.over(found)
        if found.exists("config"):
            after.open()
        else:
            with pytest.raises(ObjectMissingError):
                after.open()
            after.create()
        assert after.store(life.source) in after.snapshots()


def test_a_local_repository_whose_making_was_stopped_is_said_not_to_be_there(tmp_path: Path) -> None:
    LocalStorage.create(tmp_path / "repository")
    with pytest.raises(NoRepositoryError):
        LocalStorage.open(tmp_path / "repository")


def test_adding_and_removing_keys_can_stop_at_any_step(life: Life) -> None:
    start = copied(life.vault.storage)
    second = generate_key_file()

    def run(storage: Storage) -> None:
        repository = life.vault.over(storage).open()
        keys.add_key(storage, repository.master_key, second, KeyDescription("second"))
        keys.remove_key(storage, repository.key_id)

    for plan in crash_plans(storage_steps(run, start.copy()), HONEST):
        found = crash(run, start.copy(), plan)
        opened = 0
        for key in (life.vault.key, second):
            after = life.vault.over(found)
            after.key = key
            with suppress(WrongKeyError):
                assert len(after.snapshots()) == 1
                opened += 1
        assert opened >= 1


@pytest.mark.parametrize("mode", [Crash.UNSYNCED, Crash.HALF])
def test_a_disk_that_lied_is_found_out_and_earlier_snapshots_are_whole(life: Life, mode: Crash) -> None:
    start = copied(life.vault.storage)
    plans = list(crash_plans(storage_steps(lambda storage: snapshot(life, storage), start.copy()), (mode,)))
    for plan in plans:
        vault = life.vault.over(crash(lambda storage: snapshot(life, storage), start.copy(), plan))
        with suppress(IntegrityError):
            # A pack that no index names does no harm; all else is noticed when it is looked at.
            vault.check()
        for name in set(object_names(vault.storage)) - set(object_names(start)):
            if not name.startswith("packs/"):
                vault.storage.delete(name)
        (first,) = vault.snapshots()
        assert differences(vault.read(first, life.source), life.first) == {}


@pytest.mark.parametrize("free", [0, 100, 300_000, 800_000, MiB + 1_000])
def test_a_full_disk_is_a_storage_error_and_frees_what_was_begun(life: Life, tmp_path: Path, free: int) -> None:
    local = LocalStorage.create(tmp_path / "repository")
    vault = Vault(local).create()
    vault.store(life.source, life.source / "folder")
    before = set(object_names(local))
    write(life.source.parent / "more", random_bytes(MiB, 7))
    full = vault.over(FaultyStorage(local, Faults(capacity_bytes=free)))
    with pytest.raises(StorageError):
        full.snapshot(life.source, life.source.parent / "more")
    assert list((tmp_path / "repository" / "tmp").iterdir()) == []
    assert [name for name in set(object_names(local)) - before if name.startswith("snapshots/")] == []
    vault.assert_sound()
    (first,) = vault.snapshots()
    assert differences(vault.read(first, life.source), life.second) == {}
    again = vault.store(life.source, life.source.parent / "more")
    assert vault.data(again, life.source.parent / "more") == random_bytes(MiB, 7)


def test_a_storage_that_fails_to_read_or_list_is_never_taken_for_an_empty_one(life: Life) -> None:
    start = copied(life.vault.storage)
    counting = FaultyStorage(start.copy())
    snapshot(life, counting)
    for number in range(counting.lists):
        failing = FaultyStorage(start.copy(), Faults(failing_lists=frozenset({number})))
        with pytest.raises(StorageError):
            snapshot(life, failing)
        assert_goes_on(life, life.vault.over(failing.inner))
    for number in range(counting.reads):
        failing = FaultyStorage(start.copy(), Faults(failing_reads=frozenset({number})))
        assert isinstance(told(life, failing), StorageError)
        assert_goes_on(life, life.vault.over(failing.inner))


def test_a_bit_that_flips_on_its_way_is_an_integrity_error_or_does_not_matter(life: Life) -> None:
    start = copied(life.vault.storage)
    counting = FaultyStorage(start.copy())
    snapshot(life, counting)
    for number in range(counting.reads):
        flipping = FaultyStorage(start.copy(), Faults(flipped_reads={number: 12_345 + number}))
        assert isinstance(told(life, flipping), IntegrityError)
        assert_goes_on(life, life.vault.over(flipping.inner))
