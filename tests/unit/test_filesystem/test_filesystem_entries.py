"""stat_columns, stat_fd and read_xattrs against what the os module says of real entries."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from ohdiff import _posix
from ohdiff.filesystem import DirectoryHandle, EntryColumns, read_entries, read_status, read_xattrs

LINUX_WAYS = ["at", "proc", "descriptor"]


def entries_of(directory: DirectoryHandle, *, with_xattrs: bool = True) -> EntryColumns:
    return read_entries(directory, directory.names(), with_xattrs=with_xattrs)


def fill_with_every_type(place: Path) -> None:
    (place / "dir").mkdir()
    (place / "empty").touch()
    (place / "file").write_bytes(b"x" * 5000)
    (place / "link").symlink_to("file")
    os.mkfifo(place / "fifo")
    os.mknod(place / "socket", stat.S_IFSOCK | 0o600)
    if os.geteuid() == 0:
        os.mknod(place / "null", stat.S_IFCHR | 0o600, os.makedev(1, 3))


def test_every_column_says_what_lstat_says(place: Path, directory: DirectoryHandle) -> None:
    fill_with_every_type(place)
    (place / "dir").chmod(0o1751)
    (place / "file").chmod(0o4750)
    found = entries_of(directory)
    expected = [os.lstat(place / os.fsdecode(name)) for name in found.names]
    assert found.names == directory.names()
    assert found.errors == []
    assert found.modes == [entry.st_mode for entry in expected]
    assert found.uids == [entry.st_uid for entry in expected]
    assert found.gids == [entry.st_gid for entry in expected]
    assert found.sizes == [entry.st_size for entry in expected]
    assert found.mtimes_ns == [entry.st_mtime_ns for entry in expected]
    assert found.ctimes_ns == [entry.st_ctime_ns for entry in expected]
    assert found.inodes == [entry.st_ino for entry in expected]
    assert found.devices == [entry.st_dev for entry in expected]
    assert found.link_counts == [entry.st_nlink for entry in expected]
    assert found.rdevs == [entry.st_rdev for entry in expected]
    assert found.blocks512 == [entry.st_blocks for entry in expected]
    assert found.targets == {found.names.index(b"link"): b"file"}


def test_every_column_has_a_row_for_every_name(place: Path, directory: DirectoryHandle) -> None:
    fill_with_every_type(place)
    found = entries_of(directory)
    columns = [getattr(found, field) for field in found.__slots__ if isinstance(getattr(found, field), list)]
    assert {len(column) for column in columns if column is not found.errors} == {len(found)}


def test_names_that_are_not_utf8_or_255_bytes_long_are_found(place: Path, directory: DirectoryHandle) -> None:
    names = [b"\x80\xff", b"n" * 255, b"new\nline"]
    for name in names:
        (place / os.fsdecode(name)).write_bytes(name)
    found = entries_of(directory)
    assert dict(zip(found.names, found.sizes, strict=True)) == {name: len(name) for name in names}


@pytest.mark.parametrize("time_ns", [0, 1, -1, -1_000_000_000, -999_999_999, 1_700_000_000_123_456_789])
def test_times_are_exact_to_the_nanosecond_and_may_lie_before_1970(
    place: Path, directory: DirectoryHandle, time_ns: int
) -> None:
    (place / "file").touch()
    _posix.set_times(directory.fd, b"file", time_ns)
    assert entries_of(directory).mtimes_ns == [time_ns]
    assert os.lstat(place / "file").st_mtime_ns == time_ns


def test_a_time_beyond_what_nanoseconds_can_count_becomes_the_nearest_that_they_can(
    place: Path, directory: DirectoryHandle
) -> None:
    for name, seconds in (("future", 2**36), ("past", -(2**36))):
        (place / name).touch()
        os.utime(place / name, (seconds, seconds))
        if os.lstat(place / name).st_mtime_ns != seconds * 10**9:
            pytest.skip("this file system does not hold such times either")
    assert entries_of(directory).mtimes_ns == [2**63 - 1, -(2**63) + 1]


def test_birth_times_are_now_or_unknown(place: Path, directory: DirectoryHandle) -> None:
    (place / "file").touch()
    _posix.set_times(directory.fd, b"file", 0)
    (birth,) = entries_of(directory).btimes_ns
    assert birth == _posix.TIME_UNKNOWN or abs(birth - os.lstat(place / "file").st_ctime_ns) < 60 * 10**9


def test_hard_links_share_an_inode_and_count_each_other(place: Path, directory: DirectoryHandle) -> None:
    (place / "one").touch()
    for name in ("two", "three"):
        os.link(place / "one", place / name)
    found = entries_of(directory)
    assert found.link_counts == [3, 3, 3]
    assert len(set(found.inodes)) == 1


def test_a_long_symlink_text_comes_back_whole(place: Path, directory: DirectoryHandle) -> None:
    target = b"\xff/" + b"t" * 3000
    for name, text in ((b"long", target), (b"exact", b"e" * 256)):
        os.symlink(text, name, dir_fd=directory.fd)
    assert entries_of(directory).targets == {0: b"e" * 256, 1: target}


def test_vanished_names_are_reported_and_leave_no_row(place: Path, directory: DirectoryHandle) -> None:
    for name in ("first", "gone", "last", "link"):
        (place / name).touch()
    names = directory.names()
    (place / "gone").unlink()
    (place / "link").unlink()
    (place / "link").symlink_to("target")
    found = read_entries(directory, names, with_xattrs=True)
    assert found.names == [b"first", b"last", b"link"]
    assert found.targets == {2: b"target"}
    assert found.errors == [(b"gone", errno.ENOENT, "stat")]


def test_fifty_thousand_entries_are_all_found(place: Path, directory: DirectoryHandle) -> None:
    names = [b"%05d" % number for number in range(50_000)]
    for number, name in enumerate(names):
        os.close(os.open(name, os.O_CREAT | os.O_WRONLY, 0o600 + number % 64, dir_fd=directory.fd))
    found = entries_of(directory)
    assert found.names == names
    assert len(set(found.inodes)) == 50_000
    umask = os.umask(0)
    os.umask(umask)
    assert found.modes == [stat.S_IFREG | (0o600 + number % 64) & ~umask for number in range(50_000)]


def test_chattr_flags_are_seen_and_settable(place: Path, directory: DirectoryHandle) -> None:
    (place / "file").touch()
    fd = directory.open_file(b"file")
    nodump = 0x40
    try:
        assert _posix.get_flags(fd) == 0
        _posix.set_flags(fd, nodump)
        assert _posix.get_flags(fd) == nodump
        assert entries_of(directory).flags == [nodump]
        assert read_status(fd).flags == nodump
        _posix.set_flags(fd, 0)
        assert entries_of(directory).flags == [0]
    except OSError as error:
        if error.errno not in (errno.ENOTTY, errno.EOPNOTSUPP):
            raise
        pytest.skip(f"this file system has no such flags: {error}")
    finally:
        os.close(fd)


def test_flags_of_what_has_none_are_an_error_and_unknown_bits_a_wrong_argument(directory: DirectoryHandle) -> None:
    reader, writer = os.pipe()
    try:
        with pytest.raises(OSError, match=r"ioctl|not supported") as caught:
            _posix.get_flags(reader)
        assert caught.value.errno in (errno.ENOTTY, errno.EOPNOTSUPP)
    finally:
        os.close(reader)
        os.close(writer)
    with pytest.raises(ValueError, match="unknown bits"):
        _posix.set_flags(directory.fd, 1 << 40)


def test_an_open_file_has_the_same_status_as_its_entry(place: Path, directory: DirectoryHandle) -> None:
    (place / "file").write_bytes(b"x" * 10_000)
    found = entries_of(directory)
    fd = directory.open_file(b"file")
    status = read_status(fd, with_xattrs=True)
    os.close(fd)
    fields = ["modes", "uids", "gids", "sizes", "mtimes_ns", "ctimes_ns", "btimes_ns", "inodes", "devices"]
    fields += ["link_counts", "rdevs", "flags", "blocks512"]
    assert [getattr(found, field)[0] for field in fields] == [
        getattr(status, field) for field in status.__slots__ if field != "xattrs"
    ]
    assert status.xattrs == found.xattrs.get(0, [])


def test_the_directory_itself_is_reached_by_a_dot(place: Path, directory: DirectoryHandle) -> None:
    assert read_entries(directory, [b"."], with_xattrs=True).inodes == [place.stat().st_ino]


@pytest.mark.usefixtures("user_xattrs")
def test_xattrs_come_sorted_with_empty_and_binary_values(place: Path, directory: DirectoryHandle) -> None:
    for name in ("bare", "dressed"):
        (place / name).touch()
    expected = [(b"user.a", b""), (b"user.b", bytes(range(256))), (b"user.\xff", b"x" * 1500)]
    for name, value in reversed(expected):
        os.setxattr(place / "dressed", name, value)
    assert entries_of(directory).xattrs == {1: expected}
    assert entries_of(directory, with_xattrs=False).xattrs == {}
    assert read_xattrs(directory, [b"dressed", b"bare"]) == ({0: expected}, [])


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has several ways")
@pytest.mark.parametrize("way", LINUX_WAYS)
@pytest.mark.usefixtures("user_xattrs")
def test_every_way_to_reach_xattrs_reads_and_writes_the_same(place: Path, directory: DirectoryHandle, way: str) -> None:
    fill_with_every_type(place)
    names = directory.names()
    wanted = [(b"user.many.%03d" % number, b"v" * number) for number in range(40)]
    os.setxattr(place / "file", "user.other", b"1")
    try:
        assert _posix.replace_xattrs(directory.fd, b"file", wanted, way) == []
    except OSError as error:
        if way != "at" or error.errno != errno.ENOSYS:
            raise
        pytest.skip("this kernel has no setxattrat (Linux 6.13)")
    assert _posix.replace_xattrs(directory.fd, b"dir", wanted[:1], way) == []
    assert _posix.read_xattrs(directory.fd, names, way) == (
        {names.index(b"dir"): wanted[:1], names.index(b"file"): wanted},
        [],
    )
    assert sorted(os.listxattr(place / "file")) == [os.fsdecode(name) for name, _ in wanted]


@pytest.mark.parametrize("way", ["auto", "descriptor"])
def test_the_xattrs_of_what_vanished_are_an_error_of_that_name_alone(
    place: Path, directory: DirectoryHandle, way: str
) -> None:
    (place / "here").touch()
    assert _posix.read_xattrs(directory.fd, [b"gone", b"here"], way) == ({}, [(b"gone", errno.ENOENT, "xattr")])


@pytest.mark.usefixtures("user_xattrs")
def test_a_symlink_shows_its_own_xattrs_and_not_those_of_its_target(place: Path, directory: DirectoryHandle) -> None:
    (place / "file").touch()
    os.setxattr(place / "file", "user.a", b"1")
    (place / "link").symlink_to("file")
    assert entries_of(directory).xattrs == {0: [(b"user.a", b"1")]}
    if os.geteuid() == 0:
        os.setxattr(place / "link", "trusted.a", b"2", follow_symlinks=False)
        assert entries_of(directory).xattrs[1] == [(b"trusted.a", b"2")]


@pytest.mark.usefixtures("user_xattrs")
def test_unreadable_xattrs_are_reported_and_the_row_is_kept(
    place: Path, directory: DirectoryHandle, ordinary_user: Callable[[], AbstractContextManager[int]]
) -> None:
    (place / "file").touch()
    os.setxattr(place / "file", "user.a", b"1")
    (place / "file").chmod(0)
    with ordinary_user():
        found = entries_of(directory)
    assert found.names == [b"file"]
    assert found.errors == [(b"file", errno.EACCES, "xattr")]


@pytest.mark.usefixtures("acls")
def test_acls_come_as_xattrs(place: Path, directory: DirectoryHandle, acl_of: Callable[..., bytes]) -> None:
    (place / "file").touch()
    (place / "dir").mkdir()
    os.setxattr(place / "file", "system.posix_acl_access", acl_of(user=4711))
    os.setxattr(place / "dir", "system.posix_acl_default", acl_of(user=4712))
    found = entries_of(directory)
    assert found.xattrs[0] == [(b"system.posix_acl_default", acl_of(user=4712))]
    assert found.xattrs[1] == [(b"system.posix_acl_access", acl_of(user=4711))]


@pytest.mark.parametrize("name", [b"", b"..", b"a/b", b"/", b"a\0"])
def test_what_is_not_a_name_is_refused_before_any_call(directory: DirectoryHandle, name: bytes) -> None:
    for call in (
        lambda: _posix.stat_columns(directory.fd, [b"fine", name], False),
        lambda: _posix.read_xattrs(directory.fd, [name]),
        lambda: _posix.replace_xattrs(directory.fd, name, []),
        lambda: _posix.set_times(directory.fd, name, 0),
        lambda: _posix.set_mode(directory.fd, name, 0),
    ):
        with pytest.raises(ValueError, match="name of a directory entry"):
            call()


def test_wrong_types_are_type_errors(directory: DirectoryHandle) -> None:
    for call in (
        lambda: _posix.stat_columns(directory.fd, ["text"], False),  # type: ignore[list-item]
        lambda: _posix.stat_columns(directory.fd, (b"a",), False),  # type: ignore[arg-type]
        lambda: _posix.replace_xattrs(directory.fd, b"a", [b"ab"]),  # type: ignore[list-item]
        lambda: _posix.replace_xattrs(directory.fd, b"a", [("user.a", b"")]),  # type: ignore[list-item]
    ):
        with pytest.raises(TypeError):
            call()
    with pytest.raises(ValueError, match="no such way"):
        _posix.read_xattrs(directory.fd, [], "by magic")
    with pytest.raises(ValueError, match="zero byte"):
        _posix.replace_xattrs(directory.fd, b"a", [(b"user.\0", b"")])


def test_a_bad_directory_is_an_error_of_every_name() -> None:
    found = EntryColumns(*_posix.stat_columns(1_000_000, [b"a", b"b"], True))
    assert len(found) == 0
    assert found.errors == [(b"a", errno.EBADF, "stat"), (b"b", errno.EBADF, "stat")]
    with pytest.raises(OSError, match="Bad file descriptor"):
        read_status(1_000_000)


def test_the_interpreter_runs_on_while_a_slow_listing_is_read(tmp_path: Path) -> None:
    script = (
        "import sys, threading\n"
        "from ohdiff import _posix\n"
        "import os\n"
        "fd = os.open(sys.argv[1], os.O_RDONLY)\n"
        "sys.setswitchinterval(1000)\n"
        "turns, is_done = 0, False\n"
        "def read():\n"
        "    global is_done\n"
        "    _posix.stat_columns(fd, [b'missing'] * 300_000, True)\n"
        "    is_done = True\n"
        "reader = threading.Thread(target=read)\n"
        "reader.start()\n"
        "while not is_done and turns < 10_000:\n"
        "    turns += 1\n"
        "reader.join()\n"
        "print(turns)\n"
    )
    result = subprocess.run([sys.executable, "-P", "-c", script, tmp_path], capture_output=True, text=True, check=True)
    assert int(result.stdout) > 100
