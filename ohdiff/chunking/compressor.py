"""Which device compresses blocks, if any does, and why: what is named is a demand, "auto" decides by a profile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ohdiff.errors import DeviceError, UsageError

from .engine import Accelerator, Engine

if TYPE_CHECKING:
    from .cuda.compressor import DeviceCompressor

COMPRESSOR_NAMES: Final = ("auto", "cpu", "device")
# Threads that hand blocks to a device: two batches may be on their way, and the next one gathers.
COMPRESSING_THREADS: Final = 16
# Of the memory that may be used on a device, what compression takes beside an engine that cuts and hashes.
_MEMORY_SHARE: Final = 4
_FREE_SHARE: Final = 4


class CompressorChoice:
    """What compresses blocks, and why.

    Attributes
    ----------
    compressor : None for the CPU.
    memory_left : the ceiling of device memory that is left for an engine; None for its default.
    """

    def __init__(self, compressor: DeviceCompressor | None, reason: str, memory_left: int | None) -> None:
        self.compressor = compressor
        self.memory_left = memory_left
        self._reason = reason
        self._notes: list[str] = []

    @property
    def reason(self) -> str:
        """A sentence: why it was taken, and what was not as usual so far."""
        notes: Sequence[str] = () if self.compressor is None else self.compressor.notes
        return "; ".join([self._reason, *self._notes, *notes])

    def note(self, text: str) -> None:
        """Something was not as usual."""
        self._notes.append(text)

    def follow(self, engine: Engine) -> None:
        """Let batches start when those of an engine on the device may; beside another engine, as they come."""
        if self.compressor is not None:
            self.compressor.pace = getattr(engine, "pace", self.compressor.pace)


def select_compressor(
    name: str, accelerator: Accelerator, block_bytes_max: int, *, is_default_level: bool
) -> CompressorChoice:
    """What compresses blocks.

    Parameters
    ----------
    name : "auto", "cpu" or "device". Any but "auto" is a demand.
    accelerator : what is known about a device.
    block_bytes_max : of the largest block that is worth a device.
    is_default_level : whether blocks are compressed as strongly as they were when the profile was measured.

    Raises
    ------
    UsageError
        There is no such name.
    DeviceError
        The device was demanded, and cannot compress.
    """
    if name not in COMPRESSOR_NAMES:
        raise UsageError(f"nothing compresses on {name}", hint=f"give one of {', '.join(COMPRESSOR_NAMES)}")
    if name == "device":
        return _on_device("as demanded", accelerator, block_bytes_max)
    if name == "cpu":
        return _on_cpu("as demanded")
    if not is_default_level:
        return _on_cpu("a device was measured beside the default level only")
    from .cuda.placement import judge_compression

    judgement = judge_compression(accelerator.profile)
    if not judgement.pays:
        return _on_cpu(judgement.reason)
    try:
        return _on_device(judgement.reason, accelerator, block_bytes_max)
    except DeviceError as error:
        return _on_cpu(f"no device can compress: {error.message}")


def open_compressor(accelerator: Accelerator, block_bytes_max: int) -> tuple[DeviceCompressor, int]:
    """A compressor that has been checked, and the device memory that it leaves to an engine; DeviceError if none."""
    from .cuda.compressor import DeviceCompressor
    from .cuda.device import CudaDevice
    from .cuda.nvcomp import Nvcomp

    nvcomp, device = Nvcomp(), CudaDevice()
    ceiling = accelerator.memory_max_bytes or device.description.memory_free // _FREE_SHARE
    own = ceiling // _MEMORY_SHARE
    return DeviceCompressor(device, nvcomp, own, block_bytes_max), ceiling - own


def _on_device(why: str, accelerator: Accelerator, block_bytes_max: int) -> CompressorChoice:
    from .cuda.placement import is_of

    compressor, left = open_compressor(accelerator, block_bytes_max)
    described, profile = compressor.device.description, accelerator.profile
    if why != "as demanded" and (profile is None or not is_of(profile, described.name, described.driver_version)):
        raise DeviceError("the profile is of another device or driver (ohdiff calibrate makes a new one)")
    return CompressorChoice(compressor, f"compression on {compressor.name}: {why}; each frame decoded by the CPU", left)


def _on_cpu(why: str) -> CompressorChoice:
    return CompressorChoice(None, f"compression on the CPU: {why}", None)
