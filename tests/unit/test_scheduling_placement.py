"""Placement: small files on the CPU, an accelerator only where it promises enough, both at once where that pays."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ohdiff.scheduling.core import SECOND, DeviceKind, DeviceView, Host, Job, JobClass, View
from ohdiff.scheduling.policies.compose import Arbiter, PolicySettings, build_policy
from ohdiff.scheduling.policies.placement import Where

CPU = DeviceView("cpu", DeviceKind.CPU, 1000, threads_max=8)
GPU = DeviceView("gpu0", DeviceKind.CUDA, 10_000)
IDLE = Host(cores=8, cores_idle_milli=8000)
JOB = Job(1, JobClass.NORMAL, 0, 1_000_000)


def chosen(
    job: Job = JOB,
    *,
    where: Where = Where.AUTO,
    devices: tuple[DeviceView, ...] = (CPU, GPU),
    host: Host = IDLE,
) -> list[str]:
    policy = build_policy(PolicySettings(arbiter=Arbiter.NONE, where=where))
    return [grant.device for grant in policy.decide(0, View((job,), devices, host=host)).grants]


def test_a_fast_accelerator_and_the_cpu_work_side_by_side() -> None:
    assert chosen() == ["cpu", "gpu0"]


def test_an_accelerator_that_gains_less_than_a_fifth_is_left_alone() -> None:
    # Before it was tried, half of its time is expected: 390 of 1,000 bytes a second are 19.5 %, 410 are 20.5 %.
    assert chosen(devices=(CPU, replace(GPU, rate_bytes_per_s=390))) == ["cpu"]
    assert chosen(devices=(CPU, replace(GPU, rate_bytes_per_s=410))) == ["cpu", "gpu0"]


def test_a_job_of_small_files_stays_on_the_cpu() -> None:
    assert chosen(replace(JOB, small_bytes_left=JOB.bytes_left)) == ["cpu"]


def test_a_job_that_the_small_files_hold_up_gains_nothing_from_an_accelerator() -> None:
    assert chosen(replace(JOB, small_bytes_left=900_000)) == ["cpu"]
    assert chosen(replace(JOB, small_bytes_left=500_000)) == ["cpu", "gpu0"]


def test_busy_cores_make_an_accelerator_worth_more() -> None:
    slow = replace(GPU, rate_bytes_per_s=300)
    assert chosen(devices=(CPU, slow)) == ["cpu"]
    assert chosen(devices=(CPU, slow), host=Host(cores=8, cores_idle_milli=2000)) == ["cpu", "gpu0"]


@pytest.mark.parametrize(
    ("where", "devices"), [(Where.CPU, ["cpu"]), (Where.ACCELERATOR, ["gpu0"]), (Where.BOTH, ["cpu", "gpu0"])]
)
def test_a_choice_from_outside_holds(where: Where, devices: list[str]) -> None:
    assert chosen(where=where) == devices


def test_a_job_that_names_a_device_runs_there_only() -> None:
    assert chosen(replace(JOB, device="gpu0", small_bytes_left=JOB.bytes_left)) == ["gpu0"]


def test_with_one_device_there_is_no_choice() -> None:
    assert chosen(replace(JOB, small_bytes_left=JOB.bytes_left), devices=(GPU,)) == ["gpu0"]


def test_a_lost_accelerator_leaves_the_cpu() -> None:
    assert chosen(devices=(CPU, replace(GPU, is_usable=False))) == ["cpu"]


def test_a_device_that_is_hardly_ever_free_is_not_waited_for() -> None:
    policy = build_policy(PolicySettings(arbiter=Arbiter.NONE))
    view = View((JOB,), (CPU, replace(GPU, rate_bytes_per_s=1000)), host=IDLE)
    used = []
    for now_s in range(0, 100, 5):
        served = replace(view.devices[1], served_ns=now_s * SECOND // 50)  # a fiftieth of the time
        decision = policy.decide(now_s * SECOND, replace(view, devices=(CPU, served)))
        view = replace(view, memory=decision.memory)
        used.append(len(decision.grants) == 2)
    assert used[0]
    assert not used[-1]
