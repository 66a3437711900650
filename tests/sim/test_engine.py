"""The engine keeps a driver's contract: when it asks, what it shows then, and when our units may run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from scenarios import cpu_scenario, scenario

from ohdiff.scheduling.core import MS, Activity, Decision, Grant, View
from ohdiff.scheduling.simulator.run import simulate
from ohdiff.scheduling.simulator.scenario import Scenario

TRAINING = {"kind": "training", "device": "gpu0", "compute_ms": 20, "exchange_ms": 10, "pause_ms": 7, "tells": True}


class Seen:
    """All that a run shows."""

    def __init__(self) -> None:
        self.busy_spans: list[tuple[int, int]] = []
        self.runs: list[tuple[int, int]] = []
        self.grants: list[Grant] = []
        self.views: list[tuple[int, View]] = []
        self.decisions: list[Decision] = []

    def busy(self, name: str, device: str, start_ns: int, end_ns: int) -> None:
        self.busy_spans.append((start_ns, end_ns))

    def ran(self, device: str, grant: Grant, start_ns: int, end_ns: int) -> None:
        self.runs.append((start_ns, end_ns))
        self.grants.append(grant)

    def decided(self, now_ns: int, decision: Decision) -> None:
        self.decisions.append(decision)

    def log(self, now_ns: int, view: View, decision: Decision) -> None:
        self.views.append((now_ns, view))


def seen_in(one: Scenario) -> Seen:
    seen = Seen()
    simulate(one, log=seen.log, recorder=seen)
    return seen


def joined(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Spans that touch or overlap, made one."""
    found: list[tuple[int, int]] = []
    for start_ns, end_ns in sorted(spans):
        if found and start_ns <= found[-1][1]:
            found[-1] = (found[-1][0], max(end_ns, found[-1][1]))
        else:
            found.append((start_ns, end_ns))
    return found


def test_no_run_begins_before_all_that_tell_have_been_quiet_for_long_enough() -> None:
    both = [
        {"kind": "duty", "name": name, "device": "gpu0", "windows": [[0, 30]], "burst_ms": burst_ms, "tells": True}
        for name, burst_ms in (("a", 9), ("b", 31))
    ]
    seen = seen_in(scenario(*both, seconds=20, arbiter="priority", quiet_ms=3))
    busy = joined(seen.busy_spans)
    assert len(seen.runs) > 100
    for start_ns, _ in seen.runs:
        before = max((end_ns for begin_ns, end_ns in busy if begin_ns < start_ns), default=-3 * MS)
        assert start_ns - before >= 3 * MS


def test_phases_that_follow_one_another_are_one_piece_of_work() -> None:
    looking = {"size_gb": 50_000, "deadline_s": 20}
    seen = seen_in(scenario(TRAINING, jobs=(looking,), seconds=15, arbiter="none"))
    starts = {start_ns for start_ns, _ in joined(seen.busy_spans)}
    told = [view.co_runners[0] for _, view in seen.views[1:]]
    busy = [each.since_ns for each in told if each.activity is Activity.BUSY]
    assert len(busy) > 5
    assert set(busy) <= starts


def test_an_untold_window_shows_our_own_work_too() -> None:
    blind = {"telemetry_window_ms": 100, "telemetry_per_process": False}
    seen = seen_in(scenario(seconds=5, accelerator=blind, arbiter="telemetry"))
    windows = [view.devices[0].telemetry for _, view in seen.views]
    assert {window.busy_milli for window in windows if window is not None} >= {0, 1000}
    assert {window.others_milli for window in windows if window is not None} == {-1}


def test_windows_tell_others_work_from_ours() -> None:
    told = {"telemetry_window_ms": 100}
    busy = {"kind": "training", "device": "gpu0", "compute_ms": 30, "deviation": 0, "pause_ms": 70}
    seen = seen_in(scenario(busy, seconds=5, accelerator=told, arbiter="telemetry"))
    windows = [view.devices[0].telemetry for _, view in seen.views]
    assert {window.others_milli for window in windows[2:] if window is not None} == {300}


@pytest.mark.parametrize("skips", [True, False])
def test_windows_and_reports_that_nobody_watches_call_for_no_decision(skips: bool) -> None:
    reporting = {**TRAINING, "report_ms": 100}
    plain = scenario(TRAINING, seconds=5, arbiter="priority")
    noisy = scenario(reporting, seconds=5, accelerator={"telemetry_window_ms": 100}, arbiter="priority")
    recorder = None if skips else Seen()
    assert simulate(plain, recorder=recorder).decisions == simulate(noisy, recorder=recorder).decisions


@pytest.mark.parametrize("arbiter", ["telemetry", "priority", "stretch"])
def test_a_server_that_is_alone_goes_its_way_as_if_it_were_watched(arbiter: str) -> None:
    server = {"kind": "server", "device": "gpu0", "model": "azure-conversation", "speed": 0.3, "tells": True}
    one = scenario(server, seconds=30, accelerator={"telemetry_window_ms": 100}, arbiter=arbiter)
    watched, unwatched = simulate(one, recorder=Seen()), simulate(one)
    assert unwatched.devices[0].size_bytes > 0
    assert replace(watched, events=0) == replace(unwatched, events=0)


def test_a_told_burst_that_nobody_may_react_to_calls_for_no_decision() -> None:
    run = simulate(scenario({"kind": "duty", "device": "gpu0", "windows": [[0, 30]]}, seconds=5, arbiter="none"))
    assert run.decisions == 1


def test_who_tells_nothing_is_not_heard_beside_one_that_tells() -> None:
    tells = {"kind": "duty", "name": "quiet", "device": "gpu0", "windows": [[0, 0]], "tells": True}
    untold = {"kind": "duty", "name": "untold", "device": "gpu0", "windows": [[0, 30]]}
    # At the begin, and when it has been quiet for long enough.
    assert simulate(scenario(tells, untold, seconds=5, arbiter="priority")).decisions == 2


def test_a_pause_after_each_unit_is_as_long_as_was_granted() -> None:
    seen = seen_in(scenario(seconds=1, arbiter="none", device_share_pct=25))
    (grant,) = seen.decisions[-1].grants
    assert grant.gap_ns == 3 * grant.unit_ns
    starts = [start_ns for start_ns, _ in seen.runs]
    assert {later - start for start, later in pairwise(starts)} == {grant.unit_ns + grant.gap_ns}


def test_a_report_is_of_the_steps_since_the_one_before() -> None:
    seen = seen_in(scenario({**TRAINING, "report_ms": 500}, seconds=30, arbiter="rate"))
    took_ns = [end_ns - start_ns for start_ns, end_ns in joined(seen.busy_spans)]
    told = {view.co_runners[0].steps: view.co_runners[0].step_ns for _, view in seen.views}
    counts = sorted(told)
    assert len(counts) > 10
    for before, count in pairwise(counts):
        assert told[count] == sum(took_ns[before:count]) // (count - before)


def test_a_unit_that_was_stretched_before_its_end_is_seen_at_its_end() -> None:
    """Requests of 1.3 ms: two thirds of them begin and end within one unit of 4 ms, which they stretch by a third."""
    quick = {"kind": "queue", "device": "gpu0", "per_s": 10, "service_ms": 1.3}
    seen = seen_in(scenario(quick, seconds=20, arbiter="stretch", unit_ms=4, short_ms=4))
    looks = sum(grant.is_probe for grant in seen.grants)
    assert looks > 0.5 * len(seen.busy_spans)


BUSY = {"kind": "training", "device": "gpu0", "compute_ms": 1000, "deviation": 0}


def probes_beside(accelerator: dict[str, Any]) -> list[int]:
    """How long probes of 0.25 ms took beside a co-runner that never pauses."""
    seen = seen_in(scenario(BUSY, seconds=20, accelerator=accelerator, arbiter="stretch"))
    units = [view.devices[0].last_unit for _, view in seen.views]
    return [unit.took_ns for unit in units if unit is not None and unit.is_probe]


@pytest.mark.parametrize("launch_us", [0, 30, 400, 5000])
def test_a_probe_beside_a_busy_co_runner_takes_twice_its_time_whatever_a_launch_takes(launch_us: float) -> None:
    took_ns = probes_beside({"launch_us": launch_us})
    assert len(took_ns) > 50
    assert set(took_ns) <= {500_000, 500_001}


@pytest.mark.parametrize("launch_us", [0, 400])
def test_on_a_device_that_is_shared_in_slices_a_probe_waits_for_its_turn(launch_us: float) -> None:
    """What is left of the other's turn, a switch, and its own time in one piece."""
    took_ns: list[int] = []
    for slice_ms in (0.89, 0.93, 0.97, 1):  # pauses are whole milliseconds: with one length all might meet one moment
        took_ns += probes_beside({"launch_us": launch_us, "slice_ms": slice_ms, "switch_us": 20})
    assert len(took_ns) > 200
    assert 270_000 <= min(took_ns) < 400_000
    assert 1_000_000 < max(took_ns) <= 1_270_001


def test_a_unit_that_is_being_launched_is_not_in_flight() -> None:
    """Launches of 9 ms before units of 1 ms: nine of ten bursts meet no unit, and none waits for a launch."""
    tells = {"kind": "duty", "device": "gpu0", "windows": [[0, 20]], "tells": True}
    slow = scenario(tells, seconds=60, accelerator={"launch_us": 9000}, arbiter="xsched", quiet_ms=0, unit_ms=1)
    run = simulate(slow)
    assert run.yields.count > 100
    assert run.yields.p50 == 0
    assert run.yields.most <= 2 * MS + 10


def test_a_job_ends_with_its_last_byte_among_launches() -> None:
    """Five units of 2 GB, each after its launch."""
    slow = {"launch_us": 1000}
    alone = simulate(scenario(jobs=({"size_gb": 10},), accelerator=slow, arbiter="none"))
    assert alone.jobs[0].took_ns == pytest.approx(15 * MS, abs=MS)
    beside = simulate(scenario(BUSY, jobs=({"size_gb": 10},), accelerator=slow, arbiter="none"))
    assert beside.jobs[0].took_ns == pytest.approx(25 * MS, abs=10)


def test_who_works_elsewhere_is_in_nobodys_way() -> None:
    worker = {"kind": "duty", "device": "cpu", "windows": [[0, 50]], "burst_ms": 20}
    some = {"class": "normal", "count": 50, "per_s": 10, "median_gb": 5, "deviation": 0.1}
    run = simulate(scenario(worker, jobs=(), mixes=(some,), seconds=5))
    assert sum(job.ended_ns is not None for job in run.jobs) > 20
    assert run.yields.count == 0


def test_a_job_ends_when_both_devices_have_done_its_bytes() -> None:
    """At 40 GB a second for large files and 4 for small ones; both devices where nothing is small."""
    machine = {"cores": 4, "use_cpu": True, "gb_per_s_per_core": 1, "disk_gb_per_s": 100}
    device = {"kernel_gb_per_s": 40, "resident": True}
    for size_gb, small_pct, expected_s in ((40, 50, 5.0), (40, 80, 8.0), (80, 0, 80 / 44)):
        job = {"size_gb": size_gb, "small_files_pct": small_pct}
        both = scenario(jobs=(job,), seconds=30, machine=machine, accelerator=device, where="both", arbiter="none")
        assert simulate(both).jobs[0].took_ns == pytest.approx(expected_s * 1e9, rel=1e-3)


def test_idle_cores_are_what_others_leave() -> None:
    worker = {"kind": "training", "device": "cpu", "compute_ms": 1000, "deviation": 0, "cores": 1}
    seen = seen_in(cpu_scenario(worker, seconds=5))
    assert {view.host.cores_idle_milli for now_ns, view in seen.views if now_ns > 500 * MS} == {1000}


def test_a_job_of_small_files_leaves_the_accelerator_when_nothing_else_is_left() -> None:
    job = {"size_gb": 40, "small_files_pct": 50}
    machine = {"cores": 4, "use_cpu": True, "gb_per_s_per_core": 1, "disk_gb_per_s": 100}
    both = {"kernel_gb_per_s": 40, "resident": True}
    seen = seen_in(scenario(jobs=(job,), seconds=30, machine=machine, accelerator=both, where="both", arbiter="none"))
    last = [view.jobs[0] for _, view in seen.views if view.jobs][-1]
    assert last.bytes_left == last.small_bytes_left > 0


def test_a_job_of_nothing_but_small_files_is_news_when_it_comes_and_not_again() -> None:
    """While it waits, decisions come with it, and by windows of 100 ms."""
    busy = {"kind": "training", "device": "gpu0", "compute_ms": 30, "deviation": 0}
    small = {"size_gb": 1, "small_files_pct": 100, "arrives_s": 0.55}
    one = scenario(busy, jobs=(small,), seconds=2, accelerator={"telemetry_window_ms": 100}, arbiter="telemetry")
    times = [now_ns for now_ns, view in seen_in(one).views if view.jobs]
    assert times[0] == 550 * MS
    assert len(times) > 10
    assert {now_ns % (100 * MS) for now_ns in times[1:]} == {0}


def test_what_is_in_flight_beside_a_telling_co_runner_is_bounded_at_any_depth() -> None:
    tells: dict[str, Any] = {"kind": "duty", "device": "gpu0", "windows": [[0, 30]], "tells": True}
    for depth in (1, 2, 5):
        run = simulate(scenario(tells, seconds=30, arbiter="priority", depth=depth))
        assert run.yields.most <= 2 * MS + 10
