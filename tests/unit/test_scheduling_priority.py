"""Strict priority: nothing of ours starts while a consenting co-runner, or a peer that matters more, has work."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ohdiff.scheduling.core import (
    MS,
    Activity,
    CoRunner,
    Decision,
    DeviceKind,
    DeviceView,
    Job,
    JobClass,
    View,
)
from ohdiff.scheduling.policies.compose import Arbiter, PolicySettings, build_policy
from ohdiff.scheduling.policies.priority import TURN_NS

JOB = Job(1, JobClass.NORMAL, 0, 1 << 30)
GPU = DeviceView("gpu0", DeviceKind.CUDA, 1 << 30)
POLICY = build_policy(PolicySettings(arbiter=Arbiter.PRIORITY))


def decide(now_ns: int, *co_runners: CoRunner, device: DeviceView = GPU, job: Job = JOB) -> Decision:
    return POLICY.decide(now_ns, View((job,), (device,), co_runners))


def test_a_device_that_nobody_tells_of_is_used() -> None:
    (grant,) = decide(0).grants
    assert (grant.device, grant.job, grant.unit_ns, grant.depth, grant.gap_ns) == ("gpu0", 1, 2 * MS, 1, 0)


@pytest.mark.parametrize(("kind", "unit_ns"), [(DeviceKind.CUDA, MS // 2), (DeviceKind.CPU, 2 * MS)])
def test_units_are_shorter_beside_a_co_runner_that_tells(kind: DeviceKind, unit_ns: int) -> None:
    idle = CoRunner("llm", "gpu0", Activity.IDLE, 0)
    (grant,) = decide(100 * MS, idle, device=replace(GPU, kind=kind)).grants
    assert grant.unit_ns == unit_ns
    assert grant.unit_ns * grant.depth <= (2 * MS if kind is DeviceKind.CPU else MS)


def test_what_is_taken_by_right_beside_a_busy_co_runner_is_taken_in_shorter_units() -> None:
    busy = CoRunner("llm", "gpu0", Activity.BUSY, 0)
    (grant,) = decide(100 * MS, busy, job=replace(JOB, job_class=JobClass.INTERACTIVE)).grants
    assert (grant.unit_ns, grant.depth, grant.gap_ns) == (MS // 2, 1, MS // 2 * 970 // 30)


def test_no_unit_starts_while_a_co_runner_is_busy() -> None:
    decision = decide(50 * MS, CoRunner("llm", "gpu0", Activity.BUSY, 0))
    assert decision.grants == ()
    assert decision.watches[0].quiet_ns_min == 2 * MS


@pytest.mark.parametrize(("idle_ns", "is_granted"), [(0, False), (2 * MS - 1, False), (2 * MS, True)])
def test_a_pause_shorter_than_the_hysteresis_is_left_alone(idle_ns: int, is_granted: bool) -> None:
    decision = decide(100 * MS, CoRunner("llm", "gpu0", Activity.IDLE, 100 * MS - idle_ns))
    assert bool(decision.grants) == is_granted
    assert decision.watches[0].is_busy_told == is_granted


def test_the_last_of_several_co_runners_to_turn_idle_counts() -> None:
    long_idle, just_idle = CoRunner("a", "gpu0", Activity.IDLE, 0), CoRunner("b", "gpu0", Activity.IDLE, 99 * MS)
    assert decide(100 * MS, long_idle, just_idle).grants == ()
    assert decide(101 * MS, long_idle, just_idle).grants


def test_a_sleeping_co_runner_is_an_idle_one() -> None:
    assert decide(100 * MS, CoRunner("llm", "gpu0", Activity.ASLEEP, 0)).grants


def test_a_co_runner_that_does_not_tell_is_left_to_others() -> None:
    assert decide(100 * MS, CoRunner("llm", "gpu0", Activity.UNKNOWN, 0)).grants


def test_a_co_runner_of_another_device_is_nobodys_hindrance() -> None:
    assert decide(100 * MS, CoRunner("llm", "gpu1", Activity.BUSY, 0)).grants


def test_a_peer_that_matters_more_gets_the_device_at_once() -> None:
    assert decide(0, device=replace(GPU, peer_class=JobClass.INTERACTIVE)).grants == ()


def test_a_peer_that_matters_less_waits() -> None:
    assert decide(10 * TURN_NS, device=replace(GPU, peer_class=JobClass.SCAVENGE)).grants


def test_a_peer_of_the_same_class_gets_its_turn() -> None:
    wanted = replace(GPU, peer_class=JobClass.NORMAL)
    first = decide(0, device=wanted)
    assert first.grants
    assert first.wake_ns == TURN_NS
    later = POLICY.decide(TURN_NS, View((JOB,), (wanted,), memory=first.memory))
    assert later.grants == ()


def test_a_lease_that_is_not_held_is_wished_for_whoever_waits() -> None:
    assert decide(0, device=replace(GPU, is_leased=False, peer_class=JobClass.INTERACTIVE)).grants


def test_without_jobs_nothing_is_granted() -> None:
    assert POLICY.decide(0, View((), (GPU,))).grants == ()


def test_a_device_that_is_marked_bad_is_not_used() -> None:
    assert decide(0, device=replace(GPU, is_usable=False)).grants == ()
