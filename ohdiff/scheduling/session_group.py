"""The weight of our session, where the kernel shares cores out among sessions first (sched_autogroup).

Scheduling classes and nice levels then count within a session only: beside a job of another one, an idle thread gets as
much as any. So a backup that has its session to itself, as one that cron runs, lowers the session as a whole. One with
a terminal, or with somebody else in it, is left alone: it is not ours to lower.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
_NICE: Final = re.compile(r"nice (-?\d+)")
# Users without privileges may change it ten times a second.
_PAUSE_SECONDS: Final = 0.11
_TRIES: Final = 3


class SessionGroup:
    """Our session's weight; does nothing where there are no such groups or the session is not ours alone.

    Parameters
    ----------
    proc : where the kernel tells, and is told.
    """

    def __init__(self, proc: Path = PROC) -> None:
        self._path = proc / "self" / "autogroup"
        self._before = self._nice() if is_alone(proc) else None

    def set(self, nice: int | None) -> None:
        """Give the session this niceness; None for what it had."""
        if self._before is None:
            return
        text = str(self._before if nice is None else max(nice, self._before))
        for _ in range(_TRIES):
            try:
                self._path.write_text(text, encoding="ascii")
            except BlockingIOError:
                threading.Event().wait(_PAUSE_SECONDS)
            except OSError:
                return
            else:
                return

    def _nice(self) -> int | None:
        found = None
        with suppress(OSError):
            found = _NICE.search(self._path.read_text(encoding="ascii"))
        return None if found is None else int(found[1])


def is_alone(proc: Path = PROC) -> bool:
    """Whether our session has no terminal, and nobody in it but this process and those that it comes from."""
    stats = dict(_stats(proc))
    own = stats.get(os.getpid())
    if own is None or own.terminal != 0:
        return False
    ours = {os.getpid()}
    parent = own.parent
    while parent in stats and parent not in ours:
        ours.add(parent)
        parent = stats[parent].parent
    return all(pid in ours for pid, stat in stats.items() if stat.session == own.session)


class _Stat:
    """Some of /proc/PID/stat."""

    def __init__(self, text: str) -> None:
        # The name in brackets may hold anything, brackets too.
        fields = text[text.rindex(")") + 2 :].split()
        self.parent, self.session, self.terminal = int(fields[1]), int(fields[3]), int(fields[4])


def _stats(proc: Path) -> Iterator[tuple[int, _Stat]]:
    for entry in proc.iterdir():
        if entry.name.isdigit():
            # A process that has ended meanwhile is no matter.
            with suppress(OSError, ValueError, IndexError):
                yield int(entry.name), _Stat((entry / "stat").read_text(encoding="utf-8", errors="replace"))
