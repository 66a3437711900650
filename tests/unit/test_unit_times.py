"""What units take alone: the least of the last minutes, by kind and size, and the size that fits into a time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ohdiff.scheduling.core import MS, SECOND, US
from ohdiff.scheduling.unit_times import EPOCH_NS, UnitTimes

MIB = 1 << 20


def test_the_first_unit_of_its_size_is_believed() -> None:
    assert UnitTimes({}).expected_ns("host: file", MIB, 5 * MS) == 5 * MS


def test_but_not_if_it_took_longer_than_anything_calibrated_explains() -> None:
    times = UnitTimes({"host": 1_000_000_000})
    assert times.expected_ns("host: file", 1_000_000, 90 * MS) == 2 * MS + 300 * US
    assert times.expected_ns("host: file", 1_000_000, 2 * MS) == 2 * MS
    assert times.expected_ns("device: file", 1_000_000, 90 * MS) == 90 * MS


def test_the_least_of_a_kind_and_size_counts() -> None:
    times = UnitTimes({})
    for took_ns in (5 * MS, 3 * MS, 4 * MS):
        times.note(0, "host: file", MIB, took_ns)
    assert times.expected_ns("host: file", MIB, 9 * MS) == 3 * MS
    assert times.expected_ns("host: files", MIB, 9 * MS) == 9 * MS


def test_a_size_that_was_never_seen_lies_on_the_line_of_its_neighbours() -> None:
    times = UnitTimes({})
    times.note(0, "host: file", MIB, 3 * MS)
    assert times.expected_ns("host: file", 4 * MIB, 90 * MS) == 12 * MS
    assert times.expected_ns("host: file", 4 * MIB, 10 * MS) == 10 * MS
    assert times.expected_ns("host: file", MIB // 4, 90 * MS) == 3 * MS // 4 + 300 * US
    times.note(0, "host: file", 5 * MIB, 7 * MS)
    assert times.expected_ns("host: file", 3 * MIB, 90 * MS) == 5 * MS
    assert times.expected_ns("host: file", MIB // 2, 90 * MS) == 5 * MS // 2
    assert times.expected_ns("host: file", 10 * MIB, 90 * MS) == 14 * MS


def test_a_device_that_became_slower_is_found_out() -> None:
    times = UnitTimes({})
    times.note(0, "host: file", MIB, MS)
    for number in range(1, 4):
        times.note(number * EPOCH_NS, "host: file", MIB, 2 * MS)
    assert times.expected_ns("host: file", MIB, 9 * MS) == 2 * MS


def test_a_unit_of_a_length_lies_between_those_that_were_seen() -> None:
    times = UnitTimes({})
    times.note(0, "host: file", MIB, MS)
    times.note(0, "host: file", 3 * MIB, 3 * MS)
    assert times.size_bytes("host: file", 2 * MS) == 2 * MIB
    assert times.size_bytes("host: file", MS // 2) == MIB // 2
    # Beyond what was seen, twice as large at most: what a launch costs is not in proportion.
    assert times.size_bytes("host: file", 100 * MS) == 6 * MIB


def test_before_anything_was_seen_what_is_calibrated_tells_the_size() -> None:
    times = UnitTimes({"device": 8_000_000_000})
    assert times.size_bytes("device: ids", 2 * MS) == 8_000_000
    assert 0 < times.size_bytes("host: file", 2 * MS) < 8_000_000
    assert times.rate_bytes_per_s == 8_000_000_000


@given(st.integers(1, 1000), st.integers(0, 500_000), st.integers(100_000, 10 * MS))
def test_sizes_come_to_fit_their_time(ns_per_kib: int, launch_ns: int, unit_ns: int) -> None:
    times = UnitTimes({})

    def took(size_bytes: int) -> int:
        return launch_ns + size_bytes * ns_per_kib // 1024 + 1

    size = 1
    for _ in range(60):
        size = min(1 << 30, max(65_536, times.size_bytes("host: file", unit_ns)))
        times.note(SECOND, "host: file", size, took(size))
    assert size in (65_536, 1 << 30) or took(size) <= 1.3 * unit_ns
    assert size == 1 << 30 or took(2 * size) >= 0.7 * unit_ns
