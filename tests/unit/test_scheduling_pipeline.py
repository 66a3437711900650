"""Groups of copy and compute against all possible ones, and the threads of stages against all possible splits."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st

from ohdiff.scheduling.pipeline import LinearTime, pipeline_ns, plan_groups
from ohdiff.scheduling.stage_threads import split_threads

TIMES = st.builds(LinearTime, st.integers(0, 50), st.integers(0, 20_000))


def all_groupings(pieces: int) -> Iterator[tuple[int, ...]]:
    for count in range(pieces):
        for cuts in combinations(range(1, pieces), count):
            borders = (0, *cuts, pieces)
            yield tuple(end - start for start, end in pairwise(borders))


@given(st.integers(1, 9), st.integers(1, 9), TIMES, TIMES)
def test_no_grouping_ends_sooner(pieces: int, pieces_max: int, copy: LinearTime, compute: LinearTime) -> None:
    groups = plan_groups(pieces * 4, 4, copy, compute, pieces_max * 4)
    possible = [[each * 4 for each in grouping] for grouping in all_groupings(pieces) if max(grouping) <= pieces_max]
    best = min(pipeline_ns(grouping, copy, compute, buffers=100) for grouping in possible)
    assert pipeline_ns(groups, copy, compute, buffers=100) == best


@given(st.integers(0, 200), st.integers(1, 20), st.integers(1, 60), TIMES, TIMES)
def test_groups_hold_all_bytes_in_whole_pieces_within_a_buffer(
    size: int, piece: int, buffer: int, copy: LinearTime, compute: LinearTime
) -> None:
    groups = plan_groups(size, piece, copy, compute, buffer)
    assert sum(groups) == size
    assert all(0 < group <= max(piece, buffer) for group in groups)
    assert all(group % piece == 0 for group in groups[:-1])


def test_the_first_group_is_small_where_launches_are_cheap() -> None:
    launch_of_five_bytes = LinearTime(5000, 1_000_000)
    groups = plan_groups(200, 1, launch_of_five_bytes, launch_of_five_bytes, 200)
    assert groups[0] < max(groups)


def test_expensive_launches_make_few_groups() -> None:
    assert plan_groups(64, 1, LinearTime(1_000_000, 1000), LinearTime(1_000_000, 1000), 64) == (64,)


def test_copy_and_compute_overlap_but_wait_for_buffers() -> None:
    second = LinearTime(0, 1000)
    assert pipeline_ns([5, 5, 5], second, second) == 20
    assert pipeline_ns([5, 5, 5], second, second, buffers=1) == 30
    assert pipeline_ns([], second, second) == 0


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=4), st.integers(1, 12))
def test_every_stage_has_a_thread_and_none_is_left_over(work: list[int], threads: int) -> None:
    split = split_threads(work, threads)
    assert all(count >= 1 for count in split)
    assert sum(split) == max(threads, len(work))


@given(st.lists(st.integers(100, 1000), min_size=2, max_size=3), st.integers(3, 12))
def test_a_split_is_close_to_the_best(work: list[int], threads: int) -> None:
    def total(split: tuple[int, ...]) -> float:
        return sum(each / count for each, count in zip(work, split, strict=True))

    possible = [split for split in all_groupings(threads) if len(split) == len(work)]
    assert total(split_threads(work, threads)) <= 1.15 * min(map(total, possible))


def test_four_times_the_work_gets_twice_the_threads() -> None:
    assert split_threads([100, 400, 900], 12) == (2, 4, 6)
