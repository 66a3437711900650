"""Compressing blocks on a device for many threads: whoever finds a lane free takes along the blocks of those who wait.

So batches form by themselves, without a timer: while one is on the device, the next gathers. What the device does not
do is left to the caller, for one block or, after a fault, for the rest of the run; it is counted, and said (`notes`).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ohdiff.errors import DeviceError
from ohdiff_format.blocks import CODEC_ZSTD, decode_block
from ohdiff_format.errors import FormatError

from .compression_lane import BatchShape, CompressionLane
from .device import CudaDevice, DeviceFaultError, OutOfDeviceMemoryError
from .nvcomp import Nvcomp
from .pacing import UNPACED, DevicePace, DeviceTurn

if TYPE_CHECKING:
    from typing_extensions import Buffer

# Smaller blocks are compressed before they would have been copied there and back.
BLOCK_BYTES_MIN: Final = 1 << 20
# A batch of eight blocks of 8 MiB is a thousand of the 64 KiB pieces that nvCOMP works on side by side.
_BATCH_BLOCKS: Final = 8
# One batch is copied while another is compressed.
_LANES: Final = 2
_CHECK_SIZES: Final = (1 << 20, 200_003, 65_536, 4_097)


@dataclass(slots=True)
class CompressorCounts:
    """What became of the blocks.

    Attributes
    ----------
    blocks, batches : that the device compressed.
    refused : blocks that it gave no frame for, or none that is shorter.
    after_fault : blocks that came after it had failed.
    moved : blocks that the CPU compressed because others needed the device.
    """

    blocks: int = 0
    batches: int = 0
    refused: int = 0
    after_fault: int = 0
    moved: int = 0


class _Request:
    """A block of one thread; `is_waiting` until it is taken into a batch, `is_done` after that."""

    __slots__ = ("frame", "is_done", "is_waiting", "plain")

    def __init__(self, plain: Buffer) -> None:
        self.plain = plain
        self.frame: bytes | None = None
        self.is_waiting = True
        self.is_done = False


class DeviceCompressor:
    """Zstd frames of blocks, made on a device; safe to share between threads.

    Parameters
    ----------
    memory_max_bytes : ceiling of device memory.
    block_bytes_max : of the largest block; larger ones are left to the caller.

    Attributes
    ----------
    pace : asked before each batch; by default everything may start at once.
    pool : device memory below the ceiling, of which the lanes have taken theirs.

    Raises
    ------
    DeviceError
        By the constructor: the memory is too little, the device fails, or a frame does not decode to its block.
    """

    def __init__(self, device: CudaDevice, nvcomp: Nvcomp, memory_max_bytes: int, block_bytes_max: int) -> None:
        self.name = f"{device.description.name}, nvCOMP {nvcomp.version}"
        self.counts = CompressorCounts()
        self.pace: DevicePace = UNPACED
        self.device = device
        self.nvcomp = nvcomp
        self._block_bytes_max = block_bytes_max
        self._fault: str | None = None
        self._waiting: deque[_Request] = deque()
        self._condition = threading.Condition()
        try:
            with device.bound():
                self.pool = device.new_pool(memory_max_bytes)
                self._free = self._make_lanes()
                _check(self._free[0])
        except DeviceFaultError as error:
            raise DeviceError(f"{self.name} cannot compress: {error}", item="nvcomp") from error
        self.batch_blocks = self._free[0].shape.blocks

    @property
    def is_on_device(self) -> bool:
        """Whether the device is still used."""
        return self._fault is None

    @property
    def notes(self) -> list[str]:
        """What was not as usual, in words."""
        counts, notes = self.counts, []
        if counts.refused:
            notes.append(f"the CPU compressed {counts.refused} blocks that the device made no smaller")
        if counts.moved:
            notes.append(f"the CPU compressed {counts.moved} blocks while others needed the device")
        if self._fault is not None:
            notes.append(f"{self._fault}; the CPU compressed the rest ({counts.after_fault} blocks)")
        return notes

    def compress(self, plain: Buffer) -> bytes | None:
        """A zstd frame that is shorter than the block; None if the caller has to compress it.

        The frame is what the library made: the caller decodes and compares it before it is used.
        """
        if not BLOCK_BYTES_MIN <= memoryview(plain).nbytes <= self._block_bytes_max:
            return None
        if self._fault is not None:
            with self._condition:
                self.counts.after_fault += 1
            return None
        request = _Request(plain)
        with self._condition:
            self._waiting.append(request)
        while not request.is_done:
            self._wait_or_lead(request)
        return request.frame

    def disable(self, why: str) -> None:
        """From now on the CPU compresses."""
        with self._condition:
            self._fault = self._fault or why

    def distrust(self) -> None:
        """A frame was not that of its block: the device is asked no more."""
        self.disable(f"a frame that {self.name} made does not decode to its block")
        with self._condition:
            self.counts.after_fault += 1

    def _wait_or_lead(self, request: _Request) -> None:
        """Until the request is done, or its thread has led a batch, whether or not its own block was in it."""
        with self._condition:
            self._condition.wait_for(lambda: request.is_done or (request.is_waiting and self._free))
            if request.is_done:
                return
            lane = self._free.pop()
        batch: list[_Request] = []
        frames: list[bytes | None] = []
        try:
            turn = None if self._fault else self._turn()
            batch = self._take(turn)
            frames = self._run(lane, [each.plain for each in batch], turn)
        finally:
            with self._condition:
                self._free.append(lane)
                for place, each in enumerate(batch):
                    each.frame, each.is_done = frames[place] if frames else None, True
                self._condition.notify_all()

    def _turn(self) -> DeviceTurn | None:
        """Leave to run a batch; None if others need the device."""
        size_max = self.batch_blocks * self._block_bytes_max
        return self.pace.turn("compression: host", size_max, may_wait=True, is_movable=True)

    def _take(self, turn: DeviceTurn | None) -> list[_Request]:
        """Those who have waited longest: as many as the turn allows, which may leave out the caller."""
        count = self.batch_blocks if turn is None else max(1, turn.size_bytes // self._block_bytes_max)
        with self._condition:
            batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), count, self.batch_blocks))]
            for request in batch:
                request.is_waiting = False
        return batch

    def _run(self, lane: CompressionLane, plains: Sequence[Buffer], turn: DeviceTurn | None) -> list[bytes | None]:
        frames: list[bytes | None] = [None] * len(plains)
        if turn is not None:
            try:
                # Another thread with a lane may have taken all blocks along.
                if plains:
                    with self.device.bound():
                        frames = lane.compress(plains, turn.submit)
            except DeviceFaultError as error:
                lane.quiesce()
                self.disable(f"{self.name} failed: {error}")
            finally:
                turn.end(is_ok=self._fault is None)
        self._count(frames, is_moved=turn is None)
        return frames

    def _count(self, frames: Sequence[bytes | None], *, is_moved: bool) -> None:
        made = sum(frame is not None for frame in frames)
        left, counts = len(frames) - made, self.counts
        with self._condition:
            counts.blocks += made
            counts.batches += made > 0
            if self._fault is not None:
                counts.after_fault += left
            elif is_moved:
                counts.moved += left
            else:
                counts.refused += left

    def _make_lanes(self) -> list[CompressionLane]:
        """Two lanes, or one; with batches that are halved until one fits."""
        stream = self.device.new_stream()
        blocks, lanes = _BATCH_BLOCKS, list[CompressionLane]()
        while True:
            shape = BatchShape.of(self.nvcomp, blocks, self._block_bytes_max, stream)
            try:
                with self.device.bound():
                    for _ in range(_LANES):
                        lanes.append(CompressionLane(self.device, self.nvcomp, self.pool, shape))
            except OutOfDeviceMemoryError:
                if not lanes and blocks == 1:
                    raise
            if lanes:
                return lanes
            blocks //= 2


def _check(lane: CompressionLane) -> None:
    """Compress built-in vectors: a library that makes other than plain zstd frames is found out at once."""
    text = b" ".join(b"%d" % number for number in range(_CHECK_SIZES[0] // 5))
    plains = [text[:size] for size in _CHECK_SIZES[: lane.shape.blocks]]
    for plain, frame in zip(plains, lane.compress(plains), strict=True):
        try:
            is_right = frame is not None and bytes(decode_block(CODEC_ZSTD, frame, len(plain))) == plain
        except FormatError:
            is_right = False
        if not is_right:
            raise DeviceFaultError("a frame of the self-check does not decode to its block")
