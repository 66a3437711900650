"""Laxity for a backup window: scavenge while there is time, then take a small share by right, then the CPU in full.

XSched's laxity policy (OSDI'25) has two priorities and no test of feasibility. Changed: three zones; the rate is a low
estimate, mean less 1.645 standard errors over the time that is left (Jolteon, NSDI'24, plans with distributions too);
the share by right is capped by what the owner allows; and a window that will be missed is said so in advance.

Two rates are told apart. What idle time has given is planned with here, as more than the share by right is not to be
had of a device. What a CPU does for us alone is planned with in window.py, as at last call we may take it: a job that
waits for others has been given nothing, and would have to begin at once. Slack and zones mean the same for both.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from math import isqrt

from ..core import SECOND, DeviceKind, Job, JobClass, Lateness, View
from .draft import Draft, Permit
from .placement import finish_ns

WINDOW_NS = 10 * SECOND
WINDOWS_KEPT = 30  # weight of a mean that forgets: five minutes
WINDOWS_SURE = 3
LOOK_EVERY_NS = SECOND
QUANTILE_MILLI = 1645  # of the standard normal distribution, for one chance in twenty


class Zone(IntEnum):
    """How far a job may go."""

    SCAVENGE = 0
    CAPPED = 1
    FULL = 2


@dataclass(frozen=True, slots=True)
class LaxityLimits:
    """The zones' borders and the shares that are taken by right.

    Parameters
    ----------
    scavenge_milli_min : with more slack than this part of the window, only idle time is used.
    capped_milli_min : with less than this, the CPU is used in full.
    capped_duty_milli : share of busy devices that is taken between these, at most `impact_milli_max`.
    impact_milli_max : the owner's --max-impact: never more than this share of a device that others use.
    """

    scavenge_milli_min: int = 250
    capped_milli_min: int = 50
    capped_duty_milli: int = 30
    impact_milli_max: int = 100


@dataclass(frozen=True, slots=True)
class _Rate:
    """What a job achieved, in bytes a second: exponential mean and variance over windows."""

    start_ns: int
    bytes_left: int
    windows: int = 0
    mean: int = 0
    variance: int = 0


def zone_of(slack_ns: int, window_ns: int, limits: LaxityLimits) -> Zone:
    """How far a job may go whose window has so much slack.

    Parameters
    ----------
    slack_ns : time until the deadline, less what the job still needs at the rate that is planned with.
    window_ns : from its arrival to its deadline.
    """
    slack_milli = slack_ns * 1000 // max(1, window_ns)
    if slack_milli >= limits.scavenge_milli_min:
        return Zone.SCAVENGE
    return Zone.CAPPED if slack_milli >= limits.capped_milli_min else Zone.FULL


class Laxity:
    """Widens what arbiters refused, by the slack of the most urgent job; interactive jobs have none to lose."""

    def __init__(self, limits: LaxityLimits) -> None:
        self._limits = limits

    def apply(self, now_ns: int, view: View, draft: Draft) -> None:
        """Find each job's zone, and act by the furthest."""
        zone = Zone.SCAVENGE
        for job in view.jobs:
            if job.job_class is JobClass.INTERACTIVE:
                zone = max(zone, Zone.CAPPED)
            if job.deadline_ns is not None:
                zone = max(zone, self._zone(now_ns, view, job, draft))
        if zone is not Zone.SCAVENGE:
            self._widen(view, zone, draft)

    def _zone(self, now_ns: int, view: View, job: Job, draft: Draft) -> Zone:
        deadline_ns = job.deadline_ns or 0
        rate = _measured(now_ns, job, draft)
        left_ns = deadline_ns - now_ns
        slack_ns = left_ns - finish_ns(job.bytes_left, _low_rate(rate, view, left_ns))
        zone = zone_of(slack_ns, deadline_ns - job.arrived_ns, self._limits)
        draft.wake(now_ns + LOOK_EVERY_NS)
        self._warn(view, job, rate, left_ns, draft)
        if zone is not Zone.SCAVENGE:
            draft.urgent.add(job.job)
        return zone

    def _warn(self, view: View, job: Job, rate: _Rate, left_ns: int, draft: Draft) -> None:
        """Say so when even a high estimate of what was achieved, with the share by right on top, does not make it."""
        whole_rate = sum(device.rate_bytes_per_s for device in view.devices)
        accelerator_rate = sum(each.rate_bytes_per_s for each in view.devices if each.kind is not DeviceKind.CPU)
        high_rate = whole_rate
        if rate.windows:
            error = QUANTILE_MILLI * isqrt(rate.variance // rate.windows) // 1000
            if rate.windows < WINDOWS_SURE:
                error = max(error, rate.mean)  # of so few, their variance says little
            high_rate = rate.mean + error + accelerator_rate * self._limits.impact_milli_max // 1000
        need_ns = finish_ns(job.bytes_left, min(high_rate, whole_rate))
        if need_ns > left_ns:
            draft.late.append(Lateness(job.job, need_ns - left_ns))

    def _widen(self, view: View, zone: Zone, draft: Draft) -> None:
        capped_milli = min(self._limits.capped_duty_milli, self._limits.impact_milli_max)
        duty_milli = capped_milli if zone is Zone.CAPPED else self._limits.impact_milli_max
        for device in view.devices:
            refused = draft.refused.get(device.device)
            if device.kind is DeviceKind.CPU and zone is Zone.FULL:
                permit = draft.permits.get(device.device, refused)
                if permit is not None:
                    draft.permits[device.device] = permit._replace(threads=device.threads_max)
            elif refused is not None and duty_milli > 0 and device.peer_class is None:
                draft.permits[device.device] = _by_right(refused, duty_milli)


def _by_right(refused: Permit, duty_milli: int) -> Permit:
    return refused._replace(duty_milli=min(refused.duty_milli, duty_milli), units_max=0, is_probe=False)


def _measured(now_ns: int, job: Job, draft: Draft) -> _Rate:
    key = f"laxity:{job.job}"
    values = draft.remembered(key)
    rate = _Rate(*values) if values else _Rate(now_ns, job.bytes_left)
    if now_ns - rate.start_ns >= WINDOW_NS:
        newest = (rate.bytes_left - job.bytes_left) * SECOND // (now_ns - rate.start_ns)
        windows = min(rate.windows + 1, WINDOWS_KEPT)
        change = newest - rate.mean
        mean = rate.mean + change // windows
        variance = rate.variance + (change * (newest - mean) - rate.variance) // windows
        rate = _Rate(now_ns, job.bytes_left, windows, mean, max(0, variance))
    draft.remember(key, (rate.start_ns, rate.bytes_left, rate.windows, rate.mean, rate.variance))
    return rate


def _low_rate(rate: _Rate, view: View, left_ns: int) -> int:
    """A rate that is kept up over the time left in 19 of 20 cases; half of the devices' own before any measurement."""
    if not rate.windows:
        return sum(device.rate_bytes_per_s for device in view.devices) // 2
    windows_left = max(1, left_ns // WINDOW_NS)
    return max(0, rate.mean - QUANTILE_MILLI * isqrt(rate.variance // windows_left) // 1000)
