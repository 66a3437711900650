"""A co-runner's place in a run: whether it works now, how fast, and what it and the vendor's counters say of it."""

from __future__ import annotations

from math import ceil

from ..core import Activity, CoRunner
from .co_runners import CoRunnerModel


class Presence:
    """One co-runner while the engine runs.

    Attributes
    ----------
    is_busy : whether a phase runs; `left` is its work and `rate` its speed.
    since_ns : when it last turned busy or idle.
    started_ns : when its last phase began.
    busy_ns : time in phases so far.
    reported_steps, reported_step_ns : as of its last report.
    """

    def __init__(self, model: CoRunnerModel) -> None:
        self.model = model
        self.is_busy = False
        self.left = 0.0
        self.rate = 1.0
        self.since_ns = 0
        self.started_ns = 0
        self.busy_ns = 0
        self.reported_steps = 0
        self.reported_step_ns = 0
        self._report_total_ns = 0

    def end_ns(self, now_ns: int) -> int:
        """When its phase ends at the present rate."""
        return now_ns + ceil(self.left / self.rate) if self.rate > 0 else 1 << 62

    def report(self) -> bool:
        """Publish the mean of the steps since the last report; returns whether there was any."""
        steps = self.model.steps - self.reported_steps
        if steps == 0:
            return False
        self.reported_step_ns = (self.model.step_total_ns - self._report_total_ns) // steps
        self.reported_steps = self.model.steps
        self._report_total_ns = self.model.step_total_ns
        return True

    @property
    def is_visible(self) -> bool:
        """Whether a policy gets to know of it from itself."""
        return self.model.is_telling or self.model.report_ns > 0

    @property
    def view(self) -> CoRunner:
        """The co-runner as a policy sees it."""
        activity = Activity.UNKNOWN
        if self.model.is_telling:
            activity = Activity.BUSY if self.is_busy else Activity.IDLE
        since_ns = self.since_ns if self.model.is_telling else 0
        model = self.model
        return CoRunner(model.name, model.device, activity, since_ns, self.reported_steps, self.reported_step_ns)
