"""How the kernel is told that our threads matter less than others': the scheduling class of a scavenging process.

SCHED_IDLE instead of nice 19: a waking thread of anybody else takes the core at once, where a niced one still has a
weight of 15 against 1024. The kernel derives a process's I/O class from it, so that an I/O class of its own is not
needed: idle for SCHED_IDLE (task_nice_ioclass in the kernel's ioprio.h).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from .core import JobClass


@contextmanager
def lowered(job_class: JobClass, nice: int = 19) -> Iterator[bool]:
    """Scavenge with this thread, and those that it starts, while this is open; other classes stay as they are.

    Tells whether the class was changed. Where the system has no idle class, or refuses it, threads are niced.
    """
    if job_class is not JobClass.SCAVENGE:
        yield False
        return
    thread = 0
    policy, parameters = os.sched_getscheduler(thread), os.sched_getparam(thread)
    niceness = os.getpriority(os.PRIO_PROCESS, thread)
    try:
        os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
    except OSError:
        os.setpriority(os.PRIO_PROCESS, thread, max(niceness, nice))
    try:
        yield True
    finally:
        # A user without privileges may not be let back up: the process then stays low, which harms nobody.
        with suppress(OSError):
            os.sched_setscheduler(thread, policy, parameters)
            os.setpriority(os.PRIO_PROCESS, thread, niceness)
