"""The data of a stored file without holes, read at any offset."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate

from ohdiff.errors import IntegrityError
from ohdiff_format.tree import Content


class ChunkSource:
    """A `ByteSource` over chunks; whoever reads decodes nothing but what is asked for.

    Parameters
    ----------
    content : of depth 0.
    read_chunk : gives the verified bytes of a chunk by its id.

    Attributes
    ----------
    size : of the data, in bytes.
    """

    def __init__(self, content: Content, read_chunk: Callable[[bytes], memoryview]) -> None:
        self._ids = content.chunk_ids()
        self._ends = list(accumulate(content.sizes))
        self._read_chunk = read_chunk
        self.size = self._ends[-1] if self._ends else 0

    def read(self, offset: int, size: int, /) -> bytes:
        """Some bytes, fewer only at the end; IntegrityError if a chunk is not as long as the tree says."""
        end = min(offset + size, self.size)
        return b"".join([self._part(row, offset, end)[1] for row in self._rows(offset, end)])

    def _rows(self, offset: int, end: int) -> range:
        """The chunks that hold some of [offset, end)."""
        if end <= offset:
            return range(0)
        return range(bisect_right(self._ends, offset), bisect_right(self._ends, end - 1) + 1)

    def _part(self, row: int, offset: int, end: int) -> tuple[int, memoryview]:
        """What a chunk has of [offset, end), and where in the file that begins."""
        start = self._ends[row - 1] if row else 0
        data = self._read_chunk(self._ids[row])
        if len(data) != self._ends[row] - start:
            chunk = self._ids[row].hex()
            raise IntegrityError(f"chunk {chunk[:16]} has another size than the tree says", item=chunk)
        first = max(start, offset)
        return first, data[first - start : end - start]
