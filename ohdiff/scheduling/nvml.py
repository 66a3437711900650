"""NVML's counters for one accelerator, by nvidia-ml-py where it is installed and the driver lets us ask.

Windows are a sixth of a second to a second long. Where per-process samples are refused (MIG, some containers) only the
whole device's share is told, which includes our own work.
"""

from __future__ import annotations

import importlib
import os
from contextlib import suppress
from typing import Any, Final

from .core import MS, Telemetry

_REFRESH_NS: Final = 170 * MS


class NvmlSignals:
    """The newest window of one accelerator; see `open_nvml`."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        self._newest: Telemetry | None = None
        self._stamp_us = 0

    def read(self, now_ns: int) -> Telemetry | None:
        """A cached window, asked for anew when it is a sixth of a second old; None where the driver does not tell."""
        if self._newest is None or now_ns - self._newest.at_ns >= _REFRESH_NS:
            with suppress(self._nvml.NVMLError):
                busy = int(self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu) * 10
                free = int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).free)
                self._newest = Telemetry(now_ns, _REFRESH_NS, busy, self._others_milli(), free)
        return self._newest

    def close(self) -> None:
        """Ask no more."""
        with suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()

    def _others_milli(self) -> int:
        """The others' share of the multiprocessors in samples since the last call; -1 where that is not told."""
        try:
            samples = self._nvml.nvmlDeviceGetProcessUtilization(self._handle, self._stamp_us)
        except self._nvml.NVMLError as error:
            # No sample at all means that nobody was at work.
            return 0 if error.value == self._nvml.NVML_ERROR_NOT_FOUND else -1
        self._stamp_us = max((sample.timeStamp for sample in samples), default=self._stamp_us)
        own = os.getpid()
        return min(1000, sum(int(sample.smUtil) * 10 for sample in samples if sample.pid != own))


def open_nvml(device: str) -> NvmlSignals | None:
    """The counters of the accelerator with this UUID, or at this PCI address.

    None without nvidia-ml-py, the driver, or leave to ask.
    """
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return None
    by_uuid = device.startswith(("GPU-", "MIG-"))
    try:
        nvml.nvmlInit()
        find = nvml.nvmlDeviceGetHandleByUUID if by_uuid else nvml.nvmlDeviceGetHandleByPciBusId
        return NvmlSignals(nvml, find(device))
    except nvml.NVMLError:
        return None
