"""Arrays in memory as the safetensors file that they would be: its header, where each lies in it, and its bytes.

The layout is that of safetensors' own writer: eight bytes of length, a header padded to eight bytes, the tensors by
kind and name. So a file saved from the same tensors has the same bytes, and its chunks are found again.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from ohdiff.buffers import BufferPool, PooledBuffer
from ohdiff.chunking.containers import read_container
from ohdiff.chunking.containers.pieces import ContainerPiece, cut_points
from ohdiff.chunking.device_memory import DeviceMemory
from ohdiff.errors import UsageError

from .container_reading import ContainerLayout
from .tensor_arrays import TensorMemory

_LENGTH: Final = struct.Struct("<Q")
_HEADER_ALIGNMENT: Final = 8

Fetch = Callable[[DeviceMemory, memoryview], None]


class TensorImage:
    """A safetensors file that exists as a header and as arrays that lie elsewhere.

    Parameters
    ----------
    tensors : in the order in which they lie in the file.
    metadata : text by name, kept in the header.
    fetch : copies from a device.

    Attributes
    ----------
    size : of the file, in bytes.
    fetched_size : bytes that were copied from a device.
    """

    def __init__(self, tensors: Sequence[TensorMemory], metadata: Mapping[str, str], fetch: Fetch | None) -> None:
        self.tensors = tensors
        self.fetched_size = 0
        self._fetch = fetch
        self._head = _header(tensors, metadata)
        self._starts = [len(self._head)]
        for tensor in tensors:
            self._starts.append(self._starts[-1] + tensor.size)
        self.size = self._starts[-1]

    def layout(self) -> ContainerLayout:
        """How the file is cut: exactly as one that is read from disk.

        Raises
        ------
        UsageError
            The header is larger than any reader takes.
        """
        container = read_container(self)
        if container is None:
            raise UsageError("too many or too long names of tensors for a safetensors file")
        return ContainerLayout(container, cut_points(container, self.size))

    def read(self, offset: int, size: int, /) -> bytes:
        """Bytes of the file, fewer only at the end; for headers and small ranges."""
        data = bytearray(max(0, min(size, self.size - offset)))
        with memoryview(data) as view:
            self.read_into(offset, view)
        return bytes(data)

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fill `target` with the bytes from `offset` on, which are all there."""
        filled = 0
        if offset < len(self._head):
            filled = min(len(self._head) - offset, len(target))
            target[:filled] = self._head[offset : offset + filled]
        row = bisect_right(self._starts, offset + filled) - 1
        while filled < len(target):
            tensor, start = self.tensors[row], offset + filled - self._starts[row]
            count = min(tensor.size - start, len(target) - filled)
            if count:
                self._copy(tensor, start, target[filled : filled + count])
            filled += count
            row += 1

    def memory_of(self, piece: ContainerPiece) -> memoryview | DeviceMemory:
        """Where a piece of a tensor lies."""
        row = bisect_right(self._starts, piece.start) - 1
        while self.tensors[row].size == 0:
            row += 1
        start = piece.start - self._starts[row]
        return _part(self.tensors[row].memory, start, start + piece.size)

    def _copy(self, tensor: TensorMemory, start: int, target: memoryview) -> None:
        memory = _part(tensor.memory, start, start + len(target))
        if not isinstance(memory, DeviceMemory):
            target[:] = memory
            return
        assert self._fetch is not None, "who gives device memory gives a way to read it"
        self._fetch(memory, target)
        self.fetched_size += len(target)


class PieceBuffer(PooledBuffer):
    """A buffer for one piece of an image that is filled when its bytes are first asked for: for a known piece, never.

    Parameters
    ----------
    pool : where the room comes from.
    fill : fills it.
    size : of the piece, in bytes.
    """

    __slots__ = ("_fill", "_room", "_size")

    def __init__(self, pool: BufferPool, fill: Callable[[memoryview], None], size: int) -> None:
        self._pool = pool
        self._users = 1
        self._fill = fill
        self._size = size
        self._room: bytearray | None = None

    @property
    def data(self) -> bytearray:  # type: ignore[override]
        """The bytes of the piece, and room behind them."""
        if self._room is None:
            room = self._pool.take(self._size).data
            with memoryview(room)[: self._size] as view:
                self._fill(view)
            self._room = room
        return self._room

    def release(self) -> None:
        """See `PooledBuffer.release`; what was never filled has nothing to give back."""
        with self._pool.lock:
            self._users -= 1
            if self._users == 0 and self._room is not None:
                self._pool.put_back(self._room)


def _header(tensors: Sequence[TensorMemory], metadata: Mapping[str, str]) -> bytes:
    fields: dict[str, Any] = {}
    if metadata:
        fields["__metadata__"] = dict(metadata)
    position = 0
    for tensor in tensors:
        if tensor.name == "__metadata__":
            raise UsageError("a tensor cannot be named __metadata__", item=tensor.name)
        offsets = [position, position + tensor.size]
        fields[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": offsets}
        position += tensor.size
    text = msgspec.json.encode(fields)
    text += b" " * (-len(text) % _HEADER_ALIGNMENT)
    return _LENGTH.pack(len(text)) + text


def _part(memory: memoryview | DeviceMemory, start: int, end: int) -> memoryview | DeviceMemory:
    return memory.part(start, end) if isinstance(memory, DeviceMemory) else memory[start:end]
