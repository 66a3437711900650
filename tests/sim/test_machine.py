"""The simulated machine and its gauges: what takes what of which resource, and figures in short."""

from __future__ import annotations

from math import exp
from typing import Any

import pytest
from scenarios import scenario

from ohdiff.scheduling.core import MS, SECOND
from ohdiff.scheduling.simulator.gauges import HostGauge
from ohdiff.scheduling.simulator.results import compare, quantile, spread_of
from ohdiff.scheduling.simulator.run import simulate, with_seed
from ohdiff.scheduling.simulator.scenario import GB
from ohdiff.scheduling.simulator.world import Machine, all_jobs

FAST = {"disk_gb_per_s": 1000, "memory_gb_per_s": 10_000}


@pytest.mark.parametrize(("is_resident", "times_longer"), [(True, 1.0), (False, 2.0)])
def test_an_exchange_shares_the_copy_engine_with_our_copies_and_nothing_with_our_kernels(
    is_resident: bool, times_longer: float
) -> None:
    exchanging = {"kind": "training", "device": "gpu0", "compute_ms": 0.001, "exchange_ms": 50, "deviation": 0}
    shape = {"resident": is_resident, "kernel_gb_per_s": 1000, "copy_gb_per_s": 40, "bus_gb_per_s": 60}
    run = simulate(scenario(exchanging, accelerator=shape, machine=FAST, arbiter="none", depth=2))
    assert run.co_runners[0].figures["step"].p50 / MS == pytest.approx(50 * times_longer, rel=1e-3)


def test_a_byte_passes_the_hosts_memory_twice() -> None:
    shape = {"resident": False, "copy_gb_per_s": 40, "bus_gb_per_s": 60}
    machine = {"disk_gb_per_s": 1000, "memory_gb_per_s": 10}
    run = simulate(scenario(jobs=({"size_gb": 20},), accelerator=shape, machine=machine, arbiter="none", depth=2))
    assert run.jobs[0].took_ns == pytest.approx(4 * SECOND, rel=1e-6)


def test_the_rate_of_a_cpu_is_that_of_its_threads_up_to_what_the_host_gives() -> None:
    plan = scenario(accelerator={}, machine={"cores": 4, "gb_per_s_per_core": 2, "disk_gb_per_s": 5}).machine
    machine = Machine(plan, nice=0)
    assert [machine.device_rate("cpu", threads) for threads in (1, 2, 3, 0)] == [2 * GB, 4 * GB, 5 * GB, 5 * GB]


def test_a_mix_is_its_seeds_own_and_two_of_one_shape_differ() -> None:
    mix: dict[str, Any] = {"count": 20, "per_s": 1, "median_gb": 1}
    one = scenario(jobs=(), mixes=(mix, {**mix, "class": "interactive"}))
    assert all_jobs(one) == all_jobs(one)
    assert all_jobs(one) != all_jobs(with_seed(one, 2))
    sizes = [{job.size_bytes for job in all_jobs(one) if job.job_class == job_class} for job_class in (0, 1)]
    assert len(sizes[0]) == 20
    assert not sizes[0] & sizes[1]


@pytest.mark.parametrize(("pct", "predicted_ns"), [(100, 20 * SECOND), (50, 10 * SECOND), (0, 0)])
def test_a_job_is_predicted_as_its_scan_was_right(pct: int, predicted_ns: int) -> None:
    """20 GB at a gigabyte a second."""
    shown: list[int] = []
    job = {"size_gb": 20, "predicted_pct": pct}
    one = scenario(jobs=(job,), seconds=1, accelerator={"kernel_gb_per_s": 1})
    simulate(one, log=lambda now_ns, view, decision: shown.append(view.jobs[0].predicted_ns))
    assert shown[0] == predicted_ns


def test_the_cpu_works_on_small_files_first_and_says_what_is_left_of_them() -> None:
    shown: dict[int, int] = {}
    machine = {"cores": 2, "gb_per_s_per_core": 1, "disk_gb_per_s": 100}
    one = scenario(jobs=({"size_gb": 20, "small_files_pct": 50},), seconds=20, accelerator={}, machine=machine)
    simulate(
        one,
        log=lambda now_ns, view, decision: shown.update(
            (now_ns // SECOND, each.small_bytes_left) for each in view.jobs
        ),
    )
    assert shown[2] == pytest.approx(10 * GB - 5.5 * GB, abs=0.6 * GB)
    assert shown[6] == 0


def test_co_runners_are_shown_in_order_of_their_names() -> None:
    duty = {"kind": "duty", "device": "gpu0", "windows": [[0, 30]], "tells": True}
    seen: list[list[str]] = []
    both = scenario({**duty, "name": "b"}, {**duty, "name": "a"}, seconds=1)
    simulate(both, log=lambda now_ns, view, decision: seen.append([each.name for each in view.co_runners]))
    assert len(seen) > 10
    assert all(names == ["a", "b"] for names in seen)


def test_two_co_runners_of_one_kind_have_chances_of_their_own() -> None:
    duty = {"kind": "duty", "device": "gpu0", "windows": [[0, 30]]}
    two = scenario({**duty, "name": "a"}, {**duty, "name": "b"}, jobs=(), seconds=20)
    first, second = simulate(two).co_runners
    assert (first.steps, first.figures) != (second.steps, second.figures)


def test_pressure_grows_as_the_kernels_ten_second_figure_does() -> None:
    gauge = HostGauge(2)
    for tenth in range(1, 101):
        gauge.pass_time(50 * MS, 2.0, is_short=True)
        gauge.pass_time(50 * MS, 1.0, is_short=False)
        host = gauge.read(tenth * 100 * MS)
    assert host.cpu_pressure_milli == pytest.approx(500 * (1 - exp(-1)), abs=1)
    assert host.cores_idle_milli == 500
    gauge.pass_time(400 * MS, 0.5, is_short=True)
    assert gauge.read(10_400 * MS).cores_idle_milli == 1500


def test_idle_time_is_that_of_the_run_without_us_and_ours_that_of_the_run_with_us() -> None:
    """Steps of 50 ms with pauses of 50 ms take 150 ms beside us, of which we have 100."""
    loop = {"kind": "training", "device": "gpu0", "compute_ms": 50, "pause_ms": 50, "deviation": 0, "steps": 200}
    one = scenario(loop, seconds=100, arbiter="none")
    run, alone = simulate(one), simulate(one.without_jobs())
    (harvest,) = compare(run, alone).harvests
    assert run.simulated_ns / alone.simulated_ns == pytest.approx(1.5, rel=0.01)
    assert harvest.idle_share == pytest.approx(0.5, rel=0.01)
    assert harvest.of_idle == pytest.approx(100 / 150 / 0.5, rel=0.01)


def test_who_only_reports_shows_neither_activity_nor_since_when() -> None:
    shown: set[tuple[str, int]] = set()
    loop = {"kind": "training", "device": "gpu0", "compute_ms": 20, "pause_ms": 3, "report_ms": 100}
    simulate(
        scenario(loop, seconds=3, arbiter="rate"),
        log=lambda now_ns, view, decision: shown.update((each.activity, each.since_ns) for each in view.co_runners),
    )
    assert shown == {("unknown", 0)}


def test_quantiles_are_elements_of_what_they_are_of() -> None:
    hundred = list(range(1, 101))
    assert [quantile(hundred, part) for part in (0.0, 0.5, 0.99, 1.0)] == [1, 51, 100, 100]
    spread = spread_of([5, 1, 3])
    assert (spread.count, spread.mean, spread.p50, spread.p99, spread.most) == (3, 3.0, 3, 5, 5)
