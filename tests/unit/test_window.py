"""A deadline on a CPU: early while waiting costs nothing, pressing, last call; and late only when it cannot be kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ohdiff.scheduling.core import SECOND
from ohdiff.scheduling.window import Stage, Window

RATE = 100_000_000
HOUR = 3600 * SECOND


@pytest.mark.parametrize(
    ("now_s", "work_s", "stage"),
    [
        (0, 60, Stage.EARLY),
        (0, 1300, Stage.EARLY),
        (0, 1400, Stage.PRESSING),
        (0, 1750, Stage.LAST),
        (2500, 60, Stage.EARLY),
        (2600, 60, Stage.PRESSING),
        (3290, 60, Stage.PRESSING),
        (3310, 60, Stage.LAST),
        (2690, 0, Stage.EARLY),
        (2710, 0, Stage.PRESSING),
        (3590, 0, Stage.LAST),
    ],
)
def test_the_stages_follow_the_slack_at_half_the_rate(now_s: int, work_s: int, stage: Stage) -> None:
    assert Window(0, HOUR).stage(now_s * SECOND, work_s * RATE, RATE) is stage


@given(st.integers(0, 2 * HOUR), st.integers(0, 1 << 42), st.integers(0, 1 << 40))
def test_time_and_work_only_make_it_more_pressing(now_ns: int, left: int, more: int) -> None:
    window = Window(0, HOUR)
    stage = window.stage(now_ns, left, RATE)
    assert window.stage(now_ns + more, left, RATE) >= stage
    assert window.stage(now_ns, left + more, RATE) >= stage


@given(st.integers(0, 2 * HOUR), st.integers(1, 1 << 42))
def test_it_is_late_exactly_when_the_whole_machine_would_not_do(now_ns: int, left: int) -> None:
    window = Window(0, HOUR)
    need_ns = left * SECOND // RATE
    late_ns = window.late_ns(now_ns, left, RATE)
    assert (late_ns > 0) == (now_ns + need_ns > HOUR)
    if late_ns:
        assert window.stage(now_ns, left, RATE) is Stage.LAST
