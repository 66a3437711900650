"""Stretch-probe: look with a short unit, run while units keep their time, stop when one is stretched, look again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ohdiff.scheduling.core import (
    MS,
    SECOND,
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

    def __init__(self, arbiter: Arbiter = Arbiter.STRETCH, unit_ns: int = 2 * MS, depth: int = 1) -> None:
        self._policy = build_policy(PolicySettings(arbiter=arbiter, unit_ns=unit_ns, depth=depth))
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


def collided(driver: Driver) -> int:
    """A collision at 10 ms and a free probe after the pause; returns when units are granted again."""
    running(driver)
    driver.ask(10 * MS, unit(10 * MS, 4 * MS))
    driver.ask(30 * MS)
    now_ns = 30 * MS + PROBE_NS
    driver.ask(now_ns, probe(now_ns, PROBE_NS))
    return now_ns


def test_after_a_collision_units_are_short_until_it_has_been_calm_for_long() -> None:
    driver = Driver()
    now_ns = collided(driver)
    decision = driver.ask(now_ns)
    assert (decision.grants[0].unit_ns, decision.grants[0].depth) == (140 * US, 2)
    assert decision.wake_ns == 10 * MS + 10 * SECOND
    assert driver.ask(decision.wake_ns - 1).grants[0].unit_ns == 140 * US
    calm = driver.ask(decision.wake_ns)
    assert (calm.grants[0].unit_ns, calm.grants[0].depth) == (2 * MS, 1)
    assert calm.wake_ns is None
    assert calm.watches[0].stretch_milli_max == 1300


def test_a_stretched_probe_puts_the_calm_off() -> None:
    driver = Driver()
    running(driver)
    driver.ask(10 * MS, unit(10 * MS, 4 * MS))
    driver.ask(30 * MS)
    driver.ask(31 * MS, probe(31 * MS, 2 * PROBE_NS))
    driver.ask(71 * MS)
    again = driver.ask(72 * MS, probe(72 * MS, PROBE_NS))
    assert again.wake_ns == 31 * MS + 10 * SECOND


@pytest.mark.parametrize(("took_ns", "is_going_on"), [(650 * US, True), (651 * US, False)])
def test_a_short_unit_is_judged_by_its_own_length(took_ns: int, is_going_on: bool) -> None:
    driver = Driver()
    now_ns = collided(driver) + MS
    decision = driver.ask(now_ns, UnitReport(now_ns, took_ns, 500 * US))
    assert bool(decision.grants) == is_going_on


def test_a_clocks_jitter_does_not_stretch_units_that_are_hardly_longer() -> None:
    driver = Driver(unit_ns=200 * US)
    running(driver)
    decision = driver.ask(10 * MS, UnitReport(10 * MS, 350 * US, 200 * US))
    assert decision.watches[0].stretch_milli_max == 1750
    assert decision.grants[0].unit_ns == 200 * US
    assert not driver.ask(11 * MS, UnitReport(11 * MS, 351 * US, 200 * US)).grants


def test_a_unit_too_short_for_the_clock_is_still_seen_to_take_nearly_twice_its_time() -> None:
    driver = Driver(unit_ns=100 * US)
    running(driver)
    assert driver.ask(10 * MS, UnitReport(10 * MS, 175 * US, 100 * US)).grants
    assert not driver.ask(11 * MS, UnitReport(11 * MS, 176 * US, 100 * US)).grants


def test_what_is_taken_by_right_beside_a_suspect_is_taken_in_short_units() -> None:
    driver = Driver()
    driver.view = replace(driver.view, jobs=(replace(JOB, job_class=JobClass.INTERACTIVE),))
    running(driver)
    (grant,) = driver.ask(10 * MS, unit(10 * MS, 4 * MS)).grants
    assert (grant.unit_ns, grant.depth, grant.is_probe) == (140 * US, 1, False)
    assert grant.gap_ns == 140 * US * 970 // 30


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


def test_a_stretched_probe_is_judged_once_though_the_next_is_awaited() -> None:
    driver = Driver()
    driver.ask(0)
    stretched = probe(MS, 2 * PROBE_NS)
    assert not driver.ask(MS, stretched).grants
    assert driver.ask(21 * MS).grants[0].is_probe
    assert driver.ask(21 * MS + 1).grants[0].is_probe  # for another reason, with the same report


def test_a_unit_that_was_in_flight_ends_neither_the_pause_nor_the_look() -> None:
    driver = Driver()
    running(driver)
    driver.ask(10 * MS, unit(10 * MS, 4 * MS))
    waiting = driver.ask(12 * MS, unit(12 * MS, 2 * MS))
    assert (waiting.grants, waiting.wake_ns) == ((), 30 * MS)
    looking = driver.ask(30 * MS)
    assert looking.grants[0].is_probe
    assert driver.ask(31 * MS, unit(31 * MS, 2 * MS)).grants == looking.grants


def test_a_probe_is_alone_in_flight_whatever_the_depth() -> None:
    assert Driver(depth=4).ask(0).grants[0].depth == 1


def test_a_stretch_by_a_job_that_said_so_before_we_began_is_no_collision() -> None:
    driver = Driver(Arbiter.AUTO)
    busy = CoRunner("llm", "gpu0", Activity.BUSY, 5 * MS)
    driver.view = replace(driver.view, co_runners=(busy,))
    driver.ask(9 * MS)
    driver.ask(20 * MS, unit(20 * MS, 4 * MS))
    driver.view = replace(driver.view, co_runners=(replace(busy, activity=Activity.IDLE, since_ns=20 * MS),))
    (grant,) = driver.ask(22 * MS).grants
    assert grant.unit_ns == MS // 2  # neither a pause, nor a probe, nor a suspect's short unit


def test_without_hints_what_co_runners_tell_is_neither_trusted_nor_an_explanation() -> None:
    driver = Driver(Arbiter.STRETCH)
    driver.view = replace(driver.view, co_runners=(CoRunner("llm", "gpu0", Activity.IDLE, 9 * MS),))
    assert driver.ask(11 * MS).grants[0].is_probe
    driver.ask(12 * MS, probe(12 * MS, PROBE_NS))
    assert not driver.ask(13 * MS, unit(13 * MS, 4 * MS + 1)).grants


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
