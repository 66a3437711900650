"""list_names and DirectoryHandle: names in byte order, and no way out of the directory."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from ohdiff._posix import list_names
from ohdiff.filesystem import DirectoryHandle


def test_an_empty_directory_has_no_names(directory: DirectoryHandle) -> None:
    assert directory.names() == []


def test_names_come_in_byte_order_whatever_their_encoding(place: Path, directory: DirectoryHandle) -> None:
    names = [b"b", b"a", b"\xff\xfe", b"\x01", b"a\x01", b"ab", b"12345678", b"123456789", b"12345678\x01", b"\xc3\xa9"]
    for name in names:
        (place / os.fsdecode(name)).touch()
    assert directory.names() == sorted(names)


def test_a_name_of_255_bytes_is_listed(place: Path, directory: DirectoryHandle) -> None:
    (place / ("n" * 255)).touch()
    assert directory.names() == [b"n" * 255]


def test_hidden_names_are_listed_without_the_dots(place: Path, directory: DirectoryHandle) -> None:
    for name in (".hidden", "..also", "..."):
        (place / name).touch()
    assert directory.names() == [b"...", b"..also", b".hidden"]


def test_a_directory_can_be_listed_again_and_sees_what_is_new(place: Path, directory: DirectoryHandle) -> None:
    (place / "first").touch()
    assert directory.names() == [b"first"]
    (place / "second").touch()
    assert directory.names() == [b"first", b"second"]


def test_fifty_thousand_names_are_listed_completely(place: Path, directory: DirectoryHandle) -> None:
    expected = sorted(b"%x" % (number * 2654435761 % 2**32) for number in range(50_000))
    (place / "seed").touch()
    seed = place / "seed"
    for number, name in enumerate(expected):
        # A file system limits how many names one inode may have.
        if number % 30_000 == 0:
            seed = place / os.fsdecode(name)
            seed.touch()
        else:
            os.link(seed, place / os.fsdecode(name))
    (place / "seed").unlink()
    assert directory.names() == expected


def list_names_of_a_file(directory: DirectoryHandle) -> None:
    fd = directory.create_file(b"file")
    try:
        list_names(fd)
    finally:
        os.close(fd)


def test_a_file_has_no_names(directory: DirectoryHandle) -> None:
    with pytest.raises(NotADirectoryError):
        list_names_of_a_file(directory)


def test_a_closed_descriptor_is_an_error() -> None:
    with pytest.raises(OSError, match="Bad file descriptor") as caught:
        list_names(1_000_000)
    assert caught.value.errno == errno.EBADF


def test_listing_leaks_no_descriptor(directory: DirectoryHandle) -> None:
    def lowest_free() -> int:
        fd = os.dup(directory.fd)
        os.close(fd)
        return fd

    before = lowest_free()
    directory.names()
    with pytest.raises(NotADirectoryError):
        list_names_of_a_file(directory)
    assert lowest_free() == before


def test_a_child_directory_opens_by_name(place: Path, directory: DirectoryHandle) -> None:
    (place / "sub").mkdir()
    (place / "sub" / "file").touch()
    with directory.open_child(b"sub") as child:
        assert child.names() == [b"file"]


def test_a_symlink_to_a_directory_does_not_open_as_a_child(place: Path, directory: DirectoryHandle) -> None:
    (place / "sub").mkdir()
    (place / "link").symlink_to("sub")
    with pytest.raises(OSError) as caught:
        directory.open_child(b"link")
    assert caught.value.errno in (errno.ELOOP, errno.ENOTDIR)


def test_an_open_directory_stays_the_same_when_its_name_becomes_a_symlink(
    place: Path, directory: DirectoryHandle
) -> None:
    (place / "sub").mkdir()
    (place / "sub" / "mine").touch()
    (place / "other").mkdir()
    with directory.open_child(b"sub") as child:
        (place / "sub").rename(place / "moved")
        (place / "sub").symlink_to("other")
        os.close(child.create_file(b"new"))
        assert child.names() == [b"mine", b"new"]
    assert list((place / "other").iterdir()) == []


def test_the_root_may_be_reached_through_the_users_own_links(place: Path) -> None:
    (place / "real").mkdir()
    (place / "link").symlink_to("real")
    with DirectoryHandle.open_root(os.fsencode(place / "link")) as handle:
        assert os.fstat(handle.fileno()).st_ino == (place / "real").stat().st_ino


@pytest.mark.parametrize("name", [b"", b"..", b"a/b", b"/etc", b"a\0b"])
def test_what_is_not_one_component_is_no_name(directory: DirectoryHandle, name: bytes) -> None:
    for open_by_name in (directory.open_child, directory.open_file, directory.create_file, directory.make_child):
        with pytest.raises(ValueError, match="name of a directory entry"):
            open_by_name(name)


def test_a_made_child_is_private_and_open(place: Path, directory: DirectoryHandle) -> None:
    with directory.make_child(b"new") as child:
        assert os.fstat(child.fd).st_ino == (place / "new").stat().st_ino
    assert (place / "new").stat().st_mode & 0o777 == 0o700


def test_a_symlink_does_not_open_as_a_file(place: Path, directory: DirectoryHandle) -> None:
    (place / "file").write_bytes(b"secret")
    (place / "link").symlink_to("file")
    for open_by_name in (directory.open_file, directory.open_file_for_update):
        with pytest.raises(OSError, match="link") as caught:
            open_by_name(b"link")
        assert caught.value.errno == errno.ELOOP


def test_a_fifo_does_not_open_as_a_file_and_does_not_block(place: Path, directory: DirectoryHandle) -> None:
    os.mkfifo(place / "fifo")
    for open_by_name in (directory.open_file, directory.open_file_for_update):
        with pytest.raises(OSError, match="not a regular file"):
            open_by_name(b"fifo")


def test_a_file_is_created_once_and_never_through_a_symlink(place: Path, directory: DirectoryHandle) -> None:
    os.close(directory.create_file(b"file"))
    (place / "link").symlink_to("elsewhere")
    for taken in (b"file", b"link"):
        with pytest.raises(FileExistsError):
            directory.create_file(taken)
    assert not (place / "elsewhere").exists()


def test_a_file_for_update_keeps_its_bytes(place: Path, directory: DirectoryHandle) -> None:
    (place / "file").write_bytes(b"0123456789")
    fd = directory.open_file_for_update(b"file")
    os.pwrite(fd, b"XY", 4)
    os.close(fd)
    assert (place / "file").read_bytes() == b"0123XY6789"


def test_anothers_directory_opens_though_its_access_time_is_not_ours_to_spare(
    place: Path, directory: DirectoryHandle, ordinary_user: Callable[[], AbstractContextManager[int]]
) -> None:
    (place / "sub").mkdir(mode=0o755)
    (place / "file").write_bytes(b"x")
    with ordinary_user():
        with directory.open_child(b"sub") as child:
            assert child.names() == []
        fd = directory.open_file(b"file")
        assert os.read(fd, 2) == b"x"
        os.close(fd)


def test_a_dropped_handle_closes_its_descriptor(place: Path) -> None:
    handle = DirectoryHandle.open_root(place)
    fd = handle.fd
    del handle
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_closed_handle_refuses_and_closes_twice_in_peace(place: Path) -> None:
    handle = DirectoryHandle.open_root(place)
    handle.close()
    handle.close()
    with pytest.raises(ValueError, match="closed"):
        handle.names()
