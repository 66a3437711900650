"""Our units on one simulated device, one after another, without an event for each where none is needed.

Progress is counted in nanoseconds that it would take alone; a unit's borders are found afterwards unless somebody asks
for them: a pause after each unit, a limit of units, a watch on stretched ones, or the end of a withdrawn grant.
"""

from __future__ import annotations

from math import inf

from ..core import Grant, UnitReport
from .sim_job import SimJob

STRETCHED_RATE = 0.9995  # below it somebody else is there
_TOLERANCE = 1.5  # ns; times are whole, so that a border may be found up to one late


class Stream:
    """What runs on a device under a grant.

    Attributes
    ----------
    grant, job : what runs, None for nothing; a withdrawn grant stays until its units in flight have ended.
    is_ending : whether the grant is withdrawn.
    waiting : the grant that begins when the units in flight have ended.
    demand, rate : what the flow takes, and how fast it goes; a flow is there while `is_flowing`.
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
        self.demand = 0
        self.rate = 0.0
        self.byte_rate = 0.0
        self.unit_ns = 0.0
        self.gap_until_ns = 0
        self.served = 0.0
        self.bytes_done = 0.0
        self.report: UnitReport | None = None
        self.contested_ns = -1
        self.started_ns = 0
        self._stretch_milli_max = 0
        self._phase = 0.0
        self._tail = 0.0
        self._unit_started_ns = 0
        self._units = 0
        self._is_touched = False  # whether somebody else was there during this unit

    def begin(self, now_ns: int, grant: Grant, job: SimJob, demand: int, unit_ns: float, byte_rate: float) -> None:
        """Start units on an empty device.

        Parameters
        ----------
        unit_ns : a unit's length alone, launch included.
        byte_rate : bytes in a nanosecond alone.
        """
        self.grant, self.job, self.demand = grant, job, demand
        self.unit_ns, self.byte_rate = unit_ns, byte_rate
        self.is_ending, self.is_flowing, self.waiting, self.gap_until_ns = False, True, None, 0
        self._phase, self._units, self._is_touched = 0.0, 0, False
        self._unit_started_ns = self.started_ns = now_ns

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
            self.is_ending = True
            self._tail = self.unit_ns * self.grant.depth - self._phase
            if self._phase <= _TOLERANCE:
                self._tail -= self.unit_ns  # the border is now: the next unit has not been submitted
        if self._tail <= _TOLERANCE:
            self.clear()
        return self.is_flowing

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
        """The pause is over."""
        self.is_flowing = True
        self.gap_until_ns = 0
        self._phase = 0.0
        self._unit_started_ns = self.started_ns = now_ns

    @property
    def left(self) -> float:
        """Work until the next border that matters, in nanoseconds alone; infinite for none."""
        if self.is_ending:
            return self._tail
        grant = self.grant
        if grant is None:
            return inf
        is_watched = self._stretch_milli_max > 0 and (self._is_touched or self.rate < STRETCHED_RATE)
        if grant.gap_ns or grant.units_max or is_watched:
            return max(0.0, self.unit_ns - self._phase)
        return inf

    @property
    def in_flight(self) -> int:
        """Units that were submitted and have not ended."""
        if not self.is_flowing or self.grant is None:
            return 0
        return max(1, round(self._tail / self.unit_ns)) if self.is_ending else self.grant.depth

    def advance(self, now_ns: int, elapsed_ns: int) -> None:
        """Time went by until `now_ns` at the present rate."""
        done = self.rate * elapsed_ns
        self._is_touched = self._is_touched or self.rate < STRETCHED_RATE
        self.served += done
        size = done * self.byte_rate
        self.bytes_done += size
        if self.job is not None:
            self.job.work(size, done, is_small_first=self.device == "cpu")
        if self.is_ending:
            self._tail -= done
        self._phase += done
        if self._phase >= self.unit_ns - _TOLERANCE:
            self._cross(now_ns)

    def _cross(self, now_ns: int) -> None:
        """Pass one border or many; the last unit's report is kept."""
        passed = int((self._phase + _TOLERANCE) / self.unit_ns)
        self._units += passed
        self._phase -= passed * self.unit_ns
        if self._phase <= _TOLERANCE:
            self._phase = 0.0
        self._is_touched = self._phase > 0 and self.rate < STRETCHED_RATE
        rate = self.rate or 1.0
        ended_ns = now_ns - int(self._phase / rate)
        took_ns = ended_ns - self._unit_started_ns if passed == 1 else int(self.unit_ns / rate)
        is_probe = self.grant is not None and self.grant.is_probe
        self.report = UnitReport(ended_ns, max(0, took_ns), int(self.unit_ns), is_probe)
        self._unit_started_ns = ended_ns

    @property
    def is_at_border(self) -> bool:
        """Whether a unit has ended just now."""
        return self._phase <= _TOLERANCE

    @property
    def is_stretched(self) -> bool:
        """Whether the last unit was, by the watch."""
        limit = self._stretch_milli_max
        return limit > 0 and self.report is not None and self.report.stretch_milli > limit

    @property
    def is_spent(self) -> bool:
        """Whether the grant's units are used up."""
        return self.grant is not None and 0 < self.grant.units_max <= self._units
