"""Laxity: idle time while there is slack, a capped share then, the CPU in full at last; misses are said in advance."""

from __future__ import annotations

from dataclasses import replace

from ohdiff.scheduling.core import (
    SECOND,
    Activity,
    CoRunner,
    Decision,
    DeviceKind,
    DeviceView,
    Grant,
    Host,
    Job,
    JobClass,
    View,
)
from ohdiff.scheduling.policies.compose import Arbiter, PolicySettings, build_policy
from ohdiff.scheduling.policies.deadline import LaxityLimits, Zone, zone_of
from ohdiff.scheduling.window import Stage

RATE = 1000  # bytes a second, of each device
GPU = DeviceView("gpu0", DeviceKind.CUDA, RATE)
CPU = DeviceView("cpu", DeviceKind.CPU, RATE, threads_max=8)
BUSY = CoRunner("llm", "gpu0", Activity.BUSY, 0)
CROWDED = Host(cores=8, cores_idle_milli=100)


def job(size: int, *, deadline_s: int | None = 1000, job_class: JobClass = JobClass.SCAVENGE) -> Job:
    return Job(1, job_class, 0, size, deadline_ns=None if deadline_s is None else deadline_s * SECOND)


def decide(now_s: int, one: Job, *, impact_milli_max: int = 100, host: Host = CROWDED) -> Decision:
    policy = build_policy(PolicySettings(arbiter=Arbiter.AUTO, impact_milli_max=impact_milli_max))
    return policy.decide(now_s * SECOND, View((one,), (CPU, GPU), (BUSY,), host))


def grants(decision: Decision) -> dict[str, Grant]:
    return {grant.device: grant for grant in decision.grants}


def share_milli(grant: Grant) -> int:
    return round(1000 * grant.unit_ns / (grant.unit_ns + grant.gap_ns))


def test_with_much_slack_only_idle_time_is_used() -> None:
    assert decide(0, job(100_000)).grants == ()


def test_a_job_without_a_window_never_gets_more() -> None:
    assert decide(999, job(1 << 40, deadline_s=None)).grants == ()


def test_with_less_slack_a_capped_share_of_the_busy_device_is_taken() -> None:
    granted = grants(decide(0, job(800_000)))
    assert share_milli(granted["gpu0"]) == 30


def test_at_last_the_cpu_is_used_in_full_and_the_device_up_to_the_allowed_impact() -> None:
    granted = grants(decide(0, job(1_100_000)))
    assert granted["cpu"].threads == 8
    assert share_milli(granted["gpu0"]) == 100


def test_the_allowed_impact_caps_both_shares() -> None:
    assert share_milli(grants(decide(0, job(800_000), impact_milli_max=10))["gpu0"]) == 10
    assert share_milli(grants(decide(0, job(1_100_000), impact_milli_max=10))["gpu0"]) == 10
    assert "gpu0" not in grants(decide(0, job(1_100_000), impact_milli_max=0))


def test_a_window_that_cannot_be_kept_is_said_to_be_missed_and_by_how_much() -> None:
    (late,) = decide(0, job(4_000_000)).late
    assert late.job == 1
    # Both devices alone would do 2,000 bytes a second.
    assert late.late_ns == 1000 * SECOND


def test_a_window_that_can_be_kept_is_not_warned_of() -> None:
    assert decide(0, job(1_500_000)).late == ()


def test_the_measured_rate_moves_the_zones() -> None:
    """A job that was served slowly is urgent earlier than its devices' own rate would say."""
    policy = build_policy(PolicySettings())
    slow = job(400_000)
    view = View((slow,), (CPU, GPU), (BUSY,), CROWDED)
    zones = []
    for now_s in range(0, 200, 10):
        left = replace(slow, bytes_left=slow.bytes_left - now_s * 100)
        decision = policy.decide(now_s * SECOND, replace(view, jobs=(left,)))
        view = replace(view, memory=decision.memory)
        zones.append(len(decision.grants))
    assert zones[0] == 0
    assert zones[-1] == 2


def test_a_slow_beginning_is_no_reason_to_give_a_window_up() -> None:
    """Two windows of 700 bytes a second, where 1,000 are needed and 2,000 are possible; the third tells."""
    policy = build_policy(PolicySettings())
    slow = job(1_000_000)
    view = View((slow,), (CPU, GPU), (BUSY,), CROWDED)
    late = []
    for now_s in range(0, 50, 10):
        left = replace(slow, bytes_left=slow.bytes_left - now_s * 700)
        decision = policy.decide(now_s * SECOND, replace(view, jobs=(left,)))
        view = replace(view, memory=decision.memory)
        late.append(bool(decision.late))
    assert late == [False, False, False, True, True]


def test_an_interactive_job_takes_its_capped_share_without_a_window() -> None:
    restore = job(1000, deadline_s=None, job_class=JobClass.INTERACTIVE)
    assert share_milli(grants(decide(0, restore))["gpu0"]) == 30


def test_an_urgent_job_goes_before_its_like() -> None:
    first = Job(1, JobClass.NORMAL, 0, 1000)
    pressed = Job(2, JobClass.NORMAL, 1, 1_100_000, deadline_ns=1000 * SECOND)
    decision = build_policy(PolicySettings()).decide(SECOND, View((first, pressed), (GPU,), (BUSY,)))
    assert [grant.job for grant in decision.grants] == [2]


def test_a_peers_lease_is_not_taken_by_right() -> None:
    wanted = replace(GPU, peer_class=JobClass.NORMAL)
    view = View((job(1_100_000),), (wanted,), (BUSY,))
    assert build_policy(PolicySettings()).decide(0, view).grants == ()


def test_a_quarter_of_the_window_and_a_twentieth_are_the_borders_of_the_zones() -> None:
    slacks = (1000, 250, 249, 50, 49, 0, -1000)
    zones = [zone_of(slack * SECOND, 1000 * SECOND, LaxityLimits()) for slack in slacks]
    assert zones == [Zone.SCAVENGE] * 2 + [Zone.CAPPED] * 2 + [Zone.FULL] * 3


def test_a_cpus_stages_are_the_zones() -> None:
    assert [Stage(zone) for zone in Zone] == [Stage.EARLY, Stage.PRESSING, Stage.LAST]
