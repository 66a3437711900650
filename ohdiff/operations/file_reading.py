"""Reading source files in the background: small ones in batches, large or odd ones as streams of pieces.

A batch is one buffer that many files were read into by one native call, already cut and hashed; a piece is the same
for a part of one file. The files of a batch are exactly the files that the walk saw: one that changed since, or while
it was read, is flagged and read again as a stream, which takes its metadata from the open file itself.
"""

from __future__ import annotations

import os
import queue
import threading
from array import array
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import accumulate
from operator import sub
from typing import TYPE_CHECKING, Final

from ohdiff.buffers import BufferPool, PooledBuffer
from ohdiff.chunking.containers import may_be_container
from ohdiff.chunking.engine import Engine, cut_and_hash_segments, cut_and_hash_stream
from ohdiff.filesystem import (
    DirectoryHandle,
    FileStatus,
    data_extents,
    may_have_holes,
    read_files,
    read_status,
)
from ohdiff.scheduling.pace import UNPACED, Pace
from ohdiff.scheduling.page_cache import left_as_found
from ohdiff_format.limits import ID_SIZE

from .container_reading import ContainerLayout, grouped, read_group, read_layout
from .direct_reading import window_buffers
from .extent_reader import ExtentReader
from .tree_writer import OpenLeaf

if TYPE_CHECKING:
    from ohdiff.chunking.cuda.direct import DirectFile, DirectReader

BATCH_SIZE_BYTES: Final = 8 << 20
BATCH_FILES_MAX: Final = 8192
LARGE_FILE_SIZE_BYTES: Final = 4 << 20
# Smaller containers are read in batches, as all small files are: each would need an extra look at its header.
_CONTAINER_SIZE_BYTES_MIN: Final = 1 << 20
BUFFERS_KEPT: Final = 3
_EXTENTS_MAX: Final = 100_000
_PIECES_AHEAD: Final = 1


@dataclass(slots=True, eq=False)
class Piece:
    """A buffer of chunks: `cuts` are exclusive end offsets, `ids` 32 bytes for each; who takes it releases it.

    Of a container, `layout` says how it is cut, and `rows` which chunks are pieces of it: their rows, -1 for others.
    """

    buffer: PooledBuffer
    cuts: list[int]
    ids: bytes
    layout: ContainerLayout | None = None
    rows: list[int] | None = None

    @property
    def sizes(self) -> list[int]:
        """The length of each chunk."""
        return _sizes(self.cuts, 0, len(self.cuts))


@dataclass(frozen=True, slots=True, eq=False)
class FileRun:
    """Some files of one leaf, by their rows."""

    handle: DirectoryHandle
    leaf: OpenLeaf
    rows: list[int]


@dataclass(slots=True, eq=False)
class FileBatch:
    """Files to be read together, run after run; the other lists are parallel, one item a file."""

    runs: list[FileRun] = field(default_factory=list)
    names: list[bytes] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    mtimes: list[int] = field(default_factory=list)
    ctimes: list[int] = field(default_factory=list)
    inodes: list[int] = field(default_factory=list)
    size: int = 0

    def add(self, run: FileRun, size: int) -> None:
        """Append some files of a leaf, `size` bytes together."""
        listing, rows = run.leaf.listing, run.rows
        self.runs.append(run)
        self.names += [listing.names[row] for row in rows]
        self.sizes += [listing.sizes[row] for row in rows]
        self.mtimes += [listing.mtimes[row] for row in rows]
        self.ctimes += [listing.ctimes[row] for row in rows]
        self.inodes += [listing.inodes[row] for row in rows]
        self.size += size

    def fds(self) -> list[int]:
        """The descriptor of each file's directory."""
        return [fd for run in self.runs for fd in [run.handle.fd] * len(run.rows)]

    def __len__(self) -> int:
        return len(self.names)


@dataclass(slots=True, eq=False)
class BatchResult:
    """What became of a batch: `statuses` as `read_files` gives them, `counts` chunks for each file in order."""

    piece: Piece
    counts: list[int]
    statuses: list[int]

    def files(self, sizes: list[int]) -> Iterator[tuple[bytes, list[int]]]:
        """The ids and lengths of the chunks of each file, given the files' sizes."""
        ids, cuts = self.piece.ids, self.piece.cuts
        first = 0
        for count, size in zip(self.counts, sizes, strict=True):
            last = first + count
            yield ids[first * ID_SIZE : last * ID_SIZE], [size] if count == 1 else _sizes(cuts, first, last)
            first = last


@dataclass(slots=True, eq=False)
class StreamEnd:
    """The end of a streamed file: the status that belongs to the data, and whether it changed meanwhile.

    `extents` are the data ranges of a file with holes, flat, or None.
    """

    status: FileStatus
    size: int
    extents: list[int] | None
    has_changed: bool


def _sizes(cuts: list[int], first: int, last: int) -> list[int]:
    starts = cuts[first - 1 : last - 1] if first else [0, *cuts[: last - 1]]
    return list(map(sub, cuts[first:last], starts))


def read_batch(batch: FileBatch, engine: Engine, pool: BufferPool, pace: Pace = UNPACED) -> BatchResult:
    """Read, cut and hash a batch, as one unit of work; runs in a worker."""
    with pace.unit(batch.size):
        return _read_batch(batch, engine, pool, leaves_cache=pace.leaves_page_cache)


def _read_batch(batch: FileBatch, engine: Engine, pool: BufferPool, *, leaves_cache: bool) -> BatchResult:
    buffer = pool.take(batch.size)
    data = memoryview(buffer.data)[: batch.size]
    statuses = read_files(
        batch.fds(),
        batch.names,
        (batch.sizes, batch.mtimes, batch.ctimes, batch.inodes),
        data,
        0,
        leaves_cache,
    )
    ends = array("Q", accumulate(batch.sizes)).tobytes()
    cut_bytes, count_bytes, ids = cut_and_hash_segments(engine, data, ends)
    return BatchResult(Piece(buffer, array("Q", cut_bytes).tolist(), ids), array("I", count_bytes).tolist(), statuses)


def is_container(name: bytes, size: int) -> bool:
    """Whether a file without holes is to be read as a container, if it turns out to be one."""
    return size >= _CONTAINER_SIZE_BYTES_MIN and may_be_container(name, size)


def is_read_alone(name: bytes, size: int, *, has_holes: bool) -> bool:
    """Whether a file is read as `FilePieces` rather than in a batch; all who cut files must agree on that."""
    return has_holes or size > LARGE_FILE_SIZE_BYTES or is_container(name, size)


class FilePieces:
    """One file read, cut and hashed piece by piece: iterating gives the pieces, then `end` is set.

    Parameters
    ----------
    direct : reads large files into the memory of the engine's device, if that is possible.
    """

    def __init__(
        self,
        handle: DirectoryHandle,
        name: bytes,
        engine: Engine,
        pool: BufferPool,
        pace: Pace = UNPACED,
        direct: DirectReader | None = None,
    ) -> None:
        self._pace = pace
        self._direct = direct
        self._handle = handle
        self._name = name
        self._engine = engine
        self._pool = pool
        self._piece_size = max(BATCH_SIZE_BYTES, 2 * engine.rule.max_size)
        self._size_read = 0
        self._passed: Callable[[int], None] | None = None
        self.end: StreamEnd | None = None

    def __iter__(self) -> Iterator[Piece]:
        fd = self._handle.open_file(self._name)
        try:
            status = read_status(fd, with_xattrs=True)
            has_holes = may_have_holes(status.size, status.blocks512)
            extents = _bounded(data_extents(fd, status.size)) if has_holes else [(0, status.size)]
            size = sum(end - start for start, end in extents)
            with left_as_found(fd, status.size) if self._pace.leaves_page_cache else nullcontext() as self._passed:
                layout = None
                if not has_holes and is_container(self._name, status.size):
                    layout = read_layout(fd, status.size)
                if layout is None:
                    if self._direct is not None and not has_holes and size >= self._direct.file_size_min:
                        yield from self._cut_directly(self._direct, fd, size)
                        extents = [(self._size_read, size)] if self._size_read < size else []
                    reader = ExtentReader(fd, extents)
                    yield from self._cut(reader)
                    self._size_read += reader.size
                else:
                    yield from self._cut_container(fd, layout, size)
            after = read_status(fd)
        finally:
            os.close(fd)
        stamps = [(each.size, each.mtime_ns, each.ctime_ns) for each in (status, after)]
        is_whole = self._size_read == size
        has_changed = stamps[0] != stamps[1] or not is_whole
        if is_whole and has_holes:
            bounds = [bound for extent in extents for bound in extent]
            self.end = StreamEnd(status, status.size, bounds, has_changed)
        else:
            # A file that shrank has no known layout any more: it is kept as the plain bytes that were read.
            self.end = StreamEnd(status, self._size_read, None, has_changed)

    def _cut_container(self, fd: int, layout: ContainerLayout, file_size: int) -> Iterator[Piece]:
        """Pieces as they are, several to a buffer; ranges of other bytes by content."""
        direct = self._direct
        file = None if direct is None or file_size < direct.file_size_min else direct.open(fd)
        for rows in grouped(layout.pieces, self._piece_size, is_by_kind=file is not None):
            first, last = layout.pieces[rows[0]], layout.pieces[rows[-1]]
            if file is not None and (piece := self._hash_directly(file, layout, rows)) is not None:
                yield piece
                self._size_read += last.end - first.start
                continue
            if last.end - first.start > self._piece_size:
                reader = ExtentReader(fd, [(first.start, first.end)])
                yield from self._cut(reader)
                size = reader.size
            else:
                with self._pace.unit(last.end - first.start):
                    buffer, cuts, chunk_rows, size = read_group(fd, layout, rows, self._engine, self._pool)
                    ids = self._engine.hash_chunks(memoryview(buffer.data)[:size], array("Q", cuts)) if cuts else b""
                self._pass(last.end)
                if not cuts:
                    buffer.release()
                    return
                yield Piece(buffer, cuts, ids, layout, chunk_rows)
            self._size_read += size
            if size < last.end - first.start:
                return

    def _hash_directly(self, file: DirectFile, layout: ContainerLayout, rows: range) -> Piece | None:
        """Pieces of tensors that the device reads by itself."""
        pieces = [layout.pieces[row] for row in rows]
        if pieces[0].kind is None:
            return None
        with self._pace.unit(pieces[-1].end - pieces[0].start):
            window = file.hashed(pieces[0].start, [piece.end for piece in pieces])
        if window is None:
            return None
        ((buffer, cuts, ids),) = window_buffers(file, window, self._pool, self._piece_size)
        return Piece(buffer, cuts, ids, layout, list(rows))

    def _cut_directly(self, direct: DirectReader, fd: int, size: int) -> Iterator[Piece]:
        """As much of the file as the device reads by itself; what is left begins where a chunk does."""
        file = direct.open(fd)
        windows = iter(()) if file is None else file.windows(size)
        while file is not None:
            with self._pace.unit(direct.file_size_min):
                window = next(windows, None)
            if window is None:
                return
            for buffer, cuts, ids in window_buffers(file, window, self._pool, self._piece_size):
                yield Piece(buffer, cuts, ids)
            self._size_read = window.end

    def _cut(self, reader: ExtentReader) -> Iterator[Piece]:
        """The data of all extents as one stream."""
        carry = b""
        while not reader.is_done:
            buffer = self._pool.take(self._piece_size)
            size = min(self._piece_size - len(carry), reader.left)
            with self._pace.unit(size), reader.read_into(buffer.data, carry) as data:
                cut_bytes, ids = cut_and_hash_stream(self._engine, data, reader.is_done)
                cuts = array("Q", cut_bytes).tolist()
                carry = bytes(data[cuts[-1] if cuts else 0 :])
            self._pass(reader.offset)
            if cuts:
                yield Piece(buffer, cuts, ids)
            else:
                buffer.release()

    def _pass(self, end: int) -> None:
        """The file was read up to here: what its reading brought into the page cache may go."""
        if self._passed is not None:
            self._passed(end)


class FileStream:
    """The pieces of one file, made by a worker a few ahead of who takes them.

    Iterating gives the pieces, then `end` is set; an OSError of the worker is raised in the iteration.
    """

    def __init__(self, pieces: FilePieces) -> None:
        self._made = pieces
        self._pieces: queue.Queue[Piece | StreamEnd | BaseException] = queue.Queue(_PIECES_AHEAD)
        self._is_cancelled = threading.Event()
        self.end: StreamEnd | None = None

    def run(self) -> None:
        """Read the file; runs in a worker."""
        try:
            for piece in self._made:
                self._put(piece)
                if self._is_cancelled.is_set():
                    return
            assert self._made.end is not None
            self._put(self._made.end)
        except BaseException as error:  # noqa: BLE001 - raised again where the pieces are taken
            self._put(error)

    def __iter__(self) -> Iterator[Piece]:
        while True:
            item = self._pieces.get()
            if isinstance(item, BaseException):
                raise item
            if isinstance(item, StreamEnd):
                self.end = item
                return
            yield item

    def cancel(self) -> None:
        """Nobody takes the pieces any more."""
        self._is_cancelled.set()

    def _put(self, item: Piece | StreamEnd | BaseException) -> None:
        while not self._is_cancelled.is_set():
            try:
                self._pieces.put(item, timeout=0.2)
            except queue.Full:
                continue
            return


def _bounded(extents: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The extents with their shortest holes taken for data, so that no file has more than a leaf can hold."""
    excess = len(extents) - _EXTENTS_MAX
    if excess <= 0:
        return extents
    gaps = sorted(range(1, len(extents)), key=lambda place: extents[place][0] - extents[place - 1][1])
    filled = set(gaps[:excess])
    bounded = extents[:1]
    for place, (start, end) in enumerate(extents[1:], 1):
        if place in filled:
            bounded[-1] = (bounded[-1][0], end)
        else:
            bounded.append((start, end))
    return bounded
