"""A stand-in for CuPy with the surface that the engine uses: a device whose memory is checked, and that is as late as
a device may be. What a stream is given runs only when somebody waits for it, or, by chance, earlier; memory is
poisoned; every access must lie inside an allocation. Kernels are their CPU twins (cuda_twins), or their own sources
under the shim. Faults can be ordered.
"""

from __future__ import annotations

import ctypes
import math
import random
import sys
import threading
import weakref
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from types import SimpleNamespace
from typing import Any

import pytest

from .cuda_twins import TWINS, Launch

_POISON = 0xA5
_ILLEGAL_ADDRESS = 700
_OUT_OF_MEMORY = 2
_TYPESTRS = {"float32": "<f4", "float16": "<f2", "int64": "<i8", "uint8": "|u1", "bool": "|b1"}


class CUDARuntimeError(RuntimeError):
    """As CuPy's: carries CUDA's number."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class CUDADriverError(RuntimeError):
    """As CuPy's."""


class NVRTCError(RuntimeError):
    """As CuPy's."""


class CompileException(Exception):  # noqa: N818 - CuPy's name
    """As CuPy's: its text is the compiler's log."""


class OutOfMemoryError(MemoryError):
    """As CuPy's."""


@dataclass
class Machine:
    """The device, its driver, and what shall go wrong.

    Attributes
    ----------
    failing_allocations : numbers, from 0, of the allocations of device memory that find none.
    allocation_size_max : larger ones find none.
    failing_launches : numbers of the launches that the driver refuses.
    wrong_kernel : the kernel of this name writes one wrong word.
    is_dead : everything fails, as after an illegal access.
    shim : the kernels' own sources built for the CPU; None to run their twins instead.
    memory_others : bytes of device memory that other processes hold.
    on_kernel : told the name and the arguments of each kernel when it runs: time may be made to pass.
    eagerness : how likely streams are to go on by themselves when something is enqueued, from 0 to 1; some are never,
        and some hardly ever late.
    """

    name: str = "Fake Device"
    uuid: bytes = bytes(range(1, 17))
    memory_total: int = 1 << 30
    driver_version: int = 12080
    runtime_version: int = 12040
    device_count: int = 1
    failing_allocations: frozenset[int] = frozenset()
    allocation_size_max: int = 1 << 62
    failing_launches: frozenset[int] = frozenset()
    wrong_kernel: str = ""
    compile_log: str = ""
    is_dead: bool = False
    shim: Any = None
    memory_others: int = 0
    on_kernel: Callable[[str, tuple[int, ...]], None] = lambda name, arguments: None
    eagerness: float = 0.3
    seed: int = 0
    allocations: int = 0
    launches: list[str] = field(default_factory=list)
    copied_up: int = 0
    copied_down: int = 0
    memory_peak: int = 0
    lock: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        self._buffers: dict[int, Any] = {}
        self._starts: list[int] = []
        self._pinned: dict[int, int] = {}
        self.streams: weakref.WeakSet[Stream] = weakref.WeakSet()
        self._chance = random.Random(self.seed)
        self.current = threading.local()

    @property
    def memory_used(self) -> int:
        """Bytes that are allocated."""
        return sum(len(buffer) for buffer in self._buffers.values())

    def allocate(self, size: int) -> MemoryPointer:
        """Device memory full of rubbish."""
        with self.lock:
            number, self.allocations = self.allocations, self.allocations + 1
            is_full = self.memory_used + self.memory_others + size > self.memory_total
            if number in self.failing_allocations or size > self.allocation_size_max or is_full:
                raise OutOfMemoryError(f"Out of memory allocating {size:,} bytes")
            buffer = (ctypes.c_ubyte * max(1, size))()
            address = ctypes.addressof(buffer)
            ctypes.memset(address, _POISON, size)
            self._buffers[address] = buffer
            self._starts = sorted(self._buffers)
            self.memory_peak = max(self.memory_peak, self.memory_used)
        return MemoryPointer(self, address, size)

    def free(self, address: int) -> None:
        """Forget an allocation: whoever still uses it is told off."""
        with self.lock:
            buffer = self._buffers.pop(address)
            ctypes.memset(address, _POISON, len(buffer))
            self._starts = sorted(self._buffers)

    def note_pinned(self, address: int, size: int) -> None:
        """Host memory from `address` on is pinned."""
        self._pinned[address] = size

    def is_pinned(self, address: int) -> bool:
        """Whether host memory is pinned."""
        return any(start <= address < start + size for start, size in self._pinned.items())

    def check(self, address: int, size: int) -> None:
        """Raise unless a range lies inside one allocation."""
        with self.lock:
            row = bisect_right(self._starts, address) - 1
            start = self._starts[row] if row >= 0 else 0
            if row < 0 or address + size > start + len(self._buffers[start]):
                raise CUDARuntimeError(_ILLEGAL_ADDRESS, "cudaErrorIllegalAddress: an illegal memory access")

    def owns(self, address: int) -> bool:
        """Whether an address is in device memory."""
        try:
            self.check(address, 1)
        except CUDARuntimeError:
            return False
        return True

    def read(self, address: int, size: int) -> bytes:
        """Bytes of device memory."""
        self.check(address, size)
        return ctypes.string_at(address, size)

    def write(self, address: int, data: bytes) -> None:
        """Overwrite device memory."""
        self.check(address, len(data))
        ctypes.memmove(address, data, len(data))

    def live(self) -> None:
        """Raise if the device is dead."""
        if self.is_dead:
            raise CUDARuntimeError(_ILLEGAL_ADDRESS, "cudaErrorIllegalAddress: the context is gone")

    def eagerness_of_next(self) -> float:
        """That of a new stream."""
        return self._chance.choice((0.0, self.eagerness, 0.9)) if self.eagerness else 0.0

    def go_on(self) -> None:
        """Some streams may get a bit further."""
        for stream in list(self.streams):
            while stream.queue and self._chance.random() < stream.eagerness:
                stream.step()

    def launch(self, name: str, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[int, ...]) -> None:
        """Put a kernel into the current stream."""
        self.live()
        with self.lock:
            number = len(self.launches)
            self.launches.append(name)
            if number in self.failing_launches:
                self.is_dead = True
                raise CUDADriverError("CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure")
            launch = Launch(self, name, grid[0], block[0], args, is_wrong=name == self.wrong_kernel)
            run = TWINS[name] if self.shim is None else self._run_sources
            self.current.streams[-1].enqueue(lambda: (self.on_kernel(name, args), run(launch)))

    def _run_sources(self, launch: Launch) -> None:
        """A kernel as it is written, by the shim (tests/shim), which gives every thread its turn."""
        values = [ctypes.c_uint64(argument) for argument in launch.args]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        seed = ctypes.c_uint64(self.seed)
        name = launch.name.encode()
        result = self.shim.ohdiff_shim_launch(name, launch.blocks, 1, launch.threads, seed, pointers)
        assert result == 0, f"{launch.name}: {result}"


class MemoryPointer:
    """Device memory, freed when nobody holds it."""

    def __init__(self, machine: Machine, address: int, size: int) -> None:
        self.ptr = address
        self.size = size
        self._finalizer = weakref.finalize(self, machine.free, address)


class Stream:
    """Runs what it is given in order, and late."""

    def __init__(self, machine: Machine, priority: int) -> None:
        # As CUDA does: a priority that the device does not have becomes the nearest that it has.
        self.priority = max(-5, min(0, priority))
        self.queue: deque[Callable[[], object]] = deque()
        self._machine = machine
        self.eagerness = machine.eagerness_of_next()
        machine.streams.add(self)

    @property
    def ptr(self) -> int:
        """A handle: copies find their stream by it."""
        return id(self)

    def enqueue(self, work: Callable[[], object]) -> None:
        """Add work."""
        with self._machine.lock:
            self.queue.append(work)
            self._machine.go_on()

    def step(self) -> None:
        """Do the next piece of work."""
        with self._machine.lock:
            if self.queue:
                self.queue.popleft()()

    def synchronize(self) -> None:
        """Do all of it."""
        self._machine.live()
        with self._machine.lock:
            while self.queue:
                self.step()

    def wait_event(self, event: Event) -> None:
        """What follows here comes after what the event marks."""
        mark = event.mark
        assert mark is not None, "nobody has recorded the event"

        def wait() -> None:
            while not mark.is_done:
                mark.stream.step()

        self.enqueue(wait)

    def __enter__(self) -> Stream:
        streams = self._machine.current.__dict__.setdefault("streams", [])
        streams.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._machine.current.streams.pop()


class Event:
    """Marks a point of a stream."""

    def __init__(self) -> None:
        self.mark: Any = None

    def record(self, stream: Stream) -> None:
        """Mark what the stream has been given so far."""
        self.mark = mark = SimpleNamespace(is_done=False, stream=stream)

        def reach() -> None:
            mark.is_done = True

        stream.enqueue(reach)


class MemoryPool:
    """Allocates up to a limit, and keeps nothing."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._limit = 1 << 62
        self._used: weakref.WeakSet[MemoryPointer] = weakref.WeakSet()

    def set_limit(self, size: int) -> None:
        """The most that may be allocated."""
        self._limit = size

    def malloc(self, size: int) -> MemoryPointer:
        """Device memory; sizes are rounded up as CuPy does."""
        self._machine.live()
        size = -(-size // 512) * 512
        if self.total_bytes() + size > self._limit:
            raise OutOfMemoryError(f"Out of memory allocating {size:,} bytes: the limit is {self._limit:,}")
        pointer = self._machine.allocate(size)
        self._used.add(pointer)
        return pointer

    def total_bytes(self) -> int:
        """What is allocated."""
        return sum(pointer.size for pointer in self._used)

    def free_all_blocks(self) -> None:
        """Nothing is kept."""


class PinnedMemory:
    """Pinned host memory."""

    def __init__(self, machine: Machine, size: int) -> None:
        self._buffer = (ctypes.c_ubyte * max(1, size))()
        self.ptr = ctypes.addressof(self._buffer)
        ctypes.memset(self.ptr, _POISON, size)
        machine.note_pinned(self.ptr, size)


class RawModule:
    """Sources whose kernels have twins."""

    def __init__(self, machine: Machine, code: str) -> None:
        self._machine = machine
        self._code = code

    def compile(self) -> None:
        """Fails with the log that was ordered."""
        if self._machine.compile_log:
            raise CompileException(self._machine.compile_log)

    def get_function(self, name: str) -> Callable[..., None]:
        """A kernel: it must be in the source."""
        assert name in self._code, f"{name} is not in the source"
        return lambda grid, block, args: self._machine.launch(name, grid, block, args)


class Array:
    """A flat or shaped array on the device, as far as one is needed to be snapshotted and restored."""

    def __init__(self, machine: Machine, shape: tuple[int, ...], typestr: str, memory: MemoryPointer) -> None:
        self.memory = memory
        self.shape = shape
        self.typestr = typestr
        self._machine = machine

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": self.shape, "typestr": self.typestr, "data": (self.memory.ptr, False), "version": 3}

    @property
    def data(self) -> MemoryPointer:
        """Where it lies."""
        return self.memory

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * int(self.typestr[2:])

    def tobytes(self) -> bytes:
        """A copy, for the tests."""
        return self._machine.read(self.memory.ptr, self.nbytes)


class _Runtime:
    """cupy.cuda.runtime."""

    CUDARuntimeError = CUDARuntimeError

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def getDeviceCount(self) -> int:  # noqa: N802 - CUDA's name, as below
        machine = self._machine
        if machine.driver_version < machine.runtime_version // 1000 * 1000:
            raise CUDARuntimeError(35, "cudaErrorInsufficientDriver: CUDA driver version is insufficient")
        if machine.device_count == 0:
            raise CUDARuntimeError(100, "cudaErrorNoDevice: no CUDA-capable device is detected")
        return machine.device_count

    def driverGetVersion(self) -> int:  # noqa: N802
        return self._machine.driver_version

    def runtimeGetVersion(self) -> int:  # noqa: N802
        return self._machine.runtime_version

    def getDeviceProperties(self, ordinal: int) -> dict[str, Any]:  # noqa: N802
        self._machine.live()
        return {"name": self._machine.name.encode(), "major": 9, "minor": 0, "uuid": self._machine.uuid}

    def deviceGetPCIBusId(self, ordinal: int) -> str:  # noqa: N802
        return f"0000:{ordinal:02x}:00.0"

    def memGetInfo(self) -> tuple[int, int]:  # noqa: N802
        self._machine.live()
        machine = self._machine
        return machine.memory_total - machine.memory_others - machine.memory_used, machine.memory_total

    def deviceSynchronize(self) -> None:  # noqa: N802
        self._machine.live()
        for stream in list(self._machine.streams):
            stream.synchronize()

    def pointerGetAttributes(self, address: int) -> SimpleNamespace:  # noqa: N802
        self._machine.live()
        kind = 2 if self._machine.owns(address) else 1 if self._machine.is_pinned(address) else 0
        return SimpleNamespace(type=kind, device=0)

    def memcpy(self, target: int, source: int, size: int, kind: int) -> None:
        self._machine.live()
        self._copy(target, source, size, kind)

    def memcpyAsync(self, target: int, source: int, size: int, kind: int, stream: int) -> None:  # noqa: N802
        self._machine.live()
        (given,) = [each for each in self._machine.streams if each.ptr == stream]
        given.enqueue(lambda: self._copy(target, source, size, kind))

    def _copy(self, target: int, source: int, size: int, kind: int) -> None:
        machine = self._machine
        if kind in (1, 3):
            machine.check(target, size)
        if kind in (2, 3):
            machine.check(source, size)
        machine.copied_up += size if kind == 1 else 0
        machine.copied_down += size if kind == 2 else 0
        if kind == 3:
            assert abs(target - source) >= size, "the ranges overlap"
        ctypes.memmove(target, source, size)


class FakeCupy:
    """What `import cupy` gives."""

    __version__ = "14.0.0"
    __spec__ = ModuleSpec("cupy", None)

    def __init__(self, machine: Machine) -> None:
        @contextmanager
        def device(ordinal: int) -> Iterator[None]:
            machine.live()
            assert 0 <= ordinal < machine.device_count
            yield

        self.machine = machine
        self.cuda = SimpleNamespace(
            runtime=_Runtime(machine),
            driver=SimpleNamespace(CUDADriverError=CUDADriverError),
            nvrtc=SimpleNamespace(NVRTCError=NVRTCError),
            compiler=SimpleNamespace(CompileException=CompileException),
            memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
            Device=device,
            MemoryPool=lambda: MemoryPool(machine),
            Stream=lambda non_blocking, priority=0: Stream(machine, priority),
            Event=lambda disable_timing: Event(),
            alloc_pinned_memory=lambda size: PinnedMemory(machine, size),
            alloc=machine.allocate,
        )

    def RawModule(self, code: str, options: tuple[str, ...], backend: str) -> RawModule:  # noqa: N802 - CuPy's name
        assert backend == "nvrtc"
        assert all(option.startswith(("-std=", "-I")) for option in options)
        return RawModule(self.machine, code)

    def get_default_pinned_memory_pool(self) -> SimpleNamespace:
        return SimpleNamespace(free_all_blocks=lambda: None)

    def ndarray(self, shape: tuple[int, ...], dtype: str, memptr: MemoryPointer) -> Array:
        if dtype not in _TYPESTRS:
            raise TypeError(f"data type {dtype!r} not understood")
        return Array(self.machine, shape, _TYPESTRS[dtype], memptr)

    def empty(self, count: int, dtype: str) -> Array:
        return Array(self.machine, (count,), _TYPESTRS[dtype], self.machine.allocate(count * int(_TYPESTRS[dtype][2:])))


def install(patch: pytest.MonkeyPatch, **attributes: Any) -> Machine:
    """Make `import cupy` give the stand-in of a machine with these attributes."""
    machine = Machine(**attributes)
    patch.setitem(sys.modules, "cupy", FakeCupy(machine))  # type: ignore[arg-type]
    return machine


def on_device(machine: Machine, data: bytes, shape: tuple[int, ...], typestr: str) -> Array:
    """An array of these bytes on the device."""
    memory = machine.allocate(len(data))
    machine.write(memory.ptr, data)
    return Array(machine, shape, typestr, memory)
