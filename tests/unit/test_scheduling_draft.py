"""A draft: what several stages ask for comes to the more eager of them, and a refusal keeps what was permitted."""

from __future__ import annotations

from ohdiff.scheduling.core import View, Watch
from ohdiff.scheduling.policies.draft import Draft, Permit

PERMIT = Permit(unit_ns=2000, depth=1)


def draft() -> Draft:
    return Draft(View(), {"gpu0": PERMIT})


def test_of_two_watches_the_more_eager_holds() -> None:
    both = draft()
    both.watch("gpu0", stretch_milli_max=1300, quiet_ns_min=9, is_busy_told=True)
    both.watch("gpu0", stretch_milli_max=1200, quiet_ns_min=5, is_report_told=True)
    both.watch("gpu0")
    both.refuse("gpu0")
    assert both.decision().watches == (Watch("gpu0", 1200, 5, is_busy_told=True, is_report_told=True),)


def test_the_earliest_wish_to_be_asked_again_holds() -> None:
    asked = draft()
    for at_ns in (7, 3, 5):
        asked.wake(at_ns)
    assert asked.wake_ns == 3


def test_the_least_share_and_the_shortest_unit_hold() -> None:
    shaped = draft()
    for unit_ns, duty_milli in ((500, 400), (800, 300), (600, 700)):
        shaped.limit_flight("gpu0", unit_ns)
        shaped.limit_duty("gpu0", duty_milli)
    assert shaped.permits["gpu0"] == PERMIT._replace(unit_ns=250, depth=2, duty_milli=300)


def test_a_limit_of_what_is_in_flight_shortens_units_by_their_number() -> None:
    deep = Draft(View(), {"gpu0": Permit(unit_ns=2000, depth=3)})
    deep.limit_flight("gpu0", 6000)
    assert deep.permits["gpu0"].unit_ns == 2000
    deep.limit_flight("gpu0", 1000)
    assert (deep.permits["gpu0"].unit_ns, deep.permits["gpu0"].depth) == (333, 3)
    deep.limit_flight("gpu0", 1)
    assert deep.permits["gpu0"].unit_ns == 1


def test_units_that_are_shortened_are_two_in_flight() -> None:
    shaped = draft()
    shaped.limit_flight("gpu0", 2000)
    assert shaped.permits["gpu0"] == PERMIT
    shaped.limit_flight("gpu0", 1999)
    assert (shaped.permits["gpu0"].unit_ns, shaped.permits["gpu0"].depth) == (999, 2)


def test_a_share_of_time_has_one_unit_in_flight_so_that_there_is_a_pause_after_each() -> None:
    shared = draft()
    shared.limit_flight("gpu0", 1000)
    shared.chosen["gpu0"] = 1
    assert shared.decision().grants[0].depth == 2
    shared.limit_duty("gpu0", 250)
    (grant,) = shared.decision().grants
    assert (grant.unit_ns, grant.depth, grant.gap_ns) == (500, 1, 1500)


def test_a_refused_device_is_shaped_no_more() -> None:
    refused = draft()
    refused.limit_flight("gpu0", 500)
    refused.refuse("gpu0")
    refused.limit_flight("gpu0", 100)
    refused.refuse("gpu0")
    assert (refused.permits, refused.refused) == ({}, {"gpu0": PERMIT._replace(unit_ns=250, depth=2)})


def test_a_share_of_nothing_is_a_refusal() -> None:
    refused = draft()
    refused.limit_duty("gpu0", 0)
    assert list(refused.refused) == ["gpu0"]
