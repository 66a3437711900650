"""An accelerator's half of the contract in `core.Decision`: what may start on it, and what is told of what ended.

It reads no clock and never waits; whoever has threads and locks (device_governor.py) asks it with the time. A unit
takes what passes from the moment that all of it is on its way, or that the unit before it ended, until its results have
come. The host's own part in front of that is nobody's business on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from ohdiff.errors import DeviceError

from .core import MS, SECOND, DeviceKind, DeviceView, Grant, Job, JobClass, Policy, Telemetry, Trim, UnitReport, View
from .decision_log import DecisionLog
from .others import Others
from .standing import StandingDecision
from .unit_times import UnitTimes

# A call that the CPU can do as well waits for so long: the shortest pause after a collision.
PATIENCE_NS: Final = 20 * MS
# A job that has asked for no unit for so long is taken off the device's list: its memory may then be given back.
IDLE_NS: Final = SECOND


@dataclass(frozen=True, slots=True)
class DeviceJob:
    """What a driver is for.

    Parameters
    ----------
    device : the name by which processes meet on it.
    job_class : how much the job matters. Only SCAVENGE follows co-runners; the others give way to better ohdiff
        processes, and take turns with equal ones.
    folder : where processes of this user meet, None to work without lease and hints.
    calibrated : bytes a second by where data lies, see `UnitTimes`.
    bytes_left : asked for what is still to be worked on.
    """

    device: str
    job_class: JobClass
    folder: Path | None = None
    calibrated: Mapping[str, int] = field(default_factory=dict)
    bytes_left: Callable[[], int] = lambda: 1


class HeldMemory(Protocol):
    """The device memory that we hold."""

    def held_bytes(self) -> int:
        """So much."""
        ...

    def free_bytes(self) -> int:
        """What nobody holds; -1 if that is not known."""
        ...

    def trim(self, keep_bytes: int) -> None:
        """Give back what is more than this, as it becomes free, and take no more from now on."""
        ...

    def park(self) -> None:
        """Give everything back; what is asked for takes it again."""
        ...


@dataclass(slots=True, eq=False)
class StartedUnit:
    """A unit from its leave to its end; `submitted_ns` is -1 before it is on its way."""

    kind: str
    size_bytes: int
    is_probe: bool
    submitted_ns: int = -1
    was_alone: bool = True


@dataclass(slots=True)
class DeviceCounts:
    """What became of it: units that ended, their bytes and device time, and how many failed."""

    units: int = 0
    size_bytes: int = 0
    served_ns: int = 0
    failed: int = 0


class DeviceDriver:
    """Asks the policy, keeps the lease, and books units; not for several threads at a time.

    Parameters
    ----------
    policy : decides.
    memory : what we hold on the device.
    log : gets every decision.
    note : told in words what a user should know.
    now : the time, for what others say in the shared page.

    Attributes
    ----------
    telemetry : the newest counters, set by whoever reads them.
    is_usable : False when the device failed.
    counts : so far.
    """

    def __init__(
        self,
        policy: Policy,
        job: DeviceJob,
        memory: HeldMemory,
        now: Callable[[], int],
        *,
        log: DecisionLog | None = None,
        note: Callable[[str], None] = lambda message: None,
    ) -> None:
        self.telemetry: Telemetry | None = None
        self.is_usable = True
        self.counts = DeviceCounts()
        self._job = job
        self._memory = memory
        self._note = note
        self._standing = StandingDecision(policy, log)
        self._others = Others(job.device, job.job_class, job.folder, note, now, takes_lease=True)
        self._times = UnitTimes(job.calibrated)
        self._arrived_ns = self._asked_ns = now()
        self._deadline_ns: int | None = None
        self._in_flight: set[StartedUnit] = set()
        self._started = 0
        self._ended_ns = 0
        self._not_before_ns = 0
        self._is_ours = False
        self._refused_ns = -1
        self._trims: tuple[Trim, ...] = ()
        self._is_free = False

    @property
    def in_flight(self) -> int:
        """Units with leave that have not ended."""
        return len(self._in_flight)

    @property
    def are_told(self) -> bool:
        """Whether co-runners say what they do, so that it is worth looking often."""
        return self._others.are_telling

    @property
    def awaits_lease(self) -> bool:
        """Whether nothing but the lease is missing, so that it is worth looking often."""
        return not self._is_ours and self._grant() is not None

    @property
    def is_granted(self) -> bool:
        """Whether nothing but other units of ours keeps one from being started."""
        return self._is_free or (self._is_ours and self._grant() is not None)

    def is_asked(self, now_ns: int) -> bool:
        """Whether anybody has wanted to start a unit lately."""
        return bool(self._in_flight) or now_ns - self._asked_ns < IDLE_NS

    def ask(self, now_ns: int) -> None:
        """Somebody wants to start a unit."""
        self._asked_ns = now_ns

    def press(self, now_ns: int, *, is_last_call: bool) -> None:
        """There is no time left to wait for others, or there is again."""
        self._deadline_ns = now_ns if is_last_call else None

    def look(self, now_ns: int) -> None:
        """Keep the lease, and ask the policy if it is time; what cannot be shared any more is used without."""
        if self._is_free:
            return
        try:
            self._is_ours = self._keep_lease()
            self._refresh(now_ns)
            if not self._is_ours and (is_ours := self._keep_lease()):
                # What was granted before the lease was ours was only leave to queue for it.
                self._is_ours = is_ours
                self._refresh(now_ns)
        except (DeviceError, OSError) as error:
            self._note(f"{error}; on {self._job.device} others are given way to no more")
            self._is_free = True
        if self.is_granted:
            self._refused_ns = -1
        elif self._refused_ns < 0:
            self._refused_ns = now_ns

    def may_start(self, now_ns: int) -> bool:
        """Whether a unit may be started."""
        grant = self._grant()
        if self._is_free or grant is None:
            return self._is_free
        has_room = len(self._in_flight) < grant.depth and (not grant.units_max or self._started < grant.units_max)
        return self._is_ours and has_room and now_ns >= self._not_before_ns

    def is_refusing(self, now_ns: int) -> bool:
        """Whether the device is not to be had for longer than a call should wait that a CPU can do."""
        if self._refused_ns >= 0:
            return now_ns - self._refused_ns >= PATIENCE_NS
        return self._not_before_ns - now_ns >= PATIENCE_NS

    def wait_ns(self, now_ns: int) -> int | None:
        """How long until time alone changes the answer; None for not by time."""
        times = [self._not_before_ns, self._refused_ns + PATIENCE_NS if self._refused_ns >= 0 else 0]
        later = [at_ns - now_ns for at_ns in times if at_ns > now_ns]
        return min(later, default=None)

    def due_ns(self, now_ns: int) -> int | None:
        """When to look again if nothing happens before."""
        return self._standing.due_ns(self._view(now_ns))

    def start(self, kind: str, size_max: int) -> StartedUnit:
        """Give leave, to be asked of `may_start`; as large as what is granted lasts."""
        grant = self._grant()
        size_bytes = size_max if grant is None else min(size_max, self._times.size_bytes(kind, grant.unit_ns))
        unit = StartedUnit(kind, size_bytes, is_probe=grant is not None and grant.is_probe)
        self._in_flight.add(unit)
        self._started += 1
        return unit

    def submit(self, unit: StartedUnit, now_ns: int, size_bytes: int) -> None:
        """All of a unit is on its way to the device."""
        unit.submitted_ns, unit.size_bytes = now_ns, size_bytes
        for other in self._running_beside(unit):
            unit.was_alone = other.was_alone = False

    def end(self, unit: StartedUnit, now_ns: int, *, is_ok: bool) -> None:
        """A unit ended, or was given up before it was on its way."""
        self._in_flight.discard(unit)
        if unit.submitted_ns < 0 or unit.size_bytes == 0:
            self._started -= 1
            return
        report = self._report(unit, now_ns, is_ok=is_ok)
        self._ended_ns = report.ended_ns
        self._standing.note_unit(self._job.device, report)
        grant = self._grant()
        if grant is not None:
            # In proportion: a unit may have been shorter than what was granted.
            self._not_before_ns = now_ns + report.expected_ns * grant.gap_ns // max(1, grant.unit_ns)

    def lose(self) -> None:
        """The device failed, and is not used any more."""
        self.is_usable = False

    def taken_trims(self) -> tuple[Trim, ...]:
        """What memory is to be given back, once each."""
        trims, self._trims = self._trims, ()
        return trims

    def close(self) -> None:
        """The job is done."""
        self._others.close()

    def _grant(self) -> Grant | None:
        return self._standing.grant(self._job.device)

    def _keep_lease(self) -> bool:
        return self._others.keep_lease(wants=self._grant() is not None, is_idle=not self._in_flight)

    def _refresh(self, now_ns: int) -> None:
        if self._standing.refresh(now_ns, self._view(now_ns)):
            self._started = len(self._in_flight)
            self._trims += self._standing.decision.trims

    def _view(self, now_ns: int) -> View:
        job = self._job
        jobs = (
            Job(
                1,
                job.job_class,
                self._arrived_ns,
                max(1, job.bytes_left()),
                served_ns=self.counts.served_ns,
                deadline_ns=self._deadline_ns,
            ),
        )
        device = DeviceView(
            job.device,
            DeviceKind.CUDA,
            self._times.rate_bytes_per_s,
            is_usable=self.is_usable,
            is_leased=self._others.is_leased,
            peer_class=self._others.peer_class,
            in_flight=len(self._in_flight),
            last_unit=self._standing.last_unit(job.device),
            telemetry=self.telemetry,
            held_bytes=self._memory.held_bytes(),
            served_ns=self.counts.served_ns,
        )
        co_runners = self._others.co_runners(now_ns) if job.job_class is JobClass.SCAVENGE else ()
        return View(jobs if self.is_asked(now_ns) else (), (device,), co_runners)

    def _running_beside(self, unit: StartedUnit) -> list[StartedUnit]:
        return [each for each in self._in_flight if each is not unit and each.submitted_ns >= 0]

    def _report(self, unit: StartedUnit, now_ns: int, *, is_ok: bool) -> UnitReport:
        took_ns = max(1, now_ns - max(unit.submitted_ns, self._ended_ns))
        alone_ns = max(1, self._times.expected_ns(unit.kind, unit.size_bytes, took_ns))
        # Units of several threads share the device: the one that ends first has waited for a part of the others.
        others = (self._times.expected_ns(each.kind, each.size_bytes, took_ns) for each in self._running_beside(unit))
        expected_ns = alone_ns + sum(others)
        self.counts.units += 1
        if is_ok:
            self.counts.size_bytes += unit.size_bytes
            self.counts.served_ns += alone_ns
            if unit.was_alone:
                self._times.note(now_ns, unit.kind, unit.size_bytes, took_ns)
        else:
            self.counts.failed += 1
        return UnitReport(now_ns, took_ns, expected_ns, unit.is_probe, is_ok)
