"""The owner's limits: the share of a device that may be used at all, and the device memory that is kept.

Memory is bounded by what is free, since an allocation of ours that makes a co-runner's fail is the worst impact of all.
"""

from __future__ import annotations

from ..core import SECOND, DeviceView, Trim, View
from .draft import Draft, accelerators

MEMORY_FREE_MILLI_MAX = 250
MEMORY_BYTES_MAX = 2 << 30
PARK_AFTER_NS = 30 * SECOND


class DeviceShare:
    """Caps the share of time on every accelerator.

    Parameters
    ----------
    share_milli : 1000 for no cap.
    """

    def __init__(self, share_milli: int) -> None:
        self._share_milli = share_milli

    def apply(self, now_ns: int, view: View, draft: Draft) -> None:
        """Limit what is permitted; a probe is short and rare enough already."""
        for device in accelerators(view):
            if device.device in draft.permits and not draft.permits[device.device].is_probe:
                draft.limit_duty(device.device, self._share_milli)


class DeviceMemory:
    """Gives memory back when little is free, and everything after half a minute without a grant."""

    def apply(self, now_ns: int, view: View, draft: Draft) -> None:
        """Order trims; an accelerator that holds nothing needs none."""
        for device in accelerators(view):
            if device.held_bytes > 0:
                self._trim(now_ns, device, draft)

    def _trim(self, now_ns: int, device: DeviceView, draft: Draft) -> None:
        key = f"memory:{device.device}"
        if device.device in draft.permits:
            # Others may take memory at any time, and nothing else asks about a device that runs undisturbed.
            draft.watch(device.device, is_report_told=True)
            keep_bytes = _keep_bytes(device)
            if keep_bytes < device.held_bytes:
                draft.trims.append(Trim(device.device, keep_bytes))
            return
        (unused_ns,) = draft.remembered(key) or (now_ns,)
        draft.remember(key, (unused_ns,))
        if now_ns - unused_ns >= PARK_AFTER_NS:
            draft.trims.append(Trim(device.device, 0, is_parked=True))
        else:
            draft.wake(unused_ns + PARK_AFTER_NS)


def _keep_bytes(device: DeviceView) -> int:
    if device.telemetry is None or device.telemetry.free_bytes < 0:
        return device.held_bytes
    without_us_bytes = device.telemetry.free_bytes + device.held_bytes
    return min(without_us_bytes * MEMORY_FREE_MILLI_MAX // 1000, MEMORY_BYTES_MAX)
