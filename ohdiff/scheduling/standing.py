"""A driver's half of the contract in `core.Decision`: what stands decided, and when the policy must be asked again."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from .core import Activity, CoRunner, Decision, DeviceView, Grant, Policy, UnitReport, View, Watch
from .decision_log import DecisionLog


class StandingDecision:
    """Asks the policy when, and only when, the contract says so.

    Parameters
    ----------
    policy : decides.
    log : gets every decision with its view, None for no log.

    Attributes
    ----------
    decision : what holds now; nothing is granted before the first `refresh`.
    """

    def __init__(self, policy: Policy, log: DecisionLog | None = None) -> None:
        self._policy = policy
        self._log = log
        self._asked: View | None = None
        self._asked_ns = 0
        self._is_due = True
        self._units_ended: Counter[str] = Counter()
        self._last_units: dict[str, UnitReport] = {}
        self.decision = Decision()

    def grant(self, device: str) -> Grant | None:
        """What is granted on a device."""
        return next((each for each in self.decision.grants if each.device == device), None)

    def note_unit(self, device: str, report: UnitReport) -> None:
        """A unit ended there."""
        if self._units_ended[device] == 0 or _matters_more(report, self._last_units[device]):
            self._last_units[device] = report
        self._units_ended[device] += 1
        grant, watch = self.grant(device), self._watch(device)
        is_last = grant is not None and 0 < grant.units_max <= self._units_ended[device]
        is_stretched = watch is not None and 0 < watch.stretch_milli_max < report.stretch_milli
        self._is_due = self._is_due or is_last or is_stretched or not report.is_ok

    def last_unit(self, device: str) -> UnitReport | None:
        """What a policy is to hear of the units that ended there: of several since the last decision the most telling.

        Where two end at once, the second of them may look as if nobody had been in its way.
        """
        return self._last_units.get(device)

    def refresh(self, now_ns: int, view: View) -> bool:
        """Ask if it is time; tells whether that was done. `view` is what is seen now, its memory is set here."""
        if not self._must_ask(now_ns, view):
            return False
        view = replace(view, memory=self.decision.memory)
        decision = self._policy.decide(now_ns, view)
        if self._log is not None:
            self._log.record(now_ns, view, decision)
        self.decision, self._asked, self._asked_ns = decision, view, now_ns
        self._is_due = False
        self._units_ended.clear()
        return True

    def due_ns(self, view: View) -> int | None:
        """When to look again if nothing happens before; None for not by time."""
        times = [] if self.decision.wake_ns is None else [self.decision.wake_ns]
        for watch in self.decision.watches:
            since_ns = _quiet_since_ns(view, watch.device)
            if watch.quiet_ns_min >= 0 and self.grant(watch.device) is None and since_ns is not None:
                quiet_ns = since_ns + watch.quiet_ns_min
                if quiet_ns > self._asked_ns:
                    times.append(quiet_ns)
        return min(times, default=None)

    def _must_ask(self, now_ns: int, view: View) -> bool:
        if self._asked is None or self._is_due or _outline(view) != _outline(self._asked):
            return True
        if self.decision.wake_ns is not None and now_ns >= self.decision.wake_ns:
            return True
        return any(self._is_seen(now_ns, view, self._asked, watch) for watch in self.decision.watches)

    def _is_seen(self, now_ns: int, view: View, asked: View, watch: Watch) -> bool:
        """Whether what a watch is for has come since the last decision."""
        device = watch.device
        if self.grant(device) is None:
            since_ns = _quiet_since_ns(view, device)
            if watch.quiet_ns_min >= 0 and since_ns is not None:
                quiet_ns = since_ns + watch.quiet_ns_min
                if self._asked_ns < quiet_ns <= now_ns:
                    return True
        elif watch.is_busy_told and _busy(view, device) - _busy(asked, device):
            return True
        return watch.is_report_told and _reports(view, device) != _reports(asked, device)

    def _watch(self, device: str) -> Watch | None:
        return next((each for each in self.decision.watches if each.device == device), None)


def _outline(view: View) -> tuple[object, ...]:
    """What of a view calls for a decision whenever it changes."""
    jobs = tuple((job.job, job.job_class) for job in view.jobs)
    # A co-runner that comes is watched by no one yet, and one that went away will never be seen to turn quiet.
    telling = tuple((each.name, each.device) for each in view.co_runners if each.activity is not Activity.UNKNOWN)
    return jobs, telling, tuple((each.device, each.is_usable, each.is_leased, each.peer_class) for each in view.devices)


def _on(view: View, device: str) -> list[CoRunner]:
    return [each for each in view.co_runners if each.device == device and each.activity is not Activity.UNKNOWN]


def _busy(view: View, device: str) -> set[tuple[str, int]]:
    """The busy co-runners, each with the begin of its work, so that a new piece of work is seen as one."""
    return {(each.name, each.since_ns) for each in _on(view, device) if each.activity is Activity.BUSY}


def _quiet_since_ns(view: View, device: str) -> int | None:
    """Since when all of a device's telling co-runners have been idle; None while one is not."""
    telling = _on(view, device)
    if any(each.activity is Activity.BUSY for each in telling):
        return None
    return max((each.since_ns for each in telling), default=0)


def _reports(view: View, device: str) -> tuple[object, ...]:
    steps = tuple((each.name, each.steps) for each in view.co_runners if each.device == device)
    return steps, tuple(_window_ns(each) for each in view.devices if each.device == device)


def _window_ns(device: DeviceView) -> int | None:
    return None if device.telemetry is None else device.telemetry.at_ns


def _matters_more(report: UnitReport, other: UnitReport) -> bool:
    """A probe's report does, and that of the unit that others held up the most."""
    return (report.is_probe, report.stretch_milli) >= (other.is_probe, other.stretch_milli)
