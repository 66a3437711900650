"""Threads on the CPU follow what others leave idle, and shrink under the kernel's pressure figures (PSI).

The aim is MS Manners' (SOSP'99): a job of low importance that regulates itself. Changed: PSI is read instead of own
progress, and the answer is a number of threads, halved under pressure and grown by one, before any pause.
"""

from __future__ import annotations

from ..core import MS, SECOND, DeviceKind, DeviceView, Host, View
from .draft import Draft

CPU_PRESSURE_MILLI_MAX = 100
IO_PRESSURE_MILLI_MAX = 200
MEMORY_PRESSURE_MILLI_MAX = 50
IDLE_MILLI_MIN = 250  # of one core: with less, even one thread stands in the way
LOOK_EVERY_NS = 250 * MS
GROW_EVERY_NS = SECOND


class CpuPressure:
    """Chooses the number of threads on each CPU device, none while others need all of it."""

    def apply(self, now_ns: int, view: View, draft: Draft) -> None:
        """Set the threads, and ask to look again soon."""
        for device in view.devices:
            if device.kind is DeviceKind.CPU and view.jobs:
                self._follow(now_ns, view.host, device, draft)

    def _follow(self, now_ns: int, host: Host, device: DeviceView, draft: Draft) -> None:
        key = f"pressure:{device.device}"
        threads, changed_ns = draft.remembered(key) or (device.threads_max, now_ns)
        idle_threads = min(device.threads_max, max(1, (host.cores_idle_milli + 250) // 1000))
        since_ns = now_ns - changed_ns
        if is_pressed(host) and since_ns >= GROW_EVERY_NS:
            threads, changed_ns = max(1, threads // 2), now_ns
        elif threads < idle_threads and since_ns >= GROW_EVERY_NS:
            threads, changed_ns = threads + 1, now_ns
        threads = min(threads, idle_threads)
        draft.remember(key, (threads, changed_ns))
        draft.shape(device.device, threads=threads)
        draft.wake(now_ns + LOOK_EVERY_NS)
        if host.cores_idle_milli < IDLE_MILLI_MIN:
            draft.refuse(device.device)


def is_pressed(host: Host) -> bool:
    """Whether somebody waits for cores, for the disk or for memory more than is nobody's business."""
    return (
        host.cpu_pressure_milli > CPU_PRESSURE_MILLI_MAX
        or host.io_pressure_milli > IO_PRESSURE_MILLI_MAX
        or host.memory_pressure_milli > MEMORY_PRESSURE_MILLI_MAX
    )
