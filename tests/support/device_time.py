"""A device in a time of its own: kernels of the stand-in take as long as they are told, and waiting costs nothing.

What is driven is the real driver of a device, by one thread, so that a run is the same each time.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from ohdiff.scheduling.core import SECOND, US
from ohdiff.scheduling.device_driver import DeviceDriver, StartedUnit
from ohdiff.scheduling.shared_page import Kind, SharedPage, Slot, pid_namespace

from .fake_cupy import Machine

_KERNEL_NS = 5 * US
_STEP_NS = 100 * US
# Which kernels go through all bytes, and where the size stands among their arguments.
_READING = {"ohdiff_find_candidates": 1, "ohdiff_hash_leaves": 1, "ohdiff_find_features": 1}


class DeviceTime:
    """A clock that only what happens moves.

    Attributes
    ----------
    ns_per_kib : how long a kernel that reads goes on for each KiB.
    slowdown : how many times as long everything takes on the device, as others share it.
    """

    def __init__(self, machine: Machine) -> None:
        self.ns_per_kib = 100
        self.slowdown = 1
        self._now_ns = 1000 * SECOND
        self._planned: list[tuple[int, Callable[[], object]]] = []
        machine.on_kernel = self._run

    def now_ns(self) -> int:
        """The time."""
        return self._now_ns

    def go_on(self, time_ns: int) -> None:
        """Let time pass; what was planned happens when its time comes."""
        end_ns = self._now_ns + time_ns
        while self._planned and self._planned[0][0] <= end_ns:
            at_ns, happen = self._planned.pop(0)
            self._now_ns = max(self._now_ns, at_ns)
            happen()
        self._now_ns = max(self._now_ns, end_ns)

    def plan(self, after_ns: int, happen: Callable[[], object]) -> None:
        """Something happens after so long."""
        self._planned.append((self._now_ns + after_ns, happen))
        self._planned.sort(key=lambda each: each[0])

    def _run(self, name: str, arguments: tuple[int, ...]) -> None:
        size = arguments[_READING[name]] if name in _READING else 0
        self.go_on((_KERNEL_NS + size * self.ns_per_kib // 1024) * self.slowdown)


class SteppedPace:
    """What a governor is to an engine, with one thread and in that time.

    Attributes
    ----------
    started : every unit that was started: its size, and when.
    """

    def __init__(self, driver: DeviceDriver, time: DeviceTime) -> None:
        self.driver = driver
        self.started: list[tuple[int, int]] = []
        self.ended: list[StartedUnit] = []
        self.time = time
        self.trimmed: list[int] = []
        self.memory: object = None

    @property
    def sizes(self) -> list[int]:
        """Of the units, in order."""
        return [size for size, _ in self.started]

    def wait(self, *, is_movable: bool) -> bool:
        """As `DevicePace.wait`."""
        return self._await(lambda: self.driver.is_granted, may_wait=True, is_movable=is_movable)

    def turn(self, kind: str, size_max: int, *, may_wait: bool, is_movable: bool) -> SteppedTurn | None:
        """As `DevicePace.turn`."""
        may_start = self._await(
            lambda: self.driver.may_start(self.time.now_ns()), may_wait=may_wait, is_movable=is_movable
        )
        return SteppedTurn(self, self.driver.start(kind, size_max)) if may_start else None

    def lose(self) -> None:
        """As `DevicePace.lose`."""
        self.driver.lose()
        self.driver.look(self.time.now_ns())

    def _await(self, is_given: Callable[[], bool], *, may_wait: bool, is_movable: bool) -> bool:
        for _ in range(1_000_000):
            self.driver.ask(self.time.now_ns())
            self.driver.look(self.time.now_ns())
            if is_given():
                return True
            if not may_wait or (is_movable and self.driver.is_refusing(self.time.now_ns())):
                return False
            self.time.go_on(_STEP_NS)
        raise AssertionError("it is never granted")


class SteppedTurn:
    """A unit of it."""

    def __init__(self, pace: SteppedPace, unit: StartedUnit) -> None:
        self.size_bytes = unit.size_bytes
        self._pace, self._unit = pace, unit
        self._is_ended = False

    def submit(self, size_bytes: int) -> None:
        """On its way."""
        self._pace.driver.submit(self._unit, self._pace.time.now_ns(), size_bytes)
        self._pace.started.append((size_bytes, self._pace.time.now_ns()))

    def end(self, *, is_ok: bool = True) -> None:
        """Over."""
        if not self._is_ended:
            self._is_ended = True
            self._pace.driver.end(self._unit, self._pace.time.now_ns(), is_ok=is_ok)
            self._pace.ended.append(self._unit)


class TimedCoRunner:
    """A job that says in a page, by that clock, what it does."""

    def __init__(self, folder: Path, device: str, time: DeviceTime) -> None:
        self._page = SharedPage.in_folder(folder, device, time.now_ns)
        self._time = time
        assert self._page.claim()
        self.say(is_busy=False)

    def say(self, *, is_busy: bool) -> None:
        """It is busy from now on, or idle."""
        now_ns = self._time.now_ns()
        self._page.write(
            Slot(
                0,
                pid=os.getpid(),
                kind=Kind.CO_RUNNER,
                is_busy=is_busy,
                pid_namespace=pid_namespace(),
                beat_ns=now_ns,
                unit_ns=60 * SECOND,
                since_ns=now_ns,
            )
        )

    def close(self) -> None:
        """It ends."""
        self._page.close()
