"""Breaks that threads take in long work while others use the machine, so that whoever wakes gets a core at once.

An idle-class thread is not always put aside when another wakes on its core (Linux 6.6 and later look at fair shares
first): that one may wait for the kernel's next tick, 4 ms at 250 Hz. A thread that sleeps for an instant several times
a tick leaves the core to whoever waits. Off until somebody sets them; then native loops take breaks between their
steps, and code that computes takes them anywhere, `with computing:`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ohdiff._posix import Breaks, break_if_due, count_breaks, set_breaks

__all__ = ["NO_BREAKS", "BreakTimes", "break_if_due", "computing", "count_breaks", "take_breaks"]


@dataclass(frozen=True, slots=True)
class BreakTimes:
    """How long threads work and rest, in microseconds.

    Parameters
    ----------
    work_us : of work between two breaks; 0 for no breaks.
    short_us : a break, in which a waiting thread of anybody else gets the core.
    long_us : for which all threads rest when one has met somebody: who comes for a moment comes again soon.
    """

    work_us: float
    short_us: float
    long_us: float


NO_BREAKS: Final = BreakTimes(0, 0, 0)

# Entered by a thread around code that computes and makes no system call worth the name; safe to share and to nest. A
# signal brings the breaks, which would interrupt the calls of file systems.
computing: Final = Breaks()


def take_breaks(times: BreakTimes) -> None:
    """Have all threads of the process take breaks from now on; `NO_BREAKS` ends that."""
    set_breaks(times.work_us, times.short_us, times.long_us)
