"""The accelerator's governor: an engine's threads ask it before each unit, and it makes them wait while others need it.

It gives device_driver.py its threads and its time. Signals are read at the borders of units and by a thread of its own,
which alone asks for counters, as those may be slow to come.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from ohdiff import clock

from .core import MS, SECOND, US, Policy, Telemetry
from .decision_log import DecisionLog
from .device_driver import DeviceCounts, DeviceDriver, DeviceJob, HeldMemory, StartedUnit

# How old what is known of others may be when a unit is started, and how often it is looked at between units.
_FRESH_NS: Final = 200 * US
_LOOK_SOON_NS: Final = 2 * MS
_LOOK_NS: Final = 20 * MS
_LOOK_IDLE_NS: Final = 100 * MS
_COUNTERS_NS: Final = 170 * MS

Counters = Callable[[int], Telemetry | None]


class DeviceGovernor:
    """Lets units start; a context manager that is left when the job is done. After that, all may start.

    Parameters
    ----------
    policy : decides.
    job : what runs, on which device.
    memory : what we hold there.
    counters : the vendor's, asked with the time; None where there are none.
    log : gets every decision.
    note : told in words what a user should know.
    """

    def __init__(
        self,
        policy: Policy,
        job: DeviceJob,
        memory: HeldMemory,
        *,
        counters: Counters | None = None,
        log: DecisionLog | None = None,
        note: Callable[[str], None] = lambda message: None,
        now: Callable[[], int] = clock.monotonic_ns,
    ) -> None:
        self._now = now
        self._memory = memory
        self._counters = counters or _FreeMemory(memory).read
        self._driver = DeviceDriver(policy, job, memory, now, log=log, note=note)
        self._state = threading.Condition()
        self._wanted = threading.Event()
        self._ended = threading.Event()
        self._is_over = False
        self._waiting = 0
        self._looked_ns = self._counted_ns = now() - SECOND
        self._thread = threading.Thread(target=self._watch, name="device governor", daemon=True)

    @property
    def counts(self) -> DeviceCounts:
        """So far."""
        return self._driver.counts

    def __enter__(self) -> Self:
        self._count(self._now())
        with self._state:
            self._look(self._now())
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
        self._wanted.set()
        self._ended.set()
        self._thread.join()
        self._driver.close()

    def press(self, is_last_call: bool) -> None:
        """There is no time left to wait for others, or there is again."""
        with self._state:
            self._driver.press(self._now(), is_last_call=is_last_call)

    def lose(self) -> None:
        """The device failed: nobody waits for it any more, and what is movable goes elsewhere."""
        with self._state:
            self._driver.lose()
            self._look(self._now())
            self._state.notify_all()

    def wait(self, *, is_movable: bool) -> bool:
        """Return when the device is granted; False when it is not to be had and the CPU can do the work."""
        with self._state:
            is_granted = self._await(lambda now_ns: self._driver.is_granted, is_movable=is_movable)
        self._carry_out()
        return is_granted

    def turn(self, kind: str, size_max: int, *, may_wait: bool, is_movable: bool) -> Turn | None:
        """Leave to start a unit of at most so many bytes.

        Returns
        -------
        None when there is none now: a thread that may not wait has to end what it has in flight, and for work that is
        movable the device is not to be had.
        """
        unit: StartedUnit | None = None
        with self._state:
            if self._await(self._driver.may_start, may_wait=may_wait, is_movable=is_movable):
                unit = self._driver.start(kind, size_max)
        self._carry_out()
        return None if unit is None else Turn(self, unit)

    def submit(self, unit: StartedUnit, size_bytes: int) -> None:
        """All of a unit is on its way."""
        with self._state:
            self._driver.submit(unit, self._now(), size_bytes)

    def end(self, unit: StartedUnit, *, is_ok: bool) -> None:
        """A unit ended."""
        now_ns = self._now()
        with self._state:
            self._driver.end(unit, now_ns, is_ok=is_ok)
            self._look(self._now())
            self._state.notify_all()
        self._carry_out()

    def _await(self, is_given: Callable[[int], bool], *, is_movable: bool, may_wait: bool = True) -> bool:
        """Whether it came to be given; the caller holds the lock."""
        driver, now_ns = self._driver, self._now()
        driver.ask(now_ns)
        if now_ns - self._looked_ns >= _FRESH_NS:
            self._look(now_ns)
        while not (self._is_over or is_given(now_ns)):
            if not driver.is_usable:
                # Who cannot go elsewhere will hear from the device itself that it is gone.
                return not is_movable
            if not may_wait or (is_movable and driver.is_refusing(now_ns)):
                return False
            self._sleep(driver.wait_ns(now_ns))
            now_ns = self._now()
        return True

    def _sleep(self, time_ns: int | None) -> None:
        self._waiting += 1
        self._wanted.set()
        try:
            self._state.wait(None if time_ns is None else time_ns / SECOND)
        finally:
            self._waiting -= 1

    def _look(self, now_ns: int) -> None:
        """See what others do, and wake who waits if that lets units start; the caller holds the lock."""
        if self._is_over:
            return
        self._looked_ns = now_ns
        if self._waiting:
            self._driver.ask(now_ns)
        self._driver.look(now_ns)
        if self._waiting and (self._driver.is_granted or self._driver.is_refusing(now_ns)):
            self._state.notify_all()

    def _carry_out(self) -> None:
        """Give memory back; not with the lock, since a device takes its time for that."""
        for trim in self._driver.taken_trims():
            if trim.is_parked:
                self._memory.park()
            else:
                self._memory.trim(trim.keep_bytes)

    def _stop(self) -> None:
        with self._state:
            self._is_over = True
            self._state.notify_all()

    def _watch(self) -> None:
        """Looks for those who wait, and keeps the lease and the memory while nobody does."""
        while not self._is_over:
            self._wanted.clear()
            self._count(self._now())
            with self._state:
                now_ns = self._now()
                if now_ns - self._looked_ns >= _FRESH_NS:
                    self._look(now_ns)
                is_waited_for = self._waiting > 0
                pause_ns = self._pause_ns(now_ns, is_waited_for=is_waited_for)
            self._carry_out()
            # Who begins to wait while nobody did ends the pause; those who wait already would do so all the time.
            (self._ended if is_waited_for else self._wanted).wait(pause_ns / SECOND)

    def _pause_ns(self, now_ns: int, *, is_waited_for: bool) -> int:
        if not is_waited_for:
            is_hoped_for = self._driver.is_asked(now_ns) and not self._driver.is_granted
            return _LOOK_NS if is_hoped_for else _LOOK_IDLE_NS
        is_soon = self._driver.are_told or self._driver.awaits_lease
        pause_ns = _LOOK_SOON_NS if is_soon else _LOOK_NS
        due_ns = self._driver.due_ns(now_ns)
        return pause_ns if due_ns is None else max(_FRESH_NS, min(pause_ns, due_ns - now_ns))

    def _count(self, now_ns: int) -> None:
        if now_ns - self._counted_ns >= _COUNTERS_NS:
            self._counted_ns = now_ns
            self._driver.telemetry = self._counters(now_ns)


class Turn:
    """Leave to run one unit."""

    def __init__(self, governor: DeviceGovernor, unit: StartedUnit) -> None:
        self.size_bytes = unit.size_bytes
        self._governor = governor
        self._unit = unit
        self._is_ended = False

    def submit(self, size_bytes: int) -> None:
        """All of it is on its way."""
        self._governor.submit(self._unit, size_bytes)

    def end(self, *, is_ok: bool = True) -> None:
        """The results have come, or the device failed; a second time says nothing."""
        if not self._is_ended:
            self._is_ended = True
            self._governor.end(self._unit, is_ok=is_ok)


class _FreeMemory:
    """What is known without counters: how much memory is free. How busy the device is counts as "all the time"."""

    def __init__(self, memory: HeldMemory) -> None:
        self._memory = memory

    def read(self, now_ns: int) -> Telemetry | None:
        """The newest figure."""
        return Telemetry(now_ns, _COUNTERS_NS, busy_milli=1000, free_bytes=self._memory.free_bytes())
