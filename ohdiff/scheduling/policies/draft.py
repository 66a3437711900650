"""A decision in the making: what each stage of a policy reads and changes within one call of `decide`.

A stage may permit, refuse or reshape a device's work, choose its job, and remember integers for the next call. The
draft lives for that call only, so that a policy of stages is still a pure function.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from ..core import (
    SHORT_UNITS_DEEP,
    Activity,
    CoRunner,
    Decision,
    DeviceKind,
    DeviceView,
    Grant,
    Lateness,
    Trim,
    View,
    Watch,
)


class Permit(NamedTuple):
    """How a device may be used: the fields of a Grant without its job, and a share of time instead of a gap."""

    unit_ns: int
    depth: int
    duty_milli: int = 1000
    units_max: int = 0
    threads: int = 1
    is_probe: bool = False


class Draft:
    """What is to be decided.

    Attributes
    ----------
    permits : by device, for those that may be used.
    refused : by device, what was permitted before a stage refused it.
    allowed : by device, the jobs that may run on it; a device that is not named takes any.
    chosen : by device, the job that runs on it.
    urgent : jobs that go before their like.
    """

    def __init__(self, view: View, permits: dict[str, Permit]) -> None:
        self.permits = permits
        self.refused: dict[str, Permit] = {}
        self.allowed: dict[str, frozenset[int]] = {}
        self.chosen: dict[str, int] = {}
        self.urgent: set[int] = set()
        self.trims: list[Trim] = []
        self.late: list[Lateness] = []
        self.wake_ns: int | None = None
        self._watches: dict[str, Watch] = {}
        self._remembered = dict(view.memory)
        self._memory: dict[str, tuple[int, ...]] = {}

    def refuse(self, device: str) -> None:
        """No new unit on this device."""
        permit = self.permits.pop(device, None)
        if permit is not None:
            self.refused.setdefault(device, permit)

    def shape(self, device: str, **changes: Any) -> None:
        """Change the permit of a device that has one."""
        if device in self.permits:
            self.permits[device] = self.permits[device]._replace(**changes)

    def limit_flight(self, device: str, flight_ns: int) -> None:
        """Let no more work than this be in flight on the device: units are shortened, and two at least make it up."""
        permit = self.permits.get(device)
        if permit is not None and permit.unit_ns * permit.depth > flight_ns:
            depth = max(permit.depth, SHORT_UNITS_DEEP)
            self.shape(device, unit_ns=max(1, flight_ns // depth), depth=depth)

    def limit_duty(self, device: str, duty_milli: int) -> None:
        """Let the device be used for at most this share of time; refuse it at 0."""
        if duty_milli <= 0:
            self.refuse(device)
        elif device in self.permits and self.permits[device].duty_milli > duty_milli:
            self.shape(device, duty_milli=duty_milli)

    def wake(self, at_ns: int) -> None:
        """Ask again at this time or before."""
        if self.wake_ns is None or at_ns < self.wake_ns:
            self.wake_ns = at_ns

    def watch(
        self,
        device: str,
        *,
        stretch_milli_max: int = 0,
        quiet_ns_min: int = -1,
        is_busy_told: bool = False,
        is_report_told: bool = False,
    ) -> None:
        """Add to what is watched; where two stages differ the more eager one holds."""
        old = self._watches.get(device, Watch(device))
        stretches = [limit for limit in (old.stretch_milli_max, stretch_milli_max) if limit]
        quiets = [quiet for quiet in (old.quiet_ns_min, quiet_ns_min) if quiet >= 0]
        self._watches[device] = Watch(
            device,
            min(stretches, default=0),
            min(quiets, default=-1),
            old.is_busy_told or is_busy_told,
            old.is_report_told or is_report_told,
        )

    def remembered(self, key: str) -> tuple[int, ...]:
        """What was remembered under this key at the last call, () for nothing."""
        return self._remembered.get(key, ())

    def remember(self, key: str, values: tuple[int, ...]) -> None:
        """Keep integers for the next call; what is not remembered again is forgotten."""
        self._memory[key] = values

    def decision(self) -> Decision:
        """The decision as it stands."""
        return Decision(
            tuple([_grant(device, self.chosen[device], self.permits[device]) for device in sorted(self.permits)]),
            tuple([self._watches[device] for device in sorted(self._watches)]),
            tuple(self.trims),
            tuple(self.late),
            self.wake_ns,
            tuple(sorted(self._memory.items())),
        )


def _grant(device: str, job: int, permit: Permit) -> Grant:
    gap_ns = permit.unit_ns * (1000 - permit.duty_milli) // permit.duty_milli
    depth = 1 if gap_ns else permit.depth  # a pause follows each unit: with a second one in flight there would be none
    return Grant(device, job, permit.unit_ns, depth, gap_ns, permit.units_max, permit.threads, permit.is_probe)


class Stage(Protocol):
    """One concern of a policy."""

    def apply(self, now_ns: int, view: View, draft: Draft) -> None:
        """Change the draft, knowing nothing but the time, the view, and what stands in the draft."""
        ...


def accelerators(view: View) -> Iterator[DeviceView]:
    """All devices that are not the CPU."""
    return (device for device in view.devices if device.kind is not DeviceKind.CPU)


def telling_co_runners(view: View, device: str) -> list[CoRunner]:
    """The co-runners of a device that say what they do."""
    return [each for each in view.co_runners if each.device == device and each.activity is not Activity.UNKNOWN]
