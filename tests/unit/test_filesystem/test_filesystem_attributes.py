"""apply_attributes, make_node and make_link on entries of every type."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from ohdiff import _posix
from ohdiff.filesystem import (
    Attributes,
    DirectoryHandle,
    apply_attributes,
    make_link,
    make_node,
    read_entries,
    read_xattrs,
)

TIME = -123_456_789_987_654_321
NODUMP = 0x40


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.parametrize("kind", [stat.S_IFDIR, stat.S_IFLNK, stat.S_IFIFO, stat.S_IFSOCK])
def test_a_node_of_every_type_is_made_and_dressed(place: Path, directory: DirectoryHandle, kind: int) -> None:
    make_node(directory, b"node", kind | 0o751, target=b"\xff/nowhere")
    assert apply_attributes(directory, b"node", Attributes(mode=kind | 0o751, mtime_ns=TIME, xattrs=[])) == []
    found = (place / "node").lstat()
    assert stat.S_IFMT(found.st_mode) == kind
    assert found.st_mtime_ns == TIME
    if kind == stat.S_IFLNK:
        assert os.readlink(b"node", dir_fd=directory.fd) == b"\xff/nowhere"
    else:
        assert stat.S_IMODE(found.st_mode) == 0o751


@pytest.mark.usefixtures("needs_root")
@pytest.mark.parametrize("kind", [stat.S_IFCHR, stat.S_IFBLK])
def test_a_device_is_made_with_its_number(directory: DirectoryHandle, kind: int) -> None:
    number = os.makedev(259, 70_000)
    try:
        make_node(directory, b"device", kind | 0o640, rdev=number)
    except PermissionError as error:
        pytest.skip(f"this sandbox makes no devices: {error}")
    found = read_entries(directory, [b"device"], with_xattrs=True)
    assert (stat.S_IFMT(found.modes[0]), found.rdevs[0]) == (kind, number)


def test_new_nodes_are_private_until_they_are_dressed(place: Path, directory: DirectoryHandle) -> None:
    for name, kind in ((b"dir", stat.S_IFDIR), (b"fifo", stat.S_IFIFO), (b"socket", stat.S_IFSOCK)):
        make_node(directory, name, kind | 0o777)
        assert mode_of(place / os.fsdecode(name)) & 0o077 == 0


@pytest.mark.parametrize("kind", [stat.S_IFDIR, stat.S_IFLNK, stat.S_IFIFO, stat.S_IFSOCK])
def test_a_planted_symlink_is_neither_followed_nor_replaced(place: Path, directory: DirectoryHandle, kind: int) -> None:
    (place / "name").symlink_to("elsewhere")
    with pytest.raises(FileExistsError):
        make_node(directory, b"name", kind | 0o755, target=b"t")
    assert (place / "name").readlink() == Path("elsewhere")
    assert not (place / "elsewhere").exists()


def test_a_regular_file_is_not_a_node_and_a_path_not_a_name(directory: DirectoryHandle) -> None:
    with pytest.raises(ValueError, match="type of a node"):
        make_node(directory, b"file", stat.S_IFREG | 0o600)
    for name in (b"a/b", b"..", b""):
        with pytest.raises(ValueError, match="name of a directory entry"):
            make_node(directory, name, stat.S_IFDIR)
        with pytest.raises(ValueError, match="name of a directory entry"):
            make_link(directory, b"fine", directory, name)
        with pytest.raises(ValueError, match="name of a directory entry"):
            apply_attributes(directory, name, Attributes(mode=stat.S_IFREG, mtime_ns=0))


def test_a_hard_link_has_the_inode_of_its_source_be_it_a_symlink(place: Path, directory: DirectoryHandle) -> None:
    (place / "file").touch()
    (place / "link").symlink_to("file")
    (place / "sub").mkdir()
    with directory.open_child(b"sub") as sub:
        make_link(sub, b"file", directory, b"file")
        make_link(sub, b"link", directory, b"link")
        with pytest.raises(FileExistsError):
            make_link(sub, b"file", directory, b"link")
        with pytest.raises(FileNotFoundError):
            make_link(sub, b"new", directory, b"missing")
    assert (place / "sub" / "file").lstat().st_ino == (place / "file").lstat().st_ino
    assert (place / "sub" / "link").lstat().st_ino == (place / "link").lstat().st_ino


@pytest.mark.usefixtures("needs_root")
def test_an_owner_is_set_before_the_set_id_bits_and_on_the_link_itself(place: Path, directory: DirectoryHandle) -> None:
    (place / "file").touch()
    (place / "link").symlink_to("file")
    wanted = Attributes(mode=stat.S_IFREG | 0o6711, mtime_ns=TIME, uid=1234, gid=4321)
    assert apply_attributes(directory, b"file", wanted) == []
    wanted = Attributes(mode=stat.S_IFLNK | 0o777, mtime_ns=0, uid=77, gid=78, xattrs=[(b"trusted.a", b"1")])
    assert apply_attributes(directory, b"link", wanted) == []
    file, link = (place / "file").lstat(), (place / "link").lstat()
    assert (file.st_uid, file.st_gid, stat.S_IMODE(file.st_mode), file.st_mtime_ns) == (1234, 4321, 0o6711, TIME)
    assert (link.st_uid, link.st_gid, link.st_mtime_ns) == (77, 78, 0)
    assert read_xattrs(directory, [b"file", b"link"])[0] == {1: [(b"trusted.a", b"1")]}


def test_a_refused_owner_is_collected_and_takes_the_set_id_bits_of_files_alone(
    place: Path, directory: DirectoryHandle, ordinary_user: Callable[[], AbstractContextManager[int]]
) -> None:
    with ordinary_user():
        os.close(directory.create_file(b"file"))
        make_node(directory, b"dir", stat.S_IFDIR)
        wanted = {
            name: Attributes(mode=kind | 0o2755, mtime_ns=TIME, uid=0, gid=os.getegid(), xattrs=[])
            for name, kind in ((b"file", stat.S_IFREG), (b"dir", stat.S_IFDIR))
        }
        failures = {name: apply_attributes(directory, name, attributes) for name, attributes in wanted.items()}
    for name, found in failures.items():
        assert [(what, error.errno, error.filename) for what, error in found] == [("owner", errno.EPERM, name)]
    assert (mode_of(place / "file"), mode_of(place / "dir")) == (0o755, 0o2755)
    assert (place / "file").stat().st_mtime_ns == TIME


def test_a_missing_entry_fails_in_every_part_and_raises_nothing(directory: DirectoryHandle) -> None:
    wanted = Attributes(
        mode=stat.S_IFREG | 0o644, mtime_ns=0, uid=os.getuid(), gid=os.getgid(), xattrs=[(b"user.a", b"")], flags=0
    )
    failures = apply_attributes(directory, b"missing", wanted)
    assert sorted({what for what, _ in failures}) == ["flags", "mode", "owner", "times", "xattr"]
    assert {error.errno for _, error in failures} == {errno.ENOENT}


@pytest.mark.usefixtures("user_xattrs")
def test_xattrs_become_exactly_those_given(place: Path, directory: DirectoryHandle) -> None:
    (place / "file").touch()
    for name, value in ((b"user.keep", b"same"), (b"user.change", b"old"), (b"user.drop", b"x")):
        os.setxattr(place / "file", name, value)
    wanted = [(b"user.change", b"new"), (b"user.keep", b"same"), (b"user.new", b"")]
    attributes = Attributes(mode=stat.S_IFREG | 0o600, mtime_ns=TIME, xattrs=wanted)
    assert apply_attributes(directory, b"file", attributes) == []
    assert read_xattrs(directory, [b"file"]) == ({0: wanted}, [])
    assert apply_attributes(directory, b"file", Attributes(mode=stat.S_IFREG | 0o600, mtime_ns=0)) == []
    assert read_xattrs(directory, [b"file"]) == ({0: wanted}, [])


@pytest.mark.usefixtures("user_xattrs")
def test_xattrs_go_onto_a_read_only_file_and_its_mode_comes_last(
    place: Path, directory: DirectoryHandle, ordinary_user: Callable[[], AbstractContextManager[int]]
) -> None:
    wanted = [(b"user.a", b"1")]
    with ordinary_user():
        os.close(directory.create_file(b"file"))
        _posix.set_mode(directory.fd, b"file", 0o400)
        make_node(directory, b"dir", stat.S_IFDIR)
        _posix.set_mode(directory.fd, b"dir", 0o000)
        for name, mode in ((b"file", stat.S_IFREG | 0o400), (b"dir", stat.S_IFDIR)):
            assert apply_attributes(directory, name, Attributes(mode=mode, mtime_ns=TIME, xattrs=wanted)) == []
    assert (mode_of(place / "file"), mode_of(place / "dir")) == (0o400, 0)
    assert (place / "dir").stat().st_mtime_ns == TIME
    (place / "dir").chmod(0o700)
    assert read_xattrs(directory, [b"dir", b"file"]) == ({0: wanted, 1: wanted}, [])


@pytest.mark.usefixtures("user_xattrs")
def test_an_xattr_that_a_symlink_cannot_have_is_named_in_its_failure(place: Path, directory: DirectoryHandle) -> None:
    (place / "link").symlink_to("target")
    attributes = Attributes(mode=stat.S_IFLNK | 0o777, mtime_ns=TIME, xattrs=[(b"user.a", b"1")])
    ((what, error),) = apply_attributes(directory, b"link", attributes)
    assert what == "xattr"
    assert "user.a" in str(error)
    assert (place / "link").lstat().st_mtime_ns == TIME


@pytest.mark.usefixtures("acls")
def test_acls_are_restored_and_inherited_ones_removed(
    place: Path, directory: DirectoryHandle, acl_of: Callable[..., bytes]
) -> None:
    os.setxattr(place, "system.posix_acl_default", acl_of(user=4711))
    (place / "dir").mkdir()
    (place / "file").touch()
    wanted = [(b"system.posix_acl_access", acl_of(user=4712))]
    assert apply_attributes(directory, b"dir", Attributes(mode=stat.S_IFDIR | 0o750, mtime_ns=0, xattrs=[])) == []
    assert apply_attributes(directory, b"file", Attributes(stat.S_IFREG | 0o670, mtime_ns=0, xattrs=wanted)) == []
    assert read_xattrs(directory, [b"dir", b"file"]) == ({1: wanted}, [])
    assert (mode_of(place / "dir"), mode_of(place / "file")) == (0o750, 0o670)
    os.removexattr(place, "system.posix_acl_default")


def test_flags_are_set_last_and_taken_away_again(place: Path, directory: DirectoryHandle) -> None:
    (place / "file").touch()
    mode = stat.S_IFREG | 0o000
    failures = apply_attributes(directory, b"file", Attributes(mode=mode, mtime_ns=TIME, flags=NODUMP))
    if [error.errno for _, error in failures] in ([errno.ENOTTY], [errno.EOPNOTSUPP]):
        pytest.skip("this file system has no such flags")
    assert failures == []
    assert read_entries(directory, [b"file"], with_xattrs=False).flags == [NODUMP]
    assert ((place / "file").stat().st_mtime_ns, mode_of(place / "file")) == (TIME, 0)
    _posix.set_mode(directory.fd, b"file", 0o600)
    assert apply_attributes(directory, b"file", Attributes(mode=mode, mtime_ns=TIME, flags=0)) == []
    assert read_entries(directory, [b"file"], with_xattrs=False).flags == [0]


@pytest.mark.usefixtures("needs_root")
def test_an_immutable_file_gets_everything_else_first(place: Path, directory: DirectoryHandle) -> None:
    (place / "file").touch()
    immutable = 0x10
    wanted = Attributes(mode=stat.S_IFREG | 0o444, mtime_ns=TIME, uid=5, gid=6, flags=immutable)
    failures = apply_attributes(directory, b"file", wanted)
    if [what for what, _ in failures] == ["flags"]:
        pytest.skip(f"immutable files are not to be had here: {failures[0][1]}")
    try:
        assert failures == []
        found = read_entries(directory, [b"file"], with_xattrs=False)
        assert (found.flags, found.uids, found.mtimes_ns) == ([immutable], [5], [TIME])
    finally:
        apply_attributes(directory, b"file", Attributes(mode=stat.S_IFREG | 0o444, mtime_ns=TIME, flags=0))
    (place / "file").unlink()


def test_a_directory_dresses_itself_through_a_dot(place: Path, directory: DirectoryHandle) -> None:
    wanted = Attributes(mode=stat.S_IFDIR | 0o701, mtime_ns=TIME, xattrs=[], flags=0)
    assert apply_attributes(directory, b".", wanted) == []
    assert (place.stat().st_mtime_ns, mode_of(place)) == (TIME, 0o701)


def plain(directory: DirectoryHandle, name: bytes, mode: int, uid: int = -1, gid: int = -1) -> bool:
    return _posix.dress_plain(directory.fd, name, mode, TIME, uid, gid)


@pytest.mark.parametrize("kind", [stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK, stat.S_IFIFO])
def test_a_plain_entry_is_dressed_in_one_call(place: Path, directory: DirectoryHandle, kind: int) -> None:
    if kind == stat.S_IFREG:
        os.close(directory.create_file(b"node"))
    else:
        make_node(directory, b"node", kind, target=b"nowhere")
    assert plain(directory, b"node", kind | 0o1614, os.geteuid(), os.getegid())
    found = (place / "node").lstat()
    assert (found.st_mtime_ns, found.st_atime_ns) == (TIME, TIME)
    assert kind == stat.S_IFLNK or stat.S_IMODE(found.st_mode) == 0o1614
    assert (found.st_uid, found.st_gid) == (os.geteuid(), os.getegid())


def test_a_directory_is_dressed_by_its_own_name(place: Path, directory: DirectoryHandle) -> None:
    assert plain(directory, b".", stat.S_IFDIR | 0o700)
    assert (mode_of(place), place.stat().st_mtime_ns) == (0o700, TIME)


@pytest.mark.usefixtures("needs_root")
def test_a_new_owner_does_not_cost_a_plain_file_its_set_id_bits(place: Path, directory: DirectoryHandle) -> None:
    write_file = place / "file"
    write_file.touch()
    os.chmod(write_file, 0o6751)
    assert plain(directory, b"file", stat.S_IFREG | 0o6751, 1234, 5678)
    found = write_file.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (1234, 5678, 0o6751)
    assert plain(directory, b"file", stat.S_IFREG | 0o751, -1, 5679)
    found = write_file.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (1234, 5679, 0o751)


@pytest.mark.usefixtures("user_xattrs")
def test_what_is_not_plain_is_left_as_it_is(
    place: Path, directory: DirectoryHandle, ordinary_user: Callable[[], AbstractContextManager[int]]
) -> None:
    (place / "file").write_bytes(b"1")
    before = (place / "file").stat()
    assert not plain(directory, b"file", stat.S_IFDIR | 0o777)
    assert not plain(directory, b"missing", stat.S_IFREG | 0o777)
    assert _posix.replace_xattrs(directory.fd, b"file", [(b"user.name", b"value")]) == []
    assert not plain(directory, b"file", stat.S_IFREG | 0o777)
    _posix.replace_xattrs(directory.fd, b"file", [])
    with ordinary_user() as uid:
        if uid != before.st_uid:
            assert not plain(directory, b"file", stat.S_IFREG | 0o777)
            assert not plain(directory, b"file", stat.S_IFREG | 0o777, uid)
    found = (place / "file").stat()
    assert (found.st_mode, found.st_uid, found.st_mtime_ns) == (before.st_mode, before.st_uid, before.st_mtime_ns)
    fd = directory.open_file(b"file")
    try:
        _posix.set_flags(fd, NODUMP)
        assert not plain(directory, b"file", stat.S_IFREG | 0o777)
        assert _posix.get_flags(fd) == NODUMP
    except OSError as error:
        if error.errno not in (errno.ENOTTY, errno.EOPNOTSUPP):
            raise
    finally:
        os.close(fd)
    assert mode_of(place / "file") == stat.S_IMODE(before.st_mode)


@pytest.mark.parametrize("ids", [(-2, 0), (0, -2), (2**32 - 1, 0), (0, 2**32)])
def test_an_owner_that_cannot_be_is_refused(directory: DirectoryHandle, ids: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="owner"):
        plain(directory, b".", stat.S_IFDIR | 0o755, *ids)
    with pytest.raises(ValueError, match="name"):
        plain(directory, b"../file", stat.S_IFREG)
