"""Bases by place: what stood in an earlier version where a new chunk stands now, against an oracle that knows all."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ohdiff.delta import places
from ohdiff.delta.places import EarlierVersion

Chunks = list[tuple[bytes, int]]


def named(sizes: list[int]) -> Chunks:
    """Chunks of these sizes, each with a prefix of its own."""
    return [(b"chunk %010d" % number, size) for number, size in enumerate(sizes)]


def prefixes(*numbers: int) -> list[bytes]:
    return [b"chunk %010d" % number for number in numbers]


def earlier(sizes: list[int]) -> EarlierVersion:
    return EarlierVersion(iter(named(sizes)))


class Oracle:
    """The same with everything in memory: chunks that overlap a range, less those that are hardly touched."""

    def __init__(self, chunks: Chunks) -> None:
        ends = list(accumulate(size for _, size in chunks))
        self.rows = [(prefix, end - size, end) for (prefix, size), end in zip(chunks, ends, strict=True)]
        self.shift = 0

    def note_duplicate(self, prefix: bytes, start: int) -> None:
        """Of chunks that occur twice, the last occurrence counts."""
        starts = {each: row_start for each, row_start, _ in self.rows}
        if prefix in starts:
            self.shift = starts[prefix] - start

    def at(self, start: int, end: int) -> list[bytes]:
        start, end = start + self.shift, end + self.shift
        touched = [row for row in self.rows if row[2] > start and row[1] < end]
        if not touched:
            # A range before the first byte is given what comes first.
            return [row[0] for row in self.rows[:1] if end <= 0]
        for edge in (0, -1):
            _, row_start, row_end = touched[edge]
            covered = min(end, row_end) - max(start, row_start)
            if len(touched) > 1 and covered * 8 < row_end - row_start:
                del touched[edge]
        return [row[0] for row in touched]


def test_an_edit_in_place_finds_the_chunks_that_stood_there() -> None:
    version = earlier([100, 200, 300])
    assert version.at(0, 100) == prefixes(0)
    assert version.at(100, 320) == prefixes(1)
    assert version.at(320, 600) == prefixes(2)


def test_a_chunk_over_several_earlier_ones_stands_on_all_that_it_covers() -> None:
    assert earlier([100, 100, 100, 100]).at(50, 350) == prefixes(0, 1, 2, 3)


def test_a_neighbour_that_is_hardly_touched_is_left_out_at_either_end() -> None:
    assert earlier([800, 800, 800]).at(790, 1610) == prefixes(1)
    assert earlier([800, 800, 800]).at(700, 1700) == prefixes(0, 1, 2)
    # But not if nothing else is left.
    assert earlier([800, 800]).at(795, 799) == prefixes(0)


def test_after_an_insert_the_next_duplicate_tells_by_how_much_all_has_moved() -> None:
    version = earlier([100, 100, 100, 100])
    assert version.at(0, 50) == prefixes(0)
    version.note_duplicate(prefixes(1)[0], 150)
    assert version.at(250, 350) == prefixes(2)


def test_after_a_deletion_too() -> None:
    version = earlier([100, 100, 100, 100])
    version.note_duplicate(prefixes(2)[0], 0)
    assert version.at(100, 200) == prefixes(3)


def test_after_a_move_each_part_finds_where_it_was() -> None:
    version = earlier([100] * 10)
    version.note_duplicate(prefixes(6)[0], 0)
    assert version.at(100, 200) == prefixes(7)
    version.note_duplicate(prefixes(1)[0], 200)
    assert version.at(300, 400) == prefixes(2)


def test_a_duplicate_from_another_file_changes_nothing() -> None:
    version = earlier([100, 100])
    version.note_duplicate(b"of another file!", 500)
    assert version.at(100, 200) == prefixes(1)


def test_beyond_the_end_there_is_nothing_and_across_it_the_last_chunk() -> None:
    version = earlier([100, 100])
    assert version.at(150, 900) == prefixes(1)
    assert list(version.at(200, 300)) == []
    assert list(version.at(10**12, 10**12 + 1)) == []


def test_an_empty_version_has_nothing() -> None:
    version = earlier([])
    version.note_duplicate(prefixes(0)[0], 0)
    assert list(version.at(0, 100)) == []


def test_a_chunk_list_is_read_no_further_than_needed() -> None:
    taken = 0

    def chunks() -> Iterator[tuple[bytes, int]]:
        nonlocal taken
        for taken, chunk in enumerate(named([10] * 200_000), 1):  # noqa: B007 - the count is what is looked at
            yield chunk

    version = EarlierVersion(chunks())
    assert version.at(0, 10) == prefixes(0)
    assert taken < 40_000


@pytest.fixture
def _small_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "_CHUNKS_KNOWN_MAX", 4096)
    monkeypatch.setattr(places, "_CHUNKS_AHEAD", 2048)


@pytest.mark.usefixtures("_small_window")
def test_what_lies_far_behind_is_forgotten_and_what_is_near_is_right() -> None:
    sizes = [10 + number % 7 for number in range(20_000)]
    version, oracle = earlier(sizes), Oracle(named(sizes))
    total = sum(sizes)
    for start in range(0, total + 500, 1997):
        assert list(version.at(start, start + 30)) == oracle.at(start, start + 30)
        assert list(version.at(start, start + 30)) == oracle.at(start, start + 30)
        version.note_duplicate(b"unknown", start)
    assert len(version._ends) == len(version._prefixes) == 4096
    assert len(version._starts) == 4096
    # What was forgotten cannot tell of a move any more.
    before = list(version.at(total - 30, total))
    version.note_duplicate(prefixes(5)[0], total)
    assert list(version.at(total - 30, total)) == before


@pytest.mark.usefixtures("_small_window")
def test_a_chunk_that_occurs_again_and_again_is_not_forgotten_with_its_first_place() -> None:
    chunks = [(b"zeros", 10) if number % 2 else chunk for number, chunk in enumerate(named([10] * 12_000))]
    version = EarlierVersion(iter(chunks))
    for start in range(0, 100_000, 1000):
        version.at(start, start + 10)
    assert version._starts[b"zeros"] == version._ends[-1] - 10
    assert len(version._starts) == 4096 // 2 + 1


@st.composite
def edit_scripts(draw: st.DrawFn) -> tuple[Chunks, list[tuple[str, int, int]]]:
    """Chunks of an earlier version, some twice, and what the new version is made of: (what, row or 0, size)."""
    sizes = draw(st.lists(st.integers(1, 60), max_size=25))
    chunks = named(sizes)
    for row in draw(st.lists(st.integers(0, max(0, len(sizes) - 1)), max_size=3)):
        if chunks:
            chunks.append(chunks[row])
    parts = st.one_of(
        st.tuples(st.just("kept"), st.integers(0, max(0, len(chunks) - 1)), st.just(0)),
        st.tuples(st.just("new"), st.just(0), st.integers(1, 150)),
        st.tuples(st.just("foreign"), st.just(0), st.integers(1, 150)),
    )
    return chunks, draw(st.lists(parts, max_size=25))


@given(script=edit_scripts())
def test_any_edit_script_is_answered_as_the_oracle_does(script: tuple[Chunks, list[tuple[str, int, int]]]) -> None:
    chunks, parts = script
    version, oracle = EarlierVersion(iter(chunks)), Oracle(chunks)
    start = 0
    for what, row, size in parts:
        if what == "new":
            assert list(version.at(start, start + size)) == oracle.at(start, start + size)
        elif what == "foreign":
            version.note_duplicate(b"a foreign chunk!", start)
        elif chunks:
            prefix, size = chunks[row]
            version.note_duplicate(prefix, start)
            oracle.note_duplicate(prefix, start)
        start += size
