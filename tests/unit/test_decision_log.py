"""The log of decisions: what its lines hold, what a replay tells of them, and lines that no driver wrote."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ohdiff.errors import UsageError
from ohdiff.scheduling.core import (
    MS,
    SECOND,
    Activity,
    CoRunner,
    Decision,
    DeviceKind,
    DeviceView,
    Job,
    JobClass,
    UnitReport,
    View,
    view_hash,
)
from ohdiff.scheduling.decision_log import DecisionLog, replay
from ohdiff.scheduling.policies.compose import Arbiter, PolicySettings, build_policy

JOB = Job(1, JobClass.SCAVENGE, 0, 1 << 40)
GPU = DeviceView("gpu0", DeviceKind.CUDA, 1 << 30)
SETTINGS = PolicySettings(arbiter=Arbiter.STRETCH, unit_ns=3 * MS)
REPORT = UnitReport(9 * MS, 6 * MS, 3 * MS)
BUSY = CoRunner("llm", "gpu0", Activity.BUSY, 3)


def logged(*views: View, settings: PolicySettings = SETTINGS) -> tuple[list[bytes], list[View], list[Decision]]:
    """The lines of a run that sees these views, a millisecond apart; the views as they were seen, and decisions."""
    lines: list[bytes] = []
    log, policy = DecisionLog(lines.append, settings, "cuda"), build_policy(settings)
    seen, decisions = [], []
    memory = View().memory
    for number, view in enumerate(views):
        now_ns = number * MS
        seen.append(replace(view, memory=memory))
        decisions.append(policy.decide(now_ns, seen[-1]))
        memory = decisions[-1].memory
        log.record(now_ns, seen[-1], decisions[-1])
    return lines, seen, decisions


FIRST = View((JOB,), (GPU,))
SECOND_VIEW = replace(FIRST, devices=(replace(GPU, last_unit=REPORT),))
THIRD = replace(SECOND_VIEW, co_runners=(BUSY,))
FOURTH = replace(THIRD, co_runners=(replace(BUSY, since_ns=4),))
VIEWS = (FIRST, SECOND_VIEW, THIRD, FOURTH, FOURTH, FIRST)


def test_the_head_names_version_driver_and_settings() -> None:
    head = json.loads(logged()[0][0])
    assert (head["version"], head["driver"]) == (1, "cuda")
    assert (head["settings"]["arbiter"], head["settings"]["unit_ns"]) == ("stretch", 3 * MS)


def test_a_line_holds_only_what_has_changed_since_the_last() -> None:
    lines, _, _ = logged(*VIEWS)
    changes = [json.loads(line)["change"] for line in lines[1:]]
    assert set(changes[0]) == {"jobs", "devices"}
    assert changes[1] == {
        "devices": {
            "0": {
                "last_unit": [
                    {"ended_ns": 9 * MS, "took_ns": 6 * MS, "expected_ns": 3 * MS, "is_probe": False, "is_ok": True}
                ]
            }
        }
    }
    assert list(changes[2]) == ["co_runners"]
    assert changes[3] == {"co_runners": {"0": {"since_ns": [4]}}}
    assert changes[4] == {}
    assert changes[5] == {"devices": {"0": {"last_unit": [None]}}, "co_runners": [[]]}


def test_a_lines_hash_is_that_of_the_whole_view_with_what_is_remembered() -> None:
    lines, seen, _ = logged(*VIEWS)
    assert any(view.memory for view in seen)
    assert [json.loads(line)["hash"] for line in lines[1:]] == [view_hash(view) for view in seen]


def test_a_line_tells_the_decision_but_what_it_remembers() -> None:
    late = replace(JOB, deadline_ns=SECOND)
    lines, _, (decision,) = logged(View((late,), (GPU,)))
    told = json.loads(lines[1])["decision"]
    assert told["late"] == [{"job": 1, "late_ns": decision.late[0].late_ns}]
    assert told["wake_ns"] == decision.wake_ns
    assert told["grants"][0]["unit_ns"] == decision.grants[0].unit_ns
    assert told["memory"] == []
    assert decision.memory


def test_a_replay_makes_all_decisions_again_and_names_the_driver() -> None:
    lines, _, decisions = logged(*VIEWS)
    again = replay(lines)
    assert (again.decisions, again.driver, again.difference) == (len(decisions), "cuda", None)


def test_a_replay_tells_how_many_were_the_same_before_the_first_that_was_not() -> None:
    lines, _, _ = logged(*VIEWS)
    changed = lines[3].replace(b'"trims":[]', b'"trims":[0]')
    assert changed != lines[3]
    again = replay([*lines[:3], changed, *lines[4:]])
    assert again.difference is not None
    assert (again.decisions, again.difference.line) == (2, 4)
    assert (again.difference.expected, again.difference.found) == (changed, lines[3])


@pytest.mark.parametrize(
    "change",
    [
        b"5",
        b'"jobs"',
        b"null",
        b"[3]",
        b'{"jobs":5}',
        b'{"devices":{"0":{"device":[7]}}}',
        b'{"jobs":{"0":{"job":5}}}',
        b'{"host":[null]}',
    ],
)
def test_a_change_of_what_was_not_seen_is_refused_with_its_line(change: bytes) -> None:
    lines, _, _ = logged(*VIEWS)
    with pytest.raises(UsageError, match="line 3 of the log"):
        replay([*lines[:2], b'{"change":' + change + b',"decision":{},"hash":"","t":1}\n'])


def test_settings_out_of_bounds_are_refused() -> None:
    lines, _, _ = logged()
    with pytest.raises(UsageError):
        replay([lines[0].replace(b'"unit_ns":3000000', b'"unit_ns":0')])
