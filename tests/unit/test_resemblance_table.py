"""The table of resemblance: what it finds and forgets, its file, and everything that can happen to that file."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import struct
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest

from ohdiff._kernels import ResemblanceTable

TAG = bytes(range(32))
OTHER_TAG = bytes(32)
FEATURES = 12
# Of the twelve, those that lead to a row.
INDEXED = 8
HEADER_SIZE = 72
PAGE = 4096
BYTES_PER_CHUNK = 96
FIRST_CAPACITY = 4096
Features = list[int]


@cache
def features_of(name: object) -> Features:
    return list(struct.unpack("<12I", hashlib.shake_128(str(name).encode()).digest(48)))


def sharing(features: Features, which: list[int], name: object) -> Features:
    """Other features, equal in these places only."""
    other = features_of(name)
    return [features[place] if place in which else other[place] for place in range(FEATURES)]


def prefix_of(name: object) -> bytes:
    return hashlib.shake_128(f"id {name}".encode()).digest(16)


def packed(rows: list[Features]) -> bytes:
    return b"".join(struct.pack("<12I", *row) for row in rows)


def add(table: ResemblanceTable, rows: list[Features], names: list[object]) -> None:
    table.add(packed(rows), b"".join(prefix_of(name) for name in names))


def add_numbered(table: ResemblanceTable, numbers: range) -> None:
    add(table, [features_of(number) for number in numbers], list(numbers))


def found(table: ResemblanceTable, rows: list[Features], equal_min: int = 2) -> list[tuple[bytes, int] | None]:
    prefixes, counts = table.find(packed(rows), equal_min)
    assert len(prefixes) == 16 * len(rows)
    assert len(counts) == len(rows)
    split = [prefixes[at : at + 16] for at in range(0, len(prefixes), 16)]
    assert all(equal or prefix == bytes(16) for prefix, equal in zip(split, counts, strict=True))
    return [(prefix, equal) if equal else None for prefix, equal in zip(split, counts, strict=True)]


def is_nearly_all(kept: set[int], expected: range) -> bool:
    """A full table may lose a few rows: full buckets drop their oldest slots, and a row may lose all of its eight."""
    return kept <= set(expected) and len(kept) >= 0.999 * len(expected)


def numbers_found(table: ResemblanceTable, numbers: range) -> set[int]:
    """Those that are found as themselves; none may be found as anything else."""
    answers = found(table, [features_of(number) for number in numbers])
    for number, answer in zip(numbers, answers, strict=True):
        assert answer in (None, (prefix_of(number), FEATURES))
    return {number for number, answer in zip(numbers, answers, strict=True) if answer}


def in_memory(chunk_count_max: int = FIRST_CAPACITY) -> ResemblanceTable:
    return ResemblanceTable(None, chunk_count_max, TAG)


def write_file(path: Path, numbers: range, chunk_count_max: int = FIRST_CAPACITY) -> None:
    table = ResemblanceTable(path, chunk_count_max, TAG)
    add_numbered(table, numbers)
    table.flush()
    table.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "resemblance"


def test_the_chunk_that_shares_most_features_is_found() -> None:
    table, new = in_memory(), features_of("new")
    rows = [sharing(new, list(range(count)), count) for count in (2, 7, 4)]
    add(table, rows, [2, 7, 4])
    assert found(table, [new, rows[2], features_of("unlike")]) == [(prefix_of(7), 7), (prefix_of(4), 12), None]


def test_of_chunks_that_share_as_many_the_newest_is_found() -> None:
    table, new = in_memory(), features_of("new")
    add(table, [sharing(new, [0, 1, 2], 1), sharing(new, [5, 6, 7], 2), sharing(new, [0, 8], 3)], [1, 2, 3])
    assert found(table, [new]) == [(prefix_of(2), 3)]
    add(table, [sharing(new, [3, 10, 11], 4)], [4])
    assert found(table, [new]) == [(prefix_of(4), 3)]


@pytest.mark.parametrize("place", range(FEATURES))
def test_one_of_the_indexed_features_is_enough_to_be_found_by(place: int) -> None:
    table, new = in_memory(), features_of("new")
    add(table, [sharing(new, [place], "old")], ["old"])
    assert found(table, [new], 1) == [(prefix_of("old"), 1) if place < INDEXED else None]


@pytest.mark.parametrize("equal_min", range(1, 13))
def test_fewer_equal_features_than_demanded_are_no_resemblance(equal_min: int) -> None:
    table, new = in_memory(), features_of("new")
    add(table, [sharing(new, list(range(5)), "old")], ["old"])
    assert found(table, [new], equal_min) == [(prefix_of("old"), 5) if equal_min <= 5 else None]


def test_the_same_value_in_another_place_is_not_an_equal_feature() -> None:
    table, new = in_memory(), features_of("new")
    add(table, [[*new[1:], new[0]]], ["turned"])
    assert found(table, [new], 1) == [None]


def test_chunks_without_samples_are_left_out_and_resemble_nothing() -> None:
    table = in_memory()
    add(table, [[0] * FEATURES, features_of(1), [0] * FEATURES], ["empty", 1, "empty too"])
    assert table.chunk_count == 1
    assert found(table, [[0] * FEATURES, features_of(1)], 1) == [None, (prefix_of(1), 12)]


def test_nothing_is_found_in_an_empty_table_and_no_rows_are_no_answers() -> None:
    table = in_memory()
    assert found(table, [features_of(1)], 1) == [None]
    assert table.find(b"") == (b"", b"")
    table.add(b"", b"")
    assert table.chunk_count == 0


def test_a_feature_that_all_chunks_share_does_not_hide_what_else_they_share() -> None:
    table, popular = in_memory(), features_of("popular")
    rows = [sharing(popular, [0, 1], number) for number in range(1000)]
    add(table, rows, list(range(1000)))
    assert found(table, rows) == [(prefix_of(number), 12) for number in range(1000)]
    assert found(table, [popular]) == [(prefix_of(999), 2)]


@pytest.mark.parametrize("newer", range(6))
def test_of_a_feature_that_many_chunks_share_the_newest_four_are_known(newer: int) -> None:
    table, new = in_memory(), features_of("new")
    add(table, [sharing(new, [0, 8, 9, 10], "old")], ["old"])
    add(table, [sharing(new, [0], number) for number in range(newer)], list(range(newer)))
    assert found(table, [new], 1) == [(prefix_of("old"), 4) if newer < 4 else (prefix_of(newer - 1), 1)]


def test_a_table_grows_by_doubling_up_to_its_bound_and_then_forgets_the_oldest() -> None:
    table = in_memory(4 * FIRST_CAPACITY + 5)
    capacities = []
    for start in range(0, 7 * FIRST_CAPACITY, FIRST_CAPACITY):
        add_numbered(table, range(start, start + FIRST_CAPACITY))
        capacities.append(table.capacity // FIRST_CAPACITY)
    assert capacities == [1, 2, 4, 4, 4, 4, 4]
    assert table.chunk_count == 4 * FIRST_CAPACITY
    kept = numbers_found(table, range(7 * FIRST_CAPACITY))
    assert is_nearly_all(kept, range(3 * FIRST_CAPACITY, 7 * FIRST_CAPACITY))


def test_the_smallest_table_holds_its_chunks_and_no_more() -> None:
    table = in_memory(128)
    add_numbered(table, range(1000))
    assert table.capacity == table.chunk_count == 128
    assert numbers_found(table, range(1000)) == set(range(1000 - 128, 1000))


def test_a_table_is_the_same_after_it_was_closed_and_opened(path: Path) -> None:
    write_file(path, range(3000))
    assert path.stat().st_size == PAGE + BYTES_PER_CHUNK * FIRST_CAPACITY
    table = ResemblanceTable(path, FIRST_CAPACITY, TAG)
    assert table.chunk_count == 3000
    assert len(numbers_found(table, range(3000))) == 3000
    add_numbered(table, range(3000, 3500))
    table.flush()
    again = ResemblanceTable(path, FIRST_CAPACITY, TAG)
    assert len(numbers_found(again, range(3500))) == 3500


def test_a_full_table_forgets_in_order_across_openings(path: Path) -> None:
    for start in range(0, 900, 100):
        table = ResemblanceTable(path, 256, TAG)
        add_numbered(table, range(start, start + 100))
        table.flush()
        table.close()
    kept = numbers_found(ResemblanceTable(path, 256, TAG), range(900))
    assert kept == set(range(900 - 256, 900))


def test_only_touched_pages_are_read(path: Path) -> None:
    write_file(path, range(FIRST_CAPACITY))
    table = ResemblanceTable(path, FIRST_CAPACITY, TAG)
    assert table.resident_bytes == 0
    assert numbers_found(table, range(1)) == {0}
    assert 0 < table.resident_bytes <= 2 * 9 * PAGE


def test_nothing_is_written_before_a_flush_nor_by_one_without_news(path: Path) -> None:
    table = ResemblanceTable(path, FIRST_CAPACITY, TAG)
    table.flush()
    assert not path.exists()
    add_numbered(table, range(10))
    table.close()
    assert not path.exists()
    write_file(path, range(10))
    before = path.stat()
    reopened = ResemblanceTable(path, FIRST_CAPACITY, TAG)
    assert numbers_found(reopened, range(10)) == set(range(10))
    reopened.flush()
    assert path.stat().st_mtime_ns == before.st_mtime_ns


def test_growing_replaces_the_file_and_readers_keep_the_one_they_have(path: Path) -> None:
    write_file(path, range(4000))
    reader = ResemblanceTable(path, 1 << 20, TAG, False)
    inode = path.stat().st_ino
    write_file(path, range(4000, 5000), 1 << 20)
    assert path.stat().st_ino != inode
    assert path.stat().st_size == PAGE + BYTES_PER_CHUNK * 2 * FIRST_CAPACITY
    assert is_nearly_all(numbers_found(reader, range(5000)), range(4000))
    assert is_nearly_all(numbers_found(ResemblanceTable(path, 1 << 20, TAG), range(5000)), range(5000))
    assert os.listdir(path.parent) == [path.name]


def test_under_a_lower_bound_the_newest_chunks_are_kept_in_a_smaller_file(path: Path) -> None:
    write_file(path, range(4000))
    with path.open("rb") as old:
        table = ResemblanceTable(path, 1000, TAG)
        assert table.capacity == table.chunk_count == 512
        assert numbers_found(table, range(4000)) == set(range(4000 - 512, 4000))
        table.flush()
        assert path.stat().st_size == PAGE + BYTES_PER_CHUNK * 512
        assert os.fstat(old.fileno()).st_size == PAGE + BYTES_PER_CHUNK * FIRST_CAPACITY


def test_what_a_reader_adds_stays_with_it(path: Path) -> None:
    write_file(path, range(100))
    before = path.read_bytes()
    reader = ResemblanceTable(path, FIRST_CAPACITY, TAG, is_writable=False)
    add_numbered(reader, range(100, 5000))
    reader.flush()
    assert 4999 in numbers_found(reader, range(5000))
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_a_reader_of_no_file_makes_none(path: Path) -> None:
    reader = ResemblanceTable(path, FIRST_CAPACITY, TAG, is_writable=False)
    add_numbered(reader, range(5))
    reader.flush()
    assert numbers_found(reader, range(5)) == set(range(5))
    assert not path.exists()


def assert_begun_anew(path: Path) -> None:
    table = ResemblanceTable(path, FIRST_CAPACITY, TAG)
    assert table.chunk_count == 0
    assert numbers_found(table, range(50)) == set()
    add_numbered(table, range(50, 60))
    table.flush()
    assert numbers_found(ResemblanceTable(path, FIRST_CAPACITY, TAG), range(60)) == set(range(50, 60))


@pytest.mark.parametrize("at", range(HEADER_SIZE))
def test_a_damaged_header_begins_the_table_anew(path: Path, at: int) -> None:
    write_file(path, range(50))
    damaged = bytearray(path.read_bytes())
    damaged[at] ^= 0x10
    path.write_bytes(damaged)
    assert_begun_anew(path)


@pytest.mark.parametrize("size", [0, 1, HEADER_SIZE, PAGE - 1, PAGE, PAGE + BYTES_PER_CHUNK * FIRST_CAPACITY - 1])
def test_a_file_that_was_cut_short_begins_the_table_anew(path: Path, size: int) -> None:
    write_file(path, range(50))
    os.truncate(path, size)
    assert_begun_anew(path)


def test_a_longer_file_begins_the_table_anew(path: Path) -> None:
    write_file(path, range(50))
    with path.open("ab") as file:
        file.write(bytes(PAGE))
    assert_begun_anew(path)


def test_a_foreign_file_begins_the_table_anew(path: Path) -> None:
    path.write_bytes(random.Random(1).randbytes(100_000))
    assert_begun_anew(path)


def test_a_table_under_another_tag_begins_anew_and_is_replaced_only_by_a_flush(path: Path) -> None:
    write_file(path, range(50))
    other = ResemblanceTable(path, FIRST_CAPACITY, OTHER_TAG)
    assert other.chunk_count == 0
    other.flush()
    assert ResemblanceTable(path, FIRST_CAPACITY, TAG).chunk_count == 50
    add_numbered(other, range(3))
    other.flush()
    assert_begun_anew(path)


@pytest.mark.parametrize("seed", range(8))
def test_a_damaged_body_gives_hints_or_nothing_and_can_be_written_on(path: Path, seed: int) -> None:
    write_file(path, range(FIRST_CAPACITY))
    chance = random.Random(seed)
    damaged = bytearray(path.read_bytes())
    for _ in range(40):
        at, size = chance.randrange(PAGE, len(damaged)), chance.choice([1, 64, 20_000])
        damaged[at : at + size] = chance.randbytes(min(size, len(damaged) - at))
    path.write_bytes(damaged)
    table = ResemblanceTable(path, FIRST_CAPACITY, TAG)
    answers = found(table, [features_of(number) for number in range(FIRST_CAPACITY)])
    assert all(answer is None or 2 <= answer[1] <= FEATURES for answer in answers)
    add_numbered(table, range(FIRST_CAPACITY, 2 * FIRST_CAPACITY))
    table.flush()
    again = ResemblanceTable(path, FIRST_CAPACITY, TAG)
    assert len(numbers_found(again, range(FIRST_CAPACITY, 2 * FIRST_CAPACITY))) > 0.9 * FIRST_CAPACITY


def test_a_file_cut_short_while_it_is_open_counts_as_empty_from_there_on(path: Path) -> None:
    write_file(path, range(FIRST_CAPACITY))
    table = ResemblanceTable(path, FIRST_CAPACITY, TAG)
    reader = ResemblanceTable(path, FIRST_CAPACITY, TAG, False)
    os.truncate(path, PAGE + 10)
    assert numbers_found(table, range(FIRST_CAPACITY)) == set()
    assert numbers_found(reader, range(FIRST_CAPACITY)) == set()
    add_numbered(table, range(10_000, 10_100))
    table.flush()
    assert numbers_found(table, range(10_000, 10_100)) == set(range(10_000, 10_100))


def test_pages_newer_than_the_header_do_no_harm(path: Path) -> None:
    write_file(path, range(200), 256)
    header = path.read_bytes()[:PAGE]
    write_file(path, range(200, 400), 256)
    torn = header + path.read_bytes()[PAGE:]
    path.write_bytes(torn)
    table = ResemblanceTable(path, 256, TAG)
    numbers_found(table, range(400))
    add_numbered(table, range(400, 800))
    assert numbers_found(table, range(800)) == set(range(800 - 256, 800))


def test_a_flush_that_fails_says_why_and_the_next_one_writes_everything(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    table = ResemblanceTable(folder / "table", FIRST_CAPACITY, TAG)
    add_numbered(table, range(20))
    with pytest.raises(OSError, match=r"table") as caught:
        table.flush()
    assert caught.value.errno == errno.ENOENT
    folder.mkdir()
    table.flush()
    assert len(numbers_found(ResemblanceTable(folder / "table", FIRST_CAPACITY, TAG), range(20))) == 20


def test_a_file_that_cannot_be_put_in_place_leaves_none_behind(path: Path) -> None:
    table = ResemblanceTable(path, FIRST_CAPACITY, TAG)
    add_numbered(table, range(20))
    (path / "occupied").mkdir(parents=True)
    with pytest.raises(OSError) as caught:
        table.flush()
    assert caught.value.errno in (errno.EISDIR, errno.ENOTEMPTY)
    assert os.listdir(path.parent) == [path.name]
    (path / "occupied").rmdir()
    path.rmdir()
    table.flush()
    assert len(numbers_found(ResemblanceTable(path, FIRST_CAPACITY, TAG), range(20))) == 20


def test_a_folder_in_the_place_of_the_file_is_a_system_error(tmp_path: Path) -> None:
    with pytest.raises(OSError) as caught:
        ResemblanceTable(tmp_path, FIRST_CAPACITY, TAG)
    assert caught.value.errno == errno.EISDIR


def test_a_path_may_be_of_bytes_that_are_no_text(tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/\xff\xfe"
    table = ResemblanceTable(name, FIRST_CAPACITY, TAG)
    add_numbered(table, range(5))
    table.flush()
    assert os.listdir(os.fsencode(tmp_path)) == [b"\xff\xfe"]


def test_threads_may_add_and_find_at_once() -> None:
    table = in_memory(1 << 16)

    def work(thread: int) -> int:
        start = thread * 2000
        for first in range(start, start + 2000, 50):
            add_numbered(table, range(first, first + 50))
            assert len(numbers_found(table, range(first, first + 50))) == 50
        return start

    with ThreadPoolExecutor(6) as pool:
        assert len(list(pool.map(work, range(6)))) == 6
    assert len(numbers_found(table, range(12_000))) == 12_000


def test_a_closed_table_refuses_everything_but_closing() -> None:
    table = in_memory()
    add_numbered(table, range(5))
    table.close()
    table.close()
    for use in (
        lambda: add_numbered(table, range(1)),
        lambda: table.find(packed([features_of(1)])),
        table.flush,
        lambda: table.chunk_count,
        lambda: table.capacity,
        lambda: table.resident_bytes,
    ):
        with pytest.raises(ValueError, match="closed"):
            use()


@pytest.mark.parametrize("chunk_count_max", [0, 127, (1 << 24) + 1])
def test_a_bound_outside_its_range_is_refused(chunk_count_max: int) -> None:
    with pytest.raises(ValueError, match="chunk_count_max"):
        ResemblanceTable(None, chunk_count_max, TAG)


def test_arguments_that_do_not_fit_are_refused() -> None:
    table = in_memory()
    with pytest.raises(ValueError, match="48 bytes"):
        table.find(bytes(47))
    with pytest.raises(ValueError, match="48 bytes"):
        table.add(bytes(49), bytes(16))
    with pytest.raises(ValueError, match="same chunks"):
        table.add(bytes(96), bytes(16))
    for equal_min in (0, 13):
        with pytest.raises(ValueError, match="equal_min"):
            table.find(bytes(48), equal_min)
    with pytest.raises(ValueError, match="32 bytes"):
        ResemblanceTable(None, 128, bytes(31))
    with pytest.raises(ValueError, match="empty"):
        ResemblanceTable("", 128, TAG)
    with pytest.raises(TypeError):
        table.find("text")  # type: ignore[arg-type]


def test_buffers_of_any_kind_and_alignment_are_read_alike() -> None:
    table = in_memory()
    rows = [features_of(1), features_of(2)]
    shifted = memoryview(b"x" + packed(rows))[1:]
    table.add(shifted, bytearray(prefix_of(1) + prefix_of(2)))
    assert table.find(shifted) == table.find(packed(rows)) == (prefix_of(1) + prefix_of(2), bytes([12, 12]))
