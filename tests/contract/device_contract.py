"""The laws that every device must keep, as one suite; a device's test module says how to make one.

A law is a method of `DeviceContract` that takes a `MakeDevice`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from ohdiff import clock
from ohdiff.scheduling.core import MS, SECOND, US, Device, Unit, UnitDone

MakeDevice = Callable[[], Device]
_PATIENCE_NS = 60 * SECOND


def unit(number: int, expected_ns: int = MS, *, is_probe: bool = False) -> Unit:
    return Unit(number, 1, 1000, expected_ns, is_probe)


def collected(device: Device, count: int) -> list[UnitDone]:
    """So many ended units, as they come."""
    until_ns = clock.monotonic_ns() + _PATIENCE_NS
    done: list[UnitDone] = []
    while len(done) < count:
        assert clock.monotonic_ns() < until_ns, "units never end"
        done += device.poll()
        threading.Event().wait(0.0002)
    return done


class DeviceContract:
    """The laws."""

    @staticmethod
    def units_end_in_order_once_each(make: MakeDevice) -> None:
        device = make()
        units = [unit(number, 100 * US) for number in range(1, 21)]
        for each in units:
            device.submit(each)
        assert [done.unit for done in collected(device, 20)] == units
        assert device.poll() == ()

    @staticmethod
    def submitting_does_not_wait_for_the_unit(make: MakeDevice) -> None:
        device = make()
        device.submit(unit(1, SECOND // 2))
        assert device.poll() == ()
        collected(device, 1)

    @staticmethod
    def times_are_of_the_monotonic_clock(make: MakeDevice) -> None:
        device = make()
        before_ns = clock.monotonic_ns()
        device.submit(unit(1, 50 * MS))
        (done,) = collected(device, 1)
        assert before_ns <= done.submitted_ns
        assert done.submitted_ns + 50 * MS <= done.ended_ns <= clock.monotonic_ns()
        assert done.is_ok

    @staticmethod
    def a_parked_device_works_again(make: MakeDevice) -> None:
        device = make()
        device.submit(unit(1))
        collected(device, 1)
        device.park()
        device.park()
        device.submit(unit(2))
        assert [done.unit.number for done in collected(device, 1)] == [2]

    @staticmethod
    def what_is_lost_by_parking_is_not_told_of(make: MakeDevice) -> None:
        device = make()
        device.submit(unit(1, 100 * MS))
        device.park()
        assert device.poll() == ()
        device.submit(unit(2))
        assert [done.unit.number for done in collected(device, 1)] == [2]

    @staticmethod
    def trimming_is_exact_or_less(make: MakeDevice) -> None:
        device = make()
        assert 0 <= device.trim(0) == device.trim(0)
        assert device.trim(1 << 40) <= 1 << 40

    @staticmethod
    def it_says_what_it_is(make: MakeDevice) -> None:
        device = make()
        assert device.name
        assert device.rate_bytes_per_s > 0
        assert device.kind.value


LAWS: tuple[Callable[[MakeDevice], None], ...] = tuple(
    getattr(DeviceContract, name) for name in vars(DeviceContract) if not name.startswith("_")
)
