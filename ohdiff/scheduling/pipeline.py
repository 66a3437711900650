"""Groups for a pipeline of copy and compute: small at first, so that computing starts early, then as large as pays.

RUMMY (NSDI'24) groups pages so that the copy of one group hides behind the computing of another, by a recursion over
measured models with bounds to prune it. Changed: a backup's byte is used once, so there is no reuse to order by; bytes
come in order of availability and are alike, which makes the search one of sizes only, solved exactly by dynamic
programming over the front of (copied, computed) times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LinearTime:
    """Time of one launch or copy: a fixed part, and a part for each byte in thousandths of a nanosecond."""

    fixed_ns: int
    byte_ps: int

    def of(self, size_bytes: int) -> int:
        """Nanoseconds for so many bytes."""
        return self.fixed_ns + size_bytes * self.byte_ps // 1000


def pipeline_ns(groups: Sequence[int], copy: LinearTime, compute: LinearTime, buffers: int = 3) -> int:
    """When the last group has been computed, if copies and computing run side by side.

    Parameters
    ----------
    groups : bytes of each group, in order.
    buffers : device buffers: a group is copied only once the one that used its buffer before is computed.
    """
    copied_ns = 0
    computed: list[int] = []
    for number, size in enumerate(groups):
        free_ns = computed[number - buffers] if number >= buffers else 0
        copied_ns = max(copied_ns, free_ns) + copy.of(size)
        computed.append(max(copied_ns, computed[-1] if computed else 0) + compute.of(size))
    return computed[-1] if computed else 0


def plan_groups(
    size_bytes: int, piece_bytes: int, copy: LinearTime, compute: LinearTime, group_bytes_max: int
) -> tuple[int, ...]:
    """Sizes of groups, in order, with the soonest end for two buffers or more that never run out.

    Parameters
    ----------
    size_bytes : bytes in all.
    piece_bytes : groups are whole pieces, but for the last one.
    group_bytes_max : the most bytes of a group, a buffer's size; at least a piece.

    Returns
    -------
    sizes : () for nothing.

    Notes
    -----
    fronts[n] holds, for the first n pieces, pairs (copied, computed) of which none is worse than another in both. One
    group of k pieces more makes (copied + copy(k), max of both + compute(k)); a pair is dropped for one as good.
    """
    if size_bytes <= 0:
        return ()
    pieces = -(-size_bytes // piece_bytes)
    pieces_max = max(1, group_bytes_max // piece_bytes)
    fronts: list[list[_Plan]] = [[_Plan(0, 0, 0, None)]]
    for count in range(1, pieces + 1):
        last_bytes = size_bytes if count == pieces else count * piece_bytes
        candidates = [
            _extended(plan, last_bytes - before * piece_bytes, copy, compute)
            for before in range(max(0, count - pieces_max), count)
            for plan in fronts[before]
        ]
        fronts.append(_front(candidates))
    return tuple(reversed(_sizes(min(fronts[-1], key=lambda plan: plan.computed_ns))))


@dataclass(frozen=True, slots=True)
class _Plan:
    copied_ns: int
    computed_ns: int
    size_bytes: int  # of its last group
    before: _Plan | None


def _extended(plan: _Plan, size_bytes: int, copy: LinearTime, compute: LinearTime) -> _Plan:
    copied_ns = plan.copied_ns + copy.of(size_bytes)
    return _Plan(copied_ns, max(copied_ns, plan.computed_ns) + compute.of(size_bytes), size_bytes, plan)


def _front(candidates: list[_Plan]) -> list[_Plan]:
    """Those that no other beats in both times."""
    kept: list[_Plan] = []
    for plan in sorted(candidates, key=lambda each: (each.copied_ns, each.computed_ns)):
        if not kept or plan.computed_ns < kept[-1].computed_ns:
            kept.append(plan)
    return kept


def _sizes(plan: _Plan | None) -> list[int]:
    sizes = []
    while plan is not None and plan.before is not None:
        sizes.append(plan.size_bytes)
        plan = plan.before
    return sizes
