"""A stand-in for kvikio on the stand-in device: a read is a real one of the file, into the device's memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from types import ModuleType
from typing import Any

import pytest

from .fake_cupy import Machine


class CompatMode(IntEnum):
    """As kvikio's."""

    OFF = 0
    ON = 1
    AUTO = 2


@dataclass
class Storage:
    """What kvikio and the driver say, and what shall go wrong.

    Attributes
    ----------
    has_gds, allows_compat : see kvikio.cufile_driver.
    is_reached : whether the files lie where GPUDirect Storage reaches.
    failing_reads, short_reads : numbers, from 0, of the reads that fail, or give fewer bytes.
    before_read : called with each read's number.
    reads : (offset, size) of each.
    open_files : how many are open.
    """

    machine: Machine
    has_gds: bool = True
    allows_compat: bool = False
    is_reached: bool = True
    failing_reads: frozenset[int] = frozenset()
    short_reads: frozenset[int] = frozenset()
    before_read: Callable[[int], None] = lambda number: None
    compat_mode: CompatMode = CompatMode.AUTO
    reads: list[tuple[int, int]] = field(default_factory=list)
    open_files: int = 0

    def get(self, name: str) -> bool:
        """A property of the driver."""
        return {"is_gds_available": self.has_gds, "allow_compat_mode": self.allows_compat}[name]

    @contextmanager
    def set(self, name: str, value: CompatMode) -> Iterator[None]:
        """A setting, for a while."""
        assert name == "compat_mode"
        before, self.compat_mode = self.compat_mode, value
        try:
            yield
        finally:
            self.compat_mode = before

    def open(self, path: str, flags: str) -> CuFile:
        """A file, if it may be read without the compatibility mode."""
        assert flags == "r"
        assert self.compat_mode is CompatMode.OFF
        if not self.is_reached:
            raise RuntimeError("cuFile error: GPUDirect Storage not supported on current file")
        return CuFile(self, path)


class CuFile:
    """An open file."""

    def __init__(self, storage: Storage, path: str) -> None:
        self._storage = storage
        self._fd = os.open(path, os.O_RDONLY)
        storage.open_files += 1

    def fileno(self) -> int:
        """Its descriptor."""
        return self._fd

    def close(self) -> None:
        """Close it."""
        os.close(self._fd)
        self._storage.open_files -= 1

    def read(self, target: Any, size: int, file_offset: int) -> int:
        """Fill device memory."""
        storage = self._storage
        number = len(storage.reads)
        storage.reads.append((file_offset, size))
        storage.before_read(number)
        if number in storage.failing_reads:
            raise RuntimeError("cuFile error: input/output error")
        interface = target.__cuda_array_interface__
        assert interface["shape"] == (size,)
        assert interface["typestr"] == "|u1"
        assert file_offset % 4096 == 0
        data = os.pread(self._fd, size - (100 if number in storage.short_reads else 0), file_offset)
        storage.machine.write(interface["data"][0], data)
        return len(data)


def install(patch: pytest.MonkeyPatch, machine: Machine, **attributes: Any) -> Storage:
    """Make `import kvikio` give a stand-in with these attributes."""
    storage = Storage(machine, **attributes)
    for name, contents in {
        "kvikio": {"CuFile": storage.open, "CompatMode": CompatMode, "__version__": "26.10"},
        "kvikio.cufile_driver": {"get": storage.get},
        "kvikio.defaults": {"set": storage.set},
    }.items():
        module = ModuleType(name)
        module.__dict__.update(contents)
        patch.setitem(sys.modules, name, module)
    return storage
