"""The plan of threads and blocks: within the ceiling, and no smaller than it must be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ohdiff.errors import UsageError
from ohdiff.operations.memory_plan import plan_memory

MIB = 1 << 20


@given(st.integers(0, 2048), st.integers(1, 256), st.none() | st.integers(1, 64))
def test_a_plan_never_exceeds_its_ceiling(mebibytes: int, processors: int, readers: int | None) -> None:
    try:
        plan = plan_memory(mebibytes * MIB, processors, readers)
    except UsageError as error:
        needed = int(error.message.split()[-4])
        assert needed > mebibytes
        assert plan_memory(needed * MIB, processors, readers).size_bytes <= needed * MIB
        return
    assert plan.size_bytes <= mebibytes * MIB
    assert plan.readers >= 1
    assert plan.encoders >= 1
    assert plan.queue_depth >= plan.encoders
    assert readers in (None, plan.readers)


@given(st.integers(128, 2048), st.integers(1, 64))
def test_more_memory_never_means_less_work_at_a_time(mebibytes: int, processors: int) -> None:
    smaller, larger = (plan_memory(size * MIB, processors) for size in (mebibytes, mebibytes + 16))
    assert larger.encoders >= smaller.encoders
    assert larger.readers >= smaller.readers


def test_two_processors_stay_below_200_mb_by_themselves() -> None:
    assert plan_memory(None, 2).size_bytes < 200_000_000


def test_more_processors_get_more_threads() -> None:
    assert plan_memory(None, 16).encoders > plan_memory(None, 2).encoders


def test_too_little_names_the_least() -> None:
    with pytest.raises(UsageError, match="at least 128 MiB"):
        plan_memory(127 * MIB, 2)
