"""Bases by place: the chunks of a file's earlier version that stood where a new chunk stands now."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Final

# A file's earlier version is known this many chunks ahead and behind: all of it up to 2 GiB at 32 KiB a chunk.
_CHUNKS_KNOWN_MAX: Final = 65_536
_CHUNKS_AHEAD: Final = _CHUNKS_KNOWN_MAX // 2
# A base that a new chunk covers by less than this share of itself is left to the neighbour that covers the rest.
_SHARE_MIN: Final = 8


class EarlierVersion:
    """The chunks of the earlier version of one file, asked for in ascending order of the new version.

    A chunk that both versions have tells by how much the bytes after it have moved.

    Parameters
    ----------
    chunks : (id prefix, length) of each chunk, in order; read as far as needed.
    """

    def __init__(self, chunks: Iterator[tuple[bytes, int]]) -> None:
        self._chunks = chunks
        self._prefixes: list[bytes] = []
        self._ends: list[int] = []
        self._starts: dict[bytes, int] = {}
        self._first_start = 0
        self._has_more = True
        self._shift = 0

    def note_duplicate(self, prefix: bytes, start: int) -> None:
        """The new version has this chunk of the repository at an offset."""
        self._know(start + self._shift)
        known = self._starts.get(prefix)
        if known is not None:
            self._shift = known - start

    def at(self, start: int, end: int) -> Sequence[bytes]:
        """Prefixes of the earlier chunks in the place of [start, end) of the new version; empty beyond its end."""
        start, end = start + self._shift, end + self._shift
        self._know(end)
        first = bisect_right(self._ends, start)
        last = min(bisect_left(self._ends, end), len(self._ends) - 1)
        if first > last:
            return ()
        if first < last and self._share_is_small(first, start, self._ends[first]):
            first += 1
        if first < last and self._share_is_small(last, self._ends[last - 1], end):
            last -= 1
        return self._prefixes[first : last + 1]

    def _share_is_small(self, row: int, start: int, end: int) -> bool:
        row_start = self._ends[row - 1] if row else self._first_start
        return (end - start) * _SHARE_MIN < self._ends[row] - row_start

    def _know(self, offset: int) -> None:
        """Read on until the chunks around an offset are known, and forget those far behind it."""
        if not self._has_more:
            return
        if len(self._ends) - bisect_left(self._ends, offset) >= _CHUNKS_AHEAD // 2:
            return
        while self._has_more and len(self._ends) - bisect_left(self._ends, offset) < _CHUNKS_AHEAD:
            self._read(1024)
        excess = len(self._ends) - _CHUNKS_KNOWN_MAX
        if excess > 0:
            self._forget(excess)

    def _read(self, count: int) -> None:
        end = self._ends[-1] if self._ends else self._first_start
        for _ in range(count):
            prefix, size = next(self._chunks, (b"", 0))
            if not prefix:
                self._has_more = False
                return
            self._starts[prefix] = end
            end += size
            self._prefixes.append(prefix)
            self._ends.append(end)

    def _forget(self, count: int) -> None:
        start = self._first_start
        for prefix, end in zip(self._prefixes[:count], self._ends[:count], strict=True):
            if self._starts.get(prefix) == start:
                del self._starts[prefix]
            start = end
        self._first_start = start
        del self._prefixes[:count], self._ends[:count]
