"""Strict priority at unit borders: no new unit while a consenting co-runner is busy or was so a moment ago.

The idea of XSched's highest-priority-first (OSDI'25): suspend what is below the best ready priority. Changed: the
limit is the time in flight, 1 ms, not a count of commands (as Orion's budget of outstanding durations,
EuroSys'24, and REEF's two-deep queue, OSDI'22); and pauses shorter than 2 ms are not used, since filling the 1 ms gaps
between iterations cost a co-runner 5 to 11 % of its latency in the model, and leaving them cost 1 to 2 % of idle time.

What is in flight takes up to twice its time once the co-runner is back, so that it is gone within its own length and
1 ms only where it is 1 ms or less.
"""

from __future__ import annotations

from ..core import MS, Activity, DeviceKind, DeviceView, View
from .draft import Draft, telling_co_runners

TURN_NS = 50 * MS  # how long a lease is kept while a peer of the same class waits


class StrictPriority:
    """Yields to co-runners that say BUSY, and to ohdiff processes whose job matters more.

    Parameters
    ----------
    quiet_ns : how long all of a device's telling co-runners must have been idle.
    beside_ns : the most work in flight on an accelerator that such a co-runner uses.
    turn_ns : after so long with the lease a peer of the same class gets it.
    """

    def __init__(self, quiet_ns: int, beside_ns: int, turn_ns: int = TURN_NS) -> None:
        self._quiet_ns = quiet_ns
        self._beside_ns = beside_ns
        self._turn_ns = turn_ns

    def apply(self, now_ns: int, view: View, draft: Draft) -> None:
        """Refuse the devices that others need."""
        for device in view.devices:
            self._yield_to_co_runners(now_ns, view, draft, device)
            self._yield_to_peers(now_ns, view, draft, device)

    def _yield_to_co_runners(self, now_ns: int, view: View, draft: Draft, device: DeviceView) -> None:
        telling = telling_co_runners(view, device.device)
        if not telling:
            return
        if device.kind is not DeviceKind.CPU:
            draft.limit_flight(device.device, self._beside_ns)
        is_busy = any(each.activity is Activity.BUSY for each in telling)
        idle_since_ns = max(each.since_ns for each in telling)
        if is_busy or now_ns - idle_since_ns < self._quiet_ns:
            # Until it has been quiet nothing that it does changes this, and a server turns busy 100 times a second.
            draft.watch(device.device, quiet_ns_min=self._quiet_ns)
            draft.refuse(device.device)
        else:
            draft.watch(device.device, is_busy_told=True)

    def _yield_to_peers(self, now_ns: int, view: View, draft: Draft, device: DeviceView) -> None:
        if not device.is_leased or not view.jobs:
            return
        key = f"priority:{device.device}"
        (leased_ns,) = draft.remembered(key) or (now_ns,)
        draft.remember(key, (leased_ns,))
        if device.peer_class is None:
            return
        own_class = min(job.job_class for job in view.jobs)
        if device.peer_class < own_class:
            draft.refuse(device.device)
        elif device.peer_class == own_class:
            if now_ns - leased_ns >= self._turn_ns:
                draft.refuse(device.device)
            else:
                draft.wake(leased_ns + self._turn_ns)
