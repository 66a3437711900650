"""Files read straight into a device's memory, past the CPU and the page cache, and cut and hashed there.

By kvikio, over NVIDIA's cuFile, and only where both say that GPUDirect Storage is there for the very file: their
compatibility modes, which read through the CPU, are not used. Whatever goes wrong ends a file's windows early; who
reads the file goes on by the CPU from the last cut, with the same result.
"""

from __future__ import annotations

import importlib
import os
import threading
import weakref
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from ohdiff.chunking.device_memory import DeviceMemory
from ohdiff.errors import DeviceError

from .device import DeviceFaultError, OutOfDeviceMemoryError
from .engine import CudaEngine

# What is read at a time. Reads that do not begin at a multiple of a page are not made past the CPU.
WINDOW_BYTES: Final = 32 << 20
_PAGE: Final = 4096
_HINT: Final = "install it: pip install 'ohdiff[gds12]', or gds13, as the driver allows"
_ID_SIZE: Final = 32


@dataclass(frozen=True, slots=True)
class Window:
    """Chunks of a file that lie on the device.

    Attributes
    ----------
    start : offset in the file of the first chunk.
    memory : their bytes, back to back, for as long as somebody holds it.
    cuts : exclusive end of each chunk in it.
    ids : 32 bytes for each.
    """

    start: int
    memory: DeviceMemory
    cuts: list[int]
    ids: bytes

    @property
    def end(self) -> int:
        """Offset in the file of what follows."""
        return self.start + self.cuts[-1]


class DirectReader:
    """Opens files for one engine; any thread may.

    Attributes
    ----------
    file_size_min : what is shorter is the CPU's.
    read_bytes : bytes that came past the CPU.

    Raises
    ------
    DeviceError
        By the constructor: kvikio is not installed, or GPUDirect Storage is not there, and why.
    """

    def __init__(self, engine: CudaEngine) -> None:
        self.engine = engine
        # Shorter files are over before a device has begun.
        self.file_size_min = WINDOW_BYTES
        self.read_bytes = 0
        self._kvikio = load_kvikio()
        self._fault: str | None = None
        self._refused = 0
        self._short = 0
        # Where a read failed something may still be written, for all we know: that memory is not used again.
        self._lost: list[DeviceMemory] = []
        self._lock = threading.Lock()
        check_storage()
        self._defaults = importlib.import_module("kvikio.defaults")

    @property
    def reason(self) -> str:
        """A sentence: what was read, and what was not as usual so far."""
        return "; ".join([f"{self.read_bytes / 1e9:.1f} GB were read past the CPU", *self.notes])

    @property
    def notes(self) -> list[str]:
        """What was not as usual, in words."""
        notes = []
        if self._refused:
            notes.append(f"{self._refused} large files lie where GPUDirect Storage does not reach")
        if self._short:
            notes.append(f"the CPU read {self._short} large files to their end for want of device memory")
        if self._fault is not None:
            notes.append(f"{self._fault}; the CPU read what was left")
        return notes

    def open(self, fd: int) -> DirectFile | None:
        """An open file to be read from its beginning; None if the CPU has to."""
        if self._fault is not None or not self.engine.is_on_device:
            return None
        kvikio = self._kvikio
        try:
            # The very file that is open, whatever its name leads to by now.
            with self.engine.device.bound(), self._defaults.set("compat_mode", kvikio.CompatMode.OFF):
                return DirectFile(self, kvikio.CuFile(f"/proc/self/fd/{fd}", "r"))
        except (DeviceFaultError, RuntimeError, OSError):
            with self._lock:
                self._refused += 1
            return None

    def disable(self, why: str) -> None:
        """From now on the CPU reads."""
        with self._lock:
            self._fault = self._fault or why

    def note_short(self) -> None:
        """There was too little memory for the next window of a file."""
        with self._lock:
            self._short += 1

    def read(self, file: Any, target: DeviceMemory, position: int) -> bool:
        """Fill memory from a file; whether all of it was there, and could be read."""
        try:
            with self.engine.device.bound():
                count = file.read(_Target(target), target.size, position)
        except (DeviceFaultError, RuntimeError, OSError) as error:
            with self._lock:
                self._lost.append(target)
            self.disable(f"GPUDirect Storage failed: {error}")
            return False
        with self._lock:
            self.read_bytes += count
        return bool(count == target.size)


class DirectFile:
    """One file, read window by window; what is read of it stays readable while it is held."""

    def __init__(self, reader: DirectReader, file: Any) -> None:
        self._reader = reader
        self._engine = reader.engine
        self._file = file
        self._stream = reader.engine.device.new_stream()
        self._finalizer = weakref.finalize(self, file.close)

    def windows(self, size: int) -> Iterator[Window]:
        """The file's chunks up to `size`, its length when it was opened; fewer if something goes wrong."""
        with self._noted():
            yield from self._windows(size)

    def hashed(self, start: int, ends: Sequence[int]) -> Window | None:
        """Adjoining chunks of the file from an offset on, whose ends are known; None if the CPU has to hash them."""
        with self._noted():
            if not self._engine.pace.wait(is_movable=True):
                return None
            page = start // _PAGE * _PAGE
            memory = self._engine.new_memory(ends[-1] - page)
            if self._reader.read(self._file, memory, page):
                chunks, cuts = memory.part(start - page, memory.size), [end - start for end in ends]
                return Window(start, chunks, cuts, self._engine.hash_resident(chunks, cuts))
        return None

    def fetch(self, window: Window, start: int, target: memoryview) -> None:
        """Copy a range of a window to host memory; DeviceError if the device has failed."""
        self._engine.device.fetch_memory(window.memory.part(start, start + len(target)), target)

    def distrust(self, why: str) -> None:
        """The device gave no bytes, or wrong ones: nothing is read into it any more."""
        self._reader.disable(why)
        self._engine.disable(why)

    def read_again(self, offset: int, target: memoryview) -> bool:
        """Read a range of the file by the CPU; whether it was all there."""
        return os.preadv(self._file.fileno(), [target], offset) == len(target)

    def is_proved(self, window: Window, first: int, last: int, data: memoryview) -> bool:
        """Whether the CPU gives these bytes the ids of chunks `first` to `last` (exclusive) of a window."""
        start = window.cuts[first - 1] if first else 0
        ends = array("Q", [cut - start for cut in window.cuts[first:last]])
        return self._engine.cpu.hash_chunks(data, ends) == window.ids[first * _ID_SIZE : last * _ID_SIZE]

    @contextmanager
    def _noted(self) -> Iterator[None]:
        """Whatever the device does, it is the CPU's turn after that."""
        try:
            yield
        except OutOfDeviceMemoryError:
            self._reader.note_short()
        except (DeviceError, DeviceFaultError) as error:
            self._reader.disable(f"reading into the device failed: {error}")

    def _windows(self, size: int) -> Iterator[Window]:
        # What follows the last cut of a window is copied in front of the next one, whose own bytes begin at a page.
        engine, room = self._engine, -(-self._engine.rule.max_size // _PAGE) * _PAGE
        carry: DeviceMemory | None = None
        for position in range(0, size, WINDOW_BYTES):
            if not engine.pace.wait(is_movable=True):
                # Others need the device: the CPU goes on.
                return
            count = min(WINDOW_BYTES, size - position)
            whole = engine.new_memory(room + count)
            kept = 0 if carry is None else carry.size
            if not self._reader.read(self._file, whole.part(room, room + count), position):
                return
            memory = whole.part(room - kept, room + count)
            if carry is not None:
                self._copy(carry, memory.pointer)
            cut_bytes, ids = engine.cut_resident(memory, is_last=position + count == size)
            cuts = array("Q", cut_bytes).tolist()
            carry = memory.part(cuts[-1] if cuts else 0, memory.size)
            if cuts:
                yield Window(position - kept, memory, cuts, ids)

    def _copy(self, source: DeviceMemory, target: int) -> None:
        device = self._engine.device
        with device.bound():
            device.copy_within(target, source.pointer, source.size, self._stream)
            self._stream.synchronize()


class _Target:
    """Device memory as kvikio wants it."""

    def __init__(self, memory: DeviceMemory) -> None:
        self._memory = memory

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        memory = self._memory
        return {"shape": (memory.size,), "typestr": "|u1", "data": (memory.pointer, False), "version": 3}


def load_kvikio() -> Any:
    """Kvikio, or a DeviceError that says why there is none."""
    try:
        return importlib.import_module("kvikio")
    except ImportError as error:
        is_missing = (error.name or "").partition(".")[0] == "kvikio"
        what = "kvikio is not installed" if is_missing else f"kvikio cannot be loaded: {error}"
        raise DeviceError(what, hint=_HINT, item="kvikio") from error
    except Exception as error:
        # Where cuFile is not found, for one.
        raise DeviceError(f"kvikio cannot be loaded: {error}", hint=_HINT, item="kvikio") from error


def check_storage() -> None:
    """Raise a DeviceError unless GPUDirect Storage is there, and nothing else may pass for it."""
    driver = importlib.import_module("kvikio.cufile_driver")
    if not driver.get("is_gds_available"):
        raise DeviceError(
            "GPUDirect Storage is not there: the kernel has no nvidia-fs", hint="see gdscheck -p", item="kvikio"
        )
    if driver.get("allow_compat_mode"):
        raise DeviceError(
            "cuFile may read through the CPU without saying so",
            hint="set CUFILE_ALLOW_COMPAT_MODE=false, or allow_compat_mode in cufile.json",
            item="kvikio",
        )
