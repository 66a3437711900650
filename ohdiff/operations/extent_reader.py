"""Some ranges of a file read as one stream."""

from __future__ import annotations

import os
from typing import Final

_READ_CALL_BYTES_MAX: Final = 1 << 30


class ExtentReader:
    """The data of some ranges of a file as one stream; ends early where the file does."""

    def __init__(self, fd: int, extents: list[tuple[int, int]]) -> None:
        self._fd = fd
        self._extents = list(reversed(extents))
        self._total = sum(end - start for start, end in extents)
        self.size = 0
        self.offset = 0

    @property
    def is_done(self) -> bool:
        """Whether there is nothing more to read."""
        return not self._extents

    @property
    def left(self) -> int:
        """How many bytes are still to be read, if the file does not end early."""
        return self._total - self.size

    def read_into(self, data: bytearray, prefix: bytes) -> memoryview:
        """Fill a buffer with `prefix` and as much as it takes; returns the filled part."""
        view = memoryview(data)
        view[: len(prefix)] = prefix
        filled = len(prefix)
        while filled < len(data) and self._extents:
            filled += self._read_some(view[filled:])
        return view[:filled]

    def _read_some(self, view: memoryview) -> int:
        start, end = self._extents.pop()
        with view[: min(end - start, _READ_CALL_BYTES_MAX)] as part:
            count = os.preadv(self._fd, [part], start)
        if count == 0:
            self._extents.clear()
        elif start + count < end:
            self._extents.append((start + count, end))
        self.size += count
        self.offset = start + count
        return count
