"""The only place that reads time; everything else is given a clock or a timestamp."""

from __future__ import annotations

import time


def now_ns() -> int:
    """Wall-clock time in nanoseconds since 1970-01-01 UTC."""
    return time.time_ns()


def monotonic_ns() -> int:
    """A clock that never goes back, in nanoseconds, for durations only."""
    return time.monotonic_ns()
