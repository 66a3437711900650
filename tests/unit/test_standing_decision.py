"""A driver's half of the contract: the policy is asked when something it waits for has come, and not otherwise."""

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
    Grant,
    Job,
    JobClass,
    Telemetry,
    UnitReport,
    View,
    Watch,
)
from ohdiff.scheduling.standing import StandingDecision

CPU = DeviceView("cpu", DeviceKind.CPU, 1)
JOB = Job(1, JobClass.SCAVENGE, 0, 1000)
GRANT = Grant("cpu", 1)
IDLE = CoRunner("job", "cpu", Activity.IDLE, since_ns=0)
BUSY = CoRunner("job", "cpu", Activity.BUSY, since_ns=0)
VIEW = View((JOB,), (CPU,), (IDLE,))


class Scripted:
    """Decides as it is told, and counts."""

    def __init__(self, decision: Decision) -> None:
        self.decision = decision
        self.views: list[View] = []

    def decide(self, now_ns: int, view: View) -> Decision:
        self.views.append(view)
        return self.decision


def asked(decision: Decision, view: View = VIEW) -> StandingDecision:
    """A driver that has asked once, at 100 ms."""
    standing = StandingDecision(Scripted(decision))
    assert standing.refresh(100 * MS, view)
    return standing


GRANTED = Decision((GRANT,))
REFUSED = Decision((), (Watch("cpu", quiet_ns_min=2 * MS),))


def test_nothing_is_granted_before_the_first_decision() -> None:
    assert StandingDecision(Scripted(GRANTED)).grant("cpu") is None


def test_without_a_cause_the_policy_is_not_asked_again() -> None:
    standing = asked(GRANTED)
    moved = replace(VIEW, jobs=(replace(JOB, bytes_left=5),), devices=(replace(CPU, in_flight=1, served_ns=7),))
    assert not standing.refresh(10**12, moved)
    assert standing.grant("cpu") == GRANT


def test_time_is_a_cause_when_it_was_asked_for() -> None:
    standing = asked(Decision((GRANT,), wake_ns=150 * MS))
    assert standing.due_ns(VIEW) == 150 * MS
    assert not standing.refresh(150 * MS - 1, VIEW)
    assert standing.refresh(150 * MS, VIEW)


@pytest.mark.parametrize(
    "view",
    [
        replace(VIEW, jobs=()),
        replace(VIEW, jobs=(JOB, replace(JOB, job=2))),
        replace(VIEW, jobs=(replace(JOB, job_class=JobClass.NORMAL),)),
        replace(VIEW, devices=(replace(CPU, is_usable=False),)),
        replace(VIEW, devices=(replace(CPU, is_leased=False),)),
        replace(VIEW, devices=(replace(CPU, peer_class=JobClass.NORMAL),)),
        replace(VIEW, co_runners=()),
        replace(VIEW, co_runners=(IDLE, replace(IDLE, name="other"))),
    ],
)
def test_what_changes_the_outline_is_a_cause(view: View) -> None:
    assert asked(GRANTED).refresh(101 * MS, view)


def test_a_last_unit_a_stretched_one_and_a_failed_one_are_causes() -> None:
    few = asked(Decision((replace(GRANT, units_max=2),)))
    good = UnitReport(1, took_ns=10, expected_ns=10)
    few.note_unit("cpu", good)
    assert not few.refresh(101 * MS, VIEW)
    few.note_unit("cpu", good)
    assert few.refresh(101 * MS, VIEW)
    watched = asked(Decision((GRANT,), (Watch("cpu", stretch_milli_max=1300),)))
    watched.note_unit("cpu", UnitReport(1, took_ns=13, expected_ns=10))
    assert not watched.refresh(101 * MS, VIEW)
    watched.note_unit("cpu", UnitReport(1, took_ns=14, expected_ns=10))
    assert watched.refresh(101 * MS, VIEW)
    failed = asked(GRANTED)
    failed.note_unit("cpu", replace(good, is_ok=False))
    assert failed.refresh(101 * MS, VIEW)


def test_busy_is_a_cause_once_for_each_time() -> None:
    standing = asked(Decision((GRANT,), (Watch("cpu", is_busy_told=True),)))
    busy = replace(VIEW, co_runners=(BUSY,))
    assert standing.refresh(101 * MS, busy)
    assert not standing.refresh(102 * MS, busy)
    assert standing.refresh(103 * MS, replace(VIEW, co_runners=(replace(BUSY, since_ns=103 * MS),)))


def test_busy_is_no_cause_where_nobody_watches_for_it() -> None:
    assert not asked(GRANTED).refresh(101 * MS, replace(VIEW, co_runners=(BUSY,)))


def test_quiet_is_a_cause_when_it_has_lasted_and_not_twice() -> None:
    standing = asked(REFUSED, replace(VIEW, co_runners=(BUSY,)))
    quiet = replace(VIEW, co_runners=(replace(IDLE, since_ns=105 * MS),))
    assert standing.due_ns(quiet) == 107 * MS
    assert not standing.refresh(107 * MS - 1, quiet)
    assert standing.refresh(107 * MS, quiet)
    assert not standing.refresh(200 * MS, quiet)
    assert standing.due_ns(quiet) is None


def test_reports_are_causes_where_they_are_watched() -> None:
    standing = asked(Decision((GRANT,), (Watch("cpu", is_report_told=True),)))
    stepped = replace(VIEW, co_runners=(replace(IDLE, steps=1),))
    assert standing.refresh(101 * MS, stepped)
    assert not standing.refresh(102 * MS, stepped)
    windowed = replace(stepped, devices=(replace(CPU, telemetry=Telemetry(5, MS)),))
    assert standing.refresh(103 * MS, windowed)
    assert not asked(GRANTED).refresh(101 * MS, stepped)


def test_the_policy_gets_its_memory_back() -> None:
    memory = (("mine", (1, 2)),)
    policy = Scripted(Decision((GRANT,), wake_ns=0, memory=memory))
    standing = StandingDecision(policy)
    standing.refresh(1, VIEW)
    standing.refresh(2, VIEW)
    assert [view.memory for view in policy.views] == [(), memory]


def report(took_ns: int, *, is_probe: bool = False) -> UnitReport:
    return UnitReport(ended_ns=110 * MS, took_ns=took_ns, expected_ns=MS, is_probe=is_probe)


def test_of_several_units_since_the_last_decision_the_most_telling_is_heard_of() -> None:
    standing = asked(GRANTED)
    assert standing.last_unit("cpu") is None
    for took_ns in (MS, 3 * MS, 2 * MS):
        standing.note_unit("cpu", report(took_ns))
    assert standing.last_unit("cpu") == report(3 * MS)
    standing.note_unit("cpu", report(MS, is_probe=True))
    standing.note_unit("cpu", report(4 * MS))
    assert standing.last_unit("cpu") == report(MS, is_probe=True)
    assert standing.last_unit("other") is None


def test_after_a_decision_the_next_unit_is_heard_of_whatever_it_says() -> None:
    standing = asked(Decision((GRANT,), wake_ns=120 * MS))
    standing.note_unit("cpu", report(3 * MS))
    assert standing.refresh(120 * MS, VIEW)
    assert standing.last_unit("cpu") == report(3 * MS)
    standing.note_unit("cpu", report(MS))
    assert standing.last_unit("cpu") == report(MS)
