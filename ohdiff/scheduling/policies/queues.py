"""Which of our jobs runs: in order of arrival, or multi-level feedback queues that long jobs join further down.

Skip-join is FastServe's (NSDI'26): a job whose length is known starts at the level whose quantum holds it. Changed: the
length is that of a scan, quanta are device time from 100 ms up, and a job that waited long (as there) or was often put
aside (credits, as in dLoRA, OSDI'24) is lifted for one quantum and then goes back to its level. XSched's feedback queue
(OSDI'25) decays waiting by the number of jobs and reads the clock itself; neither is taken over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..core import MS, SECOND, Job, JobClass, View
from .draft import Draft


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """The shape of the queues.

    Parameters
    ----------
    quantum_ns : device time at the first level; each level further down has twice the time.
    levels : how many.
    starved_ns : a job that waited so long is lifted.
    credits_max : a job that was put aside so many times is lifted.
    is_skipping : whether a job of known length joins further down; False for plain feedback queues.
    """

    quantum_ns: int = 100 * MS
    levels: int = 8
    starved_ns: int = 30 * SECOND
    credits_max: int = 8
    is_skipping: bool = True


class _Place(NamedTuple):
    """Where a job stands.

    `queued_ns` orders a level, `ran_ns` is when the job last ran, came or was lifted, `lifted` is 0 or 1.
    """

    level: int
    lifted: int
    served_before_ns: int
    queued_ns: int
    ran_ns: int
    credits: int
    is_running: int


class ArrivalOrder:
    """First come, first served, within a class."""

    def apply(self, now_ns: int, view: View, draft: Draft) -> None:
        """Choose a job for every permitted device."""
        order = sorted(view.jobs, key=lambda job: (_rank(job, draft), job.job_class, job.arrived_ns, job.job))
        _choose(order, draft)


class FeedbackQueues:
    """Short jobs first without knowing them short, and no job waits for ever."""

    def __init__(self, limits: QueueLimits) -> None:
        self._limits = limits

    def apply(self, now_ns: int, view: View, draft: Draft) -> None:
        """Move jobs between levels, and choose one for every permitted device."""
        places = {job.job: self._moved(now_ns, job, draft) for job in view.jobs}
        order: Sequence[Job] = view.jobs
        if len(order) > 1:
            order = sorted(order, key=lambda job: self._key(job, places[job.job], draft))
        _choose(order, draft)
        running = set(draft.chosen.values())
        is_contended = len(view.jobs) > len(running)
        for job in view.jobs:
            place = self._after_choice(job, places[job.job], job.job in running, is_usable=bool(draft.permits))
            draft.remember(f"queue:{job.job}", tuple(place))
            if is_contended:
                self._wake(now_ns, job, place, draft)

    def quantum_ns(self, level: int) -> int:
        """Device time at a level before a job moves down."""
        return self._limits.quantum_ns << level

    def first_level(self, job: Job) -> int:
        """Where a job joins."""
        if job.job_class is JobClass.INTERACTIVE or not self._limits.is_skipping or not job.predicted_ns:
            return 0
        levels = range(self._limits.levels)
        return next((level for level in levels if self.quantum_ns(level) >= job.predicted_ns), levels[-1])

    def _moved(self, now_ns: int, job: Job, draft: Draft) -> _Place:
        values = draft.remembered(f"queue:{job.job}")
        if not values:
            return _Place(self.first_level(job), 0, job.served_ns, now_ns, now_ns, 0, 0)
        place = _Place(*values)
        if place.is_running:
            return self._demoted(now_ns, job, place)
        if now_ns - place.ran_ns >= self._limits.starved_ns:
            return _lifted(place._replace(ran_ns=now_ns), job)
        return place

    def _demoted(self, now_ns: int, job: Job, place: _Place) -> _Place:
        """Where a job is that ran since the last call: further down for each quantum that it used up."""
        level, lifted, before_ns, queued_ns, _, aside, is_running = place
        while job.job_class is not JobClass.INTERACTIVE and job.served_ns - before_ns >= self._quantum_of(
            level, lifted
        ):
            before_ns += self._quantum_of(level, lifted)
            level, lifted = (level, 0) if lifted else (min(level + 1, self._limits.levels - 1), 0)
        if before_ns != place.served_before_ns:
            queued_ns = now_ns
        return _Place(level, lifted, before_ns, queued_ns, now_ns, aside, is_running)

    def _quantum_of(self, level: int, lifted: int) -> int:
        return self.quantum_ns(0 if lifted else level)

    def _key(self, job: Job, place: _Place, draft: Draft) -> tuple[int, ...]:
        return (_rank(job, draft), 1 - place.lifted, job.job_class, place.level, place.queued_ns, job.job)

    def _after_choice(self, job: Job, place: _Place, is_chosen: bool, *, is_usable: bool) -> _Place:
        """Count what was put aside for another job, not what had to wait for a device."""
        if is_chosen or not place.is_running or not is_usable:
            return place if place.is_running == is_chosen else place._replace(is_running=int(is_chosen))
        if place.credits + 1 >= self._limits.credits_max:
            return _lifted(place, job)
        return place._replace(credits=place.credits + 1, is_running=0)

    def _wake(self, now_ns: int, job: Job, place: _Place, draft: Draft) -> None:
        if job.job_class is JobClass.INTERACTIVE and place.is_running:
            return  # it has no quantum
        if place.is_running:
            left_ns = self._quantum_of(place.level, place.lifted) - (job.served_ns - place.served_before_ns)
            draft.wake(now_ns + max(1, left_ns))
        elif draft.permits:
            draft.wake(max(now_ns + 1, place.ran_ns + self._limits.starved_ns))


def _lifted(place: _Place, job: Job) -> _Place:
    return place._replace(lifted=1, served_before_ns=job.served_ns, credits=0, is_running=0)


def _rank(job: Job, draft: Draft) -> int:
    """Interactive jobs before urgent ones before all others."""
    if job.job_class is JobClass.INTERACTIVE:
        return 0
    return 1 if job.job in draft.urgent else 2


def _choose(order: Sequence[Job], draft: Draft) -> None:
    """Give each permitted device the first job that may run on it; withdraw the permit where there is none."""
    for device in sorted(draft.permits):
        allowed = draft.allowed.get(device)
        fitting = (job.job for job in order if (allowed is None or job.job in allowed) and job.device in ("", device))
        chosen = next(fitting, None)
        if chosen is None:
            del draft.permits[device]
        else:
            draft.chosen[device] = chosen
