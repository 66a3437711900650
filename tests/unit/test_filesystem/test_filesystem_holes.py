"""data_extents, set_layout, punch_hole and compare_and_write on real files with and without holes."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ohdiff import _posix
from ohdiff.filesystem import (
    DirectoryHandle,
    compare_and_write,
    data_extents,
    may_have_holes,
    read_status,
    set_layout,
    sync_filesystem,
)

MIB = 1 << 20
GIB = 1 << 30


@pytest.fixture
def fd(directory: DirectoryHandle) -> Iterator[int]:
    """An empty file, open for reading and writing, on a file system with holes."""
    descriptor = directory.create_file(b"file")
    os.ftruncate(descriptor, 4 * MIB)
    has_holes = data_extents(descriptor, 4 * MIB) == []
    os.ftruncate(descriptor, 0)
    if not has_holes:
        os.close(descriptor)
        pytest.skip("this file system does not tell holes from data")
    yield descriptor
    os.close(descriptor)


def test_an_empty_file_has_no_extents(fd: int) -> None:
    assert data_extents(fd, 0) == []


def test_a_file_of_data_is_one_extent(fd: int) -> None:
    os.pwrite(fd, b"x" * 10_000, 0)
    assert data_extents(fd, 10_000) == [(0, 10_000)]


def test_a_file_that_is_all_hole_has_no_extents(fd: int) -> None:
    os.ftruncate(fd, 8 * MIB + 1)
    assert data_extents(fd, 8 * MIB + 1) == []
    status = read_status(fd)
    assert may_have_holes(status.size, status.blocks512)


def test_data_between_holes_is_found_beyond_4_gib(fd: int) -> None:
    block = 1 << 16
    size = 6 * GIB + 5
    os.ftruncate(fd, size)
    os.pwrite(fd, b"x" * block, 1 * MIB)
    os.pwrite(fd, b"y" * block, 5 * GIB)
    os.pwrite(fd, b"end", size - 3)
    extents = data_extents(fd, size)
    assert extents[:2] == [(MIB, MIB + block), (5 * GIB, 5 * GIB + block)]
    assert len(extents) == 3
    assert 6 * GIB <= extents[2][0] <= size - 3
    assert extents[2][1] == size


def test_extents_end_with_the_size_that_was_asked_for(fd: int) -> None:
    os.pwrite(fd, b"x" * MIB, 0)
    assert data_extents(fd, 1000) == [(0, 1000)]
    assert data_extents(fd, 2 * MIB) == [(0, MIB)]


def test_the_file_offset_stays_where_it_was(fd: int) -> None:
    os.pwrite(fd, b"x" * MIB, MIB)
    os.lseek(fd, 123, os.SEEK_SET)
    data_extents(fd, 2 * MIB)
    compare_and_write(fd, 7, b"y")
    assert os.lseek(fd, 0, os.SEEK_CUR) == 123


def test_a_pipe_has_no_extents_to_tell() -> None:
    reader, writer = os.pipe()
    with pytest.raises(OSError, match="seek"):
        data_extents(reader, 10)
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize(
    "extents",
    [
        [],
        [(0, 3 * MIB)],
        [(0, MIB)],
        [(2 * MIB, 3 * MIB)],
        [(MIB, 2 * MIB)],
        [(0, MIB // 2), (MIB, 2 * MIB), (2 * MIB + MIB // 2, 3 * MIB)],
    ],
)
@pytest.mark.parametrize("tail", [0, 1])
def test_a_file_full_of_data_gets_the_layout_and_keeps_what_the_ranges_hold(
    fd: int, extents: list[tuple[int, int]], tail: int
) -> None:
    size = 3 * MIB + tail
    content = os.urandom(4 * MIB)
    os.pwrite(fd, content, 0)
    assert set_layout(fd, size, extents)
    assert data_extents(fd, size) == extents
    assert read_status(fd).size == size
    found = os.pread(fd, 5 * MIB, 0)
    kept = bytearray(size)
    for start, end in extents:
        kept[start:end] = content[start:end]
    assert found == kept


def test_a_layout_with_a_hole_beyond_4_gib_is_made_on_an_empty_file(fd: int) -> None:
    size = 5 * GIB
    assert set_layout(fd, size, [(4 * GIB + MIB, 4 * GIB + 2 * MIB)])
    assert compare_and_write(fd, 4 * GIB + MIB, b"d" * MIB) == MIB
    assert data_extents(fd, size) == [(4 * GIB + MIB, 4 * GIB + 2 * MIB)]
    assert read_status(fd).size == size


@pytest.mark.parametrize("extents", [[(0, 11)], [(5, 5)], [(6, 4)], [(2, 4), (3, 6)], [(4, 6), (0, 2)], [(-1, 2)]])
def test_a_layout_that_is_not_sorted_disjoint_and_inside_is_refused_and_changes_nothing(
    fd: int, extents: list[tuple[int, int]]
) -> None:
    os.pwrite(fd, b"0123456789", 0)
    with pytest.raises(ValueError, match="sorted, disjoint"):
        set_layout(fd, 10, extents)
    assert os.pread(fd, 20, 0) == b"0123456789"


def test_a_punched_range_reads_as_zeros_and_the_size_stays(fd: int) -> None:
    os.pwrite(fd, b"x" * MIB, 0)
    _posix.punch_hole(fd, 1000, MIB)
    _posix.punch_hole(fd, 0, 0)
    assert os.pread(fd, 2 * MIB, 0) == b"x" * 1000 + bytes(MIB - 1000)


def test_what_cannot_be_punched_is_an_os_error() -> None:
    reader, writer = os.pipe()
    with pytest.raises(OSError, match=r"seek|device|not supported") as caught:
        _posix.punch_hole(writer, 0, 10)
    assert caught.value.errno in (errno.ESPIPE, errno.ENODEV, errno.EOPNOTSUPP)
    os.close(reader)
    os.close(writer)


def test_equal_bytes_are_not_written_again(place: Path, fd: int) -> None:
    content = os.urandom(MIB)
    os.pwrite(fd, content, 0)
    os.utime(place / "file", ns=(0, 0))
    before = (place / "file").stat()
    assert compare_and_write(fd, 0, content) == 0
    assert compare_and_write(fd, 1000, content[1000:5000]) == 0
    assert compare_and_write(fd, 0, b"") == 0
    after = (place / "file").stat()
    assert (after.st_mtime_ns, after.st_ctime_ns) == (before.st_mtime_ns, before.st_ctime_ns)


@pytest.mark.parametrize("position", [0, 131_071, 131_072, 262_143, 300_000])
def test_one_different_byte_rewrites_its_piece_alone(fd: int, position: int) -> None:
    content = os.urandom(300_001)
    changed = bytearray(content)
    changed[position] ^= 1
    os.pwrite(fd, content, 10)
    piece = min(131_072, len(content) - position // 131_072 * 131_072)
    assert compare_and_write(fd, 10, changed) == piece
    assert os.pread(fd, 400_000, 10) == changed


def test_bytes_past_the_end_of_the_file_are_written(fd: int) -> None:
    os.pwrite(fd, b"12345", 0)
    assert compare_and_write(fd, 3, b"4567") == 4
    assert compare_and_write(fd, 5 * GIB, b"far") == 3
    assert os.pread(fd, 10, 0) == b"1234567\0\0\0"
    assert os.pread(fd, 10, 5 * GIB) == b"far"


def test_zeros_over_a_hole_leave_it_a_hole(fd: int) -> None:
    os.ftruncate(fd, 4 * MIB)
    assert compare_and_write(fd, 0, bytes(4 * MIB)) == 0
    assert data_extents(fd, 4 * MIB) == []


def test_a_file_that_is_not_open_for_writing_is_an_os_error(place: Path, fd: int) -> None:
    os.pwrite(fd, b"abc", 0)
    reader = os.open(place / "file", os.O_RDONLY)
    assert compare_and_write(reader, 0, b"abc") == 0
    with pytest.raises(OSError, match="Bad file descriptor"):
        compare_and_write(reader, 0, b"abd")
    os.close(reader)


def test_ranges_outside_of_any_file_are_refused(fd: int) -> None:
    for offset in (-1, 2**63 - 2):
        with pytest.raises(ValueError, match="outside of any file"):
            compare_and_write(fd, offset, b"abc")
        with pytest.raises(ValueError, match="outside of any file"):
            _posix.punch_hole(fd, offset, 3)
    with pytest.raises(ValueError, match="negative"):
        data_extents(fd, -1)
    with pytest.raises(TypeError):
        compare_and_write(fd, 0, "text")  # type: ignore[arg-type]


def test_a_file_system_is_flushed_and_a_closed_file_is_an_error(directory: DirectoryHandle) -> None:
    sync_filesystem(directory.fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        sync_filesystem(1_000_000)
