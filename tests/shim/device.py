"""A device whose kernels run on the CPU: memory of exact size, and launches as the CUDA driver takes them."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from .building import LIBRARY, Geometry

_RUBBISH = 0xCD
_ALIGNMENT = 16
# What lies around memory unless a sanitizer watches it.
_FENCE_SIZE = 0 if "OHDIFF_SHIM_SANITIZED" in os.environ else 64
_FENCE = bytes([0xFE]) * _FENCE_SIZE

_libc = ctypes.CDLL(None)
_libc.malloc.restype = ctypes.c_void_p
_libc.malloc.argtypes = [ctypes.c_size_t]
_libc.free.argtypes = [ctypes.c_void_p]


class Memory:
    """Bytes on the device, `shift` bytes past an aligned address, full of rubbish or of `content`."""

    def __init__(self, size: int, content: bytes | None = None, shift: int = 0) -> None:
        self.size = size
        self._base: int = _libc.malloc(shift + size + 2 * _FENCE_SIZE)
        assert self._base and self._base % _ALIGNMENT == 0
        self.address = self._base + _FENCE_SIZE + shift
        ctypes.memset(self._base, _RUBBISH, shift + _FENCE_SIZE)
        ctypes.memmove(self.address - _FENCE_SIZE, _FENCE, _FENCE_SIZE)
        ctypes.memmove(self.address + size, _FENCE, _FENCE_SIZE)
        if content is None:
            ctypes.memset(self.address, _RUBBISH, size)
        else:
            ctypes.memmove(self.address, content, size)

    def read(self) -> bytes:
        """All bytes; AssertionError when a kernel wrote beside them."""
        before = ctypes.string_at(self.address - _FENCE_SIZE, _FENCE_SIZE)
        after = ctypes.string_at(self.address + self.size, _FENCE_SIZE)
        assert before == after == _FENCE, "written out of bounds"
        return ctypes.string_at(self.address, self.size)

    def words(self, count: int | None = None) -> list[int]:
        """The first unsigned 32-bit integers, or all of them."""
        words = memoryview(self.read()).cast("I").tolist()
        return words if count is None else words[:count]

    def __del__(self) -> None:
        _libc.free(self._base)


def uploaded(content: bytes, shift: int = 0) -> Memory:
    return Memory(len(content), content, shift)


def words_in(values: list[int]) -> Memory:
    return uploaded(b"".join(value.to_bytes(4, "little") for value in values))


def room_for(words: int) -> Memory:
    return Memory(4 * words)


class ShimDevice:
    """The kernels of the library in `folder`. `seed`: the order of threads, warps and blocks; 0 for none."""

    def __init__(self, folder: Path, geometry: Geometry, seed: int = 0) -> None:
        self.geometry = geometry
        self.seed = seed
        self._library = ctypes.CDLL(str(folder / LIBRARY))

    def drop_barrier(self, file: str, line: int) -> None:
        """Leave out the barrier at this place of the sources from now on."""
        self._library.ohdiff_shim_drop_barrier(file.encode(), line)

    def launch(self, kernel: str, grid: int | tuple[int, int], *arguments: Memory | int) -> None:
        """Run a kernel to its end. Memory goes in as its address, an integer as 32 bits."""
        grid_x, grid_y = (grid, 1) if isinstance(grid, int) else grid
        block = self.geometry.place_threads if "_place_" in kernel else self.geometry.threads
        values = [_argument(argument) for argument in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        result = self._library.ohdiff_shim_launch(
            kernel.encode(), grid_x, grid_y, block, ctypes.c_uint64(self.seed), pointers
        )
        assert result == 0, f"{kernel}: {result}"


def _argument(argument: Memory | int) -> ctypes.c_uint64 | ctypes.c_uint32:
    if isinstance(argument, Memory):
        return ctypes.c_uint64(argument.address)
    assert 0 <= argument < 1 << 32
    return ctypes.c_uint32(argument)
