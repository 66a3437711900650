"""The real loop in a time of its own: it looks at a device when a unit should have ended, and not before."""

from __future__ import annotations

import pytest

from ohdiff.scheduling.core import (
    MS,
    SECOND,
    Decision,
    DeviceKind,
    Grant,
    Job,
    JobClass,
    Telemetry,
    Unit,
    UnitDone,
    View,
    Watch,
)
from ohdiff.scheduling.policies.compose import Arbiter, PolicySettings, build_policy
from ohdiff.scheduling.real_loop import LOOK_NS, POLL_NS, LeasedDevice, RealLoop

RATE = 1 << 30


class SteppedClock:
    """Time goes on only when it is waited for."""

    def __init__(self) -> None:
        self.at_ns = 0
        self.waits_ns: list[int] = []

    def now_ns(self) -> int:
        return self.at_ns

    def wait_until(self, at_ns: int) -> None:
        self.waits_ns.append(at_ns - self.at_ns)
        self.at_ns = max(self.at_ns, at_ns)


class SteppedDevice:
    """Units take so many times as long as they should, one after another."""

    kind = DeviceKind.EMULATED
    name = "gpu0"
    rate_bytes_per_s = RATE

    def __init__(self, clock: SteppedClock, stretch: int) -> None:
        self._clock = clock
        self._stretch = stretch
        self._units: list[tuple[Unit, int, int]] = []
        self._free_ns = 0

    def submit(self, unit: Unit) -> None:
        self._free_ns = max(self._free_ns, self._clock.at_ns) + unit.expected_ns * self._stretch
        self._units.append((unit, self._clock.at_ns, self._free_ns))

    def poll(self) -> tuple[UnitDone, ...]:
        ended = [each for each in self._units if each[2] <= self._clock.at_ns]
        del self._units[: len(ended)]
        return tuple(UnitDone(*each) for each in ended)

    def telemetry(self) -> Telemetry | None:
        return None

    def trim(self, keep_bytes: int) -> int:
        return 0

    def park(self) -> None:
        self._units.clear()


class Units:
    """So many units of work."""

    def __init__(self, count: int) -> None:
        self.left = self.to_come = count

    def jobs(self) -> tuple[Job, ...]:
        return (Job(1, JobClass.SCAVENGE, 0, self.left),) if self.left else ()

    def next_unit(self, job: int, device: str, size_bytes: int, *, is_probe: bool) -> Unit | None:
        if not self.to_come:
            return None
        self.to_come -= 1
        return Unit(self.to_come, job, size_bytes, size_bytes * SECOND // RATE, is_probe)

    def take(self, device: str, done: UnitDone) -> None:
        self.left -= 1


def waits_ns(*, stretch: int = 1, depth: int = 1, is_woken: bool = False) -> list[int]:
    """How long the loop waited each time, with ten units of 2 ms."""
    clock = SteppedClock()
    policy = build_policy(PolicySettings(arbiter=Arbiter.NONE, depth=depth))
    device = LeasedDevice(SteppedDevice(clock, stretch))
    work = Units(10)
    RealLoop(policy, [device], work, clock, is_woken=is_woken).run()
    assert work.left == 0
    return clock.waits_ns


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_a_device_is_left_in_peace_until_its_first_unit_should_have_ended(depth: int) -> None:
    waits = waits_ns(depth=depth)
    assert len(waits) <= 12
    assert sum(waits) == pytest.approx(20 * MS, rel=0.01)


def test_a_unit_that_is_late_is_looked_for_often() -> None:
    waits = waits_ns(stretch=3)
    assert set(waits[:-1]) == {waits[0], POLL_NS}
    assert waits.count(POLL_NS) == pytest.approx(10 * 4 * MS / POLL_NS, rel=0.05)


def test_a_clock_that_wakes_the_loop_is_trusted() -> None:
    assert set(waits_ns(stretch=3, is_woken=True)) == {LOOK_NS}


class Hasty(SteppedDevice):
    """The first unit takes long, and it and the next have ended when they are looked at."""

    def submit(self, unit: Unit) -> None:
        self._free_ns += unit.expected_ns * (9 if not self._free_ns else 1)
        self._units.append((unit, self._clock.at_ns, self._free_ns))

    def poll(self) -> tuple[UnitDone, ...]:
        return () if self._clock.at_ns < 30 * MS else super().poll()


class Listener:
    """Grants two units in flight, and keeps what it is told of."""

    def __init__(self) -> None:
        self.stretches: list[int] = []

    def decide(self, now_ns: int, view: View) -> Decision:
        last = view.devices[0].last_unit
        self.stretches.append(0 if last is None else last.stretch_milli)
        return Decision((Grant("gpu0", 1, depth=2),), (Watch("gpu0", stretch_milli_max=1300),))


def test_a_stretched_unit_is_heard_of_though_one_that_was_not_ended_after_it() -> None:
    clock, policy = SteppedClock(), Listener()
    RealLoop(policy, [LeasedDevice(Hasty(clock, 1))], Units(6), clock).run()
    assert policy.stretches[:2] == [0, 9000]
