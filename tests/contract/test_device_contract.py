"""The emulated device keeps the laws, and the laws catch devices that do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from device_contract import LAWS, DeviceContract, MakeDevice
from support.emulation import running_server

from ohdiff.errors import DeviceError
from ohdiff.scheduling.core import MS, Unit, UnitDone
from ohdiff.scheduling.emulated import EmulatedDevice


@pytest.fixture(scope="module")
def socket_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with running_server(tmp_path_factory.mktemp("emulated") / "socket") as server:
        yield server.path


@pytest.fixture
def make(socket_path: Path) -> Iterator[MakeDevice]:
    made: list[EmulatedDevice] = []

    def make_one() -> EmulatedDevice:
        made.append(EmulatedDevice(socket_path))
        return made[-1]

    yield make_one
    for device in made:
        device.park()


@pytest.mark.parametrize("law", LAWS, ids=[law.__name__ for law in LAWS])
def test_the_emulated_device_keeps_the_law(law: Callable[[MakeDevice], None], make: MakeDevice) -> None:
    law(make)


class Waiting(EmulatedDevice):
    """Waits for what it was given."""

    def submit(self, unit: Unit) -> None:
        super().submit(unit)
        self.waited = ()
        while not (done := super().poll()):
            pass
        self.waited = done

    def poll(self) -> tuple[UnitDone, ...]:
        waited, self.waited = getattr(self, "waited", ()), ()
        return waited


class Hasty(EmulatedDevice):
    """Says that units end sooner than they can."""

    def submit(self, unit: Unit) -> None:
        super().submit(Unit(unit.number, unit.job, unit.size_bytes, max(1, unit.expected_ns // 50), unit.is_probe))


class Remembering(EmulatedDevice):
    """Tells of units that were lost."""

    def park(self) -> None:
        lost = [UnitDone(unit, at_ns, at_ns + MS) for unit, at_ns in self._in_flight.values()]
        super().park()
        self.lost = tuple(lost)

    def poll(self) -> tuple[UnitDone, ...]:
        lost, self.lost = getattr(self, "lost", ()), ()
        return lost + super().poll()


@pytest.mark.parametrize(
    ("broken", "law"),
    [
        (Waiting, DeviceContract.submitting_does_not_wait_for_the_unit),
        (Hasty, DeviceContract.times_are_of_the_monotonic_clock),
        (Remembering, DeviceContract.what_is_lost_by_parking_is_not_told_of),
    ],
)
def test_a_broken_device_is_caught(
    broken: type[EmulatedDevice], law: Callable[[MakeDevice], None], socket_path: Path
) -> None:
    device = broken(socket_path)
    try:
        with pytest.raises(AssertionError):
            law(lambda: device)
    finally:
        EmulatedDevice.park(device)


def test_a_device_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="does not answer"):
        EmulatedDevice(tmp_path / "nothing").submit(Unit(1, 1, 1, 1))
