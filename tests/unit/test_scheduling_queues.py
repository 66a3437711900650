"""The choice of our job: order of arrival, feedback queues, and that nobody waits for ever."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ohdiff.scheduling.core import MS, SECOND, DeviceKind, DeviceView, Job, JobClass, View
from ohdiff.scheduling.policies.compose import Arbiter, Order, PolicySettings, build_policy
from ohdiff.scheduling.policies.queues import FeedbackQueues, QueueLimits

GPU = DeviceView("gpu0", DeviceKind.CUDA, 1 << 30)


def job(number: int, *, predicted_ms: int = 0, arrived_ms: int = 0, job_class: JobClass = JobClass.NORMAL) -> Job:
    """A job whose every byte takes a nanosecond; endless when nothing is predicted."""
    return Job(number, job_class, arrived_ms * MS, predicted_ms * MS or 1 << 60, predicted_ns=predicted_ms * MS)


class Server:
    """Serves whatever the policy chooses, in slices, and counts who had how much."""

    def __init__(self, order: Order, *jobs: Job) -> None:
        self._policy = build_policy(PolicySettings(arbiter=Arbiter.NONE, order=order))
        self.jobs = list(jobs)
        self.now_ns = 0
        self._memory = View().memory
        self._served_ns: dict[int, int] = {}
        self.history: list[tuple[int, int]] = []  # (when, which)

    def run(self, until_ns: int) -> None:
        """As a driver: serve the chosen job until the policy wants to be asked, or a job comes."""
        while self.now_ns < until_ns:
            here = tuple(each for each in self.jobs if each.arrived_ns <= self.now_ns)
            decision = self._policy.decide(self.now_ns, View(here, (GPU,), memory=self._memory))
            self._memory = decision.memory
            coming = [each.arrived_ns for each in self.jobs if each.arrived_ns > self.now_ns]
            stop_ns = min([until_ns, *coming, *([] if decision.wake_ns is None else [decision.wake_ns])])
            for grant in decision.grants:
                chosen = next(each for each in here if each.job == grant.job)
                stop_ns = min(stop_ns, self.now_ns + chosen.bytes_left)
                self.history.append((self.now_ns, grant.job))
                self._serve(chosen, stop_ns - self.now_ns)
            self.now_ns = stop_ns

    def _serve(self, job: Job, time_ns: int) -> None:
        self._served_ns[job.job] = job.served_ns + time_ns
        self.jobs.remove(job)
        if job.bytes_left > time_ns:
            self.jobs.append(replace(job, served_ns=job.served_ns + time_ns, bytes_left=job.bytes_left - time_ns))

    def served_ms(self, number: int) -> int:
        return self._served_ns.get(number, 0) // MS


def test_in_order_of_arrival_the_first_runs_to_its_end() -> None:
    server = Server(Order.ARRIVAL, job(1), job(2, arrived_ms=5))
    server.run(SECOND)
    assert server.served_ms(1) == 1000


@pytest.mark.parametrize(
    ("predicted_ms", "level"), [(0, 0), (1, 0), (100, 0), (101, 1), (200, 1), (3000, 5), (12_800, 7), (1 << 30, 7)]
)
def test_a_job_joins_at_the_level_whose_quantum_holds_it(predicted_ms: int, level: int) -> None:
    assert FeedbackQueues(QueueLimits()).first_level(job(1, predicted_ms=predicted_ms)) == level


def test_an_interactive_job_joins_at_the_top_however_long() -> None:
    waited_for = job(1, predicted_ms=1 << 30, job_class=JobClass.INTERACTIVE)
    assert FeedbackQueues(QueueLimits()).first_level(waited_for) == 0


def test_plain_feedback_starts_all_at_the_top() -> None:
    assert FeedbackQueues(QueueLimits(is_skipping=False)).first_level(job(1, predicted_ms=1 << 30)) == 0


def test_a_short_job_of_unknown_length_goes_before_a_long_one_that_used_its_quantum() -> None:
    server = Server(Order.FEEDBACK, job(1), job(2, arrived_ms=300))
    server.run(500 * MS)
    # Job 1 used the quanta of two levels, 100 and 200 ms, so that job 2 has these before it, too.
    assert server.served_ms(2) == 200
    assert server.history[:2] == [(0, 1), (300 * MS, 2)]


def test_equals_share_a_level_by_turns() -> None:
    server = Server(Order.FEEDBACK, job(1), job(2))
    server.run(600 * MS)
    assert (server.served_ms(1), server.served_ms(2)) == (300, 300)


def test_a_known_long_job_leaves_the_top_levels_alone() -> None:
    server = Server(Order.SKIP_JOIN, job(1, predicted_ms=10_000), *(job(n, predicted_ms=100) for n in (2, 3, 4)))
    server.run(300 * MS)
    assert server.served_ms(1) == 0


def test_interactive_jobs_go_first_and_scavengers_last() -> None:
    server = Server(
        Order.SKIP_JOIN,
        job(1, job_class=JobClass.SCAVENGE),
        job(2),
        job(3, arrived_ms=50, job_class=JobClass.INTERACTIVE),
    )
    server.run(SECOND)
    assert [number for _, number in server.history][:2] == [2, 3]
    assert (server.served_ms(1), server.served_ms(2), server.served_ms(3)) == (0, 50, 950)


def test_a_scavenger_beside_endless_normal_work_is_lifted_within_its_bound() -> None:
    limits = QueueLimits()
    server = Server(Order.SKIP_JOIN, job(1, job_class=JobClass.SCAVENGE, predicted_ms=1 << 20), job(2), job(3))
    server.run(300 * SECOND)
    times = [at_ns for at_ns, number in server.history if number == 1]
    waits = [later - earlier for earlier, later in zip([0, *times], [*times, 300 * SECOND], strict=True)]
    assert max(waits) <= limits.starved_ns + 3 * limits.quantum_ns  # one of its own, and one of each other
    assert 500 <= server.served_ms(1) <= 3000


def test_a_job_that_is_put_aside_again_and_again_is_lifted_by_credit() -> None:
    arrivals = [job(number, arrived_ms=number * 400, predicted_ms=50) for number in range(2, 40)]
    server = Server(Order.SKIP_JOIN, job(1, predicted_ms=1 << 20), *arrivals)
    server.run(14 * SECOND)
    # Each arrival would put job 1 aside for ever; every eighth time it gets a quantum of the first level instead.
    assert server.served_ms(1) >= 100


def test_alone_a_job_is_not_disturbed_by_quanta() -> None:
    server = Server(Order.SKIP_JOIN, job(1))
    server.run(100 * SECOND)
    assert server.history == [(0, 1)]
