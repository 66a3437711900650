"""What devices and jobs share, and how fast each may go: weighted fair rates over several resources.

Rates come by progressive filling of dominant shares (Ghodsi et al., DRF, NSDI'11). On one time-sliced accelerator that
is equal slices; where a job is bound by its copies, it takes no more of the processors than it has work for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

NICE_0_WEIGHT = 1024
# The kernel's sched_prio_to_weight for niceness 0 to 19.
NICE_WEIGHTS = (1024, 820, 655, 526, 423, 335, 272, 215, 172, 137, 110, 87, 70, 56, 45, 36, 29, 23, 18, 15)
_FULL = 1e-9


@dataclass(frozen=True, slots=True)
class Demand:
    """What a flow takes of resources when nothing holds it up.

    Parameters
    ----------
    parts : (resource, share of its capacity) at rate 1; shares may pass 1 where the flow alone would be slower.
    weight : its part where a resource is short, 1 for an ordinary process.
    """

    parts: tuple[tuple[int, float], ...]
    weight: float = 1.0


def fair_rates(demands: Sequence[Demand]) -> tuple[float, ...]:
    """Rates, at most 1 each, that no flow can raise without lowering one that has less.

    Notes
    -----
    All rates rise together, each at its weight over its largest share, until a resource is full or a rate is 1; what
    this stops stays, the rest rises on.
    """
    rates = [0.0] * len(demands)
    left: dict[int, float] = {}
    for demand in demands:
        left.update(dict.fromkeys((resource for resource, _ in demand.parts), 1.0))
    rising = set(range(len(demands)))
    while rising:
        speeds = {index: _speed(demands[index]) for index in rising}
        growth = dict.fromkeys(left, 0.0)
        for index, speed in speeds.items():
            for resource, share in demands[index].parts:
                growth[resource] += speed * share
        step = min((1.0 - rates[index]) / speed for index, speed in speeds.items())
        step = min([step, *(left[resource] / grown for resource, grown in growth.items() if grown > 0)])
        for index, speed in speeds.items():
            rates[index] += speed * step
        for resource, grown in growth.items():
            left[resource] -= grown * step
        rising = {index for index in rising if not _is_stopped(demands[index], rates[index], left)}
    return tuple(min(1.0, rate) for rate in rates)


def _speed(demand: Demand) -> float:
    return demand.weight / max((share for _, share in demand.parts), default=1.0)


def _is_stopped(demand: Demand, rate: float, left: dict[int, float]) -> bool:
    if rate >= 1.0 - _FULL:
        return True
    return any(left[resource] <= _FULL and share > 0 for resource, share in demand.parts)


class RateTable:
    """Knows demands by number, and remembers the rates of each set that was asked for."""

    def __init__(self) -> None:
        self._demands: list[Demand] = []
        self._rates: dict[tuple[int, ...], tuple[float, ...]] = {}
        self._numbers: dict[Demand, int] = {}

    def number(self, demand: Demand) -> int:
        """The number of a demand."""
        if demand not in self._numbers:
            self._numbers[demand] = len(self._demands)
            self._demands.append(demand)
        return self._numbers[demand]

    def rates(self, numbers: tuple[int, ...]) -> tuple[float, ...]:
        """The rates of flows that run together, in their order."""
        rates = self._rates.get(numbers)
        if rates is None:
            rates = self._rates[numbers] = fair_rates([self._demands[number] for number in numbers])
        return rates

    def share_of(self, number: int, resource: int) -> float:
        """What a demand takes of one resource at rate 1."""
        return dict(self._demands[number].parts).get(resource, 0.0)
