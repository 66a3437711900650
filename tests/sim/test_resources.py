"""Fair rates: nothing is overused, nobody could have more without another having less, and known cases."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ohdiff.scheduling.simulator.resources import Demand, fair_rates

PARTS = st.dictionaries(st.integers(0, 4), st.floats(0.01, 3), min_size=1, max_size=3)
DEMANDS = st.lists(
    st.builds(lambda parts, weight: Demand(tuple(parts.items()), weight), PARTS, st.floats(0.01, 10)),
    min_size=1,
    max_size=5,
)


def used(demands: list[Demand], rates: tuple[float, ...], resource: int) -> float:
    return sum(
        rate * share
        for demand, rate in zip(demands, rates, strict=True)
        for each, share in demand.parts
        if each == resource
    )


@given(DEMANDS)
def test_no_resource_is_overused_and_no_rate_can_rise(demands: list[Demand]) -> None:
    rates = fair_rates(demands)
    full = {resource for resource in range(5) if used(demands, rates, resource) >= 1 - 1e-6}
    assert all(used(demands, rates, resource) <= 1 + 1e-6 for resource in range(5))
    for demand, rate in zip(demands, rates, strict=True):
        assert 0 < rate <= 1
        assert rate > 1 - 1e-6 or any(resource in full for resource, _ in demand.parts)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_equals_on_one_device_get_equal_slices(count: int) -> None:
    assert fair_rates([Demand(((0, 1.0),))] * count) == pytest.approx([1 / count] * count)


def test_weights_share_as_the_kernels_scheduler_does() -> None:
    low, high = fair_rates([Demand(((0, 1.0),), 15 / 1024), Demand(((0, 1.0),))])
    assert high / low == pytest.approx(1024 / 15)


def test_a_job_bound_by_its_copies_takes_no_more_of_the_processors() -> None:
    copying, computing = fair_rates([Demand(((0, 0.1), (1, 1.0))), Demand(((0, 1.0),))])
    assert copying == pytest.approx(computing) == pytest.approx(1 / 1.1)


def test_what_one_cannot_use_the_other_gets() -> None:
    assert fair_rates([Demand(((0, 0.25),)), Demand(((0, 1.5),))]) == pytest.approx((1.0, 0.5))


def test_nobody_is_a_fair_set() -> None:
    assert fair_rates([]) == ()
