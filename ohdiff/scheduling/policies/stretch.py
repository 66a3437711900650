"""Stretch-probe: our own unit taking longer than it does alone says that somebody else works on the device.

LEDBAT (RFC 6817) does this with a network's delay and MS Manners (SOSP'99) with a program's own progress; here the
measure is a unit's time on a time-sliced accelerator, a hundred times fresher than the vendor's windows and in need of
no privilege and no consent. Changed: not a proportional controller but stop and look again, because any collision costs
the co-runner a unit; the baseline is calibrated by unit size instead of learned from the smallest delay seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from ..core import MS, SECOND, US, Activity, CoRunner, UnitReport, View
from .draft import Draft, accelerators, telling_co_runners

_HALVED_MILLI = 1750  # beside one other a unit takes twice its time: a limit near to that would never be passed


@dataclass(frozen=True, slots=True)
class StretchLimits:
    """When a unit counts as stretched, how long to keep away then, and how short units are while suspicion lasts.

    A burst that finds units in flight loses what is left of them, one more where that of the first was too little to be
    seen, and a probe for each pause that it outlasts: of 50 ms, 1.8 ms and 2.9 at worst with units of 2 ms, 0.5 and 0.6
    with two of 0.14 ms; docs/scheduling.md has the table. A longer first pause harms less and finds less idle time;
    probes of 0.5 ms instead of 0.25 double their harm.

    Parameters
    ----------
    stretch_milli_max : a unit's stretch above which somebody else is there.
    excess_ns_min : what it must have taken too long besides, as clocks jitter by 0.1 ms; it decides for probes.
    probe_ns : length of a probe.
    pause_ns_min, pause_ns_max : the first pause, which doubles with each collision, up to the last.
    short_ns, calm_ns : the most work in flight until there has been no collision for so long.
    """

    stretch_milli_max: int = 1300
    excess_ns_min: int = 150 * US
    probe_ns: int = 250 * US
    pause_ns_min: int = 20 * MS
    pause_ns_max: int = 160 * MS
    short_ns: int = 280 * US
    calm_ns: int = 10 * SECOND


class Mode(IntEnum):
    """Where the search for a free device stands."""

    LOOK = 0
    RUN = 1
    WAIT = 2


class _State(NamedTuple):
    mode: int  # a Mode
    until_ns: int
    pause_ns: int
    seen_ns: int  # the end of the last report that was judged
    calm_at_ns: int  # until then, units are short


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
            if state.mode == Mode.WAIT and now_ns >= state.until_ns:
                state = state._replace(mode=Mode.LOOK)
            if state.mode == Mode.LOOK and self._telling(view, device.device):
                state = state._replace(mode=Mode.RUN)
            draft.remember(f"stretch:{device.device}", tuple(state))
            self._say(now_ns, draft, device.device, state)

    def _remembered(self, draft: Draft, device: str) -> _State:
        values = draft.remembered(f"stretch:{device}")
        if not values:
            return _State(Mode.LOOK, 0, self._limits.pause_ns_min, -1, 0)
        return _State(*values)

    def _judged(self, now_ns: int, view: View, device: str, report: UnitReport, state: _State) -> _State:
        """The state after a new report. What a telling co-runner explains is left to strict priority."""
        mode, until_ns, pause_ns, _, calm_at_ns = state
        if mode == Mode.WAIT or (mode == Mode.LOOK and not report.is_probe):
            return _State(mode, until_ns, pause_ns, report.ended_ns, calm_at_ns)
        if not self._is_stretched(report) or self._is_explained(view, device, report):
            if mode != Mode.RUN:
                pause_ns = self._limits.pause_ns_min
            return _State(Mode.RUN, until_ns, pause_ns, report.ended_ns, calm_at_ns)
        longer_ns = min(2 * pause_ns, self._limits.pause_ns_max)
        return _State(Mode.WAIT, now_ns + pause_ns, longer_ns, report.ended_ns, now_ns + self._limits.calm_ns)

    def _is_stretched(self, report: UnitReport) -> bool:
        return report.stretch_milli > self._stretch_milli_max(report.expected_ns)

    def _stretch_milli_max(self, expected_ns: int) -> int:
        by_clock = 1000 + self._limits.excess_ns_min * 1000 // max(1, expected_ns)
        return max(self._limits.stretch_milli_max, min(by_clock, _HALVED_MILLI))

    def _say(self, now_ns: int, draft: Draft, device: str, state: _State) -> None:
        if state.mode == Mode.LOOK:
            draft.shape(device, unit_ns=self._limits.probe_ns, depth=1, units_max=1, is_probe=True)
            return
        if now_ns < state.calm_at_ns:
            draft.limit_flight(device, self._limits.short_ns)
        if state.mode == Mode.WAIT:
            draft.refuse(device)
            draft.wake(state.until_ns)
        elif device in draft.permits:
            unit_ns = draft.permits[device].unit_ns
            draft.watch(device, stretch_milli_max=self._stretch_milli_max(unit_ns))
            if now_ns < state.calm_at_ns:
                draft.wake(state.calm_at_ns)

    def _is_explained(self, view: View, device: str, report: UnitReport) -> bool:
        telling = self._telling(view, device)
        return any(each.activity is Activity.BUSY or each.since_ns > report.started_ns for each in telling)

    def _telling(self, view: View, device: str) -> list[CoRunner]:
        return telling_co_runners(view, device) if self._is_hint_heard else []
