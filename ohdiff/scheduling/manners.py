"""How the kernel is told that our threads matter less than others': the scheduling class of a scavenging process.

SCHED_IDLE instead of nice 19: a waking thread of anybody else takes the core at once, where a niced one still has a
weight of 15 against 1024. The kernel derives a process's I/O class from it, so that an I/O class of its own is not
needed: idle for SCHED_IDLE (task_nice_ioclass in the kernel's ioprio.h). Beside others who use all cores such a thread
all but stands still, for seconds at a time, and with the interpreter's lock if it has it. A process that has to watch
the clock for a deadline is therefore niced, by so much that it still gets a tenth of a core that somebody else uses.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from .core import JobClass
from .session_group import SessionGroup

NICE: Final = 19
NICE_WITH_DEADLINE: Final = 10
_THREADS: Final = Path("/proc/self/task")


class Lowered:
    """Scavenges with this thread, and those that it starts, while this is open; other classes stay as they are.

    Where the system has no idle class, or refuses it, threads are niced.

    Parameters
    ----------
    has_deadline : whether the process must get on beside those who use all cores.

    Attributes
    ----------
    is_lowered : whether the class was changed.
    """

    def __init__(self, job_class: JobClass, *, has_deadline: bool = False) -> None:
        self._is_wanted = job_class is JobClass.SCAVENGE
        self._may_stand_still = not has_deadline
        self._nice = NICE_WITH_DEADLINE if has_deadline else NICE
        self._policy, self._parameters = os.sched_getscheduler(0), os.sched_getparam(0)
        self._niceness = os.getpriority(os.PRIO_PROCESS, 0)
        self._left_alone: set[int] = set()
        self._group = SessionGroup() if self._is_wanted else None
        self.is_lowered = False

    def __enter__(self) -> Self:
        if self._is_wanted:
            self._left_alone = own_threads() - {threading.get_native_id()}
            self._lower(0)
            self.is_lowered = True
            self._set_group(self._nice)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.is_lowered:
            self.is_lowered = False
            with suppress(OSError):
                self._restore(0)
            self._set_group(None)

    def press(self, is_pressed: bool) -> None:
        """Have all threads that were lowered as they were, for a while, or lowered again.

        A user without privileges may not be let back up: the threads then stay low.
        """
        if not self.is_lowered:
            return
        for thread in own_threads() - self._left_alone:
            # A thread that has ended meanwhile is no matter.
            with suppress(OSError):
                (self._restore if is_pressed else self._lower)(thread)
        self._set_group(None if is_pressed else self._nice)

    def _set_group(self, nice: int | None) -> None:
        if self._group is not None:
            self._group.set(nice)

    def _lower(self, thread: int) -> None:
        if self._may_stand_still:
            with suppress(OSError):
                os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
                return
        os.setpriority(os.PRIO_PROCESS, thread, max(self._niceness, self._nice))

    def _restore(self, thread: int) -> None:
        os.sched_setscheduler(thread, self._policy, self._parameters)
        os.setpriority(os.PRIO_PROCESS, thread, self._niceness)


def own_threads() -> set[int]:
    """The threads of this process by number; none where the system does not tell."""
    try:
        return {int(each.name) for each in _THREADS.iterdir()}
    except OSError:
        return set()
