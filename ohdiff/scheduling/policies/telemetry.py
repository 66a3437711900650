"""The vendor's windows: a device may be used when its last window showed others at work for next to no time.

A window is a sixth of a second to a second long, so this is late by that much; where a window does not tell our work
from others', it is blind while we run, and then only windows in which we had no unit are believed.
"""

from __future__ import annotations

from ..core import SECOND, DeviceView, Telemetry, View
from .draft import Draft, accelerators

BUSY_MILLI_MAX = 20
RUN_NS = SECOND  # how long to run, blind, before the next pause


class TelemetryWindows:
    """Permits a device by its last window of counters; a device without any is left to the other stages.

    Parameters
    ----------
    busy_milli_max : share of a window that others may have been busy.
    """

    def __init__(self, busy_milli_max: int = BUSY_MILLI_MAX) -> None:
        self._busy_milli_max = busy_milli_max

    def apply(self, now_ns: int, view: View, draft: Draft) -> None:
        """Refuse the devices that others used in the last window."""
        for device in accelerators(view):
            draft.watch(device.device, is_report_told=True)
            if device.telemetry is None:
                continue
            if device.telemetry.others_milli < 0:
                self._look_in_pauses(now_ns, device, device.telemetry, draft)
            elif device.telemetry.others_milli > self._busy_milli_max:
                draft.refuse(device.device)

    def _look_in_pauses(self, now_ns: int, device: DeviceView, telemetry: Telemetry, draft: Draft) -> None:
        """Run for a while after a quiet window in which we had no unit; pause then until the next such window."""
        key = f"telemetry:{device.device}"
        paused_ns, run_until_ns = draft.remembered(key) or (now_ns, now_ns)
        is_ours = telemetry.at_ns - telemetry.window_ns < paused_ns
        if now_ns >= run_until_ns and not is_ours and telemetry.busy_milli <= self._busy_milli_max:
            paused_ns = run_until_ns = now_ns + RUN_NS
        draft.remember(key, (paused_ns, run_until_ns))
        if now_ns < run_until_ns:
            draft.wake(run_until_ns)
        else:
            draft.refuse(device.device)
