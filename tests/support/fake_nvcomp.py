"""A stand-in for nvCOMP's C library on the stand-in device: it compresses with the real zstandard, and can be told to
go wrong. Results are written when the stream gets there, to addresses that must lie in the device's memory.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest
import zstandard

from ohdiff.chunking.cuda.nvcomp import CompressOptions, Properties

from .fake_cupy import CUDARuntimeError, Machine

_CUDA_ERROR = 1000
_PIECE = 64 << 10
_SCRATCH_OF_BLOCK = 4096


@dataclass
class FakeNvcomp:
    """The library, and what shall go wrong with it.

    Attributes
    ----------
    version : as the library counts them.
    bad_batches : numbers, from 0, of the batches that give frames of other bytes; that of the self-check is the first.
    failing_batches : numbers of the batches that the device fails in.
    refusing_batches : numbers of the batches whose first block is given a status that is no success.
    is_large : frames are longer than their blocks.
    has_trailer : something follows each frame.
    batches : blocks in each batch so far.
    """

    machine: Machine
    version: int = 6000
    bad_batches: frozenset[int] = frozenset()
    failing_batches: frozenset[int] = frozenset()
    refusing_batches: frozenset[int] = frozenset()
    is_large: bool = False
    has_trailer: bool = False
    batches: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        # Plain functions, since ctypes' functions, too, are given `argtypes` and `restype`.
        for name in dir(self):
            if name.startswith("_nvcomp"):
                setattr(self, name[1:], _function(getattr(self, name)))

    def _nvcompGetProperties(self, found: Any) -> int:  # noqa: N802 - nvCOMP's name, as below
        assert isinstance(found.contents, Properties)
        found.contents.version = self.version
        return 0

    def _nvcompGetStatusString(self, status: int) -> bytes:  # noqa: N802
        return {_CUDA_ERROR: b"A CUDA runtime or device error occurred"}.get(status, b"other")

    def _nvcompBatchedZstdCompressGetMaxOutputChunkSize(self, size: int, options: Any, found: Any) -> int:  # noqa: N802
        assert isinstance(options, CompressOptions)
        found.contents.value = size + 10 + 3 * (size // _PIECE + 1)
        return 0

    def _nvcompBatchedZstdCompressGetTempSize(  # noqa: N802
        self, count: int, size: int, options: Any, found: Any, total: int, stream: int
    ) -> int:
        assert isinstance(options, CompressOptions)
        assert total == count * size
        self._stream(stream)
        found.contents.value = _SCRATCH_OF_BLOCK * count
        return 0

    def _nvcompBatchedZstdCompressAsync(  # noqa: N802
        self,
        blocks: int,
        sizes: int,
        size_max: int,
        count: int,
        scratch: int,
        scratch_size: int,
        frames: int,
        frame_sizes: int,
        options: Any,
        statuses: int,
        stream: int,
    ) -> int:
        assert isinstance(options, CompressOptions)
        assert scratch_size >= _SCRATCH_OF_BLOCK * count
        if self.machine.is_dead:
            return _CUDA_ERROR
        self.machine.check(scratch, scratch_size)
        number = len(self.batches)
        self.batches.append(count)

        def run() -> None:
            if number in self.failing_batches:
                self.machine.is_dead = True
                raise CUDARuntimeError(700, "cudaErrorIllegalAddress: an illegal memory access")
            for place in range(count):
                address, size = self._word(blocks, place), self._word(sizes, place)
                assert size <= size_max
                frame = self._frame(self.machine.read(address, size), is_bad=number in self.bad_batches)
                self.machine.write(self._word(frames, place), frame)
                self.machine.write(frame_sizes + 8 * place, struct.pack("<Q", len(frame)))
                refused = place == 0 and number in self.refusing_batches
                self.machine.write(statuses + 4 * place, struct.pack("<i", 19 if refused else 0))

        self._stream(stream).enqueue(run)
        return 0

    def _frame(self, plain: bytes, *, is_bad: bool) -> bytes:
        if self.is_large:
            return plain + b"frame"
        if is_bad:
            plain = plain[:-1] + bytes([plain[-1] ^ 1])
        return zstandard.ZstdCompressor(level=1).compress(plain) + (b"more" if self.has_trailer else b"")

    def _word(self, table: int, place: int) -> int:
        (word,) = struct.unpack("<Q", self.machine.read(table + 8 * place, 8))
        assert isinstance(word, int)
        return word

    def _stream(self, handle: int) -> Any:
        (found,) = [stream for stream in self.machine.streams if stream.ptr == handle]
        return found


def _function(method: Callable[..., Any]) -> Callable[..., Any]:
    def function(*arguments: Any) -> Any:
        signature = getattr(function, "argtypes", None)
        assert signature is None or len(signature) == len(arguments)
        return method(*arguments)

    return function


def install(patch: pytest.MonkeyPatch, machine: Machine, **attributes: Any) -> FakeNvcomp:
    """Make the library's loader give a stand-in with these attributes."""
    library = FakeNvcomp(machine, **attributes)
    provide(patch, lambda: library)
    return library


def provide(patch: pytest.MonkeyPatch, load: Callable[[], Any]) -> None:
    """Make the library's loader do this."""
    package, module = ModuleType("nvidia"), ModuleType("nvidia.libnvcomp")
    module.load_library = load  # type: ignore[attr-defined]
    patch.setitem(sys.modules, "nvidia", package)
    patch.setitem(sys.modules, "nvidia.libnvcomp", module)


def remove(patch: pytest.MonkeyPatch) -> None:
    """Make the library one that is not installed."""
    patch.setitem(sys.modules, "nvidia.libnvcomp", None)


__all__ = ["FakeNvcomp", "install", "provide", "remove"]
