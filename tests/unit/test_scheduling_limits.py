"""The owner's limits (share, memory), pressure on the CPU, and the vendor's windows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ohdiff.scheduling.core import (
    MS,
    SECOND,
    Decision,
    DeviceKind,
    DeviceView,
    Host,
    Job,
    JobClass,
    Telemetry,
    Trim,
    View,
)
from ohdiff.scheduling.policies.compose import Arbiter, PolicySettings, build_policy

JOB = Job(1, JobClass.SCAVENGE, 0, 1 << 40)
GPU = DeviceView("gpu0", DeviceKind.CUDA, 1 << 30)
CPU = DeviceView("cpu", DeviceKind.CPU, 1 << 30, threads_max=8)
GIB = 1 << 30


class Driver:
    """Asks a policy, and gives its memory back."""

    def __init__(self, settings: PolicySettings) -> None:
        self._policy = build_policy(settings)
        self._memory = View().memory

    def ask(
        self, now_ns: int, *devices: DeviceView, host: Host | None = None, jobs: tuple[Job, ...] = (JOB,)
    ) -> Decision:
        view = View(jobs, devices, host=host or Host(cores=8, cores_idle_milli=8000), memory=self._memory)
        decision = self._policy.decide(now_ns, view)
        self._memory = decision.memory
        return decision


def test_the_device_share_becomes_a_pause_after_each_unit() -> None:
    (grant,) = Driver(PolicySettings(arbiter=Arbiter.NONE, share_milli=250)).ask(0, GPU).grants
    assert grant.gap_ns == 3 * grant.unit_ns


def test_the_device_share_does_not_limit_the_cpu() -> None:
    (grant,) = Driver(PolicySettings(arbiter=Arbiter.NONE, share_milli=250)).ask(0, CPU).grants
    assert grant.gap_ns == 0


def held(free_bytes: int, held_bytes: int = 2 * GIB) -> DeviceView:
    return replace(GPU, held_bytes=held_bytes, telemetry=Telemetry(0, SECOND, free_bytes=free_bytes))


@pytest.mark.parametrize(
    ("free_bytes", "trims"),
    [
        (6 * GIB, ()),
        (100 * GIB, ()),
        (2 * GIB, (Trim("gpu0", GIB),)),
        (0, (Trim("gpu0", GIB // 2),)),
        (-1, ()),
    ],
)
def test_a_quarter_of_what_would_be_free_is_kept(free_bytes: int, trims: tuple[Trim, ...]) -> None:
    assert Driver(PolicySettings(arbiter=Arbiter.NONE)).ask(0, held(free_bytes)).trims == trims


def test_never_more_than_two_gib_is_kept() -> None:
    decision = Driver(PolicySettings(arbiter=Arbiter.NONE)).ask(0, held(100 * GIB, 3 * GIB))
    assert decision.trims == (Trim("gpu0", 2 * GIB),)


def test_a_device_without_a_grant_is_parked_after_half_a_minute() -> None:
    driver = Driver(PolicySettings(arbiter=Arbiter.NONE))
    assert driver.ask(0, held(6 * GIB), jobs=()).wake_ns == 30 * SECOND
    assert driver.ask(29 * SECOND, held(6 * GIB), jobs=()).trims == ()
    assert driver.ask(30 * SECOND, held(6 * GIB), jobs=()).trims == (Trim("gpu0", 0, is_parked=True),)


def test_a_grant_in_between_puts_off_the_parking() -> None:
    driver = Driver(PolicySettings(arbiter=Arbiter.NONE))
    driver.ask(0, held(6 * GIB), jobs=())
    driver.ask(20 * SECOND, held(6 * GIB))
    assert driver.ask(40 * SECOND, held(6 * GIB), jobs=()).trims == ()


def threads(decision: Decision) -> int:
    return sum(grant.threads for grant in decision.grants)


def test_threads_are_what_others_leave_idle() -> None:
    driver = Driver(PolicySettings())
    assert threads(driver.ask(0, CPU)) == 8
    assert threads(driver.ask(SECOND, CPU, host=Host(cores=8, cores_idle_milli=3100))) == 3


def test_with_no_core_idle_nothing_runs_and_the_policy_looks_again_soon() -> None:
    decision = Driver(PolicySettings()).ask(0, CPU, host=Host(cores=8, cores_idle_milli=200))
    assert decision.grants == ()
    assert decision.wake_ns == 250 * MS


@pytest.mark.parametrize(
    "pressed",
    [
        Host(cores=8, cores_idle_milli=8000, cpu_pressure_milli=101),
        Host(cores=8, cores_idle_milli=8000, io_pressure_milli=201),
        Host(cores=8, cores_idle_milli=8000, memory_pressure_milli=51),
    ],
)
def test_pressure_halves_the_threads_and_quiet_brings_them_back_one_by_one(pressed: Host) -> None:
    driver = Driver(PolicySettings())
    driver.ask(0, CPU)
    counts = [threads(driver.ask(second * SECOND, CPU, host=pressed)) for second in range(1, 5)]
    assert counts == [4, 2, 1, 1]
    assert [threads(driver.ask(second * SECOND, CPU)) for second in range(5, 8)] == [2, 3, 4]


def window(end_ms: int, *, busy: int = 0, others: int = -1) -> DeviceView:
    return replace(GPU, telemetry=Telemetry(end_ms * MS, 170 * MS, busy, others))


def test_a_window_with_others_in_it_stops_us_and_a_quiet_one_starts_us() -> None:
    driver = Driver(PolicySettings(arbiter=Arbiter.TELEMETRY))
    assert driver.ask(0, GPU).watches[0].is_report_told
    assert driver.ask(170 * MS, window(170, others=20)).grants
    assert not driver.ask(340 * MS, window(340, others=21)).grants
    assert driver.ask(510 * MS, window(510, others=0)).grants


def test_windows_that_do_not_tell_us_from_others_count_only_in_our_pauses() -> None:
    driver = Driver(PolicySettings(arbiter=Arbiter.TELEMETRY))
    assert not driver.ask(0, window(0)).grants
    assert not driver.ask(100 * MS, window(100)).grants  # began before we looked
    started = driver.ask(340 * MS, window(340))
    assert started.grants
    assert started.wake_ns == 1340 * MS
    assert driver.ask(1000 * MS, window(1000, busy=1000)).grants  # that was us
    assert not driver.ask(1340 * MS, window(1330, busy=1000)).grants
    assert not driver.ask(1500 * MS, window(1500, busy=700)).grants
    assert not driver.ask(1700 * MS, window(1670, busy=700)).grants  # in our pause, hence somebody else
    assert driver.ask(1900 * MS, window(1840)).grants
