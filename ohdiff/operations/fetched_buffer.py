"""A buffer of chunks that lie elsewhere, and come to host memory one by one when their bytes are first asked for."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from ohdiff.buffers import BufferPool, PooledBuffer

# (first chunk, last chunk exclusive, target)
Fetch = Callable[[int, int, memoryview], None]


class FetchedBuffer(PooledBuffer):
    """A buffer whose chunks the repository mostly knows: what it knows is never fetched.

    Parameters
    ----------
    pool : where the room comes from, once there is need for it.
    cuts : exclusive end of each chunk.
    fetch : fills a target with the bytes of adjoining chunks.
    """

    __slots__ = ("_bounds", "_fetch", "_is_missing", "_room")

    def __init__(self, pool: BufferPool, cuts: Sequence[int], fetch: Fetch) -> None:
        self._pool = pool
        self._users = 1
        self._bounds = [0, *cuts]
        self._fetch = fetch
        self._is_missing = bytearray(b"\x01" * len(cuts))
        self._room: bytearray | None = None

    @property
    def data(self) -> bytearray:  # type: ignore[override]
        """Room for all chunks, in which those are that were asked for."""
        if self._room is None:
            self._room = self._pool.take(self._bounds[-1]).data
        return self._room

    def view(self, start: int, end: int) -> memoryview:
        """See `PooledBuffer.view`; fetches what is not there yet."""
        with memoryview(self.data) as data:
            for first, last in self._missing(start, end):
                with data[self._bounds[first] : self._bounds[last]] as target:
                    self._fetch(first, last, target)
                self._is_missing[first:last] = bytes(last - first)
        return super().view(start, end)

    def release(self) -> None:
        """See `PooledBuffer.release`; what was never fetched has nothing to give back."""
        with self._pool.lock:
            self._users -= 1
            if self._users == 0 and self._room is not None:
                self._pool.put_back(self._room)

    def _missing(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Runs of chunks that overlap a range and are not there, as (first, last exclusive)."""
        bounds = self._bounds
        chunks = range(bisect_right(bounds, start) - 1, bisect_left(bounds, end))
        numbers = [number for number in chunks if self._is_missing[number]]
        for _, group in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
            run = [number for _, number in group]
            yield run[0], run[-1] + 1
