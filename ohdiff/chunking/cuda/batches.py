"""Dividing work into batches that fit into a device's buffers. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise


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


def file_batches(ends: Sequence[int], size_max: int, files_max: int, *, is_open: bool = False) -> Iterator[FileBatch]:
    """Batches of whole files, and of parts of files that are larger than a batch.

    Parameters
    ----------
    ends : exclusive ends of files that lie back to back from 0 on, ascending.
    size_max : new bytes of a batch.
    is_open : the last file goes on behind the data.
    """
    pending: list[int] = []
    start = pending_file = 0
    continues = False
    for number, (file_start, file_end) in enumerate(pairwise([0, *ends])):
        if pending and (file_end - start > size_max or len(pending) == files_max):
            yield FileBatch(start, file_start, tuple(pending), pending_file, continues, False)
            pending, start, continues = [], file_start, False
        if not pending:
            pending_file = number
        while file_end - start > size_max:
            yield FileBatch(start, start + size_max, (start + size_max,), number, continues, True)
            start += size_max
            continues = True
        pending.append(file_end)
    if pending:
        yield FileBatch(start, pending[-1], tuple(pending), pending_file, continues, is_open)


def chunk_batches(ends: Sequence[int], size_max: int, chunks_max: int) -> Iterator[ChunkBatch]:
    """Batches of whole chunks; a chunk that is larger than a batch comes alone."""
    pending: list[int] = []
    start = previous = 0
    for end in ends:
        if pending and (end - start > size_max or len(pending) == chunks_max):
            yield ChunkBatch(start, tuple(pending))
            pending, start = [], previous
        pending.append(end)
        previous = end
    if pending:
        yield ChunkBatch(start, tuple(pending))


def overlapping_ranges(size: int, size_max: int, overlap: int) -> Iterator[tuple[int, int]]:
    """Ranges that cover [0, size), each but the first beginning `overlap` bytes before the end of the last."""
    start = 0
    while True:
        end = min(start + size_max, size)
        yield start, end
        if end == size:
            return
        start = end - overlap
