"""Files that a device reads by itself: only chunks that the repository does not know come to host memory, and are
proved there by the CPU before they are stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ohdiff.buffers import BufferPool
from ohdiff.chunking.engine import Engine
from ohdiff.errors import DeviceError, SourceError
from ohdiff_format.limits import ID_SIZE

from .fetched_buffer import FetchedBuffer

if TYPE_CHECKING:
    from ohdiff.chunking.cuda.direct import DirectFile, DirectReader, Window


def open_direct(engine: Engine) -> DirectReader | None:
    """What reads files past the CPU into an engine's device; None where nothing can."""
    if engine.name != "cuda":
        return None
    # Few engines are on a device, and its modules take time to import.
    from ohdiff.chunking.cuda.direct import DirectReader
    from ohdiff.chunking.cuda.engine import CudaEngine

    assert isinstance(engine, CudaEngine), "there is one of this name"
    try:
        return DirectReader(engine)
    except DeviceError:
        return None


def window_buffers(
    file: DirectFile, window: Window, pool: BufferPool, size_max: int
) -> Iterator[tuple[FetchedBuffer, list[int], bytes]]:
    """The chunks of a window in buffers of at most so many bytes, as (buffer, cuts in it, ids)."""
    first, start = 0, 0
    count = len(window.cuts)
    while first < count:
        last = first + 1
        while last < count and window.cuts[last] - start <= size_max:
            last += 1
        cuts = [cut - start for cut in window.cuts[first:last]]
        ids = window.ids[first * ID_SIZE : last * ID_SIZE]
        yield FetchedBuffer(pool, cuts, _Proof(file, window, first)), cuts, ids
        first, start = last, window.cuts[last - 1]


class _Proof:
    """Copies chunks from the device, and proves that they are what was hashed there; else it reads the file again."""

    def __init__(self, file: DirectFile, window: Window, first: int) -> None:
        self._file = file
        self._window = window
        self._first = first

    def __call__(self, first: int, last: int, target: memoryview) -> None:
        file, window = self._file, self._window
        first, last = first + self._first, last + self._first
        start = window.cuts[first - 1] if first else 0
        try:
            file.fetch(window, start, target)
            if file.is_proved(window, first, last, target):
                return
            file.distrust("bytes on the device are not what was hashed there")
        except DeviceError as error:
            file.distrust(error.message)
        if not (file.read_again(window.start + start, target) and file.is_proved(window, first, last, target)):
            raise SourceError(
                "a device failed with a file on it, and the file is not what it was; nothing was committed",
                hint="snapshot again; with --engine cpu to rule the device out",
            )
