"""A CUDA device through CuPy: opening it, memory, streams, copies, modules; every failure as one of three errors.

The only module that imports CuPy, and does so when a device is opened. What it asks of CuPy is little, on purpose: a
test runs the engine on a stand-in with this surface.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from ohdiff.chunking.device_memory import DeviceMemory
from ohdiff.errors import DeviceError

from .host_memory import address_of

if TYPE_CHECKING:
    from typing_extensions import Buffer

_HINT_INSTALL: Final = "install it: pip install 'ohdiff[cuda12]', or cuda13, as the driver allows"
_MEMORY_ALLOCATION: Final = 2
_INSUFFICIENT_DRIVER: Final = 35
_NO_DEVICE: Final = 100
_TO_DEVICE: Final = 1
_TO_HOST: Final = 2
_WITHIN_DEVICE: Final = 3
# cudaMemoryTypeHost: memory that the driver has pinned.
_POINTER_PINNED: Final = 1
_LOG_LINES_MAX: Final = 12
# A lower priority than any device has: CUDA takes the lowest one instead.
_LEAST_PRIORITY: Final = 1000
_DRIVER: Final = Path("/proc/driver/nvidia")
_UUID_SIZE: Final = 16
_UUID: Final = re.compile(r"GPU-([0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12})")


class DeviceFaultError(Exception):
    """The device, its driver or a kernel failed; the work can be done elsewhere."""


class OutOfDeviceMemoryError(DeviceFaultError):
    """An allocation found no memory, on the device or pinned, below the ceiling or at all."""


@dataclass(frozen=True, slots=True)
class DeviceDescription:
    """What a device says of itself; versions as CUDA counts them (12040 is 12.4), memory in bytes.

    `shared_name` is the one by which processes meet on it: its UUID as nvidia-smi writes it, or else its place.
    """

    ordinal: int
    bus_id: str
    shared_name: str
    name: str
    architecture: str
    memory_total: int
    memory_free: int
    driver_version: int
    runtime_version: int


def version_text(version: int) -> str:
    """12040 as "12.4"."""
    return f"{version // 1000}.{version % 1000 // 10}"


def load_cupy() -> Any:
    """CuPy, or a DeviceError that says why there is none."""
    try:
        return importlib.import_module("cupy")
    except ImportError as error:
        missing = error.name or ""
        what = "CuPy is not installed" if missing.partition(".")[0] == "cupy" else f"CuPy cannot be loaded: {error}"
        raise DeviceError(what, hint=_HINT_INSTALL, item="cuda") from error
    except Exception as error:
        raise DeviceError(f"CuPy cannot be loaded: {error}", hint=_HINT_INSTALL, item="cuda") from error


def device_count(cupy: Any) -> int:
    """How many devices the driver shows: at least one.

    Raises
    ------
    DeviceError
        No driver, one that is too old, or no device.
    """
    runtime = cupy.cuda.runtime
    try:
        count = int(runtime.getDeviceCount())
    except runtime.CUDARuntimeError as error:
        raise _no_device(runtime, error) from error
    if count < 1:
        raise DeviceError("the driver shows no CUDA device", hint="see nvidia-smi, and CUDA_VISIBLE_DEVICES")
    return count


def _no_device(runtime: Any, error: Any) -> DeviceError:
    status = getattr(error, "status", 0)
    driver = int(runtime.driverGetVersion())
    if driver == 0:
        return DeviceError("there is no NVIDIA driver", hint="install the driver of the device", item="cuda")
    if status == _INSUFFICIENT_DRIVER:
        has, wants = version_text(driver), version_text(int(runtime.runtimeGetVersion()))
        return DeviceError(
            f"the NVIDIA driver is too old: it is for CUDA {has}, and CuPy was built for CUDA {wants}",
            hint="update the driver, or install the extra of ohdiff that fits it (cuda12, cuda13)",
            item="cuda",
        )
    if status == _NO_DEVICE:
        return DeviceError("the driver shows no CUDA device", hint="see nvidia-smi, and CUDA_VISIBLE_DEVICES")
    return DeviceError(f"CUDA cannot be used: {error}", hint="see nvidia-smi", item="cuda")


class CudaDevice:
    """One device. Every method but the constructor translates errors, and may be called by any thread.

    Raises
    ------
    DeviceError
        By the constructor: it cannot be used, and why.
    """

    def __init__(self, ordinal: int = 0) -> None:
        self.cupy = load_cupy()
        count = device_count(self.cupy)
        if not 0 <= ordinal < count:
            raise DeviceError(f"there is no CUDA device {ordinal}", hint=f"there are {count}", item="cuda")
        self.ordinal = ordinal
        self._cuda = self.cupy.cuda
        self._runtime = self._cuda.runtime
        try:
            with self.bound():
                self.description = self._describe()
        except DeviceFaultError as error:
            raise DeviceError(f"CUDA device {ordinal} cannot be used: {error}", item="cuda") from error

    def _describe(self) -> DeviceDescription:
        properties = self._runtime.getDeviceProperties(self.ordinal)
        name = properties["name"]
        free, total = self._runtime.memGetInfo()
        bus_id = str(self._runtime.deviceGetPCIBusId(self.ordinal))
        return DeviceDescription(
            ordinal=self.ordinal,
            bus_id=bus_id,
            shared_name=shared_name(properties.get("uuid", b""), bus_id),
            name=name.decode() if isinstance(name, bytes) else str(name),
            architecture=f"sm_{properties['major']}{properties['minor']}",
            memory_total=int(total),
            memory_free=int(free),
            driver_version=int(self._runtime.driverGetVersion()),
            runtime_version=int(self._runtime.runtimeGetVersion()),
        )

    @contextmanager
    def bound(self) -> Iterator[None]:
        """What is done inside happens on this device, and fails with DeviceFaultError."""
        with self._translated(), self._cuda.Device(self.ordinal):
            yield

    def free_memory(self) -> int:
        """Bytes that are free now."""
        return int(self._runtime.memGetInfo()[0])

    def new_pool(self, limit_bytes: int) -> Any:
        """A pool of device memory of its own, which fails rather than take more than its limit."""
        pool = self._cuda.MemoryPool()
        pool.set_limit(size=limit_bytes)
        return pool

    def new_stream(self) -> Any:
        """A stream that does not wait for the default one, and whose kernels come after those of any other.

        It is a hint that counts within one process, and among clients of one MPS server.
        """
        return self._cuda.Stream(non_blocking=True, priority=_LEAST_PRIORITY)

    def new_event(self) -> Any:
        """An event without a time stamp."""
        return self._cuda.Event(disable_timing=True)

    def new_pinned(self, size: int) -> Any:
        """Pinned host memory; `ptr` is its address."""
        return self._cuda.alloc_pinned_memory(size)

    def free_pinned(self) -> None:
        """Give back what CuPy keeps of pinned host memory that nobody uses."""
        self.cupy.get_default_pinned_memory_pool().free_all_blocks()

    def is_pinned(self, address: int) -> bool:
        """Whether host memory is pinned, so that it can be copied from without a detour."""
        try:
            return int(self._runtime.pointerGetAttributes(address).type) == _POINTER_PINNED
        except self._runtime.CUDARuntimeError:
            # Drivers before 11 call memory that they do not know an error.
            return False

    def copy_in(self, target: int, source: int, size: int, stream: Any) -> None:
        """Host to device; the source must stay until the stream has got there."""
        self._runtime.memcpyAsync(target, source, size, _TO_DEVICE, stream.ptr)

    def copy_out(self, target: int, source: int, size: int, stream: Any) -> None:
        """Device to host; the target is filled when the stream has got there."""
        self._runtime.memcpyAsync(target, source, size, _TO_HOST, stream.ptr)

    def copy_within(self, target: int, source: int, size: int, stream: Any) -> None:
        """Device to device; the ranges do not overlap."""
        self._runtime.memcpyAsync(target, source, size, _WITHIN_DEVICE, stream.ptr)

    def fetch(self, target: int, source: int, size: int) -> None:
        """Device to host, at once; the source may lie on any device."""
        self._runtime.memcpy(target, source, size, _TO_HOST)

    def fetch_memory(self, memory: DeviceMemory, target: memoryview) -> None:
        """The same for memory that somebody else owns; DeviceError if it fails."""
        try:
            with self.bound(), address_of(target, writable=True) as (address, size):
                self.fetch(address, memory.pointer, size)
        except DeviceFaultError as error:
            raise DeviceError(f"bytes cannot be copied from the device: {error}", item="cuda") from error

    def new_array(self, shape: tuple[int, ...], dtype: str, data: Buffer) -> Any:
        """A CuPy array of these bytes, in memory of CuPy's own.

        Raises
        ------
        DeviceError
            It does not fit.
        TypeError
            CuPy has no such elements.
        """
        try:
            with self.bound(), address_of(data) as (address, size):
                memory = self._cuda.alloc(max(1, size))
                made = self.cupy.ndarray(shape, dtype=dtype, memptr=memory)
                if size:
                    self._runtime.memcpy(int(memory.ptr), address, size, _TO_DEVICE)
                return made
        except DeviceFaultError as error:
            raise DeviceError(f"a tensor cannot be put on the device: {error}", item="cuda") from error

    def device_of(self, pointer: int) -> int:
        """The number of the device whose memory a pointer points to."""
        return int(self._runtime.pointerGetAttributes(pointer).device)

    def synchronize(self) -> None:
        """Wait for everything that this process has given the device."""
        self._runtime.deviceSynchronize()

    def compile(self, name: str, source: str, include_folders: Sequence[Path]) -> Any:
        """A module of kernels, compiled by NVRTC for this device, or taken from CuPy's cache of compiled ones.

        Raises
        ------
        DeviceError
            It does not compile; the message ends with the compiler's log.
        """
        options = ("-std=c++17", *(f"-I{folder}" for folder in include_folders))
        module = self.cupy.RawModule(code=source, options=options, backend="nvrtc")
        try:
            module.compile()
        except self._cuda.compiler.CompileException as error:
            log = "\n".join(str(error).strip().splitlines()[-_LOG_LINES_MAX:])
            raise DeviceError(
                f"{name} does not compile for {self.description.architecture}:\n{log}",
                hint="report this log; --engine cpu does without",
                item="cuda",
            ) from error
        return module

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except self._cuda.memory.OutOfMemoryError as error:
            raise OutOfDeviceMemoryError(_first_line(error)) from error
        except self._runtime.CUDARuntimeError as error:
            kind = OutOfDeviceMemoryError if getattr(error, "status", 0) == _MEMORY_ALLOCATION else DeviceFaultError
            raise kind(_first_line(error)) from error
        except (self._cuda.driver.CUDADriverError, self._cuda.nvrtc.NVRTCError) as error:
            raise DeviceFaultError(_first_line(error)) from error


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


def shared_name(uuid: bytes, bus_id: str, driver: Path = _DRIVER) -> str:
    """The name by which processes meet on a device.

    Parameters
    ----------
    uuid : as CuPy gives it: a C string, so that one with a zero in it comes shortened.
    driver : where the driver tells of its devices.
    """
    if len(uuid) >= _UUID_SIZE:
        return f"GPU-{UUID(bytes=uuid[:_UUID_SIZE])}"
    with suppress(OSError):
        told = (driver / "gpus" / bus_id.lower() / "information").read_text(errors="replace")
        found = _UUID.search(told)
        if found is not None:
            return f"GPU-{found[1].lower()}"
    return "PCI-" + bus_id.lower().replace(":", "-")


def has_driver() -> bool:
    """Whether an NVIDIA driver is loaded, without loading anything of CUDA."""
    return (_DRIVER / "version").exists() or Path("/dev/dxg").exists()


def list_devices() -> list[DeviceDescription]:
    """Every device that can be opened; DeviceError if there is none, and why."""
    cupy = load_cupy()
    return [CudaDevice(ordinal).description for ordinal in range(device_count(cupy))]
