"""What a batch needs on the device, and pinned host memory to get there: a stream, buffers, scratch; lent and returned.

Pinned memory and device memory are allocated when a lane is made and kept: neither allocating nor freeing happens
between batches, since both can make the whole device wait.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from .device import CudaDevice, DeviceFaultError, OutOfDeviceMemoryError
from .kernels import LEAF, SLOTS, tiles_of

# CuPy rounds allocations up to this.
_ALIGNMENT: Final = 512
FILES_MAX: Final = 16_384
_WORD: Final = 4
_ID_SIZE: Final = 32
_FEATURES_SIZE: Final = 48
# (offset, hash) of a candidate.
_PAIR: Final = 8


@dataclass(frozen=True, slots=True)
class LaneSize:
    """How large the batches of a lane may be.

    Attributes
    ----------
    batch : new bytes of a batch.
    carry : bytes that a batch may take over from the one before; 0 for a lane whose data lies on the device already.
    min_size : the rule's, which bounds the number of chunks.
    has_data : whether the lane has a buffer for data, and pinned memory to fill it from.
    """

    batch: int
    carry: int
    min_size: int
    has_data: bool = True

    @property
    def bytes_max(self) -> int:
        """Bytes that kernels see at once."""
        return self.carry + self.batch

    @property
    def chunks_max(self) -> int:
        """Chunks that a batch can have."""
        return self.bytes_max // self.min_size + FILES_MAX

    def scratch(self) -> dict[str, int]:
        """Bytes of each buffer of the kernels, by its name in kernels/cuda/README.md."""
        tiles, chunks = tiles_of(self.bytes_max), self.chunks_max
        listed = _PAIR * tiles * SLOTS
        return {
            "slots": listed,
            "counts": _WORD * tiles,
            "first": _WORD * (tiles + 1),
            "list": listed,
            "unlisted": _WORD * tiles,
            "unlisted_count": _WORD,
            "segment_ends": _WORD * FILES_MAX,
            "found": _WORD * chunks,
            "cut_counts": _WORD * FILES_MAX,
            "cut_first": _WORD * (FILES_MAX + 1),
            # One more than the kernels need, for the number of chunks that the host gives.
            "bounds": _WORD * (chunks + 2),
            "leaf_first": _WORD * (chunks + 1),
            "nodes": _ID_SIZE * (self.bytes_max // LEAF + chunks),
            "ids": _ID_SIZE * chunks,
            "features": _FEATURES_SIZE * chunks,
        }

    @property
    def device_bytes(self) -> int:
        """Device memory that a lane takes."""
        data = _aligned(self.bytes_max) if self.has_data else 0
        return data + sum(map(_aligned, self.scratch().values()))

    @property
    def results_bytes(self) -> int:
        """The largest results of a batch that come back: counts, bounds, and ids or features."""
        return _WORD * (FILES_MAX + 2 + self.chunks_max + 1) + max(_ID_SIZE, _FEATURES_SIZE) * self.chunks_max


class Lane:
    """Buffers for one batch at a time, and the stream that it runs in.

    Attributes
    ----------
    data : device address where new bytes go; `size.carry` bytes before it are room for what is carried over.
    scratch : device address of each buffer of the kernels.
    staging, tables, results : addresses of pinned host memory for data, for what is uploaded with it, for what comes
        back.
    """

    def __init__(self, device: CudaDevice, pool: Any, size: LaneSize) -> None:
        self._device = device
        self.size = size
        self.stream = device.new_stream()
        self.event = device.new_event()
        self._memory = pool.malloc(size.device_bytes)
        self._pinned = device.new_pinned((size.batch if size.has_data else 0) + self._tables_bytes + size.results_bytes)
        position = int(self._memory.ptr)
        self.data = position + size.carry
        if size.has_data:
            position += _aligned(size.bytes_max)
        self.scratch: dict[str, int] = {}
        for name, count in size.scratch().items():
            self.scratch[name] = position
            position += _aligned(count)
        self.tables = int(self._pinned.ptr)
        self.results = self.tables + self._tables_bytes
        self.staging = self.results + size.results_bytes

    @property
    def _tables_bytes(self) -> int:
        """Segment ends, or bounds and their number, rounded so that results are aligned."""
        return _aligned(_WORD * (max(FILES_MAX, self.size.chunks_max) + 2))

    def wait(self) -> None:
        """Until everything in the stream is done."""
        self.stream.synchronize()

    def quiesce(self) -> None:
        """The same when something has failed already: nothing may still read or write the caller's memory."""
        with suppress(DeviceFaultError), self._device.bound():
            self.stream.synchronize()


class LanePool:
    """Lends lanes to any thread; makes them as they are wanted, up to a number and a ceiling of memory.

    Parameters
    ----------
    memory : the pool that device memory comes from.
    memory_max : bytes of it that lanes may take.
    lanes_max : lanes at most; fewer if they do not fit.

    Attributes
    ----------
    refusals : lanes that found no memory while others were there to go on with.
    """

    def __init__(self, device: CudaDevice, memory: Any, size: LaneSize, memory_max: int, lanes_max: int) -> None:
        self._device = device
        self._memory = memory
        self.size = size
        self.refusals = 0
        self._lanes_max = max(1, min(lanes_max, memory_max // size.device_bytes))
        self._free: list[Lane] = []
        self._made = 0
        self._is_closed = False
        self._condition = threading.Condition()

    @contextmanager
    def borrowed(self, wanted: int) -> Iterator[list[Lane]]:
        """At least one lane, waiting for it if need be, and up to `wanted` of those that are to be had at once."""
        lanes = [self._take()]
        try:
            while len(lanes) < wanted and (further := self._take_free()) is not None:
                lanes.append(further)
            yield lanes
        except BaseException:
            for lane in lanes:
                lane.quiesce()
            raise
        finally:
            with self._condition:
                if self._is_closed:
                    # Who waits here makes another one in its place.
                    self._made -= len(lanes)
                else:
                    self._free += lanes
                self._condition.notify_all()

    def close(self) -> None:
        """Let lanes go that are not lent, and the others as they come back; who still borrows gets new ones."""
        with self._condition:
            self._is_closed = True
            self._made -= len(self._free)
            self._free.clear()
            self._condition.notify_all()

    def _take(self) -> Lane:
        with self._condition:
            while not self._free and self._made >= self._lanes_max:
                self._condition.wait()
            if self._free:
                return self._free.pop()
            self._made += 1
        return self._make()

    def _take_free(self) -> Lane | None:
        with self._condition:
            if self._free:
                return self._free.pop()
            if self._made >= self._lanes_max:
                return None
            self._made += 1
        try:
            return self._make()
        except OutOfDeviceMemoryError:
            # One lane is enough to go on with.
            with self._condition:
                self._lanes_max = max(1, self._made)
                self.refusals += 1
            return None

    def _make(self) -> Lane:
        try:
            with self._device.bound():
                return Lane(self._device, self._memory, self.size)
        except BaseException:
            with self._condition:
                self._made -= 1
                # Whoever waits for a lane may have to make it, and fail, too.
                self._condition.notify_all()
            raise


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
