"""The real loop: runs work in units on real devices, under a policy, with leases and signals.

One thread. It asks the policy when the contract of `core.Decision` says so, hands out units within what is granted, and
takes back what a device failed or lost: units are idempotent, so such a one is simply done again, here or elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from ohdiff.errors import DeviceError

from .core import (
    MS,
    SECOND,
    US,
    Clock,
    CoRunner,
    Device,
    DeviceView,
    Grant,
    Host,
    Job,
    Lateness,
    Policy,
    Unit,
    UnitDone,
    UnitReport,
    View,
)
from .decision_log import DecisionLog
from .lease import Lease
from .standing import StandingDecision

# How often a device is looked at whose first unit in flight should have ended, and how often one with none in flight.
POLL_NS: Final = 50 * US
LOOK_NS: Final = 2 * MS
BAD_NS: Final = 60 * SECOND
_BAD_DOUBLINGS_MAX: Final = 6


class Work(Protocol):
    """What is to be done, cut into units on demand."""

    def jobs(self) -> tuple[Job, ...]:
        """The jobs that are not done, sorted by number."""
        ...

    def next_unit(self, job: int, device: str, size_bytes: int, *, is_probe: bool) -> Unit | None:
        """A piece of a job of about that size; None when all of it is done or in flight."""
        ...

    def take(self, device: str, done: UnitDone) -> None:
        """A unit left its device; one that is not ok is to be given out again."""
        ...


@dataclass(slots=True, eq=False)
class LeasedDevice:
    """A device with its lease, None where none is needed."""

    device: Device
    lease: Lease | None = None


class RealLoop:
    """Runs work until all of it is done.

    Parameters
    ----------
    policy : decides.
    devices : what there is to run on.
    work : what there is to do.
    co_runners, host : the signals, asked with the time.
    log : gets every decision.
    on_late : told once of each window that will be missed.
    look_ns : how often signals are read while nothing is in flight.
    is_woken : whether the clock returns as soon as a unit ends, so that devices need not be looked at for it.
    bad_ns_min : how long a device that failed is left alone; twice as long each time that it fails again.
    """

    def __init__(
        self,
        policy: Policy,
        devices: Sequence[LeasedDevice],
        work: Work,
        clock: Clock,
        *,
        co_runners: Callable[[int], tuple[CoRunner, ...]] = lambda now_ns: (),
        host: Callable[[int], Host] = lambda now_ns: Host(),
        log: DecisionLog | None = None,
        on_late: Callable[[Lateness], None] = lambda late: None,
        look_ns: int = LOOK_NS,
        is_woken: bool = False,
        bad_ns_min: int = BAD_NS,
    ) -> None:
        self._devices = sorted((_Driven(each, bad_ns_min) for each in devices), key=lambda each: each.name)
        self._work = work
        self._clock = clock
        self._co_runners = co_runners
        self._host = host
        self._standing = StandingDecision(policy, log)
        self._on_late = on_late
        self._late: set[int] = set()
        self._look_ns = look_ns
        self._is_woken = is_woken

    def run(self) -> None:
        """Return when no job is left; leases are given up, devices stay as they are."""
        try:
            while self._turn():
                pass
        finally:
            for each in self._devices:
                each.leave()

    def _turn(self) -> bool:
        """One round; False when there is nothing left to do."""
        now_ns = self._clock.now_ns()
        for device in self._devices:
            self._collect(device, now_ns)
            device.keep_lease(wants=self._standing.grant(device.name) is not None)
        jobs = self._work.jobs()
        if not jobs and not any(device.in_flight for device in self._devices):
            return False
        view = self._view(now_ns, jobs)
        if self._standing.refresh(now_ns, view):
            self._carry_out()
        for device in self._devices:
            grant = self._standing.grant(device.name)
            if grant is not None and device.may_start(now_ns, grant):
                self._start(device, grant, now_ns)
        self._clock.wait_until(self._next_ns(now_ns, view))
        return True

    def _view(self, now_ns: int, jobs: tuple[Job, ...]) -> View:
        views = tuple(device.view(now_ns, self._standing.last_unit(device.name)) for device in self._devices)
        return View(jobs, views, self._co_runners(now_ns), self._host(now_ns))

    def _collect(self, device: _Driven, now_ns: int) -> None:
        for done in device.poll(now_ns):
            self._standing.note_unit(device.name, device.note(done))
            self._work.take(device.name, done)

    def _carry_out(self) -> None:
        decision = self._standing.decision
        for trim in decision.trims:
            device = next(each for each in self._devices if each.name == trim.device)
            device.trim(trim.keep_bytes, is_parked=trim.is_parked)
        for late in decision.late:
            if late.job not in self._late:
                self._late.add(late.job)
                self._on_late(late)

    def _start(self, device: _Driven, grant: Grant, now_ns: int) -> None:
        size_bytes = max(1, device.device.rate_bytes_per_s * grant.unit_ns // SECOND)
        while len(device.in_flight) < grant.depth:
            unit = self._work.next_unit(grant.job, device.name, size_bytes, is_probe=grant.is_probe)
            if unit is None:
                return
            lost = device.submit(unit, grant, now_ns)
            for done in lost:
                self._standing.note_unit(device.name, device.note(done))
                self._work.take(device.name, done)
            if lost or grant.is_probe or grant.units_max == 1:
                return

    def _next_ns(self, now_ns: int, view: View) -> int:
        """When something may have to be done next."""
        # Before a unit ends nothing that can be seen would change what is on its device.
        times = [self._first_look_ns(device, now_ns) for device in self._devices if device.in_flight]
        if len(times) < len(self._devices):
            due_ns = self._standing.due_ns(view)
            times.append(now_ns + self._look_ns if due_ns is None else min(due_ns, now_ns + self._look_ns))
            times.extend(each.not_before_ns for each in self._devices if each.not_before_ns > now_ns)
        return max(now_ns, min(times))

    def _first_look_ns(self, device: _Driven, now_ns: int) -> int:
        if self._is_woken:
            return now_ns + self._look_ns
        end_ns = device.first_end_ns()
        return end_ns if end_ns > now_ns else now_ns + POLL_NS


class _Driven:
    """A device in use: what is in flight on it, and what its last units were like."""

    def __init__(self, leased: LeasedDevice, bad_ns_min: int) -> None:
        self._bad_ns_min = bad_ns_min
        self.device = leased.device
        self.name = leased.device.name
        self.in_flight: dict[int, tuple[Unit, int]] = {}
        self.not_before_ns = 0
        self._lease = leased.lease
        self._gap_ns = 0
        self._ended_ns = 0
        self._served_ns = 0
        self._held_bytes = 0
        self._bad_until_ns = 0
        self._failures = 0

    def view(self, now_ns: int, last_unit: UnitReport | None) -> DeviceView:
        """As a policy sees it."""
        device, lease = self.device, self._lease
        return DeviceView(
            self.name,
            device.kind,
            device.rate_bytes_per_s,
            is_usable=now_ns >= self._bad_until_ns,
            is_leased=lease is None or lease.is_held,
            peer_class=None if lease is None else lease.peer_class,
            in_flight=len(self.in_flight),
            last_unit=last_unit,
            telemetry=device.telemetry(),
            held_bytes=self._held_bytes,
            served_ns=self._served_ns,
        )

    def poll(self, now_ns: int) -> tuple[UnitDone, ...]:
        """What ended; everything that was in flight, as failed, when the device is lost."""
        if not self.in_flight:
            return ()
        try:
            return self.device.poll()
        except DeviceError:
            return self._lose(now_ns)

    def submit(self, unit: Unit, grant: Grant, now_ns: int) -> tuple[UnitDone, ...]:
        """Start a unit; what was lost, if the device does not take it."""
        self.in_flight[unit.number] = (unit, now_ns)
        self._gap_ns = grant.gap_ns
        try:
            self.device.submit(unit)
        except DeviceError:
            return self._lose(now_ns)
        return ()

    def note(self, done: UnitDone) -> UnitReport:
        """Book a unit that ended."""
        self.in_flight.pop(done.unit.number, None)
        self.not_before_ns = done.ended_ns + self._gap_ns
        took_ns = done.ended_ns - max(done.submitted_ns, self._ended_ns)
        self._ended_ns = done.ended_ns
        report = UnitReport(done.ended_ns, took_ns, done.unit.expected_ns, done.unit.is_probe, done.is_ok)
        if done.is_ok:
            self._served_ns += done.unit.expected_ns
            self._failures = 0
        else:
            self._mark_bad(done.ended_ns)
            if not self.in_flight:
                self.device.park()
        return report

    def first_end_ns(self) -> int:
        """When the first unit in flight ends if nobody else is there."""
        unit, submitted_ns = next(iter(self.in_flight.values()))
        return max(submitted_ns, self._ended_ns) + unit.expected_ns

    def may_start(self, now_ns: int, grant: Grant) -> bool:
        """Whether a unit may be started now."""
        is_leased = self._lease is None or self._lease.is_held
        is_time = now_ns >= max(self.not_before_ns, self._bad_until_ns)
        return is_leased and is_time and len(self.in_flight) < grant.depth

    def keep_lease(self, *, wants: bool) -> None:
        """Queue for the lease, beat, or give it up at a unit's border to whoever waits."""
        lease = self._lease
        if lease is None:
            return
        if not lease.is_held:
            if wants:
                lease.request()
            else:
                lease.withdraw()
            return
        lease.beat()
        if not self.in_flight and (lease.peer_class is not None if not wants else lease.is_wanted()):
            lease.release()

    def trim(self, keep_bytes: int, *, is_parked: bool) -> None:
        """Give memory back."""
        if is_parked and not self.in_flight:
            self.device.park()
            self._held_bytes = 0
        else:
            self._held_bytes = self.device.trim(keep_bytes)

    def leave(self) -> None:
        """The work is over."""
        if self._lease is not None:
            self._lease.release()
            self._lease.withdraw()

    def _lose(self, now_ns: int) -> tuple[UnitDone, ...]:
        """Everything in flight failed: the device is started anew when it is tried again."""
        lost = tuple(UnitDone(unit, at_ns, now_ns, is_ok=False) for unit, at_ns in self.in_flight.values())
        self.device.park()
        return lost

    def _mark_bad(self, now_ns: int) -> None:
        if now_ns >= self._bad_until_ns:
            self._bad_until_ns = now_ns + (self._bad_ns_min << min(self._failures, _BAD_DOUBLINGS_MAX))
            self._failures += 1
