"""Stretch-probe: our own unit taking longer than it does alone says that somebody else works on the device.

LEDBAT (RFC 6817) does this with a network's delay and MS Manners (SOSP'99) with a program's own progress; here the
measure is a unit's time on a time-sliced accelerator, a hundred times fresher than the vendor's windows and in need of
no privilege and no consent. Changed: not a proportional controller but stop and look again, because any collision costs
the co-runner a unit; the baseline is calibrated by unit size instead of learned from the smallest delay seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from ..core import MS, US, Activity, CoRunner, UnitReport, View
from .draft import Draft, accelerators, telling_co_runners


@dataclass(frozen=True, slots=True)
class StretchLimits:
    """When a unit counts as stretched, and how long to keep away then.

    Model on public traces, load .31 and .83: p50 and p99 at most +0.6 %, 97 % and 42 % of idle time. A longer first
    pause harms less and finds less idle time; probes of 0.5 ms instead of 0.25 double the harm.

    Parameters
    ----------
    unit_milli_max : a unit's stretch above which somebody else is there.
    probe_milli_max, probe_excess_ns_min : the same for a probe; both must be passed, as clocks jitter by 0.1 ms.
    probe_ns : length of a probe.
    pause_ns_min, pause_ns_max : the first pause, which doubles with each collision, up to the last.
    """

    unit_milli_max: int = 1300
    probe_milli_max: int = 1500
    probe_excess_ns_min: int = 150 * US
    probe_ns: int = 250 * US
    pause_ns_min: int = 20 * MS
    pause_ns_max: int = 160 * MS


class Mode(IntEnum):
    """Where the search for a free device stands."""

    LOOK = 0
    RUN = 1
    WAIT = 2


@dataclass(frozen=True, slots=True)
class _State:
    mode: Mode
    until_ns: int
    pause_ns: int
    seen_ns: int  # the end of the last report that was judged


class StretchProbe:
    """Runs while units keep their time, stops when one is stretched, and looks again with a short unit after a pause.

    Parameters
    ----------
    limits : when a unit counts as stretched, and for how long to keep away.
    is_hint_heard : whether co-runners that say what they do are left to strict priority.
    """

    def __init__(self, limits: StretchLimits, *, is_hint_heard: bool = True) -> None:
        self._limits = limits
        self._is_hint_heard = is_hint_heard

    def apply(self, now_ns: int, view: View, draft: Draft) -> None:
        """Refuse stretched devices; where one is to be looked at, permit one probe."""
        for device in accelerators(view):
            state = self._remembered(draft, device.device)
            if device.last_unit is not None and device.last_unit.ended_ns > state.seen_ns:
                state = self._judged(now_ns, view, device.device, device.last_unit, state)
            if state.mode is Mode.WAIT and now_ns >= state.until_ns:
                state = _State(Mode.LOOK, 0, state.pause_ns, state.seen_ns)
            if state.mode is Mode.LOOK and self._telling(view, device.device):
                state = _State(Mode.RUN, 0, state.pause_ns, state.seen_ns)
            draft.remember(f"stretch:{device.device}", (state.mode, state.until_ns, state.pause_ns, state.seen_ns))
            self._say(draft, device.device, state)

    def _remembered(self, draft: Draft, device: str) -> _State:
        values = draft.remembered(f"stretch:{device}")
        if not values:
            return _State(Mode.LOOK, 0, self._limits.pause_ns_min, -1)
        mode, until_ns, pause_ns, seen_ns = values
        return _State(Mode(mode), until_ns, pause_ns, seen_ns)

    def _judged(self, now_ns: int, view: View, device: str, report: UnitReport, state: _State) -> _State:
        """The state after a new report. What a telling co-runner explains is left to strict priority."""
        seen_ns = report.ended_ns
        if state.mode is Mode.WAIT or (state.mode is Mode.LOOK and not report.is_probe):
            return _State(state.mode, state.until_ns, state.pause_ns, seen_ns)
        if not self._is_stretched(report) or self._is_explained(view, device, report):
            pause_ns = state.pause_ns if state.mode is Mode.RUN else self._limits.pause_ns_min
            return _State(Mode.RUN, 0, pause_ns, seen_ns)
        longer_ns = min(2 * state.pause_ns, self._limits.pause_ns_max)
        return _State(Mode.WAIT, now_ns + state.pause_ns, longer_ns, seen_ns)

    def _is_stretched(self, report: UnitReport) -> bool:
        limits = self._limits
        if not report.is_probe:
            return report.stretch_milli > limits.unit_milli_max
        excess_ns = report.took_ns - report.expected_ns
        return report.stretch_milli > limits.probe_milli_max and excess_ns > limits.probe_excess_ns_min

    def _say(self, draft: Draft, device: str, state: _State) -> None:
        if state.mode is Mode.WAIT:
            draft.refuse(device)
            draft.wake(state.until_ns)
        elif state.mode is Mode.LOOK:
            draft.shape(device, unit_ns=self._limits.probe_ns, depth=1, units_max=1, is_probe=True)
        else:
            draft.watch(device, stretch_milli_max=self._limits.unit_milli_max)

    def _is_explained(self, view: View, device: str, report: UnitReport) -> bool:
        telling = self._telling(view, device)
        return any(each.activity is Activity.BUSY or each.since_ns > report.started_ns for each in telling)

    def _telling(self, view: View, device: str) -> list[CoRunner]:
        return telling_co_runners(view, device) if self._is_hint_heard else []
