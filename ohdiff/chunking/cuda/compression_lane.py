"""The memory of one batch of blocks that are compressed on a device, and the batch's way there and back.

All of it is allocated when a lane is made, so that a want of memory shows before the first block is taken.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from . import host_memory
from .device import CudaDevice, DeviceFaultError
from .nvcomp import BatchMemory, Nvcomp

if TYPE_CHECKING:
    from typing_extensions import Buffer

# More than nvCOMP asks for, and what CuPy rounds to.
_ALIGNMENT: Final = 512
_WORD: Final = 8
_STATUS: Final = 4
# Pointers and sizes of blocks, pointers and sizes of frames, statuses.
_TABLES: Final = 5


@dataclass(frozen=True, slots=True)
class BatchShape:
    """What a lane has room for; sizes in bytes.

    Parameters
    ----------
    blocks : how many.
    block_size : of the largest.
    frame_size : the most that its frame takes.
    scratch_size : what nvCOMP works in.
    """

    blocks: int
    block_size: int
    frame_size: int
    scratch_size: int

    @classmethod
    def of(cls, nvcomp: Nvcomp, blocks: int, block_size: int, stream: Any) -> BatchShape:
        """The shape of a batch, as nvCOMP says."""
        scratch = nvcomp.scratch_size(blocks, block_size, stream)
        return cls(blocks, block_size, nvcomp.frame_size_max(block_size), scratch)

    @property
    def table_bytes(self) -> int:
        """One table."""
        return aligned(_WORD * self.blocks)

    @property
    def device_bytes(self) -> int:
        """Device memory that a lane takes."""
        slots = self.blocks * (aligned(self.block_size) + aligned(self.frame_size))
        return slots + aligned(self.scratch_size) + _TABLES * self.table_bytes


class CompressionLane:
    """A stream with room for one batch; used by one thread at a time, with the device bound."""

    def __init__(self, device: CudaDevice, nvcomp: Nvcomp, pool: Any, shape: BatchShape) -> None:
        self.shape = shape
        self._device = device
        self._nvcomp = nvcomp
        self.stream = device.new_stream()
        self._memory = pool.malloc(shape.device_bytes)
        self._slot, self._frame_slot = aligned(shape.block_size), aligned(shape.frame_size)
        start = int(self._memory.ptr)
        self._data = start + _TABLES * shape.table_bytes
        self._frames = self._data + shape.blocks * self._slot
        blocks, sizes, frames, frame_sizes, statuses = (start + shape.table_bytes * table for table in range(_TABLES))
        scratch = self._frames + shape.blocks * self._frame_slot
        self._batch = BatchMemory(blocks, sizes, frames, frame_sizes, statuses, scratch, shape.scratch_size)
        self._pinned = device.new_pinned(shape.blocks * self._slot + 2 * shape.table_bytes)
        self._table = int(self._pinned.ptr)
        self._staging = self._table + 2 * shape.table_bytes
        # Where frames go does not change; nothing else uses the pinned table until a batch does.
        frame_addresses = [self._frames + self._frame_slot * number for number in range(shape.blocks)]
        self._upload(self._table, array("Q", frame_addresses), self._batch.frames)
        self.stream.synchronize()

    @property
    def data(self) -> int:
        """Device address of room for blocks."""
        return self._data

    def compress(self, plains: Sequence[Buffer], on_submit: Callable[[int], None] | None = None) -> list[bytes | None]:
        """A frame for each block; None for those that were refused, or whose frame is not shorter than they are.

        Parameters
        ----------
        on_submit : is told the bytes once they are where the device takes them from.
        """
        sizes = [self._bring_up(place, plain) for place, plain in enumerate(plains)]
        if on_submit is not None:
            on_submit(sum(sizes))
        lengths = self.run([self._data + place * self._slot for place in range(len(sizes))], sizes)
        gains = [place for place, length in enumerate(lengths) if 0 < length < sizes[place]]
        frames: list[bytes | None] = [None] * len(sizes)
        for place, frame in zip(gains, self.take([self.frame(place, lengths[place]) for place in gains]), strict=True):
            frames[place] = frame
        return frames

    def run(self, addresses: Sequence[int], sizes: Sequence[int]) -> list[int]:
        """Compress what lies there on the device: the length of each frame, 0 for what was refused."""
        count, results = len(sizes), self._table + self.shape.table_bytes
        self._upload(self._table, array("Q", sizes), self._batch.sizes)
        self._upload(results, array("Q", addresses), self._batch.blocks)
        self._nvcomp.compress(count, max(sizes), self._batch, self.stream)
        self._device.copy_out(self._table, self._batch.frame_sizes, _WORD * count, self.stream)
        self._device.copy_out(results, self._batch.statuses, _STATUS * count, self.stream)
        self.stream.synchronize()
        lengths = array("Q", host_memory.read(self._table, _WORD * count))
        statuses = array("i", host_memory.read(results, _STATUS * count))
        return [0 if status else length for length, status in zip(lengths, statuses, strict=True)]

    def frame(self, place: int, length: int) -> tuple[int, int]:
        """Where the frame of a block of the last batch lies, as (device address, length)."""
        return self._frames + place * self._frame_slot, length

    def take(self, parts: Sequence[tuple[int, int]]) -> list[bytes]:
        """Copies of ranges of device memory, as (address, length): as many and as large as blocks may be."""
        places = [self._staging + place * self._slot for place in range(len(parts))]
        for place, (address, length) in zip(places, parts, strict=True):
            self._device.copy_out(place, address, length, self.stream)
        self.stream.synchronize()
        return [host_memory.read(place, length) for place, (_, length) in zip(places, parts, strict=True)]

    def quiesce(self) -> None:
        """Wait for what is under way when something has failed."""
        with suppress(DeviceFaultError), self._device.bound():
            self.stream.synchronize()

    def _bring_up(self, place: int, plain: Buffer) -> int:
        """Begin to copy a block to its slot; its size."""
        staging = self._staging + place * self._slot
        with host_memory.address_of(plain) as (address, size):
            host_memory.copy(staging, address, size)
        self._device.copy_in(self._data + place * self._slot, staging, size, self.stream)
        return size

    def _upload(self, pinned: int, numbers: array[int], target: int) -> None:
        with host_memory.address_of(numbers) as (address, size):
            host_memory.copy(pinned, address, size)
            self._device.copy_in(target, pinned, size, self.stream)


def aligned(size: int) -> int:
    """A size rounded up to what every buffer begins at."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT
