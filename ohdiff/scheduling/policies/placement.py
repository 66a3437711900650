"""Where a job's bytes go: to the CPU, to an accelerator, or to both, by the predicted finish.

Files too small to be worth a launch stay on the CPU, and an accelerator must promise a finish that is a fifth sooner,
since it costs a lease, copies and somebody's peace. What an accelerator promises is its calibrated rate times the share
of time that we had on it lately, so that a device that is never free is not waited for.
"""

from __future__ import annotations

from enum import StrEnum

from ..core import SECOND, DeviceKind, DeviceView, Job, View
from .draft import Draft

GAIN_MILLI_MIN = 1200
WINDOW_NS = 5 * SECOND
SHARE_MILLI_FIRST = 500  # before the first window


class Where(StrEnum):
    """The choice of devices, from the outside or by prediction."""

    AUTO = "auto"
    CPU = "cpu"
    ACCELERATOR = "accelerator"
    BOTH = "both"


class Placement:
    """Says which jobs may run on which device."""

    def __init__(self, where: Where) -> None:
        self._where = where

    def apply(self, now_ns: int, view: View, draft: Draft) -> None:
        """Allow jobs on devices; a machine with one device has no choice."""
        usable = [device for device in view.devices if device.is_usable]
        rates = {device.device: self._rate(now_ns, view, device, draft) for device in usable}
        if len(usable) < 2:
            return
        cpu_rate = sum(rates[device.device] for device in usable if device.kind is DeviceKind.CPU)
        for device in usable:
            fitting = (job for job in view.jobs if self._fits(job, device, cpu_rate, rates[device.device]))
            draft.allowed[device.device] = frozenset(job.job for job in fitting)

    def _rate(self, now_ns: int, view: View, device: DeviceView, draft: Draft) -> int:
        if device.kind is DeviceKind.CPU:
            idle_milli = min(1000, view.host.cores_idle_milli // max(1, view.host.cores))
            return device.rate_bytes_per_s * idle_milli // 1000
        return device.rate_bytes_per_s * _recent_share(now_ns, view, device, draft) // 1000

    def _fits(self, job: Job, device: DeviceView, cpu_rate: int, device_rate: int) -> bool:
        if job.device:
            return job.device == device.device
        if self._where is Where.CPU:
            return device.kind is DeviceKind.CPU
        if self._where is Where.ACCELERATOR:
            return device.kind is not DeviceKind.CPU
        if device.kind is DeviceKind.CPU or cpu_rate == 0:
            return True
        if job.bytes_left <= job.small_bytes_left:
            return False
        return self._where is Where.BOTH or _gain_milli(job, cpu_rate, device_rate) >= GAIN_MILLI_MIN


def _gain_milli(job: Job, cpu_rate: int, device_rate: int) -> int:
    """How many times sooner the job ends with the accelerator's help, 1000 for no sooner."""
    alone_ns = finish_ns(job.bytes_left, cpu_rate)
    both_ns = max(finish_ns(job.bytes_left, cpu_rate + device_rate), finish_ns(job.small_bytes_left, cpu_rate))
    return alone_ns * 1000 // max(1, both_ns)


def finish_ns(size_bytes: int, rate_bytes_per_s: int) -> int:
    """Time for so many bytes; a very long one at no rate."""
    return size_bytes * SECOND // max(1, rate_bytes_per_s)


def _recent_share(now_ns: int, view: View, device: DeviceView, draft: Draft) -> int:
    """The share of time that our units had on the device lately, while there was work for it."""
    key = f"placement:{device.device}"
    start_ns, served_ns, share_milli = draft.remembered(key) or (now_ns, device.served_ns, SHARE_MILLI_FIRST)
    if not view.jobs:
        start_ns, served_ns = now_ns, device.served_ns
    elif now_ns - start_ns >= WINDOW_NS:
        newest_milli = min(1000, (device.served_ns - served_ns) * 1000 // (now_ns - start_ns))
        # A window in which the device was not tried says nothing about it.
        if device.served_ns > served_ns:
            share_milli = (3 * share_milli + newest_milli) // 4
        start_ns, served_ns = now_ns, device.served_ns
    draft.remember(key, (start_ns, served_ns, share_milli))
    return share_milli
