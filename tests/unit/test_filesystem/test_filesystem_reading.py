"""read_files: only whole, unchanged, listed files count as read, and nothing makes it wait or write elsewhere."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from ohdiff.filesystem import DirectoryHandle, EntryColumns, read_entries, read_files
from ohdiff.scheduling.page_cache import cached_pages

Expected = tuple[list[int], list[int], list[int], list[int]]
EXPECTED_FIELDS = ("sizes", "mtimes_ns", "ctimes_ns", "inodes")
CHANGED = -1


def listed(directory: DirectoryHandle) -> EntryColumns:
    return read_entries(directory, directory.names(), with_xattrs=False)


def expected_of(found: EntryColumns) -> Expected:
    return found.sizes, found.mtimes_ns, found.ctimes_ns, found.inodes


def read(directory: DirectoryHandle, found: EntryColumns, *, room: int | None = None) -> tuple[list[int], bytes]:
    buffer = bytearray(sum(found.sizes) if room is None else room)
    statuses = read_files([directory.fd] * len(found), found.names, expected_of(found), buffer)
    return statuses, bytes(buffer)


def test_files_are_read_back_to_back(place: Path, directory: DirectoryHandle) -> None:
    contents = {b"a": b"first", b"b": b"", b"c": bytes(range(256)) * 1000, b"\xff": b"last"}
    for name, content in contents.items():
        (place / os.fsdecode(name)).write_bytes(content)
    assert read(directory, listed(directory)) == ([0, 0, 0, 0], b"".join(contents.values()))


def test_files_of_several_directories_are_read_into_the_middle_of_a_buffer(
    place: Path, directory: DirectoryHandle
) -> None:
    for folder, content in (("one", b"111"), ("two", b"22")):
        (place / folder).mkdir()
        (place / folder / "same").write_bytes(content)
    with directory.open_child(b"one") as one, directory.open_child(b"two") as two:
        found = [listed(one), listed(two)]
        columns = tuple([getattr(entry, field)[0] for entry in found] for field in EXPECTED_FIELDS)
        buffer = bytearray(b"." * 10)
        statuses = read_files([one.fd, two.fd], [b"same", b"same"], columns, memoryview(buffer)[1:], 2)
    assert statuses == [0, 0]
    assert buffer == b"...11122.."


def test_nothing_to_read_is_read(directory: DirectoryHandle) -> None:
    assert read(directory, listed(directory)) == ([], b"")


def test_fifty_thousand_files_are_read(directory: DirectoryHandle) -> None:
    for number in range(50_000):
        fd = os.open(b"%05d" % number, os.O_CREAT | os.O_WRONLY, dir_fd=directory.fd)
        os.write(fd, b"%d" % number)
        os.close(fd)
    statuses, content = read(directory, listed(directory))
    assert set(statuses) == {0}
    assert content == b"".join(b"%d" % number for number in range(50_000))


def wait_for_a_later_ctime(place: Path, ctime_ns: int) -> None:
    """The clock of a file system may tick as slowly as every 10 ms, and a change within a tick leaves no trace."""
    clock = place.parent / f"{place.name}.clock"
    clock.touch()
    while clock.stat().st_ctime_ns <= ctime_ns:
        os.utime(clock)
    clock.unlink()


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"+")


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_bytes(b"other"),
        append,
        lambda path: os.truncate(path, 2),
        lambda path: path.write_bytes(b""),
        lambda path: path.chmod(0o600),
        lambda path: os.utime(path, ns=(0, 0)),
    ],
    ids=["same size", "appended", "cut short", "emptied", "mode", "time"],
)
def test_a_file_that_changed_since_it_was_listed_is_reported_and_its_neighbours_are_unharmed(
    place: Path, directory: DirectoryHandle, change: Callable[[Path], None]
) -> None:
    for name in ("a", "b", "c"):
        (place / name).write_bytes(name.encode() * 5)
    found = listed(directory)
    wait_for_a_later_ctime(place, found.ctimes_ns[1])
    change(place / "b")
    statuses, content = read(directory, found)
    assert statuses == [0, CHANGED, 0]
    assert content[:5] == b"aaaaa"
    assert content[10:] == b"ccccc"


def test_another_file_of_the_same_size_and_times_in_its_place_is_a_change(
    place: Path, directory: DirectoryHandle
) -> None:
    (place / "file").write_bytes(b"old")
    found = listed(directory)
    (place / "other").write_bytes(b"new")
    os.utime(place / "other", ns=(found.mtimes_ns[0], found.mtimes_ns[0]))
    (place / "other").rename(place / "file")
    found.ctimes_ns[0] = (place / "file").stat().st_ctime_ns
    assert read(directory, found)[0] == [CHANGED]


@pytest.mark.parametrize("field", EXPECTED_FIELDS)
def test_a_single_difference_from_the_listing_is_a_change(place: Path, directory: DirectoryHandle, field: str) -> None:
    (place / "file").write_bytes(b"12345")
    found = listed(directory)
    for difference in (-1, 1):
        getattr(found, field)[0] += difference
        assert read(directory, found)[0] == [CHANGED]
        getattr(found, field)[0] -= difference
    assert read(directory, found)[0] == [0]


def test_what_was_never_a_regular_file_is_not_read(place: Path, directory: DirectoryHandle) -> None:
    os.mkfifo(place / "fifo")
    assert read(directory, listed(directory))[0] == [CHANGED]


def test_a_vanished_file_is_enoent_and_keeps_its_place_in_the_buffer(place: Path, directory: DirectoryHandle) -> None:
    for name in ("a", "b", "c"):
        (place / name).write_bytes(name.encode())
    found = listed(directory)
    (place / "b").unlink()
    assert read(directory, found) == ([0, errno.ENOENT, 0], b"a\0c")


def test_a_symlink_in_place_of_a_file_is_never_followed(place: Path, directory: DirectoryHandle) -> None:
    (place / "file").write_bytes(b"mine")
    found = listed(directory)
    (place / "file").rename(place / "moved")
    (place / "file").symlink_to("moved")
    assert read(directory, found) == ([errno.ELOOP], b"\0\0\0\0")


def test_a_fifo_in_place_of_a_file_neither_blocks_nor_counts_as_read(place: Path, directory: DirectoryHandle) -> None:
    (place / "file").write_bytes(b"mine")
    found = listed(directory)
    (place / "file").unlink()
    os.mkfifo(place / "file")
    assert read(directory, found)[0] == [CHANGED]
    writer = os.open(place / "file", os.O_RDWR | os.O_NONBLOCK)
    assert read(directory, found)[0] == [CHANGED]
    os.close(writer)


def test_a_directory_in_place_of_a_file_is_a_change(place: Path, directory: DirectoryHandle) -> None:
    (place / "file").write_bytes(b"mine")
    found = listed(directory)
    (place / "file").unlink()
    (place / "file").mkdir()
    assert read(directory, found)[0] == [CHANGED]


def test_an_unreadable_file_is_eacces(
    place: Path, directory: DirectoryHandle, ordinary_user: Callable[[], AbstractContextManager[int]]
) -> None:
    (place / "file").write_bytes(b"mine")
    (place / "file").chmod(0)
    found = listed(directory)
    with ordinary_user():
        assert read(directory, found)[0] == [errno.EACCES]


def test_reading_leaves_access_times_alone(place: Path, directory: DirectoryHandle) -> None:
    (place / "file").write_bytes(b"mine")
    os.utime(place / "file", ns=(1, 10**18))
    assert read(directory, listed(directory))[0] == [0]
    assert (place / "file").stat().st_atime_ns == 1


@pytest.mark.usefixtures("needs_root")
def test_an_ordinary_user_reads_others_files_and_spares_the_times_of_the_next_own_ones(
    place: Path, directory: DirectoryHandle, ordinary_user: Callable[[], AbstractContextManager[int]]
) -> None:
    with ordinary_user() as me:
        pass
    for name, owner in (("a", me), ("b", 0), ("c", me), ("d", me)):
        (place / name).write_bytes(name.encode())
        os.chown(place / name, owner, -1)
        os.utime(place / name, ns=(1, 10**18))
    found = listed(directory)
    with ordinary_user():
        assert read(directory, found) == ([0, 0, 0, 0], b"abcd")
    assert (place / "a").stat().st_atime_ns == 1
    assert (place / "d").stat().st_atime_ns == 1


def test_a_buffer_that_is_too_small_is_refused_before_anything_is_read(place: Path, directory: DirectoryHandle) -> None:
    for name in ("a", "b"):
        (place / name).write_bytes(b"12345")
    found = listed(directory)
    for room in (0, 5, 9):
        with pytest.raises(ValueError, match="too small"):
            read(directory, found, room=room)
    buffer = bytearray(12)
    for start in (3, 12):
        with pytest.raises(ValueError, match="too small"):
            read_files([directory.fd] * 2, found.names, expected_of(found), buffer, start)
    for start in (-1, 13):
        with pytest.raises(ValueError, match="outside"):
            read_files([directory.fd] * 2, found.names, expected_of(found), buffer, start)
    assert buffer == bytes(12)


def test_sizes_that_overflow_together_are_refused(directory: DirectoryHandle) -> None:
    huge = 2**63 - 1
    with pytest.raises(ValueError, match="too small"):
        read_files([directory.fd] * 2, [b"a", b"b"], ([huge, huge], [0, 0], [0, 0], [0, 0]), bytearray(8))


@pytest.mark.parametrize("column", range(4))
def test_columns_of_another_length_or_range_are_refused(directory: DirectoryHandle, column: int) -> None:
    for wrong in ([], [0, 0], [2**64]):
        columns: list[list[int]] = [[0], [0], [0], [0]]
        columns[column] = wrong
        with pytest.raises(ValueError, match=r"items for 1 names|out of range"):
            read_files([directory.fd], [b"a"], tuple(columns), bytearray(8))
    columns = [[0], [0], [0], [0]]
    columns[column] = [0.5]  # type: ignore[list-item]
    with pytest.raises(TypeError):
        read_files([directory.fd], [b"a"], tuple(columns), bytearray(8))


def test_other_wrong_arguments_are_refused(directory: DirectoryHandle) -> None:
    good: Expected = ([0], [0], [0], [0])
    with pytest.raises(ValueError, match="dir_fds: 0 items for 1 names"):
        read_files([], [b"a"], good, bytearray(8))
    with pytest.raises(ValueError, match="out of range"):
        read_files([-1], [b"a"], good, bytearray(8))
    with pytest.raises(ValueError, match="out of range"):
        read_files([directory.fd], [b"a"], ([-1], [0], [0], [0]), bytearray(8))
    with pytest.raises(ValueError, match="name of a directory entry"):
        read_files([directory.fd], [b"../a"], good, bytearray(8))
    with pytest.raises(ValueError, match="sizes, mtimes_ns, ctimes_ns and inodes"):
        read_files([directory.fd], [b"a"], ([0], [0]), bytearray(8))  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        read_files([directory.fd], [b"a"], ((0,), [0], [0], [0]), bytearray(8))  # type: ignore[arg-type]
    with pytest.raises(BufferError):
        read_files([directory.fd], [b"a"], good, b"read-only")


@pytest.fixture
def cold(tmp_path: Path) -> list[Path]:
    """Files of which nothing is in the page cache."""
    paths = [tmp_path / f"{number:02}" for number in range(70)]
    for path in paths:
        with open(path, "wb") as file:
            file.write(os.urandom(9000))
            file.flush()
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if any(pages_of(path) for path in paths):
        pytest.skip("this file system keeps files in memory, or the system does not count cached pages")
    return paths


def pages_of(path: Path) -> int:
    with open(path, "rb") as file:
        return cached_pages(file.fileno())


def test_what_was_not_in_the_page_cache_is_not_left_there_and_what_was_stays(cold: list[Path], tmp_path: Path) -> None:
    for path in cold[::3]:
        path.read_bytes()
    before = [pages_of(path) for path in cold]
    with DirectoryHandle.open_root(os.fsencode(tmp_path)) as directory:
        found = listed(directory)
        buffer = bytearray(sum(found.sizes))
        fds = [directory.fd] * len(found)
        statuses = read_files(fds, found.names, expected_of(found), buffer, 0, leaves_cache=True)
    assert statuses == [0] * len(cold)
    assert [pages_of(path) for path in cold] == before
    places = {os.fsdecode(name): 9000 * row for row, name in enumerate(found.names)}
    assert all(buffer[places[path.name] :][:9000] == path.read_bytes() for path in cold)


def test_usually_what_is_read_stays_in_the_page_cache(cold: list[Path], tmp_path: Path) -> None:
    with DirectoryHandle.open_root(os.fsencode(tmp_path)) as directory:
        read(directory, listed(directory))
    assert all(pages_of(path) for path in cold)
