"""Local storage beyond the contract: what stands on the disk, and what happens when system calls fail."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ohdiff.errors import (
    IntegrityError,
    NoRepositoryError,
    ObjectMissingError,
    RepositoryError,
    RepositoryExistsError,
    StorageError,
    UsageError,
)
from ohdiff.scheduling.page_cache import cached_pages, drop
from ohdiff.storage import LocalStorage, ObjectExistsError, ObjectInfo
from ohdiff.storage.system_calls import SystemCalls

PACK = f"packs/ab{'0' * 62}"
INDEX = f"index/{'1' * 64}"
BYTES = bytes(range(256)) * 5_000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "repository"


@pytest.fixture
def storage(root: Path) -> LocalStorage:
    storage = LocalStorage.create(root)
    storage.write_new("config", b"config")
    return storage


def tree(root: Path) -> dict[str, int]:
    """Every file and folder below `root` with its permissions."""
    return {str(path.relative_to(root)): stat.S_IMODE(path.stat().st_mode) for path in sorted(root.rglob("*"))}


def test_a_repository_is_for_its_owner_only(storage: LocalStorage, root: Path) -> None:
    storage.write(PACK, b"x")
    storage.write(INDEX, b"x")
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    assert tree(root) == {
        "config": 0o400,
        "index": 0o700,
        f"index/{'1' * 64}": 0o400,
        "keys": 0o700,
        "packs": 0o700,
        "packs/ab": 0o700,
        f"packs/ab/ab{'0' * 62}": 0o400,
        "snapshots": 0o700,
        "tmp": 0o700,
    }


def test_a_wide_open_umask_changes_nothing(root: Path) -> None:
    before = os.umask(0)
    try:
        storage = LocalStorage.create(root / "below")
        storage.write_new("config", b"config")
        with storage.open_writer("packs") as writer:
            writer.write(BYTES)
            assert {path.stat().st_mode & 0o777 for path in (root / "below" / "tmp").iterdir()} == {0o600}
    finally:
        os.umask(before)
    assert stat.S_IMODE((root / "below").stat().st_mode) == 0o700
    assert tree(root / "below")["config"] == 0o400


def test_foreign_files_are_no_objects_and_stay(storage: LocalStorage, root: Path) -> None:
    storage.write(PACK, b"x")
    leaf = PACK.rpartition("/")[2]
    foreign = [
        *("packs/.DS_Store", "packs/ab/.nfs0001", f"packs/ab/{leaf}.part", f"packs/{leaf}", "index/notes.txt"),
        *(f"packs/ab/cd{'0' * 62}", f"packs/ab/{leaf.upper()}", f"index/{'1' * 64} (copy)"),
    ]
    for name in foreign:
        (root / name).write_bytes(b"foreign")
    (root / "packs" / "lost+found").mkdir()
    (root / os.fsdecode(b"index/\xff\xfe")).write_bytes(b"")
    assert storage.list_objects("packs") == [ObjectInfo(PACK, 1)]
    assert storage.list_objects("index") == []
    assert all((root / name).read_bytes() == b"foreign" for name in foreign)


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_what_is_no_file_under_an_objects_name_is_an_error(
    storage: LocalStorage, root: Path, make: Callable[[Path], None]
) -> None:
    make(root / INDEX)
    for act in (storage.exists, storage.size, storage.read):
        with pytest.raises(StorageError, match="regular file"):
            act(INDEX)
    with pytest.raises(StorageError, match="regular file"):
        storage.list_objects("index")
    with pytest.raises(StorageError):
        storage.write(INDEX, b"x")
    with pytest.raises(ObjectExistsError):
        storage.write_new(INDEX, b"x")


def test_a_shelf_that_is_a_file_is_an_error(storage: LocalStorage, root: Path) -> None:
    (root / "packs" / "ab").write_bytes(b"")
    for act in (storage.exists, storage.read, storage.delete):
        with pytest.raises(StorageError) as caught:
            act(PACK)
        assert not isinstance(caught.value, ObjectMissingError)
    with pytest.raises(StorageError):
        storage.list_objects("packs")
    with pytest.raises(StorageError):
        storage.write(PACK, b"x")


@pytest.mark.parametrize("linked", ["packs/ab", PACK.replace("/", "/ab/"), "packs"])
def test_a_link_to_what_is_not_mounted_is_doubt_and_not_absence(
    storage: LocalStorage, root: Path, tmp_path: Path, linked: str
) -> None:
    storage.write(PACK, b"elsewhere")
    (root / linked).rename(tmp_path / "elsewhere")
    (root / linked).symlink_to(tmp_path / "elsewhere")
    assert storage.read(PACK) == b"elsewhere"
    assert storage.list_objects("packs") == [ObjectInfo(PACK, 9)]
    (tmp_path / "elsewhere").rename(tmp_path / "unmounted")
    for act in (storage.exists, storage.size, storage.read):
        with pytest.raises(StorageError) as caught:
            act(PACK)
        assert not isinstance(caught.value, ObjectMissingError)
    with pytest.raises(StorageError):
        storage.list_objects("packs")


def test_a_link_to_a_folder_elsewhere_works(storage: LocalStorage, root: Path, tmp_path: Path) -> None:
    (root / "packs").rename(tmp_path / "elsewhere")
    (root / "packs").symlink_to(tmp_path / "elsewhere")
    storage.write(PACK, b"x")
    assert (tmp_path / "elsewhere" / "ab" / PACK.rpartition("/")[2]).read_bytes() == b"x"


def test_the_storage_stays_where_it_was_when_the_process_moves(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root.parent)
    storage = LocalStorage.create(Path("repository"))
    monkeypatch.chdir("/")
    storage.write_new("config", b"config")
    assert (root / "config").read_bytes() == b"config"
    assert storage.location == str(root)


class TestCreate:
    """Where a repository can be made."""

    def test_an_empty_folder_and_a_fresh_file_system_are_fine(self, root: Path) -> None:
        (root / "lost+found").mkdir(parents=True)
        LocalStorage.create(root).write_new("config", b"config")
        assert LocalStorage.open(root).read("config") == b"config"

    def test_a_folder_with_anything_else_is_refused_untouched(self, root: Path) -> None:
        root.mkdir()
        (root / "thesis.tex").write_bytes(b"precious")
        with pytest.raises(UsageError, match=r"thesis\.tex"):
            LocalStorage.create(root)
        assert list(root.iterdir()) == [root / "thesis.tex"]

    def test_what_an_interrupted_init_leaves_is_taken_over(self, storage: LocalStorage, root: Path) -> None:
        keys = [f"keys/{digit * 64}" for digit in "12"]
        for name in keys:
            storage.write(name, name.encode())
        storage.delete("config")
        (root / "tmp" / ("3" * 32)).write_bytes(b"half")
        again = LocalStorage.create(root)
        again.write_new("config", b"config")
        assert [again.read(name) for name in keys] == [name.encode() for name in keys]

    def test_a_foreign_file_among_the_keys_is_refused_untouched(self, storage: LocalStorage, root: Path) -> None:
        storage.write(f"keys/{'1' * 64}", b"key")
        storage.delete("config")
        (root / "keys" / "precious").write_bytes(b"precious")
        with pytest.raises(RepositoryError, match="keys"):
            LocalStorage.create(root)
        assert (root / "keys" / "precious").read_bytes() == b"precious"

    @pytest.mark.parametrize("name", [PACK, INDEX, f"snapshots/{'2' * 64}"])
    def test_objects_without_a_config_are_refused_untouched(self, storage: LocalStorage, root: Path, name: str) -> None:
        storage.write(name, b"precious")
        storage.delete("config")
        with pytest.raises(RepositoryError, match="no config") as caught:
            LocalStorage.create(root)
        assert not isinstance(caught.value, RepositoryExistsError)
        assert storage.read(name) == b"precious"

    def test_a_file_is_no_place(self, root: Path) -> None:
        root.write_bytes(b"precious")
        for place in (root, root / "below"):
            with pytest.raises(StorageError, match="Not a directory"):
                LocalStorage.create(place)
        assert root.read_bytes() == b"precious"

    def test_an_empty_folder_keeps_its_permissions(self, root: Path) -> None:
        root.mkdir(0o750)
        LocalStorage.create(root)
        assert stat.S_IMODE(root.stat().st_mode) == 0o750


class TestOpen:
    """What is a repository."""

    def test_a_place_that_is_not_there_is_no_repository(self, root: Path) -> None:
        with pytest.raises(NoRepositoryError, match="no repository at"):
            LocalStorage.open(root / "nowhere")

    def test_a_file_is_no_repository(self, root: Path) -> None:
        root.write_bytes(b"")
        with pytest.raises(NoRepositoryError):
            LocalStorage.open(root)

    def test_a_folder_named_config_is_no_config(self, root: Path) -> None:
        (root / "config").mkdir(parents=True)
        with pytest.raises(NoRepositoryError):
            LocalStorage.open(root)

    def test_opening_changes_nothing(self, storage: LocalStorage, root: Path) -> None:
        (root / "tmp").rmdir()
        before = tree(root)
        opened = LocalStorage.open(root)
        assert opened.list_objects("packs") == opened.stale_temporaries() == []
        assert tree(root) == before

    def test_a_copy_that_lost_its_empty_temporary_folder_can_be_written(
        self, storage: LocalStorage, root: Path
    ) -> None:
        (root / "tmp").rmdir()
        opened = LocalStorage.open(root)
        opened.write(PACK, b"x")
        assert opened.read(PACK) == b"x"


class FailingCalls(SystemCalls):
    """Fails one call, by its number among the calls of its kind, or all of them."""

    def __init__(self, call: str, error: int, number: int | None = 0) -> None:
        self.failed = 0
        count = 0
        real = getattr(super(), call)

        def fail(*arguments: object) -> object:
            nonlocal count
            count += 1
            if number is None or count == number + 1:
                self.failed += 1
                raise OSError(error, os.strerror(error))
            return real(*arguments)

        setattr(self, call, fail)


CALLS_OF_A_COMMIT = ["create_file", "hold", "write", "sync_file", "make_folder", "sync_folder", "rename"]
ERRORS = [
    (errno.ENOSPC, False, "free some space"),
    (errno.EDQUOT, False, "free some space"),
    (errno.EFBIG, False, "free some space"),
    (errno.EIO, False, "faults"),
    (errno.EACCES, False, "permissions"),
    (errno.EPERM, False, "permissions"),
    (errno.EROFS, False, "read-only"),
    (errno.ENOENT, False, "mounted"),
    (errno.EXDEV, False, "one file system"),
    (errno.ESTALE, True, "mount it again"),
    (errno.EMFILE, True, "ulimit"),
    (errno.EAGAIN, True, ""),
    (errno.ELOOP, False, ""),
]


@pytest.mark.parametrize("call", CALLS_OF_A_COMMIT)
@pytest.mark.parametrize(("error", "can_retry", "hint"), ERRORS, ids=[errno.errorcode[row[0]] for row in ERRORS])
def test_a_call_that_fails_is_told_and_touches_nothing(
    storage: LocalStorage, root: Path, call: str, error: int, can_retry: bool, hint: str
) -> None:
    storage.write(INDEX, b"safe")
    calls = FailingCalls(call, error)
    failing = LocalStorage.open(root, calls)
    if call == "make_folder":
        (root / "tmp").rmdir()
    with pytest.raises(StorageError) as caught:
        failing.write(PACK, BYTES)
    assert calls.failed == 1
    assert caught.value.can_retry is can_retry
    assert hint in caught.value.hint
    assert os.strerror(error) in str(caught.value)
    assert str(root) in str(caught.value)
    assert isinstance(caught.value.__cause__, OSError)
    assert storage.list_objects("index") == [ObjectInfo(INDEX, 4)]
    assert storage.list_objects("packs") == []
    assert storage.stale_temporaries() == []
    failing.write(PACK, BYTES)
    assert storage.read(PACK) == BYTES


@pytest.mark.parametrize("call", ["write", "sync_file", "rename"])
def test_a_writer_that_failed_is_aborted_at_once(storage: LocalStorage, root: Path, call: str) -> None:
    writer = LocalStorage.open(root, FailingCalls(call, errno.EIO)).open_writer("packs")
    with pytest.raises(StorageError):
        writer.write(BYTES)
        writer.commit(PACK)
    assert list((root / "tmp").iterdir()) == []
    with pytest.raises(ValueError, match="already"):
        writer.write(BYTES)
    with pytest.raises(ValueError, match="already"):
        writer.commit(PACK)


def test_a_folder_that_cannot_be_synced_is_told_although_the_object_is_there(root: Path, storage: LocalStorage) -> None:
    failing = LocalStorage.open(root, FailingCalls("sync_folder", errno.EIO, 2))
    with pytest.raises(StorageError):
        failing.write(PACK, BYTES)
    assert storage.read(PACK) == BYTES
    failing.write(PACK, BYTES)


@pytest.mark.parametrize(
    ("call", "act"),
    [
        ("stat", lambda storage: storage.exists(PACK)),
        ("stat", lambda storage: storage.size(PACK)),
        ("open_file", lambda storage: storage.read(PACK)),
        ("stat_open", lambda storage: storage.read(PACK)),
        ("read_at", lambda storage: storage.read(PACK)),
        ("unlink", lambda storage: storage.delete(PACK)),
        ("sync_folder", lambda storage: storage.delete(PACK)),
        ("scan", lambda storage: storage.list_objects("packs")),
        ("scan", lambda storage: storage.list_objects("index")),
        ("scan", lambda storage: storage.stale_temporaries()),
        ("stat", lambda storage: LocalStorage.open(Path(storage.location), storage._calls)),
        ("scan", lambda storage: LocalStorage.create(Path(storage.location), storage._calls)),
    ],
)
@pytest.mark.parametrize("error", [errno.EIO, errno.EACCES, errno.ESTALE])
def test_doubt_is_an_error(
    storage: LocalStorage, root: Path, call: str, act: Callable[[LocalStorage], object], error: int
) -> None:
    storage.write(PACK, b"x")
    with pytest.raises(StorageError, match=os.strerror(error)) as caught:
        act(LocalStorage(root, FailingCalls(call, error, None)))
    assert not isinstance(caught.value, ObjectMissingError)


def test_the_second_of_many_shelves_failing_fails_the_listing(storage: LocalStorage, root: Path) -> None:
    for number in range(4):
        storage.write(f"packs/{number:064x}", b"x")
        storage.write(f"packs/{number:02x}{'f' * 62}", b"x")
    failing = LocalStorage.open(root, FailingCalls("scan", errno.EIO, 2))
    with pytest.raises(StorageError):
        failing.list_objects("packs")
    assert len(failing.list_objects("packs")) == 8


@pytest.mark.parametrize("error", [errno.EPERM, errno.ENOTSUP, errno.ENOSYS])
def test_a_file_system_without_links_claims_the_config_once_too(root: Path, error: int) -> None:
    storage = LocalStorage.create(root, FailingCalls("link", error, None))
    storage.write_new("config", b"config")
    with pytest.raises(ObjectExistsError):
        storage.write_new("config", b"other")
    assert storage.read("config") == b"config"
    assert list((root / "tmp").iterdir()) == []


def test_a_failing_link_is_no_missing_feature(root: Path) -> None:
    storage = LocalStorage.create(root, FailingCalls("link", errno.EIO))
    with pytest.raises(StorageError):
        storage.write_new("config", b"config")
    assert not storage.exists("config")


class NoLocks(SystemCalls):
    """A file system whose locks do not work."""

    def hold(self, descriptor: int) -> None: ...

    def is_held(self, descriptor: int) -> bool:
        return True


def test_without_locks_no_temporary_is_called_stale(storage: LocalStorage, root: Path) -> None:
    (root / "tmp" / ("a" * 32)).write_bytes(b"whose?")
    assert storage.stale_temporaries() == [ObjectInfo("a" * 32, 6)]
    without = LocalStorage.open(root, NoLocks())
    without.write(PACK, BYTES)
    assert without.stale_temporaries() == []
    assert without.remove_temporary("a" * 32) is False
    assert (root / "tmp" / ("a" * 32)).exists()


@pytest.mark.parametrize("error", [errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS])
def test_locks_that_are_not_supported_are_no_error(
    storage: LocalStorage, root: Path, error: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr("fcntl.flock", flock)
    storage.write(PACK, BYTES)
    (root / "tmp" / ("a" * 32)).write_bytes(b"whose?")
    assert storage.stale_temporaries() == []


@pytest.mark.parametrize("error", [errno.EINVAL, errno.ENOTSUP, errno.ENOSYS])
def test_a_file_system_without_sync_is_written_all_the_same(
    storage: LocalStorage, error: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(descriptor: int) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr("os.fsync", fsync)
    storage.write(PACK, BYTES)
    assert storage.read(PACK) == BYTES


@pytest.mark.parametrize("error", [errno.EPERM, errno.ENOTSUP])
def test_a_file_system_without_permissions_is_written_all_the_same(
    storage: LocalStorage, error: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fchmod(descriptor: int, mode: int) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr("os.fchmod", fchmod)
    storage.write(PACK, BYTES)
    assert storage.read(PACK) == BYTES


class SmallTransfers(SystemCalls):
    """The kernel moves less than it was asked to, as it may."""

    def write(self, descriptor: int, data: memoryview) -> int:
        return super().write(descriptor, data[:70_001])

    def read_at(self, descriptor: int, size: int, offset: int) -> bytes:
        return super().read_at(descriptor, min(size, 70_001), offset)


def test_short_transfers_are_carried_on(root: Path) -> None:
    storage = LocalStorage.create(root, SmallTransfers())
    storage.write(PACK, BYTES)
    assert (root / "packs" / "ab" / PACK.rpartition("/")[2]).read_bytes() == BYTES
    assert storage.read(PACK) == BYTES
    assert storage.read(PACK, 5, 200_000) == BYTES[5:200_005]


class WritesNothing(SystemCalls):
    def write(self, descriptor: int, data: memoryview) -> int:
        return 0


def test_a_write_that_writes_nothing_is_an_error_and_no_endless_loop(root: Path) -> None:
    storage = LocalStorage.create(root, WritesNothing())
    with pytest.raises(StorageError):
        storage.write(PACK, BYTES)
    assert storage.stale_temporaries() == []


class ShrinksWhileRead(SystemCalls):
    def read_at(self, descriptor: int, size: int, offset: int) -> bytes:
        return super().read_at(descriptor, min(size, 1_000), offset) if offset < 1_000 else b""


def test_an_object_that_shrinks_while_it_is_read_is_an_error(root: Path) -> None:
    storage = LocalStorage.create(root, ShrinksWhileRead())
    storage.write(PACK, BYTES)
    with pytest.raises(IntegrityError):
        storage.read(PACK)


def test_appends_of_any_size_make_the_same_object(storage: LocalStorage) -> None:
    sizes = [1, 0, 4_095, 1 << 20, 3, (1 << 20) - 1, 1, 2 << 20, 65_537]
    data = os.urandom(sum(sizes))
    with storage.open_writer("packs") as writer:
        start = 0
        for size in sizes:
            writer.write(memoryview(data)[start : start + size])
            start += size
        writer.commit(PACK)
    assert storage.read(PACK) == data


def test_large_writes_are_not_cut_and_small_ones_are_gathered(root: Path) -> None:
    sizes: list[int] = []

    class Watching(SystemCalls):
        def write(self, descriptor: int, data: memoryview) -> int:
            sizes.append(len(data))
            return super().write(descriptor, data)

    storage = LocalStorage.create(root, Watching())
    with storage.open_writer("packs") as writer:
        for _ in range(3 * 256):
            writer.write(b"x" * 4096)
        writer.write(b"y" * (5 << 20))
        writer.commit(PACK)
    assert len(sizes) <= 5
    assert max(sizes) == 5 << 20
    assert sum(sizes) == 8 << 20


class TestTemporaries:
    """Left-overs, and the living who look like them."""

    @staticmethod
    def start_writer(root: Path) -> subprocess.Popen[bytes]:
        program = (
            "import sys, pathlib; from ohdiff.storage import LocalStorage\n"
            "writer = LocalStorage.open(pathlib.Path(sys.argv[1])).open_writer('packs')\n"
            "writer.write(b'x' * (3 << 20)); print('ready', flush=True); sys.stdin.read()"
        )
        return subprocess.Popen(
            [sys.executable, "-c", program, str(root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"PYTHONPATH": ":".join(sys.path)},
        )

    def test_a_killed_writers_temporary_is_stale_and_a_living_ones_is_not(
        self, storage: LocalStorage, root: Path
    ) -> None:
        with self.start_writer(root) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            [path] = (root / "tmp").iterdir()
            assert storage.stale_temporaries() == []
            assert storage.remove_temporary(path.name) is False
            process.send_signal(signal.SIGKILL)
            process.wait()
            assert storage.stale_temporaries() == [ObjectInfo(path.name, 3 << 20)]
            assert storage.remove_temporary(path.name) is True
        assert list((root / "tmp").iterdir()) == []
        assert storage.remove_temporary(path.name) is True

    def test_only_temporaries_can_be_removed_as_such(self, storage: LocalStorage) -> None:
        for name in ("../config", "", ".", "a" * 31, "a" * 33, "A" * 32, f"../{INDEX}"):
            with pytest.raises(ValueError, match="temporary"):
                storage.remove_temporary(name)
        assert storage.exists("config")

    def test_foreign_files_among_them_stay(self, storage: LocalStorage, root: Path) -> None:
        (root / "tmp" / "notes.txt").write_bytes(b"x")
        assert storage.stale_temporaries() == []

    def test_one_that_is_cleared_away_before_it_is_held_is_made_again(self, root: Path, storage: LocalStorage) -> None:
        class Cleaner(SystemCalls):
            cleared = 0

            def hold(self, descriptor: int) -> None:
                if self.cleared < 3:
                    for path in (root / "tmp").iterdir():
                        path.unlink()
                        self.cleared += 1
                super().hold(descriptor)

        cleaner = Cleaner()
        LocalStorage.open(root, cleaner).write(PACK, BYTES)
        assert cleaner.cleared == 3
        assert storage.read(PACK) == BYTES

    def test_files_that_always_vanish_are_an_error(self, root: Path, storage: LocalStorage) -> None:
        class Cleaner(SystemCalls):
            def hold(self, descriptor: int) -> None:
                for path in (root / "tmp").iterdir():
                    path.unlink()

        with pytest.raises(StorageError):
            LocalStorage.open(root, Cleaner()).write(PACK, BYTES)

    def test_one_that_is_taken_from_a_live_writer_fails_it_and_nothing_else(
        self, root: Path, storage: LocalStorage
    ) -> None:
        storage.write(INDEX, b"safe")
        with storage.open_writer("packs") as writer, pytest.raises(StorageError):
            writer.write(BYTES)
            [path] = (root / "tmp").iterdir()
            path.unlink()
            writer.commit(PACK)
        assert storage.exists(PACK) is False
        assert storage.read(INDEX) == b"safe"


def test_no_descriptor_is_left_open(storage: LocalStorage, root: Path) -> None:
    def open_descriptors() -> int:
        return len(list(Path("/dev/fd").iterdir()))

    before = open_descriptors()
    storage.write(PACK, BYTES)
    storage.read(PACK)
    storage.open_writer("packs").abort()
    for call in CALLS_OF_A_COMMIT:
        with pytest.raises(StorageError):
            LocalStorage.open(root, FailingCalls(call, errno.EIO, None)).write(f"packs/{'9' * 64}", BYTES)
    with pytest.raises(IntegrityError):
        storage.read(PACK, 0, len(BYTES) + 1)
    with pytest.raises(IntegrityError):
        storage.write(PACK, b"other")
    with pytest.raises(ObjectExistsError):
        storage.write_new("config", b"other")
    assert open_descriptors() == before


def test_the_real_calls_sync_the_file_and_then_every_folder_that_was_named_in(
    storage: LocalStorage, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, synced, real = LocalStorage.open(root), [], os.fsync
    folders = {path.stat().st_ino: path.name for path in (root, root / "packs", root / "tmp")}

    def fsync(descriptor: int) -> None:
        found = os.fstat(descriptor)
        synced.append("file" if stat.S_ISREG(found.st_mode) else folders.get(found.st_ino, "shelf"))
        real(descriptor)

    monkeypatch.setattr("os.fsync", fsync)
    opened.write(PACK, BYTES)
    assert synced == ["repository", "file", "packs", "shelf"]
    opened.write(f"packs/ab{'5' * 62}", BYTES)
    opened.delete(PACK)
    assert synced[4:] == ["file", "shelf", "shelf"]


def test_the_free_size_is_the_file_systems(storage: LocalStorage, root: Path) -> None:
    found = os.statvfs(root)
    free = storage.free_size()
    assert free is not None
    assert 0 < free <= found.f_blocks * found.f_frsize
    with pytest.raises(StorageError):
        LocalStorage(root / "nowhere").free_size()


@pytest.mark.parametrize("spares", [False, True])
def test_what_is_written_stays_in_the_page_cache_unless_it_is_to_be_spared(
    storage: LocalStorage, root: Path, spares: bool
) -> None:
    if spares:
        storage.spare_page_cache()
    storage.write(PACK, BYTES)
    with (root / "packs" / PACK.split("/")[1][:2] / PACK.split("/")[1]).open("rb") as file:
        found = cached_pages(file.fileno())
        drop(file.fileno())
        if found < 0 or cached_pages(file.fileno()) > 0:
            pytest.skip("this file system keeps files in memory, or does not tell")
    assert (found == 0) == spares
    assert storage.read(PACK) == BYTES
