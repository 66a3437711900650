"""What the simulated machine measures of itself: idle cores and pressure, and the vendor's windows of a device."""

from __future__ import annotations

from math import exp

from ..core import MS, SECOND, Host, Telemetry

SAMPLE_NS = 100 * MS
PRESSURE_MEMORY_NS = 10 * SECOND


class HostGauge:
    """Idle cores as the mean since the last sample, and CPU pressure as the kernel's ten-second figure."""

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self._sampled_ns = 0
        self._used_ns = 0.0
        self._short_ns = 0
        self._pressure = 0.0
        self._host = Host(cores, cores * 1000)

    def pass_time(self, elapsed_ns: int, others_cores: float, *, is_short: bool) -> None:
        """So many cores were used by others; `is_short` while anybody got less than it wanted."""
        self._used_ns += others_cores * elapsed_ns
        if is_short:
            self._short_ns += elapsed_ns

    def read(self, now_ns: int) -> Host:
        """The figures, at most a tenth of a second old."""
        elapsed_ns = now_ns - self._sampled_ns
        if elapsed_ns >= SAMPLE_NS:
            fading = exp(-elapsed_ns / PRESSURE_MEMORY_NS)
            self._pressure = self._pressure * fading + (1 - fading) * self._short_ns / elapsed_ns
            idle_milli = max(0, round((self._cores - self._used_ns / elapsed_ns) * 1000))
            self._host = Host(self._cores, idle_milli, round(self._pressure * 1000))
            self._sampled_ns, self._used_ns, self._short_ns = now_ns, 0.0, 0
        return self._host


class DeviceGauge:
    """The vendor's windows: how much of each had others' kernels on the device, and how much any."""

    def __init__(self, window_ns: int, *, is_per_process: bool) -> None:
        self._window_ns = window_ns
        self._is_per_process = is_per_process
        self._others_ns = 0
        self._any_ns = 0
        self.next_ns = window_ns if window_ns else 1 << 62
        self.newest: Telemetry | None = None

    def pass_time(self, elapsed_ns: int, *, is_others: bool, is_ours: bool) -> None:
        """Time went by with kernels of others, or of ours, or none."""
        if is_others:
            self._others_ns += elapsed_ns
        if is_others or is_ours:
            self._any_ns += elapsed_ns

    def add_others(self, busy_ns: int) -> None:
        """Time that others were busy and we were not."""
        self._others_ns += busy_ns
        self._any_ns += busy_ns

    def close(self) -> None:
        """The window is over; the next one begins."""
        others_milli = self._others_ns * 1000 // self._window_ns if self._is_per_process else -1
        busy_milli = min(1000, self._any_ns * 1000 // self._window_ns)
        self.newest = Telemetry(self.next_ns, self._window_ns, busy_milli, min(1000, others_milli))
        self._others_ns = self._any_ns = 0
        self.next_ns += self._window_ns
