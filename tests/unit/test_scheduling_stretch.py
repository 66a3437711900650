"""Stretch-probe: look with a short unit, run while units keep their time, stop when one is stretched, look again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ohdiff.scheduling.core import (
    MS,
    US,
    Activity,
    CoRunner,
    Decision,
    DeviceKind,
    DeviceView,
    Job,
    JobClass,
    UnitReport,
    View,
)
from ohdiff.scheduling.policies.compose import Arbiter, PolicySettings, build_policy

JOB = Job(1, JobClass.SCAVENGE, 0, 1 << 40)
GPU = DeviceView("gpu0", DeviceKind.CUDA, 1 << 30)
PROBE_NS = 250 * US


class Driver:
    """Feeds a policy with reports, and gives its memory back."""

    def __init__(self, arbiter: Arbiter = Arbiter.STRETCH) -> None:
        self._policy = build_policy(PolicySettings(arbiter=arbiter))
        self.view = View((JOB,), (GPU,))

    def ask(self, now_ns: int, report: UnitReport | None = None) -> Decision:
        if report is not None:
            self.view = replace(self.view, devices=(replace(GPU, last_unit=report),))
        decision = self._policy.decide(now_ns, self.view)
        self.view = replace(self.view, memory=decision.memory)
        return decision


def probe(ended_ns: int, took_ns: int) -> UnitReport:
    return UnitReport(ended_ns, took_ns, PROBE_NS, is_probe=True)


def unit(ended_ns: int, took_ns: int) -> UnitReport:
    return UnitReport(ended_ns, took_ns, 2 * MS)


def test_the_first_unit_is_a_probe_of_its_own() -> None:
    (grant,) = Driver().ask(0).grants
    assert (grant.is_probe, grant.units_max, grant.unit_ns, grant.depth) == (True, 1, PROBE_NS, 1)


def test_after_a_probe_that_kept_its_time_units_run_and_are_watched() -> None:
    driver = Driver()
    driver.ask(0)
    decision = driver.ask(PROBE_NS, probe(PROBE_NS, PROBE_NS))
    (grant,) = decision.grants
    assert (grant.is_probe, grant.units_max, grant.unit_ns) == (False, 0, 2 * MS)
    assert decision.watches[0].stretch_milli_max == 1300


def running(driver: Driver) -> None:
    driver.ask(0)
    driver.ask(PROBE_NS, probe(PROBE_NS, PROBE_NS))


@pytest.mark.parametrize(("took_ns", "is_going_on"), [(2 * MS, True), (2_600_000, True), (2_610_000, False)])
def test_a_unit_stretched_by_three_tenths_is_the_last(took_ns: int, is_going_on: bool) -> None:
    driver = Driver()
    running(driver)
    decision = driver.ask(10 * MS, unit(10 * MS, took_ns))
    assert bool(decision.grants) == is_going_on
    assert (decision.wake_ns == 30 * MS) != is_going_on


def test_pauses_double_up_to_the_longest_and_start_anew_after_a_free_probe() -> None:
    driver = Driver()
    running(driver)
    now_ns = 10 * MS
    decision = driver.ask(now_ns, unit(now_ns, 4 * MS))
    pauses = []
    for _ in range(5):
        assert decision.wake_ns is not None
        pauses.append((decision.wake_ns - now_ns) // MS)
        now_ns = decision.wake_ns
        assert driver.ask(now_ns).grants[0].is_probe
        now_ns += 2 * PROBE_NS
        decision = driver.ask(now_ns, probe(now_ns, 2 * PROBE_NS))
    assert pauses == [20, 40, 80, 160, 160]
    assert decision.wake_ns is not None
    now_ns = decision.wake_ns
    driver.ask(now_ns)
    driver.ask(now_ns + PROBE_NS, probe(now_ns + PROBE_NS, PROBE_NS))
    again = driver.ask(now_ns + 10 * MS, unit(now_ns + 10 * MS, 4 * MS))
    assert again.wake_ns == now_ns + 30 * MS


def test_a_probe_late_by_a_clocks_jitter_is_believed() -> None:
    driver = Driver()
    driver.ask(0)
    assert driver.ask(MS, probe(MS, PROBE_NS + 140 * US)).grants


def test_a_report_is_judged_once() -> None:
    driver = Driver()
    running(driver)
    stretched = unit(10 * MS, 4 * MS)
    first = driver.ask(10 * MS, stretched)
    assert driver.ask(11 * MS, stretched).wake_ns == first.wake_ns


def test_a_stretch_that_a_telling_co_runner_explains_is_left_to_priority() -> None:
    driver = Driver(Arbiter.AUTO)
    driver.view = replace(driver.view, co_runners=(CoRunner("llm", "gpu0", Activity.IDLE, 9 * MS),))
    assert not driver.ask(0).grants
    decision = driver.ask(12 * MS, unit(12 * MS, 4 * MS))
    assert decision.grants
    assert not decision.grants[0].is_probe


def test_a_stretch_while_all_telling_co_runners_are_idle_is_somebody_elses() -> None:
    driver = Driver(Arbiter.AUTO)
    driver.view = replace(driver.view, co_runners=(CoRunner("llm", "gpu0", Activity.IDLE, 0),))
    assert driver.ask(5 * MS).grants
    assert not driver.ask(12 * MS, unit(12 * MS, 4 * MS)).grants


def test_the_cpu_is_not_probed() -> None:
    driver = Driver()
    driver.view = View((JOB,), (DeviceView("cpu", DeviceKind.CPU, 1 << 30, threads_max=2),))
    assert not driver.ask(0).grants[0].is_probe
