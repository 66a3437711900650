"""What a trace for the viewer holds of a run: whole microseconds, our units by job, probes as such, and warnings."""

from __future__ import annotations

from typing import Any

from ohdiff.scheduling.core import MS, SECOND, Decision, Grant, Lateness
from ohdiff.scheduling.simulator.perfetto import TraceRecorder

GRANT = Grant("gpu0", 7, gap_ns=6 * MS)


def events(recorder: TraceRecorder, phase: str) -> list[dict[str, Any]]:
    return [each for each in recorder.trace()["traceEvents"] if each["ph"] == phase]


def test_times_are_in_microseconds() -> None:
    recorder = TraceRecorder()
    recorder.busy("llm", "gpu0", 3 * MS, 5 * MS)
    recorder.ran("gpu0", GRANT, 5 * MS, 9 * MS)
    assert [(each["ts"], each["dur"]) for each in events(recorder, "X")] == [(3000, 2000), (5000, 4000)]


def test_our_runs_are_named_by_their_job_and_probes_as_such() -> None:
    recorder = TraceRecorder()
    recorder.ran("gpu0", GRANT, 0, MS)
    recorder.ran("gpu0", Grant("gpu0", 7, is_probe=True), MS, 2 * MS)
    assert [each["name"] for each in events(recorder, "X")] == ["job 7", "probe"]


def test_a_decision_shows_what_it_grants_and_which_window_will_be_missed() -> None:
    recorder = TraceRecorder()
    recorder.decided(MS, Decision((GRANT,), late=(Lateness(7, 90 * SECOND),)))
    recorder.decided(2 * MS, Decision())
    assert [each["name"] for each in events(recorder, "i")] == ["gpu0: job 7", "job 7 will be 90 s late", "nothing"]
    assert [each["args"] for each in events(recorder, "C")] == [{"gpu0": 0.25}, {"none": 0}]
