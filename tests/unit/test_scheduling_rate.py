"""AIMD on reported steps: learn with no share, grow slowly, shrink fast, learn anew in a new phase."""

from __future__ import annotations

from dataclasses import replace

from ohdiff.scheduling.core import (
    MS,
    Activity,
    CoRunner,
    DeviceKind,
    DeviceView,
    Job,
    JobClass,
    View,
)
from ohdiff.scheduling.policies.compose import Arbiter, PolicySettings, build_policy

STEP_NS = 100 * MS


class Reports:
    """A training loop that reports, and the share of time that the policy leaves us."""

    def __init__(self) -> None:
        self._policy = build_policy(PolicySettings(arbiter=Arbiter.RATE))
        co_runner = CoRunner("training", "gpu0", Activity.UNKNOWN, 0)
        device = DeviceView("gpu0", DeviceKind.CUDA, 1 << 30)
        self._view = View((Job(1, JobClass.SCAVENGE, 0, 1 << 40),), (device,), (co_runner,))
        self._now_ns = 0

    def report(self, step_ns: int, times: int = 1) -> float:
        """Report steps of this length so many times; returns our share afterwards."""
        share = 0.0
        for _ in range(times):
            self._now_ns += STEP_NS
            (co_runner,) = self._view.co_runners
            newer = replace(co_runner, steps=co_runner.steps + 1, step_ns=step_ns)
            self._view = replace(self._view, co_runners=(newer,))
            decision = self._policy.decide(self._now_ns, self._view)
            self._view = replace(self._view, memory=decision.memory)
            share = sum(grant.unit_ns / (grant.unit_ns + grant.gap_ns) for grant in decision.grants)
            assert decision.watches[0].is_report_told
        return share


def test_nothing_runs_while_the_undisturbed_step_is_learned() -> None:
    reports = Reports()
    assert reports.report(2 * STEP_NS) == 0  # disturbed by us, before we knew of anybody
    assert reports.report(STEP_NS, 4) == 0
    assert round(reports.report(STEP_NS), 3) == 0.02


def test_the_share_grows_by_two_hundredths_each_report_without_loss() -> None:
    reports = Reports()
    reports.report(STEP_NS, 6)
    assert round(reports.report(STEP_NS, 4), 3) == 0.1
    assert reports.report(STEP_NS, 60) == 1


def test_a_loss_above_three_percent_takes_a_third() -> None:
    reports = Reports()
    reports.report(STEP_NS, 15)
    assert round(reports.report(STEP_NS * 100 // 95), 3) == 0.133


def test_a_loss_above_nine_percent_leaves_a_tenth() -> None:
    reports = Reports()
    reports.report(STEP_NS, 15)
    assert round(reports.report(STEP_NS * 100 // 90), 3) == 0.02


def test_a_loss_between_keeps_the_share() -> None:
    reports = Reports()
    before = reports.report(STEP_NS, 15)
    assert reports.report(STEP_NS * 100 // 98) == before


def test_a_new_phase_is_learned_anew() -> None:
    reports = Reports()
    reports.report(STEP_NS, 11)
    assert reports.report(2 * STEP_NS, 20) == 0
    assert reports.report(2 * STEP_NS, 5) == 0
    assert reports.report(2 * STEP_NS, 10) > 0.15
