"""The time until a deadline on a CPU: when it begins to press, when it is last call, and when it cannot be kept.

A policy plans with the rate that a job achieved, and one that waits for others achieves nothing: told of its deadline
from the start it would not wait at all. But on a CPU the job may take what it needs at the end. So the policy hears of
the deadline when waiting has used the slack up, reckoned with half of what the CPU does for us alone, and at last call
that it has come.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from .core import SECOND
from .policies.deadline import LaxityLimits

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
    """How much a deadline matters."""

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
        slack_ns = self.deadline_ns - now_ns - need_ns
        slack_milli = slack_ns * 1000 // self._length_ns
        if slack_milli > _LIMITS.scavenge_milli_min:
            return Stage.EARLY
        return Stage.PRESSING if slack_milli > _LIMITS.capped_milli_min else Stage.LAST

    def late_ns(self, now_ns: int, left_bytes: int, rate_bytes_per_s: int) -> int:
        """By how much it will be missed, were the CPU all ours from now on; 0 for not at all."""
        return max(0, now_ns + left_bytes * SECOND // max(1, rate_bytes_per_s) - self.deadline_ns)
