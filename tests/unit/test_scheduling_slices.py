"""Turns on a device that is shared in time slices."""

from __future__ import annotations

from ohdiff.scheduling.core import MS, US
from ohdiff.scheduling.simulator.co_runners import NEVER_NS
from ohdiff.scheduling.simulator.slices import TimeSlices

SWITCH_NS = 20 * US


def slices() -> TimeSlices:
    return TimeSlices(MS, SWITCH_NS)


def test_who_comes_first_has_the_device_after_a_switch_and_for_as_long_as_it_is_alone() -> None:
    device = slices()
    assert device.owner(5, {"a": 0}) is None
    assert device.next_ns == 5 + SWITCH_NS
    assert device.owner(5 + SWITCH_NS, {"a": 0}) == "a"
    assert device.next_ns == NEVER_NS
    assert device.owner(100 * MS, {"a": 0}) == "a"


def test_who_comes_later_waits_for_the_end_of_the_turn() -> None:
    device = slices()
    device.owner(0, {"a": 0})
    at_ns = SWITCH_NS + 3 * MS + 400 * US
    assert device.owner(at_ns, {"a": 0, "b": 0}) == "a"
    assert device.next_ns == SWITCH_NS + 4 * MS
    assert device.owner(device.next_ns, {"a": 0, "b": 0}) is None
    assert device.next_ns == 2 * SWITCH_NS + 4 * MS
    assert device.owner(device.next_ns, {"a": 0, "b": 0}) == "b"
    assert device.next_ns == 2 * SWITCH_NS + 5 * MS


def test_a_turn_that_cannot_have_begun_before_lasts_from_then() -> None:
    device = slices()
    device.owner(0, {"a": 0})
    assert device.owner(3 * MS, {"a": 3 * MS - 100 * US, "b": 0}) == "a"
    assert device.next_ns == 4 * MS - 100 * US


def test_a_turn_ends_with_its_work() -> None:
    device = slices()
    device.owner(0, {"a": 0, "b": 0})
    assert device.owner(500 * US, {"b": 0}) is None
    assert device.owner(500 * US + SWITCH_NS, {"b": 0}) == "b"


def test_turns_go_round() -> None:
    device = TimeSlices(MS, 0)
    names = dict.fromkeys("abc", 0)
    assert [device.owner(number * MS, names) for number in range(5)] == ["a", "b", "c", "a", "b"]


def test_whoever_had_the_last_turn_begins_a_new_one_at_once_after_a_pause() -> None:
    device = slices()
    device.owner(0, {"a": 0})
    assert device.owner(2 * MS, {}) is None
    assert device.owner(10 * MS, {"a": 0}) == "a"
    device.owner(10 * MS + 1, {"a": 0, "b": 0})
    assert device.next_ns == 11 * MS
