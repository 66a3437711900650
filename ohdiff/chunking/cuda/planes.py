"""Byte planes of numbers that lie on a device, made and compressed there: the payload of a block of numbers (SPEC 6.5).

Every transform that is offered is tried on the whole piece, since compressing it takes no copy. Grouping the codes of a
difference is the CPU's: its order depends on counting all magnitudes first.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ohdiff.chunking.containers.pieces import PIECE_ELEMENTS, TAIL_ELEMENTS_MIN
from ohdiff.chunking.device_memory import DeviceMemory
from ohdiff_format.numbers import PLANE_RAW, PLANE_ZSTD, encode_planes

from . import host_memory
from .compression_lane import BatchShape, CompressionLane
from .compressor import DeviceCompressor
from .device import DeviceFaultError
from .kernels import THREADS, source_folders
from .pacing import DeviceTurn

if TYPE_CHECKING:
    from typing_extensions import Buffer

# The elements of the largest piece; a plane has a byte of each.
_PLANE_BYTES_MAX: Final = PIECE_ELEMENTS + TAIL_ELEMENTS_MIN
_WIDTH_MAX: Final = 8
_FORMS_MAX: Final = 3
# nvCOMP wants blocks to begin at multiples of 4 bytes, and planes lie back to back.
_COUNT_UNIT: Final = 4
_ELEMENTS_PER_THREAD: Final = 4
_JOB_WORDS: Final = 5
_WORD: Final = 8
# A plane that compresses less is stored as it is, which costs nothing to read.
_PLANE_SHARE_MAX: Final = 0.98


@dataclass(frozen=True, slots=True)
class Planes:
    """The payload of a piece, and the transform that gave the fewest bytes."""

    transform: int
    payload: bytes


class PlaneEncoder:
    """Encodes pieces of numbers where they lie; safe to share between threads.

    Attributes
    ----------
    copied_bytes : that came down from the device.

    Raises
    ------
    DeviceFaultError
        By the constructor: there is no memory beside the compressor's, or the device failed.
    DeviceError
        The kernels do not compile.
    """

    def __init__(self, compressor: DeviceCompressor) -> None:
        self.copied_bytes = 0
        self._compressor = compressor
        self._device = device = compressor.device
        self._lock = threading.Lock()
        folders = source_folders()
        source = (folders[0] / "numbers.cu").read_text(encoding="utf-8")
        with device.bound():
            self._module = device.compile("numbers.cu", f"#define OHDIFF_THREADS {THREADS}\n{source}", folders)
            shape = BatchShape.of(compressor.nvcomp, _FORMS_MAX * _WIDTH_MAX, _PLANE_BYTES_MAX, device.new_stream())
            self._lane = CompressionLane(device, compressor.nvcomp, compressor.pool, shape)
            base_bytes = _WIDTH_MAX * _PLANE_BYTES_MAX
            self._room = compressor.pool.malloc(base_bytes + _FORMS_MAX * _JOB_WORDS * _WORD)
            self._pinned = device.new_pinned(base_bytes + _FORMS_MAX * _JOB_WORDS * _WORD)
        self._jobs_offset = base_bytes

    def encode(
        self, memory: DeviceMemory, width: int, transforms: Sequence[int], base: Buffer | None, cast: int
    ) -> Planes | None:
        """The planes of whole elements; None if the CPU has to make them, or if they would not be shorter.

        Parameters
        ----------
        width : bytes of an element.
        transforms : to be tried.
        base, cast : for transforms that need one: as many elements, and what makes them of the same kind.
        """
        count = memory.size // width
        if not self._compressor.is_on_device or not 0 < count <= _PLANE_BYTES_MAX or count % _COUNT_UNIT:
            return None
        with self._lock:
            turn = self._compressor.pace.turn("planes: device", memory.size, may_wait=True, is_movable=True)
            if turn is None:
                return None
            is_ok = False
            try:
                with self._device.bound():
                    found = self._encode(memory, width, transforms, base, cast, turn)
                is_ok = True
            except DeviceFaultError as error:
                self._lane.quiesce()
                self._compressor.disable(f"{self._compressor.name} failed: {error}")
                return None
            finally:
                turn.end(is_ok=is_ok)
        return found

    def distrust(self) -> None:
        """A payload did not give what was hashed."""
        self._compressor.distrust()

    def _encode(
        self,
        memory: DeviceMemory,
        width: int,
        transforms: Sequence[int],
        base: Buffer | None,
        cast: int,
        turn: DeviceTurn,
    ) -> Planes | None:
        count, size = memory.size // width, memory.size
        targets = [self._lane.data + number * size for number in range(len(transforms))]
        self._split(memory, width, list(zip(transforms, targets, strict=True)), base, cast)
        turn.submit(size)
        planes = [target + number * count for target in targets for number in range(width)]
        lengths = self._lane.run(planes, [count] * len(planes))
        gains = [length if 0 < length < _PLANE_SHARE_MAX * count else 0 for length in lengths]
        totals = [
            sum(gain or count for gain in gains[form * width : (form + 1) * width]) for form in range(len(transforms))
        ]
        best = totals.index(min(totals))
        places = range(best * width, (best + 1) * width)
        parts = [self._lane.frame(place, gains[place]) if gains[place] else (planes[place], count) for place in places]
        taken = self._lane.take(parts)
        self.copied_bytes += sum(map(len, taken))
        codecs = [PLANE_ZSTD if gains[place] else PLANE_RAW for place in places]
        payload = encode_planes(zip(codecs, taken, strict=True))
        return Planes(transforms[best], payload) if len(payload) < size else None

    def _split(
        self, memory: DeviceMemory, width: int, forms: Sequence[tuple[int, int]], base: Buffer | None, cast: int
    ) -> None:
        """Make the planes of each (transform, target address)."""
        device, stream, room, pinned = self._device, self._lane.stream, int(self._room.ptr), int(self._pinned.ptr)
        if base is not None:
            with host_memory.address_of(base) as (address, size):
                host_memory.copy(pinned, address, size)
                device.copy_in(room, pinned, size, stream)
        count = memory.size // width
        table: array[int] = array("Q")
        for transform, target in forms:
            needs_base = bool(transform)
            table.extend((memory.pointer, target, room if needs_base else 0, count))
            table.append(transform | (cast << 32 if needs_base else 0))
        with host_memory.address_of(table) as (address, size):
            host_memory.copy(pinned + self._jobs_offset, address, size)
            device.copy_in(room + self._jobs_offset, pinned + self._jobs_offset, size, stream)
        blocks = -(-count // (_ELEMENTS_PER_THREAD * THREADS))
        function: Any = self._module.get_function(f"ohdiff_split_numbers_{width}")
        with stream:
            for number in range(len(forms)):
                function((blocks,), (THREADS,), (room + self._jobs_offset + number * _JOB_WORDS * _WORD,))
