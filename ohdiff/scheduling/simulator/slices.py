"""Turns on one accelerator that goes from one to the next after a time slice, where fair shares would be too coarse.

Work that is shorter than a slice waits for another's slice to end and is then done at once, while as a fair share it
would be stretched by its own length only.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from math import ceil

from .co_runners import NEVER_NS


class TimeSlices:
    """Who is on the device.

    Parameters
    ----------
    slice_ns, switch_ns : length of a turn, and what passes before the turn of another one.

    Attributes
    ----------
    next_ns : when that may change by itself.
    """

    def __init__(self, slice_ns: int, switch_ns: int) -> None:
        self.next_ns = NEVER_NS
        self._slice_ns = slice_ns
        self._switch_ns = switch_ns
        self._owner: Hashable = None  # the last one that had a turn
        self._turn_ns = 0  # when its turn began, the switch before it not counted
        self._is_idle = True

    def owner(self, now_ns: int, ready: Mapping[Hashable, int]) -> Hashable:
        """Whose work goes on now, None for nobody's.

        Parameters
        ----------
        ready : all that have work, always in the same order, and a time before which their turns cannot have begun.
        """
        self.next_ns = NEVER_NS
        if not ready:
            self._is_idle = True
            return None
        if self._is_idle:
            self._is_idle, self._turn_ns = False, now_ns
        if self._owner not in ready or (len(ready) > 1 and self._turn_end_ns(now_ns, ready) <= now_ns):
            self._pass_on(now_ns, list(ready))
        if now_ns < self._turn_ns:
            self.next_ns = self._turn_ns
            return None
        if len(ready) > 1:
            self.next_ns = self._turn_end_ns(now_ns, ready)
        return self._owner

    def _turn_end_ns(self, now_ns: int, ready: Mapping[Hashable, int]) -> int:
        """Who was alone had one turn after another."""
        start_ns = max(self._turn_ns, ready[self._owner])
        return start_ns + self._slice_ns * max(1, ceil((now_ns - start_ns) / self._slice_ns))

    def _pass_on(self, now_ns: int, names: list[Hashable]) -> None:
        following = names.index(self._owner) + 1 if self._owner in names else 0
        self._owner = names[following % len(names)]
        self._turn_ns = now_ns + self._switch_ns
