"""What can be seen of others without their help: cores and pressure from /proc; and what co-runners say in pages.

A signal that the system does not have is absent, not guessed: without PSI there is no pressure in the view. What is
ours is subtracted where the kernel tells it: own processor time, and own waiting for a core, without which a run of
several threads would take its own queue for somebody else's need.
"""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from .core import SECOND, Activity, CoRunner, Host
from .shared_page import SharedPage, Slot

PROC: Final = Path("/proc")
# A tick is 10 ms in the kernel's accounts: shorter windows would be noise.
WINDOW_NS_MIN: Final = 100_000_000
# Small jobs of the machine come and go: what is idle is a mean over about so long.
_IDLE_MEAN_NS: Final = SECOND // 2
_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
_STEPS_FADE_NS: Final = 5 * SECOND


class HostSignals:
    """The machine around us, over windows between two readings.

    Parameters
    ----------
    cores : the processors that we may use, by number.
    proc : where the kernel tells.
    """

    def __init__(self, cores: Iterable[int], proc: Path = PROC) -> None:
        self._cores = frozenset(cores)
        self._proc = proc
        self._at_ns = -1
        self._idle_ticks = 0
        self._idle_milli: float | None = None
        self._own_ns = 0
        self._own_waits: dict[str, int] = {}
        self._totals_us: dict[str, int] = {}
        self._host = Host(cores=len(self._cores), cores_idle_milli=1000 * len(self._cores))

    def read(self, now_ns: int) -> Host:
        """The last whole window; a new one if it is time."""
        window_ns = now_ns - self._at_ns
        if self._at_ns >= 0 and window_ns < WINDOW_NS_MIN:
            return self._host
        idle_ticks, own_ns, waits = self._idle(), _own_time_ns(), self._waits()
        totals_us = {name: self._pressure(name) for name in ("cpu", "io", "memory")}
        if self._at_ns >= 0:
            idle_ns = (idle_ticks - self._idle_ticks) * SECOND // _TICKS_PER_SECOND
            waited_ns = sum(max(0, wait - self._own_waits.get(thread, wait)) for thread, wait in waits.items())
            free_ns = idle_ns + own_ns - self._own_ns
            pressed = {name: total - self._totals_us[name] for name, total in totals_us.items()}
            idle_milli = _share(free_ns, window_ns, 1000 * len(self._cores))
            weight = 1.0 if self._idle_milli is None else min(1.0, window_ns / _IDLE_MEAN_NS)
            self._idle_milli = idle_milli + (1 - weight) * ((self._idle_milli or 0) - idle_milli)
            self._host = Host(
                cores=len(self._cores),
                cores_idle_milli=round(self._idle_milli),
                cpu_pressure_milli=_share(pressed["cpu"] * 1000 - waited_ns, window_ns, 1000),
                io_pressure_milli=_share(pressed["io"] * 1000, window_ns, 1000),
                memory_pressure_milli=_share(pressed["memory"] * 1000, window_ns, 1000),
            )
        self._at_ns, self._idle_ticks, self._own_ns = now_ns, idle_ticks, own_ns
        self._own_waits, self._totals_us = waits, totals_us
        return self._host

    def _idle(self) -> int:
        """Ticks that our cores were idle; waiting for a disk leaves a core free."""
        ticks = 0
        for line in _text(self._proc / "stat").splitlines():
            fields = line.split()
            if len(fields) > 5 and fields[0].startswith("cpu") and fields[0] != "cpu":
                if int(fields[0][3:]) in self._cores:
                    ticks += int(fields[4]) + int(fields[5])
            elif ticks:
                break
        return ticks

    def _pressure(self, name: str) -> int:
        """Microseconds in which somebody waited; 0 without PSI."""
        some, found, rest = _text(self._proc / "pressure" / name).partition("total=")
        return int(rest.split(maxsplit=1)[0]) if found and some.startswith("some") else 0

    def _waits(self) -> dict[str, int]:
        """Nanoseconds that each of our threads has waited for a core."""
        waits = {}
        tasks = self._proc / "self" / "task"
        with suppress(OSError):
            for thread in tasks.iterdir():
                fields = _text(thread / "schedstat").split()
                if len(fields) == 3:
                    waits[thread.name] = int(fields[1])
        return waits


class CoRunnerSignals:
    """Co-runners that tell of themselves, in the pages of a device and of the whole machine.

    Parameters
    ----------
    device : what they are reported on.
    pages : where they write.
    """

    def __init__(self, device: str, pages: Iterable[SharedPage]) -> None:
        self._device = device
        self._pages = tuple(pages)
        self._known: dict[tuple[int, int, int], _Steps] = {}

    def read(self, now_ns: int) -> tuple[CoRunner, ...]:
        """All that live, sorted by name; a busy mark that is too old counts as unknown."""
        found = {}
        known = {}
        for number, page in enumerate(self._pages):
            for slot in page.co_runners():
                key = (number, slot.number, slot.pid)
                steps = known[key] = self._known.get(key) or _Steps(slot)
                name = f"{slot.pid}.{number}.{slot.number}"
                found[name] = CoRunner(
                    name, self._device, _activity(slot, now_ns), slot.since_ns, slot.steps, steps.mean_ns(slot, now_ns)
                )
        self._known = known
        return tuple(found[name] for name in sorted(found))


class _Steps:
    """The mean time of a co-runner's recent steps."""

    def __init__(self, slot: Slot) -> None:
        self._last = slot
        self._mean_ns = 0

    def mean_ns(self, slot: Slot, now_ns: int) -> int:
        """The mean since steps were last reported, 0 for none for a while."""
        steps, time_ns = slot.steps - self._last.steps, slot.steps_ns - self._last.steps_ns
        if steps > 0 and time_ns >= 0:
            self._mean_ns = time_ns // steps
            self._last = slot
        elif steps < 0 or now_ns - self._last.beat_ns > _STEPS_FADE_NS:
            self._mean_ns = 0
            self._last = slot
        return self._mean_ns


class ThreadTimes:
    """How long the calling thread ran and how long it waited for a core, in nanoseconds so far.

    A unit's stretch on a CPU is (ran + waited) / ran: unlike its duration it does not depend on the disk or the data.
    """

    def __init__(self, proc: Path = PROC) -> None:
        self._path = proc / "thread-self" / "schedstat"
        self._local = threading.local()

    def read(self) -> tuple[int, int]:
        """(ran, waited); zeros where the kernel does not tell."""
        fd = getattr(self._local, "fd", None)
        try:
            if fd is None:
                fd = self._local.fd = _Descriptor(os.open(self._path, os.O_RDONLY | os.O_CLOEXEC))
            ran, waited, _ = os.pread(fd.number, 100, 0).split()
        except (OSError, ValueError):
            return 0, 0
        return int(ran), int(waited)


class _Descriptor:
    """Closed when its thread ends."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._close: Callable[[int], None] = os.close

    def __del__(self) -> None:
        self._close(self.number)


def _activity(slot: Slot, now_ns: int) -> Activity:
    if not slot.is_busy:
        return Activity.IDLE
    return Activity.BUSY if slot.is_busy_at(now_ns) else Activity.UNKNOWN


def _own_time_ns() -> int:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return int((used.ru_utime + used.ru_stime) * SECOND)


def _share(part_ns: int, window_ns: int, most_milli: int) -> int:
    return max(0, min(most_milli, part_ns * 1000 // max(1, window_ns)))


def _text(path: Path) -> str:
    """What the kernel says there, "" where it says nothing."""
    try:
        return path.read_text(encoding="ascii")
    except (OSError, ValueError):
        return ""
