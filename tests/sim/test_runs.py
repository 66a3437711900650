"""Laws of whole runs: one seed, one result; the short way is the long way; a replay decides the same; jobs end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scenarios import scenario

from ohdiff.errors import UsageError
from ohdiff.scheduling.core import SHORT_UNITS_DEEP, Decision, Grant
from ohdiff.scheduling.decision_log import DecisionLog, replay
from ohdiff.scheduling.policies.compose import Arbiter
from ohdiff.scheduling.simulator.perfetto import TraceRecorder
from ohdiff.scheduling.simulator.run import simulate, with_seed
from ohdiff.scheduling.simulator.scenario import Scenario

SERVER = {"kind": "server", "device": "gpu0", "model": "azure-conversation", "speed": 0.3}
TRAINING = {"kind": "training", "device": "gpu0", "compute_ms": 20, "pause_ms": 5, "report_ms": 50, "exchange_ms": 2}
REQUESTS = {"kind": "queue", "name": "requests", "device": "gpu0", "per_s": 60, "service_ms": 5, "answer_us": 200}
DUTY = {"kind": "duty", "device": "gpu0", "windows": [[0, 40]], "burst_ms": 10}
QUEUE = {"kind": "queue", "device": "cpu", "per_s": 100, "service_ms": 2, "random_service": True}
CO_RUNNERS = st.lists(st.sampled_from([SERVER, TRAINING, DUTY, QUEUE, REQUESTS]), max_size=2, unique_by=str)
JOBS = st.lists(
    st.fixed_dictionaries(
        {
            "class": st.sampled_from(["interactive", "normal", "scavenge"]),
            "size_gb": st.floats(0.1, 500),
            "arrives_s": st.floats(0, 2),
            "small_files_pct": st.sampled_from([0, 30, 100]),
        },
        optional={"deadline_s": st.floats(2.5, 9)},
    ),
    min_size=1,
    max_size=4,
)


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    """Any machine of one accelerator and perhaps the CPU, with whoever may be on it."""
    tells = draw(st.booleans())
    co_runners = [{**each, "tells": tells} for each in draw(CO_RUNNERS)]
    has_cpu = draw(st.booleans()) or QUEUE in [{**each} for each in co_runners]
    has_cpu = has_cpu or any(each["device"] == "cpu" for each in co_runners)
    policy: dict[str, Any] = {
        "arbiter": draw(st.sampled_from([each.value for each in Arbiter])),
        "order": draw(st.sampled_from(["arrival", "feedback", "skip-join"])),
        "where": draw(st.sampled_from(["auto", "cpu", "accelerator", "both"])),
        "unit_ms": draw(st.sampled_from([0.5, 2, 7])),
        "depth": draw(st.integers(1, 3)),
        "max_impact_pct": draw(st.sampled_from([0, 5, 20])),
    }
    return scenario(
        *co_runners,
        jobs=tuple(draw(JOBS)),
        seconds=3,
        seed=draw(st.integers(0, 99)),
        machine={"cores": 4, "use_cpu": has_cpu},
        accelerator={
            "telemetry_window_ms": 100,
            "resident": draw(st.booleans()),
            "launch_us": draw(st.sampled_from([0, 30, 400])),
            "slice_ms": draw(st.sampled_from([0, 0.7])),
            "switch_us": draw(st.sampled_from([0, 20])),
        },
        **policy,
    )


class Watcher:
    """Looks at every grant and run as they happen."""

    def __init__(self) -> None:
        self.grants: list[Grant] = []
        self.last_end_ns: dict[str, int] = {}

    def busy(self, name: str, device: str, start_ns: int, end_ns: int) -> None:
        assert end_ns >= start_ns

    def ran(self, device: str, grant: Grant, start_ns: int, end_ns: int) -> None:
        assert start_ns >= self.last_end_ns.get(device, 0), "two runs on one device at once"
        assert end_ns >= start_ns
        self.last_end_ns[device] = end_ns

    def decided(self, now_ns: int, decision: Decision) -> None:
        self.grants.extend(decision.grants)


@given(scenarios())
@settings(max_examples=40)
def test_any_run_is_its_seeds_own_and_its_log_replays_byte_for_byte(any_scenario: Scenario) -> None:
    lines: list[bytes] = []
    watcher = Watcher()
    log = DecisionLog(lines.append, any_scenario.settings, "simulator")
    watched = simulate(any_scenario, log=log.record, recorder=watcher)
    unwatched = simulate(any_scenario)
    assert replace(watched, events=0) == replace(unwatched, events=0)  # only the way through quiet times differs
    assert {grant.depth for grant in watcher.grants} <= {1, SHORT_UNITS_DEEP, any_scenario.settings.depth}
    again = replay(lines)
    assert again.difference is None
    assert again.decisions == watched.decisions == len(lines) - 1


def test_other_seeds_give_other_runs() -> None:
    first = scenario(SERVER, seconds=20)
    assert simulate(first).co_runners != simulate(with_seed(first, 2)).co_runners


def test_our_jobs_do_not_change_what_a_co_runner_is_asked_to_do() -> None:
    busy = scenario(DUTY, seconds=20, arbiter="none")
    counts = [simulate(each).co_runners[0].steps for each in (busy, busy.without_jobs())]
    assert counts[0] <= counts[1] <= 2 * counts[0]


def log_of(any_scenario: Scenario) -> list[bytes]:
    lines: list[bytes] = []
    simulate(any_scenario, log=DecisionLog(lines.append, any_scenario.settings, "simulator").record)
    return lines


def test_a_changed_decision_is_found_with_its_line() -> None:
    lines = log_of(scenario({**DUTY, "tells": True}, seconds=1))
    number = next(index for index, line in enumerate(lines) if index > 4 and b'"unit_ns":500000' in line)
    lines[number] = lines[number].replace(b'"unit_ns":500000', b'"unit_ns":500001')
    difference = replay(lines).difference
    assert difference is not None
    assert difference.line == number + 1
    assert b"500001" in difference.expected
    assert b"500001" not in difference.found


def test_a_changed_view_is_found_by_its_hash() -> None:
    lines = log_of(scenario({**DUTY, "tells": True}, seconds=1))
    number = next(index for index, line in enumerate(lines) if b'"since_ns":[' in line)
    lines[number] = lines[number].replace(b'"since_ns":[', b'"since_ns":[1')
    assert replay(lines).difference is not None


def test_a_log_that_was_cut_off_replays_up_to_there() -> None:
    lines = log_of(scenario({**DUTY, "tells": True}, seconds=1))
    result = replay([*lines[:-1], lines[-1][:-20]])
    assert result.difference is None
    assert result.decisions == len(lines) - 2


@pytest.mark.parametrize("head", [b"", b"{}\n", b"not json\n", b"\xff\n", b'{"version":1}\n'])
def test_what_is_no_log_is_refused(head: bytes) -> None:
    with pytest.raises(UsageError):
        replay([head])


def test_a_log_of_another_version_is_refused() -> None:
    lines = log_of(scenario(seconds=0.1))
    with pytest.raises(UsageError, match="version 2"):
        replay([lines[0].replace(b'"version":1', b'"version":2')])


@pytest.mark.parametrize("line", [b"{}\n", b"[]\n", b'{"t":1,"change":{"jobs":[3]}}\n', b"\n"])
def test_a_damaged_line_is_named(line: bytes) -> None:
    lines = log_of(scenario(seconds=0.1))
    with pytest.raises(UsageError, match="line 2"):
        replay([lines[0], line])


def test_skip_join_serves_waited_for_jobs_beside_a_huge_one() -> None:
    huge = {"size_gb": 10_000}
    some = {"class": "interactive", "count": 20, "per_s": 2, "median_gb": 0.5, "deviation": 0.3}
    run = simulate(scenario(jobs=(huge,), mixes=(some,), seconds=30))
    waited = [job.took_ns or 1 << 62 for job in run.jobs if job.size_bytes < 1e12]
    assert len(waited) == 20
    # Half a gigabyte at a terabyte a second, after the unit in flight; a few meet one another.
    assert max(waited) < 15e6


def test_a_window_that_will_be_missed_is_said_long_before() -> None:
    window = {"size_gb": 4000, "deadline_s": 60, "class": "scavenge"}
    busy = {"kind": "training", "device": "gpu0", "compute_ms": 50, "tells": True}
    run = simulate(scenario(busy, jobs=(window,), accelerator={"kernel_gb_per_s": 100}, seconds=90))
    (job,) = run.jobs
    assert job.is_missed
    assert job.warned_ns is not None
    assert job.warned_ns < 15e9


def test_a_window_that_can_be_kept_is_kept_without_a_warning() -> None:
    window = {"size_gb": 2000, "deadline_s": 60, "class": "scavenge"}
    quiet = {"kind": "duty", "device": "gpu0", "windows": [[0, 20]], "tells": True}
    run = simulate(scenario(quiet, jobs=(window,), accelerator={"kernel_gb_per_s": 100}, seconds=90))
    (job,) = run.jobs
    assert not job.is_missed
    assert job.warned_ns is None


def test_a_recorder_that_is_full_says_how_much_it_left_out() -> None:
    recorder = TraceRecorder(events_max=10)
    simulate(scenario(DUTY, seconds=2), recorder=recorder)
    assert len([each for each in recorder.trace()["traceEvents"] if each["ph"] != "M"]) == 10
    assert recorder.left_out > 10


def test_single_times_are_told_of_each_co_runner() -> None:
    told: dict[str, list[int]] = {}
    run = simulate(
        scenario(REQUESTS, seconds=3), times=lambda name, figures: told.update({name: list(figures["latency"])})
    )
    latencies = sorted(told["requests"])
    assert len(latencies) == run.co_runners[0].steps > 100
    assert latencies[-1] == run.co_runners[0].figures["latency"].most
