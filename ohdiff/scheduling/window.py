"""The time until a deadline on a CPU: when it begins to press, when it is last call, and when it cannot be kept.

The zones are those of policies/deadline.py, by another rate: that policy plans with what a job was given, and one that
waits for others is given nothing: told of its deadline from the start it would not wait at all. But on a CPU the job
may take what it needs at the end. So the slack is reckoned with half of what the CPU does for us alone, and the policy
hears of the deadline when waiting has used that up, and at last call that it has come.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from .core import SECOND
from .policies.deadline import LaxityLimits, zone_of

_LIMITS: Final = LaxityLimits()
# For what comes after the last unit, and for a machine that is slow to turn to us.
_RESERVE_NS: Final = 2 * SECOND


@dataclass(frozen=True, slots=True)
class Work:
    """What a job has to do in all, in bytes as its units count them, by what is known so far.

    Parameters
    ----------
    least_bytes : it is not less.
    likely_bytes : what to plan with.
    """

    least_bytes: int = 0
    likely_bytes: int = 0


class Stage(IntEnum):
    """How much a deadline matters; each is the Zone of the same number."""

    EARLY = 0
    PRESSING = 1
    LAST = 2


class Window:
    """From a job's arrival to its deadline."""

    def __init__(self, arrived_ns: int, deadline_ns: int) -> None:
        self.deadline_ns = deadline_ns
        self._length_ns = max(1, deadline_ns - arrived_ns)

    def stage(self, now_ns: int, left_bytes: int, rate_bytes_per_s: int) -> Stage:
        """How much it matters, at a rate that the CPU keeps up if it is all ours."""
        need_ns = 2 * left_bytes * SECOND // max(1, rate_bytes_per_s) + _RESERVE_NS
        return Stage(zone_of(self.deadline_ns - now_ns - need_ns, self._length_ns, _LIMITS))

    def late_ns(self, now_ns: int, left_bytes: int, rate_bytes_per_s: int) -> int:
        """By how much it will be missed, were the CPU all ours from now on; 0 for not at all."""
        return max(0, now_ns + left_bytes * SECOND // max(1, rate_bytes_per_s) - self.deadline_ns)
