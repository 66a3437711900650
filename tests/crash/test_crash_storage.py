"""Local storage stopped at every system call, a real full disk, and proof that the fault model does what it says."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from faulty_storage import (
    Crash,
    CrashError,
    CrashPlan,
    Faults,
    FaultyStorage,
    Step,
    Survival,
    VolatileDisk,
    crash_plans,
    storage_steps,
)

from ohdiff.errors import NoRepositoryError, ObjectMissingError, StorageError
from ohdiff.storage import FOLDERS, Buffer, LocalStorage, MemoryStorage, ObjectExistsError, ObjectInfo, Storage
from ohdiff.storage.system_calls import SystemCalls

CONFIG = b"config" * 100
PACKS = {f"packs/{number:02x}{'5a' * 31}": bytes([number]) * size for number, size in [(1, 3), (2, 1_100_000), (3, 0)]}
INDEX, SNAPSHOT, KEY = f"index/{'1d' * 32}", f"snapshots/{'5e' * 32}", f"keys/{'ce' * 16}"
DOOMED = next(iter(PACKS))


class Quick(SystemCalls):
    """No syncs: where nothing crashes, nothing needs them."""

    def sync_file(self, descriptor: int) -> None: ...

    def sync_folder(self, path: Path) -> None: ...


class History:
    """What storage was asked for, and what it said was done."""

    def __init__(self) -> None:
        self.done: dict[str, bytes] = {}
        self.begun: tuple[str, bytes | None] | None = None

    @contextmanager
    def doing(self, name: str, data: bytes | None) -> Iterator[None]:
        self.begun = (name, data)
        yield
        self.begun = None
        if data is None:
            self.done.pop(name, None)
        else:
            self.done[name] = data

    def allowed(self, name: str) -> set[bytes | None]:
        """The bytes that `name` may have after a crash; None for no object."""
        allowed = {self.done.get(name)}
        return allowed | {self.begun[1]} if self.begun and self.begun[0] == name else allowed

    def allowed_names(self) -> set[str]:
        return {*self.done, *([self.begun[0]] if self.begun else [])}


def work(storage: Storage, history: History) -> None:
    """Every kind of change; may be repeated over what an earlier run left."""
    with history.doing(KEY, b"key"):
        storage.write(KEY, b"key")
    with history.doing("config", CONFIG), suppress(ObjectExistsError):
        storage.write_new("config", CONFIG)
    for name, data in PACKS.items():
        with history.doing(name, data), storage.open_writer("packs") as writer:
            writer.write(data[:1000])
            writer.write(data[1000:])
            writer.commit(name)
    for name in (INDEX, SNAPSHOT):
        with history.doing(name, name.encode()):
            storage.write(name, name.encode())
    with history.doing(DOOMED, None), suppress(ObjectMissingError):
        storage.delete(DOOMED)
    with history.doing(INDEX, INDEX.encode()):
        storage.write(INDEX, INDEX.encode())


def create_and_work(root: Path, calls: SystemCalls, history: History) -> None:
    work(LocalStorage.create(root, calls), history)


def run_until_crash(folder: Path, stop_at: int | None, history: History, **model: object) -> VolatileDisk:
    folder.mkdir()
    disk = VolatileDisk(folder, stop_at=stop_at, **model)  # type: ignore[arg-type]
    with suppress(CrashError):
        create_and_work(folder / "repository", disk, history)
    disk.power_off()
    return disk


def broken_promises(root: Path, history: History) -> list[str]:
    """What is wrong with the repository that a crash left, compared with what storage had said."""
    try:
        storage = LocalStorage.open(root, Quick())
    except NoRepositoryError:
        return [] if None in history.allowed("config") else ["the config is lost"]
    listed = [info for folder in FOLDERS for info in storage.list_objects(folder)]
    names = {info.name for info in listed} | {"config"}
    broken = [f"{name} came from nowhere" for name in names - history.allowed_names()]
    for name in sorted(history.allowed_names()):
        found = storage.read(name) if storage.exists(name) else None
        if found not in history.allowed(name):
            broken.append(f"{name} is {'lost' if found is None else 'not whole'}")
    return broken


def unfinished_business(root: Path) -> list[str]:
    """What goes wrong when the next process carries on."""
    storage, history = LocalStorage(root, Quick()), History()
    try:
        with suppress(NoRepositoryError):
            storage = LocalStorage.open(root, Quick())
        work(storage, history)
        if not all(storage.remove_temporary(info.name) for info in storage.stale_temporaries()):
            return ["a temporary of the dead is held"]
    except StorageError as error:
        return [f"cannot carry on: {error}"]
    left = [path.name for path in (root / "tmp").iterdir()]
    return broken_promises(root, history) + [f"left over: {name}" for name in left]


def all_broken_promises(tmp_path: Path, survivals: list[tuple[Survival, int]], **model: object) -> Iterator[str]:
    """Stop at every call, rebuild what may be left, and compare."""
    count = len(run_until_crash(tmp_path / "whole", None, History(), **model).calls)
    for stop_at in range(count + 1):
        history, folder = History(), tmp_path / str(stop_at)
        disk = run_until_crash(folder, stop_at, history, **model)
        for number, (survival, seed) in enumerate(survivals):
            target = tmp_path / f"{stop_at}-{number}"
            disk.rebuild(target, survival, seed)
            found = broken_promises(target / "repository", history)
            if not found and "config" in history.done:
                found = unfinished_business(target / "repository")
            yield from (f"call {stop_at} of {count}, {survival.name} {seed}: {what}" for what in found)
            shutil.rmtree(target)
        shutil.rmtree(folder)


@pytest.fixture
def quick_folder() -> Iterator[Path]:
    """A folder in memory where there is one: the model decides what survives, and thousands of folders come and go."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield Path(folder)


WORST = [(Survival.NOTHING, 0), (Survival.NAMES, 0), (Survival.EVERYTHING, 0)]
SURVIVALS = [*WORST, *((Survival.SOME, seed) for seed in range(4))]


@pytest.mark.parametrize("is_torn", [False, True])
def test_no_crash_at_any_system_call_breaks_a_promise(quick_folder: Path, is_torn: bool) -> None:
    assert list(all_broken_promises(quick_folder, SURVIVALS, is_torn=is_torn)) == []


@pytest.mark.parametrize(
    ("ignored", "expected"),
    [
        ("sync_file", "not whole"),
        ("sync_folder", "config is lost"),
        ("packs", "is lost"),
        ("01", "is lost"),
        ("snapshots", "is lost"),
        ("repository", "config is lost"),
    ],
)
def test_the_crash_test_catches_a_sync_that_is_left_out(quick_folder: Path, ignored: str, expected: str) -> None:
    broken = all_broken_promises(quick_folder, WORST, ignored=frozenset({ignored}))
    assert any(expected in what for what in broken)


def promises_broken_after_a_kill(folder: Path, kind: type[LocalStorage]) -> Iterator[str]:
    """A process is killed at every call, the next one does the work again, and then the power goes."""
    count = len(run_until_crash(folder / "whole", None, History()).calls)
    for stop_at in range(count):
        disk = run_until_crash(folder / str(stop_at), stop_at, killed := History())
        disk.restart()
        history = History()
        if "config" in killed.done:
            work(kind.open(disk.folder / "repository", disk), history)
            disk.power_off()
            disk.rebuild(target := folder / f"after-{stop_at}", Survival.NOTHING)
            yield from broken_promises(target / "repository", history)


def test_what_a_killed_process_left_unsynced_is_safe_once_the_next_one_says_so(quick_folder: Path) -> None:
    assert list(promises_broken_after_a_kill(quick_folder, LocalStorage)) == []


class TrustsShelvesThatExist(LocalStorage):
    def _make_shelf(self, shelf: Path) -> None:
        if not shelf.exists():
            super()._make_shelf(shelf)


class TrustsObjectsThatExist(LocalStorage):
    def write(self, name: str, data: Buffer) -> None:
        if not self.exists(name):
            super().write(name, data)


@pytest.mark.parametrize("kind", [TrustsShelvesThatExist, TrustsObjectsThatExist])
def test_the_crash_test_catches_trust_in_what_others_left(quick_folder: Path, kind: type[LocalStorage]) -> None:
    assert any("is lost" in what for what in promises_broken_after_a_kill(quick_folder, kind))


def test_a_config_that_was_not_synced_is_before_anything_stands_on_it(quick_folder: Path) -> None:
    (folder := quick_folder / "disk").mkdir()
    disk = VolatileDisk(folder)
    storage = LocalStorage.create(folder / "repository", disk)
    disk._ignored = frozenset({"repository"})
    storage.write_new("config", CONFIG)
    disk._ignored = frozenset()
    LocalStorage.open(folder / "repository", disk).write(SNAPSHOT, b"stands on it")
    disk.power_off()
    disk.rebuild(quick_folder / "after", Survival.NOTHING)
    assert LocalStorage.open(quick_folder / "after" / "repository").read("config") == CONFIG


def test_a_creation_that_crashed_can_be_repeated(quick_folder: Path) -> None:
    (folder := quick_folder / "whole").mkdir()
    disk = VolatileDisk(folder)
    LocalStorage.create(folder / "deep" / "repository", disk)
    assert len(disk.calls) > 8
    for stop_at in range(len(disk.calls)):
        (folder := quick_folder / str(stop_at)).mkdir()
        stopped = VolatileDisk(folder, stop_at=stop_at)
        with pytest.raises(CrashError):
            LocalStorage.create(folder / "deep" / "repository", stopped)
        for survival in Survival:
            target = quick_folder / f"{stop_at}-{survival.name}"
            stopped.rebuild(target, survival, stop_at)
            create_and_work(target / "deep" / "repository", Quick(), history := History())
            assert broken_promises(target / "deep" / "repository", history) == []


FILL = """
import json, os, sys
from pathlib import Path
from ohdiff.errors import StorageError
from ohdiff.storage import LocalStorage

LIMIT
storage = LocalStorage.create(Path(sys.argv[1]) / "repository")
storage.write_new("config", b"config")
errors, written = [], 0
for chunk, count in ((1 << 20, 10), (1 << 12, COUNT)):
    for number in range(count):
        name = f"packs/{number % 16:02x}{chunk:058x}{number:04x}"
        try:
            with storage.open_writer("packs") as writer:
                for _ in range(STEPS):
                    writer.write(os.urandom(chunk))
                writer.commit(name)
            written += 1
        except StorageError as error:
            errors.append([str(error), error.can_retry, error.hint])
            break
infos = storage.list_objects("packs")
whole = all(len(storage.read(info.name)) == info.size for info in infos)
left = os.listdir(os.path.join(storage.location, "tmp"))
for info in infos:
    storage.delete(info.name)
storage.write("index/" + "ab" * 32, b"again")
print(json.dumps([errors, written, len(infos), whole, left, storage.read("config").decode()]))
"""


def fill(folder: Path, limit: str, steps: int, count: int, *before: str) -> list[object]:
    program = FILL.replace("LIMIT", limit).replace("STEPS", str(steps)).replace("COUNT", str(count))
    command = [*before, sys.executable, "-c", program, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={"PYTHONPATH": ":".join(sys.path)})
    found: list[object] = json.loads(done.stdout)
    return found


def check_full(found: list[object], reason: str) -> None:
    errors, written, count, whole, left, config = found
    assert isinstance(errors, list)
    assert errors
    for message, can_retry, hint in errors:
        assert reason in message
        assert can_retry is False
        assert "free some space" in hint
    assert written == count
    assert whole is True
    assert left == []
    assert config == "config"


def test_a_full_disk_is_said_and_loses_nothing(tmp_path: Path) -> None:
    own = ("unshare", "--mount", "--map-root-user")
    mount = 'mount -t tmpfs -o size=8m none {} && exec "$@"'
    within = (*own, "sh", "-c", mount.format(tmp_path), "sh")
    if shutil.which("unshare") is None or subprocess.run([*within, "true"], capture_output=True).returncode:
        pytest.skip("mounting a small file system is not permitted here; the file size limit is tested instead")
    check_full(found := fill(tmp_path, "", 3, 1000, *within), "No space left")
    assert isinstance(found[1], int)
    assert found[1] >= 2


def test_a_file_size_limit_is_a_full_disk(tmp_path: Path) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1_500_000, resource.RLIM_INFINITY))"
    found = fill(tmp_path, limit, 2, 20)
    check_full(found, "File too large")
    assert found[1] == 20


@pytest.fixture(params=["local", "memory"])
def fresh(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Storage]:
    places = iter(range(10_000))

    def make() -> Storage:
        if request.param == "memory":
            return MemoryStorage("crash")
        return LocalStorage.create(tmp_path / str(next(places)), Quick())

    return make


def commit_pack(storage: Storage) -> None:
    storage.write_new("config", CONFIG)
    with storage.open_writer("packs") as writer:
        writer.write(b"0123")
        writer.write(b"4567")
        writer.commit(DOOMED)
    storage.write(INDEX, b"index!")
    storage.delete(INDEX)


STEPS = [
    Step("write_new", "config"),
    Step("append", "packs"),
    Step("append", "packs"),
    Step("commit", DOOMED),
    Step("write", INDEX),
    Step("delete", INDEX),
]


def crashed(inner: Storage, plan: CrashPlan) -> Storage:
    storage = FaultyStorage(inner, Faults(crash=plan))
    with pytest.raises(CrashError):
        commit_pack(storage)
    for act in (storage.exists, storage.read, storage.size, storage.delete):
        with pytest.raises(CrashError):
            act(DOOMED)
    return inner


def contents(storage: Storage) -> dict[str, bytes]:
    names = [info.name for folder in FOLDERS for info in storage.list_objects(folder)]
    return {name: storage.read(name) for name in [*names, "config"] if storage.exists(name)}


def test_steps_are_counted(fresh: Callable[[], Storage]) -> None:
    assert storage_steps(commit_pack, fresh()) == STEPS
    plans = list(crash_plans(STEPS))
    assert len(plans) == 5 + 2 + 2 + 5 + 5 + 2
    assert [plan.step for plan in crash_plans(STEPS, [Crash.AFTER])] == [0, 3, 4, 5]


@pytest.mark.parametrize(
    ("step", "mode", "left"),
    [
        (0, Crash.BEFORE, {}),
        (0, Crash.TORN, {}),
        (0, Crash.UNSYNCED, {"config": b""}),
        (0, Crash.AFTER, {"config": CONFIG}),
        (2, Crash.TORN, {"config": CONFIG}),
        (3, Crash.BEFORE, {"config": CONFIG}),
        (3, Crash.TORN, {"config": CONFIG}),
        (3, Crash.AFTER, {"config": CONFIG, DOOMED: b"01234567"}),
        (3, Crash.UNSYNCED, {"config": CONFIG, DOOMED: b""}),
        (3, Crash.HALF, {"config": CONFIG, DOOMED: b"0123"}),
        (4, Crash.TORN, {"config": CONFIG, DOOMED: b"01234567"}),
        (4, Crash.HALF, {"config": CONFIG, DOOMED: b"01234567", INDEX: b"ind"}),
        (5, Crash.BEFORE, {"config": CONFIG, DOOMED: b"01234567", INDEX: b"index!"}),
        (5, Crash.AFTER, {"config": CONFIG, DOOMED: b"01234567"}),
    ],
)
def test_a_crash_leaves_what_its_mode_says(
    fresh: Callable[[], Storage], step: int, mode: Crash, left: dict[str, bytes]
) -> None:
    assert contents(crashed(fresh(), CrashPlan(step, mode))) == left


def test_a_torn_write_leaves_a_stale_temporary_in_local_storage(tmp_path: Path) -> None:
    for number, (step, size) in enumerate([(2, 6), (3, 8), (4, 3)]):
        inner = LocalStorage.create(tmp_path / str(number), Quick())
        crashed(inner, CrashPlan(step, Crash.TORN))
        stale = inner.stale_temporaries()
        assert [info.size for info in stale] == [size]
        assert inner.remove_temporary(stale[0].name)
        assert inner.stale_temporaries() == []


def test_a_repeated_commit_loses_nothing_that_was_safe(fresh: Callable[[], Storage]) -> None:
    inner = fresh()
    inner.write(DOOMED, b"01234567")
    crashed(inner, CrashPlan(3, Crash.UNSYNCED))
    assert inner.read(DOOMED) == b"01234567"


def test_the_disk_is_full_at_that_byte(fresh: Callable[[], Storage]) -> None:
    capacity = len(CONFIG) + 7
    inner = fresh()
    storage = FaultyStorage(inner, Faults(capacity_bytes=capacity))
    with pytest.raises(StorageError) as caught:
        commit_pack(storage)
    assert caught.value.can_retry is False
    assert "free some space" in caught.value.hint
    assert contents(inner) == {"config": CONFIG}
    assert inner.stale_temporaries() == []
    assert storage.free_size() == 7
    storage.write(INDEX, b"1234567")
    assert storage.free_size() == 0
    storage.delete(INDEX)
    assert storage.free_size() == 7


def test_reads_fail_or_flip_a_bit_where_they_are_told_to(fresh: Callable[[], Storage]) -> None:
    inner = fresh()
    inner.write(INDEX, b"\x00\x00")
    faults = Faults(
        failing_reads=frozenset({1}),
        flipped_reads={2: 9, 3: 9},
        failing_lists=frozenset({0}),
        unreadable=frozenset({DOOMED}),
    )
    storage = FaultyStorage(inner, faults)
    assert storage.read(INDEX) == b"\x00\x00"
    with pytest.raises(StorageError, match="read"):
        storage.read(INDEX)
    assert storage.read(INDEX) == b"\x00\x02"
    assert storage.read(INDEX, 1, 1) == b"\x02"
    assert storage.read(INDEX) == b"\x00\x00"
    with pytest.raises(StorageError, match="read"):
        storage.read(DOOMED)
    with pytest.raises(StorageError, match="list"):
        storage.list_objects("index")
    assert storage.list_objects("index") == [ObjectInfo(INDEX, 2)]


def test_without_faults_it_is_the_storage_that_it_wraps(fresh: Callable[[], Storage]) -> None:
    inner, history = fresh(), History()
    work(FaultyStorage(inner), history)
    assert contents(inner) == history.done
