"""Who uses a device, as the driver's management library says it if nvidia-ml-py is installed; else nobody knows."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class DeviceUser:
    """A process on a device; its memory in bytes, None where the driver keeps that to itself."""

    process_id: int
    name: str
    memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """How a device is used now; shares in percent of the last second or so."""

    users: tuple[DeviceUser, ...]
    busy_percent: int
    memory_percent: int


def use_of(bus_id: str) -> DeviceUse | None:
    """How the device at a PCI address is used; None if nobody can tell."""
    try:
        library = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        with _opened(library):
            handle = library.nvmlDeviceGetHandleByPciBusId(bus_id.encode())
            rates = library.nvmlDeviceGetUtilizationRates(handle)
            users = {user.process_id: user for user in _users(library, handle)}
            return DeviceUse(tuple(users.values()), int(rates.gpu), int(rates.memory))
    except library.NVMLError:
        return None


@contextmanager
def _opened(library: Any) -> Iterator[None]:
    library.nvmlInit()
    try:
        yield
    finally:
        library.nvmlShutdown()


def _users(library: Any, handle: Any) -> Iterator[DeviceUser]:
    found = [
        *library.nvmlDeviceGetComputeRunningProcesses(handle),
        *library.nvmlDeviceGetGraphicsRunningProcesses(handle),
    ]
    for process in found:
        memory = process.usedGpuMemory
        yield DeviceUser(int(process.pid), _name_of(int(process.pid)), None if memory is None else int(memory))


def _name_of(process_id: int) -> str:
    """What a process calls itself; "" for one that is gone, or another's in a container."""
    try:
        return Path(f"/proc/{process_id}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""
