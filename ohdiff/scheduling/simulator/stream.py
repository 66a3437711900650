"""Our units on one simulated device, one after another, without an event for each where none is needed.

Progress is counted in nanoseconds that it would take alone; a unit's borders are found afterwards unless somebody asks
for them: a pause after each unit, a limit of units, a watch on stretched ones, or the end of a withdrawn grant.

A launch is a pause of the device before a unit. While nobody else is there, units with their launches are one flow that
takes less of the device; beside a co-runner each launch leaves it the whole device, and each unit is shared.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from ..core import Grant, UnitReport
from .sim_job import SimJob

STRETCHED_RATE = 0.9995  # below it somebody else is there
_TOLERANCE = 1.5  # ns; times are whole, so that a border may be found up to one late


@dataclass(frozen=True, slots=True)
class UnitShape:
    """What a grant's units are like.

    Parameters
    ----------
    demand, mean_demand : numbers of what a unit takes, and of what units with their launches take in the mean.
    unit_ns : a unit's length alone, without its launch.
    first_launch_ns, launch_ns : from a grant to the first unit's start, and from a unit's end to the next one's start.
    byte_rate : bytes in a nanosecond of a unit alone.
    """

    demand: int
    mean_demand: int
    unit_ns: float
    first_launch_ns: float
    launch_ns: float
    byte_rate: float


NOTHING = UnitShape(0, 0, 0.0, 0.0, 0.0, 0.0)


class Stream:
    """What runs on a device under a grant.

    Attributes
    ----------
    grant, job : what runs, None for nothing; a withdrawn grant stays until its units in flight have ended.
    is_ending : whether the grant is withdrawn.
    waiting : the grant that begins when the units in flight have ended.
    shape : of its units.
    rate : how fast the flow goes; a flow is there while `is_flowing`.
    gap_until_ns : when the pause after a unit ends, 0 for no pause.
    served : device time alone that was had, in nanoseconds; `bytes_done` likewise.
    report : the last unit's.
    contested_ns : since when a co-runner is in our way, -1 for not.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.grant: Grant | None = None
        self.job: SimJob | None = None
        self.is_ending = False
        self.is_flowing = False
        self.waiting: tuple[Grant, SimJob] | None = None
        self.shape = NOTHING
        self.rate = 0.0
        self.gap_until_ns = 0
        self.served = 0.0
        self.bytes_done = 0.0
        self.report: UnitReport | None = None
        self.contested_ns = -1
        self.started_ns = 0
        self._stretch_milli_max = 0
        self._phase = 0.0  # progress of the unit, below 0 in its launch
        self._is_stepped = True  # whether launches and units are gone through one by one
        self._is_first = False  # whether no unit has been started since the stream was empty
        self._tail = 0.0
        self._unit_started_ns = 0
        self._units = 0
        self._is_touched = False  # whether somebody else was there during this unit

    def begin(self, now_ns: int, grant: Grant, job: SimJob, shape: UnitShape) -> None:
        """Start units on an empty device."""
        self.grant, self.job, self.shape = grant, job, shape
        self.is_ending, self.waiting = False, None
        self._units = 0
        self.resume(now_ns)

    def renew(self, grant: Grant) -> None:
        """A new decision grants the same again."""
        self.grant, self.is_ending, self.waiting = grant, False, None
        self._units = 0

    def watch(self, stretch_milli_max: int) -> None:
        """Look at units' ends while somebody else is there; 0 for no need to."""
        self._stretch_milli_max = stretch_milli_max

    def withdraw(self) -> bool:
        """No new unit; returns whether any is in flight."""
        if not self.is_flowing:
            self.clear()
            return False
        if not self.is_ending and self.grant is not None:
            self._step(is_stepped=True)
            self.is_ending = True
            self._tail = self._in_flight_ns(self.grant.depth)
        if self._tail <= _TOLERANCE:
            self.clear()
        return self.is_flowing

    def _in_flight_ns(self, depth: int) -> float:
        if self._phase < -_TOLERANCE:
            return 0.0
        units = depth if self._phase > _TOLERANCE else depth - 1  # at a border the next one has not been submitted
        return self.shape.unit_ns * units - max(0.0, self._phase)

    def clear(self) -> None:
        """Nothing runs."""
        self.grant = self.job = None
        self.is_ending = self.is_flowing = False
        self.gap_until_ns = 0

    def pause(self, until_ns: int) -> None:
        """No unit until then."""
        self.is_flowing = False
        self.gap_until_ns = until_ns

    def resume(self, now_ns: int) -> None:
        """Units start, the first one with its launch."""
        self.is_flowing = True
        self.gap_until_ns = 0
        self._phase = -self.shape.first_launch_ns
        self._is_first = self._is_stepped = True
        self._is_touched = False
        self.started_ns = now_ns
        self._unit_started_ns = now_ns + int(self.shape.first_launch_ns)

    def meet(self, *, has_company: bool) -> None:
        """A co-runner is busy on the device from now on, or none is."""
        self._step(is_stepped=has_company or self.is_ending or self._is_first)

    def _step(self, *, is_stepped: bool) -> None:
        """Go through launches and units one by one, or through all as one flow.

        As one flow a launch is credited with a part of its unit's work, which is taken back when it ends in between.
        """
        if is_stepped != self._is_stepped:
            ahead = (self._phase + self.shape.launch_ns) * self._busy - max(0.0, self._phase)
            self._work(-ahead if is_stepped else ahead)
            self._is_stepped = is_stepped

    @property
    def _busy(self) -> float:
        """The part of the device's time that units take alone."""
        return self.shape.unit_ns / (self.shape.unit_ns + self.shape.launch_ns)

    @property
    def _is_launching(self) -> bool:
        return self._is_stepped and self._phase < -_TOLERANCE

    @property
    def demand(self) -> int | None:
        """The number of what is taken now, None for nothing."""
        if self._is_launching:
            return None
        return self.shape.demand if self._is_stepped else self.shape.mean_demand

    def work_since_ns(self, now_ns: int) -> int:
        """Since when the device has had work from us, no earlier than the last launch."""
        return now_ns - int(max(0.0, self._phase)) if self.shape.launch_ns else self.started_ns

    @property
    def speed(self) -> float:
        """Bytes in a nanosecond now."""
        if self._is_launching:
            return 0.0
        return self.rate * self.shape.byte_rate * (1.0 if self._is_stepped else self._busy)

    @property
    def left(self) -> float:
        """Work until the next border that matters, in nanoseconds alone; infinite for none."""
        if self.is_ending:
            return self._tail
        grant = self.grant
        if grant is None:
            return inf
        if self._is_launching:
            return -self._phase
        is_watched = self._stretch_milli_max > 0 and (self._is_touched or self.rate < STRETCHED_RATE)
        is_stepped = self._is_stepped and self.shape.launch_ns > 0
        if grant.gap_ns or grant.units_max or is_watched or is_stepped:
            return max(0.0, self.shape.unit_ns - self._phase)
        return inf

    @property
    def in_flight(self) -> int:
        """Units that were submitted and have not ended."""
        if not self.is_flowing or self.grant is None or self._is_launching:
            return 0
        return max(1, round(self._tail / self.shape.unit_ns)) if self.is_ending else self.grant.depth

    def advance(self, now_ns: int, elapsed_ns: int) -> None:
        """Time went by until `now_ns` at the present rate."""
        done = self.rate * elapsed_ns
        if not self._is_launching:
            self._is_first = False
            self._is_touched = self._is_touched or self.rate < STRETCHED_RATE
            self._work(done if self._is_stepped else done * self._busy)
        if self.is_ending:
            self._tail -= done
        self._phase += done
        if abs(self._phase) <= _TOLERANCE:
            self._phase = 0.0
        if self._phase >= self.shape.unit_ns - _TOLERANCE:
            self._cross(now_ns)

    def _work(self, time: float) -> None:
        self.served += time
        size = time * self.shape.byte_rate
        self.bytes_done += size
        if self.job is not None:
            self.job.work(size, time, is_small_first=self.device == "cpu")

    def _cross(self, now_ns: int) -> None:
        """Pass one border or many; the last unit's report is kept."""
        unit_ns, launch_ns = self.shape.unit_ns, self.shape.launch_ns
        passed = int((self._phase + launch_ns + _TOLERANCE) / (unit_ns + launch_ns))
        self._units += passed
        self._phase -= passed * (unit_ns + launch_ns)
        if self._phase + launch_ns <= _TOLERANCE:
            self._phase = -launch_ns
        self._is_touched = self._phase > 0 and self.rate < STRETCHED_RATE
        rate = self.rate or 1.0
        ended_ns = now_ns - int((self._phase + launch_ns) / rate)
        took_ns = ended_ns - self._unit_started_ns if passed == 1 else int(unit_ns / rate)
        is_probe = self.grant is not None and self.grant.is_probe
        self.report = UnitReport(ended_ns, max(0, took_ns), int(unit_ns), is_probe)
        self._unit_started_ns = ended_ns + int(launch_ns)

    @property
    def is_at_border(self) -> bool:
        """Whether a unit has ended just now."""
        return self._phase <= _TOLERANCE - self.shape.launch_ns

    @property
    def is_stretched(self) -> bool:
        """Whether the last unit was, by the watch."""
        limit = self._stretch_milli_max
        return limit > 0 and self.report is not None and self.report.stretch_milli > limit

    @property
    def is_spent(self) -> bool:
        """Whether the grant's units are used up."""
        return self.grant is not None and 0 < self.grant.units_max <= self._units
