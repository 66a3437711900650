"""When the machine itself stood: one witness on each core, of the highest priority, that wakes every millisecond.

Nothing of ours can hold such a process up, so that what makes it late by milliseconds is the machine: its host, its
firmware, its kernel. Whatever is timed meanwhile is timed wrong, for whichever policy runs. The witnesses know nothing
of what is timed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from ohdiff import clock
from ohdiff.scheduling.core import MS, SECOND

from .figures import line_of, start

STALL_NS = 2 * MS
_EVERY_NS = MS
# Real-time priorities, where the system allows them: the witnesses before the device, that before those who use it.
WITNESS, DEVICE, CO_RUNNER, OURS = 40, 30, 20, 10


def take_real_time(priority: int) -> bool:
    """Let this thread go before all ordinary ones, if we may."""
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))
        return True
    return False


@dataclass(slots=True)
class Stalls:
    """What the witnesses saw: (from, to) by the monotonic clock, in order of `from`."""

    windows: list[tuple[int, int]] = field(default_factory=list)
    watched_ns: int = 0

    def touch(self, began_ns: int, ended_ns: int) -> bool:
        """Whether the machine stood at any time between."""
        return any(start_ns < ended_ns and began_ns < end_ns for start_ns, end_ns in self.windows)


@contextmanager
def witnessed() -> Iterator[Stalls]:
    """Watch while the block runs; the stalls are filled in when it is left."""
    stalls, began_ns = Stalls(), clock.monotonic_ns()
    witnesses = [start("stalls", str(core), stdin=subprocess.PIPE) for core in sorted(os.sched_getaffinity(0))]
    try:
        for each in witnesses:
            line_of(each)
        yield stalls
        for each in witnesses:
            each.send_signal(signal.SIGTERM)
            stalls.windows.extend((first, last) for first, last in json.loads(each.communicate()[0]))
        stalls.windows.sort()
        stalls.watched_ns = clock.monotonic_ns() - began_ns
    finally:
        for each in witnesses:
            each.kill()
            each.wait()


def untouched(times: Sequence[tuple[int, int]], stalls: Stalls) -> list[int]:
    """The numbers of requests that no stall can have delayed.

    A stall delays all that wait behind it, too: requests that follow one another without a pause stand or fall
    together.

    Parameters
    ----------
    times : when each came and when it was done, first come first served.
    """
    kept: list[int] = []
    group: list[int] = []
    for number, (came_ns, _) in enumerate(times):
        if group and came_ns >= times[group[-1]][1]:
            kept += _if_untouched(group, times, stalls)
            group = []
        group.append(number)
    return kept + _if_untouched(group, times, stalls)


def _if_untouched(group: list[int], times: Sequence[tuple[int, int]], stalls: Stalls) -> list[int]:
    is_touched = bool(group) and stalls.touch(times[group[0]][0], times[group[-1]][1])
    return [] if is_touched else group


def main() -> None:
    """Watch one core until told to end, and say when it stood."""
    os.sched_setaffinity(0, {int(sys.argv[1])})
    take_real_time(WITNESS)
    is_over = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: is_over.set())
    windows = []
    print("ready", flush=True)
    due_ns = clock.monotonic_ns()
    while not is_over.is_set():
        due_ns += _EVERY_NS
        is_over.wait(max(0, due_ns - clock.monotonic_ns()) / SECOND)
        now_ns = clock.monotonic_ns()
        if now_ns - due_ns > STALL_NS:
            windows.append((due_ns, now_ns))
        due_ns = max(due_ns, now_ns)
    print(json.dumps(windows), flush=True)


if __name__ == "__main__":
    main()
