"""create_files, set_mode and set_times: exact content, owner, mode and times, and nothing that exists is touched."""

from __future__ import annotations

import errno
import os
import resource
import signal
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from ohdiff import _posix
from ohdiff.filesystem import DirectoryHandle, create_files

OWNER_REFUSED = -1


def create(
    directory: DirectoryHandle,
    names: list[bytes],
    contents: list[bytes],
    *,
    modes: list[int] | None = None,
    owners: tuple[list[int], list[int]] | None = None,
    times: list[int] | None = None,
) -> list[int]:
    count = len(names)
    sizes = [len(content) for content in contents]
    starts = [sum(sizes[:row]) for row in range(count)]
    uids, gids = owners or (None, None)
    modes = modes or [0o644] * count
    fds = [directory.fd] * count
    return create_files(fds, names, b"".join(contents), starts, sizes, modes, uids, gids, times or [0] * count)


def test_files_have_the_bytes_mode_and_times_that_were_asked_for(place: Path, directory: DirectoryHandle) -> None:
    names = [b"empty", b"\xfe\xff", b"n" * 255, b"large"]
    contents = [b"", b"x", bytes(range(256)), os.urandom(3 << 20)]
    modes = [0o000, 0o777, 0o1640, 0o444]
    times = [-1, 0, 10**18 + 1, -(10**15) - 1]
    assert create(directory, names, contents, modes=modes, times=times) == [0, 0, 0, 0]
    for name, content, mode, time in zip(names, contents, modes, times, strict=True):
        path = place / os.fsdecode(name)
        found = path.stat()
        assert stat.S_IMODE(found.st_mode) == mode
        assert (found.st_mtime_ns, found.st_atime_ns) == (time, time)
        path.chmod(0o600)
        assert path.read_bytes() == content


def test_the_umask_takes_nothing_away(place: Path, directory: DirectoryHandle) -> None:
    umask = os.umask(0o777)
    try:
        assert create(directory, [b"file"], [b"x"], modes=[0o666]) == [0]
    finally:
        os.umask(umask)
    assert stat.S_IMODE((place / "file").stat().st_mode) == 0o666


def test_a_full_st_mode_gives_its_permission_bits(place: Path, directory: DirectoryHandle) -> None:
    assert create(directory, [b"file"], [b"x"], modes=[stat.S_IFREG | 0o640]) == [0]
    assert (place / "file").stat().st_mode == stat.S_IFREG | 0o640


def test_fifty_thousand_files_are_created(place: Path, directory: DirectoryHandle) -> None:
    count = 50_000
    data = b"0123456789"
    starts = [number % 10 for number in range(count)]
    sizes = [10 - start for start in starts]
    names = [b"%05d" % number for number in range(count)]
    statuses = create_files([directory.fd] * count, names, data, starts, sizes, [0o600] * count, None, None, starts)
    assert set(statuses) == {0}
    assert directory.names() == names
    assert (place / "49997").read_bytes() == b"789"


def test_ranges_of_the_data_may_overlap_and_come_in_any_order(place: Path, directory: DirectoryHandle) -> None:
    fds = [directory.fd] * 3
    arguments = ([4, 0, 6], [2, 6, 0], [0o600] * 3, None, None, [0] * 3)
    assert create_files(fds, [b"a", b"b", b"c"], memoryview(b"012345"), *arguments) == [0, 0, 0]
    assert [(place / name).read_bytes() for name in "abc"] == [b"45", b"012345", b""]


@pytest.mark.usefixtures("needs_root")
def test_owners_are_restored_and_set_id_bits_survive_them(place: Path, directory: DirectoryHandle) -> None:
    owners = ([1234, 0], [4321, 5])
    assert create(directory, [b"a", b"b"], [b"", b"x"], modes=[0o6755, 0o4711], owners=owners) == [0, 0]
    found = [(place / name).stat() for name in "ab"]
    assert [(entry.st_uid, entry.st_gid) for entry in found] == [(1234, 4321), (0, 5)]
    assert [stat.S_IMODE(entry.st_mode) for entry in found] == [0o6755, 0o4711]


def test_a_refused_owner_is_told_and_the_file_is_whole_without_set_id_bits(
    place: Path, directory: DirectoryHandle, ordinary_user: Callable[[], AbstractContextManager[int]]
) -> None:
    with ordinary_user() as me:
        owners = ([0, me], [0, os.getegid()])
        statuses = create(
            directory, [b"a", b"b"], [b"content", b"x"], modes=[0o6755, 0o4755], owners=owners, times=[7, 7]
        )
    assert statuses == [OWNER_REFUSED, 0]
    assert (place / "a").read_bytes() == b"content"
    assert (place / "a").stat().st_mtime_ns == 7
    assert [stat.S_IMODE((place / name).stat().st_mode) for name in "ab"] == [0o755, 0o4755]


def test_nothing_that_exists_is_opened_or_replaced(place: Path, directory: DirectoryHandle) -> None:
    (place / "file").write_bytes(b"mine")
    (place / "dir").mkdir()
    (place / "link").symlink_to("target")
    os.mkfifo(place / "fifo")
    names = [b"dir", b"fifo", b"file", b"link", b"new"]
    statuses = create(directory, names, [b"theirs"] * 5)
    assert statuses == [errno.EEXIST] * 4 + [0]
    assert (place / "file").read_bytes() == b"mine"
    assert not (place / "target").exists()


def test_a_name_that_is_too_long_or_a_directory_that_is_not_writable_is_an_errno(
    place: Path, directory: DirectoryHandle, ordinary_user: Callable[[], AbstractContextManager[int]]
) -> None:
    assert create(directory, [b"n" * 256, b"ok"], [b"", b""]) == [errno.ENAMETOOLONG, 0]
    place.chmod(0o555)
    with ordinary_user():
        assert create(directory, [b"file"], [b""]) == [errno.EACCES]
    place.chmod(0o777)


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Any write past this size fails with EFBIG, as one on a full disk does with ENOSPC."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_file_that_could_not_be_written_whole_is_removed(place: Path, directory: DirectoryHandle) -> None:
    with file_size_limit(8192):
        statuses = create(directory, [b"a", b"b", b"c"], [b"x" * 8192, b"x" * 8193, b"x"])
    assert statuses == [0, errno.EFBIG, 0]
    assert directory.names() == [b"a", b"c"]


@pytest.mark.usefixtures("acls")
def test_an_acl_that_the_directory_hands_down_is_taken_off(
    place: Path, directory: DirectoryHandle, acl_of: Callable[..., bytes]
) -> None:
    (place / "plain").mkdir()
    (place / "shared").mkdir()
    os.setxattr(place / "shared", "system.posix_acl_default", acl_of(user=4711))
    with directory.open_child(b"shared") as shared, directory.open_child(b"plain") as plain:
        fds = [plain.fd, shared.fd, plain.fd]
        arguments = ([0] * 3, [1] * 3, [0o640] * 3, None, None, [0] * 3)
        assert create_files(fds, [b"a", b"b", b"c"], b"x", *arguments) == [0, 0, 0]
    for path in (place / "plain" / "a", place / "shared" / "b", place / "plain" / "c"):
        assert "system.posix_acl_access" not in os.listxattr(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_wrong_arguments_are_refused_before_anything_is_created(directory: DirectoryHandle) -> None:
    good: dict[str, object] = {
        "dir_fds": [directory.fd],
        "names": [b"a"],
        "data": b"12345",
        "starts": [0],
        "sizes": [5],
        "modes": [0o600],
        "uids": [0],
        "gids": [0],
        "mtimes_ns": [0],
    }
    wrong: list[tuple[str, object]] = [(column, []) for column in good if column not in ("data", "names")]
    wrong += [("dir_fds", [-1]), ("dir_fds", [2**31]), ("names", [b"a/b"]), ("starts", [-1]), ("starts", [1])]
    wrong += [("starts", [2**63 - 1]), ("sizes", [6]), ("sizes", [-1]), ("sizes", [2**63 - 1]), ("modes", [-1])]
    wrong += [("uids", [-1]), ("uids", [2**32 - 1]), ("gids", [2**32]), ("uids", None), ("mtimes_ns", [2**63])]
    for column, value in wrong:
        with pytest.raises(ValueError, match=r"items for|out of range|outside|both or neither|name of"):
            create_files(**(good | {column: value}))  # type: ignore[arg-type]
    for column in good:
        with pytest.raises(TypeError):
            create_files(**(good | {column: "text"}))  # type: ignore[arg-type]
    assert directory.names() == []


def test_modes_and_times_of_a_name_are_set(place: Path, directory: DirectoryHandle) -> None:
    (place / "file").touch()
    _posix.set_mode(directory.fd, b"file", 0o2751)
    _posix.set_times(directory.fd, b"file", -1)
    found = (place / "file").stat()
    assert (stat.S_IMODE(found.st_mode), found.st_mtime_ns, found.st_atime_ns) == (0o2751, -1, -1)


def test_a_symlink_keeps_its_target_as_it_is(place: Path, directory: DirectoryHandle) -> None:
    (place / "file").touch(0o600)
    before = (place / "file").stat()
    (place / "link").symlink_to("file")
    _posix.set_times(directory.fd, b"link", 5)
    with pytest.raises(OSError, match=r"not supported|levels of symbolic links"):
        _posix.set_mode(directory.fd, b"link", 0o777)
    assert (place / "link").lstat().st_mtime_ns == 5
    assert (place / "file").stat() == before


def test_setting_a_missing_name_is_file_not_found(directory: DirectoryHandle) -> None:
    with pytest.raises(FileNotFoundError):
        _posix.set_mode(directory.fd, b"missing", 0o600)
    with pytest.raises(FileNotFoundError):
        _posix.set_times(directory.fd, b"missing", 0)


def test_the_mode_of_anothers_file_is_not_permitted(
    place: Path, directory: DirectoryHandle, ordinary_user: Callable[[], AbstractContextManager[int]]
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make a file of another user")
    (place / "file").touch(0o600)
    with ordinary_user(), pytest.raises(PermissionError):
        _posix.set_mode(directory.fd, b"file", 0o777)
    assert stat.S_IMODE((place / "file").stat().st_mode) == 0o600
