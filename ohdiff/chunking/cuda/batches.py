"""Dividing work into batches that fit into a device's buffers. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FileBatch:
    """A range of bytes with the files, or the part of a file, that lie in it.

    Attributes
    ----------
    start, end : the bytes that are new to the device; offsets in the data.
    ends : exclusive end of each file in the data; of a part, where the batch ends.
    first_file : the number of the first of them.
    continues : the first file began in the batch before; what follows its last cut there comes first here.
    is_open : the last file goes on; it is then the only one, and the batch is full.
    """

    start: int
    end: int
    ends: tuple[int, ...]
    first_file: int
    continues: bool
    is_open: bool

    @property
    def size(self) -> int:
        """Bytes, without what is carried over."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class ChunkBatch:
    """Adjoining chunks: `ends` are their exclusive ends, `start` is where the first one begins."""

    start: int
    ends: tuple[int, ...]

    @property
    def end(self) -> int:
        """Where the last one ends."""
        return self.ends[-1]

    @property
    def size(self) -> int:
        """Bytes."""
        return self.end - self.start


class FileBatches:
    """Batches of whole files, and of parts of files that are larger than a batch, each made when it is asked for.

    Parameters
    ----------
    ends : exclusive ends of files that lie back to back from 0 on, ascending.
    files_max : files of a batch.
    is_open : the last file goes on behind the data.
    """

    def __init__(self, ends: Sequence[int], files_max: int, *, is_open: bool = False) -> None:
        self._ends = ends
        self._files_max = files_max
        self._is_open = is_open
        self._file = self._start = 0
        self._continues = False

    @property
    def is_done(self) -> bool:
        """Whether there is no further one."""
        return self._file == len(self._ends)

    def next(self, size_max: int) -> FileBatch | None:
        """The next batch, with at most so many new bytes; None when there is none left."""
        ends, start, first, continues = self._ends, self._start, self._file, self._continues
        if self.is_done:
            return None
        if ends[first] - start > size_max:
            self._start, self._continues = start + size_max, True
            return FileBatch(start, self._start, (self._start,), first, continues, True)
        last = bisect_right(ends, start + size_max, first, min(len(ends), first + self._files_max))
        self._file, self._start, self._continues = last, ends[last - 1], False
        is_open = self._is_open and last == len(ends)
        return FileBatch(start, self._start, tuple(ends[first:last]), first, continues, is_open)


class ChunkBatches:
    """Batches of adjoining whole chunks, each made when it is asked for.

    A batch of empty chunks alone, and a chunk that is larger than `size_limit`, are nothing for a device: such a batch
    is passed over, and stands in `made` like the others.

    Parameters
    ----------
    ends : exclusive ends of chunks that adjoin from 0 on, ascending.
    size_limit, chunks_max : of a batch.

    Attributes
    ----------
    made : every batch so far.
    """

    def __init__(self, ends: Sequence[int], size_limit: int, chunks_max: int) -> None:
        self.made: list[ChunkBatch] = []
        self._ends = ends
        self._size_limit = size_limit
        self._chunks_max = chunks_max
        self._chunk = self._start = 0

    @property
    def is_done(self) -> bool:
        """Whether nothing is left, not even for others than a device."""
        return self._chunk == len(self._ends)

    def next(self, size_max: int) -> ChunkBatch | None:
        """The next batch that a device can take, of at most so many bytes or one chunk; None when none is left."""
        while not self.is_done:
            batch = self._next(size_max)
            self.made.append(batch)
            if self.is_fitting(batch):
                return batch
        return None

    def is_fitting(self, batch: ChunkBatch) -> bool:
        """Whether a device can take it."""
        return 0 < batch.size <= self._size_limit

    def _next(self, size_max: int) -> ChunkBatch:
        ends, start, first = self._ends, self._start, self._chunk
        last = bisect_right(ends, start + size_max, first, min(len(ends), first + self._chunks_max))
        self._chunk = last = max(last, first + 1)
        self._start = ends[last - 1]
        return ChunkBatch(start, tuple(ends[first:last]))


def overlapping_ranges(size: int, size_max: int, overlap: int) -> Iterator[tuple[int, int]]:
    """Ranges that cover [0, size), each but the first beginning `overlap` bytes before the end of the last."""
    start = 0
    while True:
        end = min(start + size_max, size)
        yield start, end
        if end == size:
            return
        start = end - overlap
