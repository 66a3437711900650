"""nvCOMP's zstd compressor: batches of blocks in a device's memory, one plain zstd frame for each (RFC 8878).

The C interface (nvcomp/zstd.h of version 6) rather than the Python one: every byte of device memory is then given by
the caller, below its ceiling, and every block has a status of its own. nvCOMP is proprietary, and never required.
"""

from __future__ import annotations

import ctypes
import importlib
from dataclasses import dataclass
from typing import Any, Final

from ohdiff.errors import DeviceError

from .device import DeviceFaultError

_HINT: Final = "install it: pip install 'ohdiff[nvcomp12]', or nvcomp13, as the driver allows"
# Parameters have changed between major versions.
_VERSION_MAJOR: Final = 6
_VERSION_UNIT: Final = 1000
_SIZE: Final = ctypes.c_size_t
_ADDRESS: Final = ctypes.c_void_p


class CompressOptions(ctypes.Structure):
    """nvcompBatchedZstdCompressOpts_t, given by value: nothing can be chosen."""

    _fields_ = (("reserved", ctypes.c_ubyte * 64),)


class Properties(ctypes.Structure):
    """nvcompProperties_t: versions as 6000 for 6.0 and 12090 for CUDA 12.9."""

    _fields_ = (("version", ctypes.c_uint32), ("runtime_version", ctypes.c_uint32))


@dataclass(frozen=True, slots=True)
class BatchMemory:
    """Device addresses of what a batch needs.

    Parameters
    ----------
    blocks, sizes : uint64 for each block: where it lies, and its length.
    frames : uint64 for each block: where its frame goes, with room for `frame_size_max` bytes.
    frame_sizes : uint64 for each block, filled with the length of its frame.
    statuses : int32 for each block, filled with 0, or what went wrong.
    scratch, scratch_size : room of `scratch_size` bytes to work in.
    """

    blocks: int
    sizes: int
    frames: int
    frame_sizes: int
    statuses: int
    scratch: int
    scratch_size: int


class Nvcomp:
    """The library.

    Attributes
    ----------
    version : such as "6.0".

    Raises
    ------
    DeviceError
        By the constructor: it is not installed, cannot be loaded, or is of another version.
    """

    def __init__(self) -> None:
        self._library = _load()
        properties = Properties()
        self._check(self._library.nvcompGetProperties(ctypes.pointer(properties)))
        number = properties.version
        self.version = f"{number // _VERSION_UNIT}.{number % _VERSION_UNIT // 100}"
        if number // _VERSION_UNIT != _VERSION_MAJOR:
            raise DeviceError(
                f"nvCOMP is of version {self.version}, and {_VERSION_MAJOR} is needed", hint=_HINT, item="nvcomp"
            )
        for name, arguments in _SIGNATURES.items():
            function = getattr(self._library, name)
            function.argtypes, function.restype = arguments, ctypes.c_int

    def frame_size_max(self, block_size: int) -> int:
        """The most bytes that the frame of a block takes."""
        found = _SIZE()
        function = self._library.nvcompBatchedZstdCompressGetMaxOutputChunkSize
        self._check(function(block_size, CompressOptions(), ctypes.pointer(found)))
        return found.value

    def scratch_size(self, block_count: int, block_size: int, stream: Any) -> int:
        """The bytes of device memory that a batch of so many blocks of at most this size is worked on in."""
        found = _SIZE()
        function = self._library.nvcompBatchedZstdCompressGetTempSize
        total = block_count * block_size
        self._check(function(block_count, block_size, CompressOptions(), ctypes.pointer(found), total, stream.ptr))
        return found.value

    def compress(self, block_count: int, size_max: int, memory: BatchMemory, stream: Any) -> None:
        """Have a batch compressed; the results are there when the stream has got there."""
        self._check(
            self._library.nvcompBatchedZstdCompressAsync(
                memory.blocks,
                memory.sizes,
                size_max,
                block_count,
                memory.scratch,
                memory.scratch_size,
                memory.frames,
                memory.frame_sizes,
                CompressOptions(),
                memory.statuses,
                stream.ptr,
            )
        )

    def _check(self, status: int) -> None:
        if status:
            raise DeviceFaultError(f"nvCOMP: {self._text_of(status)}")

    def _text_of(self, status: int) -> str:
        function = self._library.nvcompGetStatusString
        function.argtypes, function.restype = (ctypes.c_int,), ctypes.c_char_p
        return f"{function(status).decode(errors='replace')} ({status})"


_OUT: Final = ctypes.POINTER(_SIZE)
_SIGNATURES: Final[dict[str, tuple[Any, ...]]] = {
    "nvcompBatchedZstdCompressGetMaxOutputChunkSize": (_SIZE, CompressOptions, _OUT),
    "nvcompBatchedZstdCompressGetTempSize": (_SIZE, _SIZE, CompressOptions, _OUT, _SIZE, _ADDRESS),
    "nvcompBatchedZstdCompressAsync": (
        *(_ADDRESS, _ADDRESS, _SIZE, _SIZE, _ADDRESS, _SIZE, _ADDRESS, _ADDRESS),
        *(CompressOptions, _ADDRESS, _ADDRESS),
    ),
}


def _load() -> Any:
    try:
        library = importlib.import_module("nvidia.libnvcomp").load_library()
    except ImportError as error:
        raise DeviceError("nvCOMP is not installed", hint=_HINT, item="nvcomp") from error
    except OSError as error:
        raise DeviceError(f"nvCOMP cannot be loaded: {error}", hint=_HINT, item="nvcomp") from error
    if library is None:
        raise DeviceError("nvCOMP cannot be loaded", hint=_HINT, item="nvcomp")
    return library
