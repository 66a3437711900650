"""Keeping to fewer cores while others use some: what they run on the rest finds its caches as it left them."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from .manners import own_threads


class OwnCores:
    """The cores that all threads of this process run on; does nothing where that cannot be set.

    Parameters
    ----------
    cores : those that we may use, by number.
    """

    def __init__(self, cores: frozenset[int]) -> None:
        # The first ones mostly have the system's own work.
        self._cores = sorted(cores, reverse=True)
        self._count = len(self._cores)

    def use(self, count: int) -> None:
        """Run on so many, at least one; threads that are started later do so, too."""
        count = max(1, min(count, len(self._cores)))
        if count == self._count or sys.platform != "linux":
            return
        self._count = count
        for thread in own_threads():
            # A thread that has ended meanwhile is no matter, nor is a core that was taken away.
            with suppress(OSError):
                os.sched_setaffinity(thread, self._cores[:count])

    def use_all(self) -> None:
        """Run on all of them again."""
        self.use(len(self._cores))
