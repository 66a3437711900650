"""The simulator against what is known in closed form: queues, duty cycles, time slices, hysteresis, windows."""

from __future__ import annotations

from typing import Any

import pytest
from scenarios import cpu_scenario, scenario

from ohdiff.scheduling.simulator.results import RunResult, Spread, compare
from ohdiff.scheduling.simulator.run import simulate

MS = 1e6


def queue(**more: Any) -> dict[str, Any]:
    return {"kind": "queue", "device": "gpu0", "per_s": 700, "service_ms": 1.0, **more}


def duty(pct: float, burst_ms: float = 50, **more: Any) -> dict[str, Any]:
    return {"kind": "duty", "device": "gpu0", "windows": [[0, pct]], "burst_ms": burst_ms, **more}


def figure(run: RunResult, name: str) -> Spread:
    return run.co_runners[0].figures[name]


@pytest.mark.parametrize("load", [0.3, 0.7])
def test_a_queue_with_fixed_service_waits_as_pollaczek_and_khinchine_say(load: float) -> None:
    run = simulate(scenario(queue(per_s=load * 1000), jobs=(), seconds=200))
    expected_ms = 1 + load / (2 * (1 - load))
    assert figure(run, "latency").mean / MS == pytest.approx(expected_ms, rel=0.04)
    assert run.co_runners[0].busy_ns / run.simulated_ns == pytest.approx(load, rel=0.02)


def test_a_queue_with_random_service_has_an_exponential_time_in_system() -> None:
    latency = figure(simulate(scenario(queue(per_s=500, random_service=True), jobs=(), seconds=400)), "latency")
    assert latency.mean / MS == pytest.approx(2, rel=0.05)
    assert latency.p99 / latency.mean == pytest.approx(4.605, rel=0.07)


@pytest.mark.parametrize("pct", [7, 33, 80])
def test_a_duty_cycle_is_busy_for_its_share(pct: float) -> None:
    run = simulate(scenario(duty(pct), jobs=(), seconds=400))
    assert run.co_runners[0].busy_ns / run.simulated_ns == pytest.approx(pct / 100, rel=0.02)


def test_two_that_never_pause_take_twice_as_long_on_one_device() -> None:
    run = simulate(scenario({"kind": "training", "compute_ms": 50, "deviation": 0}, arbiter="none"))
    assert figure(run, "step").p50 == figure(run, "step").p99 == pytest.approx(100 * MS)
    assert run.devices[0].harvested_ns / run.simulated_ns == pytest.approx(0.5)


def test_a_copy_bound_job_slows_a_kernel_by_what_it_computes_only() -> None:
    shape = {"resident": False, "kernel_gb_per_s": 400, "copy_gb_per_s": 40, "bus_gb_per_s": 60}
    run = simulate(
        scenario(
            {"kind": "training", "compute_ms": 50, "deviation": 0},
            accelerator=shape,
            machine={"disk_gb_per_s": 100, "memory_gb_per_s": 1000},
            arbiter="none",
            depth=2,
        )
    )
    assert figure(run, "step").p50 == pytest.approx(55 * MS)


def test_all_idle_time_but_the_hysteresis_is_taken_and_nobody_waits_for_more_than_a_unit() -> None:
    tells = duty(50, 50, tells=True)
    run = simulate(scenario(tells, seconds=100, arbiter="priority"))
    alone = simulate(scenario(tells, seconds=100, jobs=()))
    comparison = compare(run, alone)
    # A cycle of 50 ms and 50 ms becomes one of 100.75: of the pause 2 ms are left, and of two units of 0.5 ms one and a
    # half are still in flight at its end, which takes 0.75 ms of the device from the burst.
    assert comparison.harvests[0].of_idle == pytest.approx((48 + 0.75) / 100.75 / 0.5, abs=0.005)
    assert comparison.impacts[0].mean == pytest.approx(50.75 / 50, abs=0.001)
    assert comparison.impacts[0].p99 == pytest.approx(51 / 50, abs=0.001)
    assert run.yields.most <= 2 * MS + 10  # a unit and 1 ms
    assert run.yields.mean == pytest.approx(1.5 * MS, rel=0.1)  # one and a half units, at half speed


@pytest.mark.parametrize(("unit_ms", "depth"), [(1, 1), (2, 2), (5, 4)])
def test_units_in_flight_bound_the_wait_of_a_co_runner(unit_ms: float, depth: int) -> None:
    units: dict[str, Any] = {"unit_ms": unit_ms, "beside_ms": unit_ms * depth, "depth": depth}
    run = simulate(scenario(duty(30, tells=True), arbiter="priority", seconds=60, **units))
    assert run.yields.count > 100
    assert 1.8 * unit_ms * depth * MS <= run.yields.most <= 2 * unit_ms * depth * MS + 10


def test_launches_cost_their_share_alone_with_one_unit_in_flight() -> None:
    for depth, expected in ((1, 2 / 2.1), (2, 1.0)):
        run = simulate(scenario(accelerator={"launch_us": 100}, depth=depth))
        assert run.devices[0].harvested_ns / run.simulated_ns == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("depth", "period_ms"), [(1, 0.3), (2, 0.15), (3, 0.1)])
def test_launches_longer_than_the_units_that_hide_them_leave_gaps(depth: int, period_ms: float) -> None:
    """Of units of 0.1 ms, launched in 0.2 ms, so many pass in a launch and a unit."""
    run = simulate(scenario(accelerator={"launch_us": 200}, depth=depth, unit_ms=0.1, arbiter="none"))
    assert run.devices[0].harvested_ns / run.simulated_ns == pytest.approx(0.1 / period_ms, rel=1e-4)


def test_the_first_of_several_units_in_flight_is_launched_too() -> None:
    run = simulate(scenario(accelerator={"launch_us": 1500}, depth=2, arbiter="none", seconds=1))
    assert run.devices[0].harvested_ns == pytest.approx(998.5 * MS, abs=2)


def test_a_launch_leaves_a_co_runner_the_whole_device_and_its_unit_half() -> None:
    """Units of 2 ms after 1 ms: of 5 ms the co-runner has 3."""
    busy = {"kind": "training", "device": "gpu0", "compute_ms": 30, "deviation": 0}
    run = simulate(scenario(busy, accelerator={"launch_us": 1000}, arbiter="none"))
    assert figure(run, "step").p50 == pytest.approx(50 * MS, abs=10)
    assert run.devices[0].harvested_ns / run.simulated_ns == pytest.approx(0.4, rel=1e-3)


def test_work_is_the_same_whether_launches_are_gone_through_one_by_one_or_not() -> None:
    """Who is met for a moment in every unit's cycle takes what it takes, and nothing else is lost or won."""
    brief = {"kind": "queue", "device": "gpu0", "per_s": 200, "service_ms": 0.001}
    alone = simulate(scenario(accelerator={"launch_us": 500}, arbiter="none"))
    beside = simulate(scenario(brief, accelerator={"launch_us": 500}, arbiter="none"))
    assert alone.devices[0].harvested_ns / alone.simulated_ns == pytest.approx(0.8, rel=1e-3)
    assert beside.devices[0].harvested_ns / beside.simulated_ns == pytest.approx(0.8, rel=1e-3)


def test_slices_take_turns_and_each_change_costs_a_switch() -> None:
    busy = {"kind": "training", "device": "gpu0", "compute_ms": 50, "deviation": 0}
    run = simulate(scenario(busy, accelerator={"slice_ms": 1, "switch_us": 50}, arbiter="none", depth=2))
    assert figure(run, "step").p50 == pytest.approx(50 * 2.1 * MS, rel=0.01)
    assert run.devices[0].harvested_ns / run.simulated_ns == pytest.approx(1 / 2.1, rel=0.01)


def test_a_server_wakes_for_a_request_and_answers_it_off_its_device() -> None:
    rare = queue(per_s=10, wake_us=200, answer_us=300)
    run = simulate(scenario(rare, jobs=(), seconds=100))
    assert figure(run, "latency").p50 == 1.5 * MS
    assert run.co_runners[0].busy_ns == run.co_runners[0].steps * MS
    ours = simulate(scenario(rare, seconds=100, arbiter="none"))
    assert figure(ours, "latency").p50 == pytest.approx(2.5 * MS, abs=2)  # the answer is not shared


def test_a_request_that_waits_finds_its_server_awake() -> None:
    waking = simulate(scenario(queue(wake_us=300), jobs=(), seconds=100))
    ready = simulate(scenario(queue(), jobs=(), seconds=100))
    late_ms = (figure(waking, "latency").mean - figure(ready, "latency").mean) / MS
    # Whoever is behind a late one in the same busy time is as late, or less.
    assert 0.09 < late_ms < 0.3


def test_a_share_of_the_device_is_kept_to() -> None:
    run = simulate(scenario(arbiter="none", device_share_pct=20))
    assert run.devices[0].harvested_ns / run.simulated_ns == pytest.approx(0.2, rel=0.01)


def test_a_job_takes_its_bytes_over_the_slowest_part() -> None:
    shape = {"resident": False, "kernel_gb_per_s": 400, "copy_gb_per_s": 40, "bus_gb_per_s": 60}
    machine = {"disk_gb_per_s": 5, "memory_gb_per_s": 100}
    run = simulate(scenario(jobs=({"size_gb": 20},), accelerator=shape, machine=machine, arbiter="none", depth=2))
    assert run.jobs[0].took_ns == pytest.approx(4e9, rel=1e-6)


def test_niceness_leaves_a_co_runner_its_core() -> None:
    worker = {"kind": "training", "device": "cpu", "compute_ms": 10, "deviation": 0, "cores": 2}
    steps = {
        nice: figure(simulate(cpu_scenario(worker, arbiter="none", nice=nice)), "step").p50 / MS for nice in (0, 19)
    }
    assert steps[0] == pytest.approx(20)
    assert steps[19] == pytest.approx(10 * (1 + 15 / 1024), rel=0.001)


def test_a_co_runner_on_one_of_two_cores_leaves_the_rest_of_the_cpu_idle() -> None:
    worker = {"kind": "duty", "device": "cpu", "windows": [[0, 40]], "burst_ms": 50, "cores": 1}
    one = cpu_scenario(worker, seconds=60, arbiter="none")
    run = simulate(one)
    (harvest,) = compare(run, simulate(one.without_jobs())).harvests
    assert harvest.idle_share == pytest.approx(0.8, abs=0.01)
    assert harvest.of_idle == pytest.approx(1, abs=0.02)
    assert run.yields.count == 0  # nobody waits on a CPU until our units have ended


def test_where_others_use_all_cores_we_use_none() -> None:
    worker = {"kind": "training", "device": "cpu", "compute_ms": 10, "deviation": 0, "cores": 2}
    run = simulate(cpu_scenario(worker, seconds=60))
    assert run.devices[0].harvested_ns / run.simulated_ns < 0.02


def test_a_probe_finds_what_nobody_tells() -> None:
    quiet = duty(30, 200)
    run = simulate(scenario(quiet, seconds=200, arbiter="stretch"))
    comparison = compare(run, simulate(scenario(quiet, seconds=200, jobs=())))
    # Each burst finds two units of 0.14 ms in flight and outlasts pauses of 20, 40 and 80 ms, with a probe after each.
    loss_ms = 0.3 + 3 * 0.25
    assert comparison.impacts[0].mean == pytest.approx(1 + loss_ms / 200, abs=0.001)
    assert comparison.harvests[0].of_idle > 0.75  # pauses grow to 160 ms, and one is left over from each burst


@pytest.mark.parametrize(("burst_ms", "probes"), [(50, 1), (100, 2)])
def test_a_burst_that_nobody_tells_of_loses_a_short_unit_and_its_probes(burst_ms: float, probes: int) -> None:
    untold = duty(20, burst_ms)
    run = simulate(scenario(untold, seconds=200, arbiter="stretch"))
    comparison = compare(run, simulate(scenario(untold, seconds=200, jobs=())))
    # Of two units of 0.14 ms one and a half are left; where of the first less than three quarters are, it is not seen,
    # and a third is begun.
    mean_ms, worst_ms = (1.5 + 0.75) * 0.14 + probes * 0.25, (0.75 + 2) * 0.14 + probes * 0.25
    assert comparison.impacts[0].mean == pytest.approx(1 + mean_ms / burst_ms, abs=0.001)
    assert comparison.impacts[0].p99 == pytest.approx(1 + worst_ms / burst_ms, abs=0.001)
    assert run.yields.p99 <= 0.28 * MS + MS


@pytest.mark.parametrize("depth", [2, 4])
def test_units_that_are_shorter_because_they_are_many_are_seen_to_be_stretched(depth: int) -> None:
    untold = duty(20, 50)
    run = simulate(scenario(untold, seconds=100, arbiter="stretch", depth=depth))
    comparison = compare(run, simulate(scenario(untold, seconds=100, jobs=())))
    assert comparison.impacts[0].mean < 1.02
    assert comparison.impacts[0].p99 < 1.025
    assert run.yields.p99 <= 0.28 * MS + MS


@pytest.mark.parametrize("window_ms", [170, 1000])
def test_windows_react_within_two_of_their_lengths(window_ms: float) -> None:
    step = {"kind": "duty", "device": "gpu0", "windows": [[0, 0], [30, 95], [60, 0], [89, 50]], "burst_ms": 50}
    run = simulate(scenario(step, seconds=90, accelerator={"telemetry_window_ms": window_ms}, arbiter="telemetry"))
    assert 59 - 2 * window_ms / 1000 < run.devices[0].harvested_ns / 1e9 < 60 + 2 * window_ms / 1000
