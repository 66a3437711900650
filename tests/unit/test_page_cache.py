"""What is read leaves the page cache as it was: nothing of ours stays, nothing of others' goes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ohdiff.scheduling.page_cache import _looks_cached, cached_pages, drop, is_cached, left_as_found

SIZE = 4 << 20


@pytest.fixture
def fd(tmp_path: Path) -> int:  # type: ignore[misc]
    path = tmp_path / "file"
    path.write_bytes(os.urandom(SIZE))
    number = os.open(path, os.O_RDONLY)
    os.fsync(number)
    drop(number)
    if is_cached(number, SIZE):
        os.close(number)
        pytest.skip("this file system keeps files in memory, or does not tell")
    drop(number)
    yield number
    os.close(number)


def read(fd: int, start: int, size: int) -> None:
    assert len(os.pread(fd, size, start)) == size


def test_what_was_not_there_goes_again(fd: int) -> None:
    with left_as_found(fd, SIZE) as read_to:
        read(fd, 0, SIZE)
        read_to(SIZE)
    assert not is_cached(fd, SIZE)


def test_a_long_file_goes_while_it_is_read(fd: int) -> None:
    if cached_pages(fd) < 0:
        pytest.skip("this system does not count cached pages")
    with left_as_found(fd, SIZE) as read_to:
        read(fd, 0, SIZE)
        read_to(SIZE)
        assert cached_pages(fd) > 0
        read_to(SIZE)
        assert cached_pages(fd) == 0


def test_what_was_there_stays(fd: int) -> None:
    read(fd, 0, SIZE)
    with left_as_found(fd, SIZE) as read_to:
        read(fd, 0, SIZE)
        read_to(SIZE)
    assert is_cached(fd, SIZE)


def test_a_part_that_was_there_keeps_all_of_it(fd: int) -> None:
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    read(fd, SIZE - 4096, 4096)
    assert is_cached(fd, SIZE)


def test_a_failed_read_leaves_nothing(fd: int) -> None:
    with pytest.raises(ZeroDivisionError), left_as_found(fd, SIZE):
        read(fd, 0, SIZE)
        _ = 1 / 0
    assert not is_cached(fd, SIZE)


def test_where_nothing_can_be_told_nothing_is_dropped() -> None:
    ours, theirs = os.pipe()
    assert _looks_cached(ours, SIZE)
    with left_as_found(ours, SIZE) as read_to:
        read_to(SIZE)
    os.close(ours)
    os.close(theirs)


def test_an_empty_file_does_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "empty"
    path.touch()
    with open(path, "rb") as file, left_as_found(file.fileno(), 0):
        pass


def test_the_older_way_agrees(fd: int) -> None:
    read(fd, 0, SIZE)
    assert _looks_cached(fd, SIZE)
