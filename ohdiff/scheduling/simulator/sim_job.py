"""One of our jobs within a run of the simulator."""

from __future__ import annotations

from math import ceil

from ..core import Job
from .co_runners import NEVER_NS
from .scenario import JobPlan

ENDLESS_BYTES = 1 << 62


class SimJob:
    """What is left of a job, and what became of it.

    Attributes
    ----------
    left, small_left : bytes; the second is part of the first.
    is_only_small : whether it has been noted that nothing but small files is left.
    served : device time alone, in nanoseconds, on all devices.
    ended_ns : when it ended, None before.
    warned_ns, warned_late_ns : when it was first said that its window will be missed, and by how much.
    """

    def __init__(self, number: int, plan: JobPlan, rate: float) -> None:
        self.number = number
        self.plan = plan
        self.is_endless = plan.size_bytes == 0
        self.left = float(plan.size_bytes or ENDLESS_BYTES)
        self.small_left = float(plan.small_bytes)
        self.is_only_small = 0 < plan.size_bytes <= plan.small_bytes
        self.served = 0.0
        self.ended_ns: int | None = None
        self.warned_ns: int | None = None
        self.warned_late_ns = 0
        self._predicted_ns = int(plan.size_bytes / rate) * plan.predicted_milli // 1000

    def work(self, size: float, time: float, *, is_small_first: bool) -> None:
        """So many bytes were worked on."""
        self.served += time
        if self.is_endless:
            return
        self.left = max(0.0, self.left - size)
        small_left = self.small_left - size if is_small_first else self.small_left
        self.small_left = max(0.0, min(small_left, self.left))

    @property
    def view(self) -> Job:
        """The job as a policy sees it."""
        plan = self.plan
        return Job(
            self.number,
            plan.job_class,
            plan.arrives_ns,
            ENDLESS_BYTES if self.is_endless else ceil(self.left),
            self._predicted_ns,
            int(self.served),
            ceil(self.small_left),
            plan.deadline_ns,
            plan.device,
        )

    def left_ns(self, cpu: float, rest: float) -> int:
        """Time until its next part is done, at so many bytes a nanosecond on the CPU and elsewhere."""
        if cpu + rest <= 0:
            return NEVER_NS
        large = self.left - self.small_left
        if rest > 0 and large > 0 and cpu > 0 and self.small_left > 0:
            times = [large / rest, self.small_left / cpu]
        elif cpu > 0 and self.small_left > 0 and rest <= 0:
            times = [self.small_left / cpu]
        else:
            times = [self.left / (cpu + rest)]
        return max(1, ceil(min(times)))
