"""Taking up files of a snapshot: gathers them into batches, streams the odd ones, and books what comes back.

Everything here runs on the walking thread; results are taken in the order in which files were handed in, so chunks
reach the blocks in walk order.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from ohdiff.buffers import BufferPool
from ohdiff.chunking.engine import Engine
from ohdiff.errors import OhdiffError, SourceError
from ohdiff.filesystem import DirectoryHandle, FileStatus
from ohdiff.repository.chunk_writer import BaseFinder, ChunkSink
from ohdiff.scheduling.pace import Pace
from ohdiff_format.limits import ID_SIZE
from ohdiff_format.tree import EMPTY_CONTENT, MARK_CHANGED_WHILE_READ, Content, Listing

from .bases import FileBases, StoredBases
from .descriptors import descriptor_share
from .file_reading import (
    BATCH_FILES_MAX,
    BATCH_SIZE_BYTES,
    BUFFERS_KEPT,
    BatchResult,
    FileBatch,
    FilePieces,
    FileRun,
    FileStream,
    Piece,
    is_container,
    is_read_alone,
    read_batch,
)
from .observer import Observer, Progress
from .tensor_bases import FileTensors, TensorBases
from .tree_writer import ContentBuilder, OpenLeaf, TreeWriter

if TYPE_CHECKING:
    from ohdiff.chunking.cuda.direct import DirectReader

_AHEAD: Final = 2
# Every directory of a batch is held open: those of all batches together, and of the walk, must stay below the limit.
_DESCRIPTOR_SHARE: Final = 8
_RUNS_MAX: Final = 4096
VANISHED: Final = frozenset({errno.ENOENT, errno.ESTALE})


@dataclass(slots=True)
class FileCounts:
    """Files seen so far; sizes in bytes."""

    new: int = 0
    changed: int = 0
    unchanged: int = 0
    size: int = 0
    read_size: int = 0


class FileTaker:
    """Reads files in the background and gives each row its content.

    Parameters
    ----------
    bases, tensors : where to look for what new chunks, and pieces of containers, resemble; None to store them plain.
    pace : says when a unit of work may run.
    direct : reads large files past the CPU.

    Attributes
    ----------
    errors : what could not be read; told to the observer as well.
    """

    def __init__(
        self,
        engine: Engine,
        sink: ChunkSink,
        writer: TreeWriter,
        readers: ThreadPoolExecutor,
        observer: Observer,
        bases: StoredBases | None,
        tensors: TensorBases | None,
        pace: Pace,
        direct: DirectReader | None = None,
    ) -> None:
        self._pace = pace
        self._direct = direct
        self._bases = bases
        self._tensors = tensors
        self._engine = engine
        self._sink = sink
        self._writer = writer
        self._readers = readers
        self._observer = observer
        self._pool = BufferPool(BATCH_SIZE_BYTES, BUFFERS_KEPT)
        self._batch = FileBatch()
        self._runs_max = descriptor_share(_DESCRIPTOR_SHARE, _RUNS_MAX)
        self._in_flight: deque[Callable[[], None]] = deque()
        self._streams: set[FileStream] = set()
        self.counts = FileCounts()
        self.progress = Progress(engine=f"{engine.name}/{engine.kernel}")
        self.errors: list[OhdiffError] = []

    def take(self, leaf: OpenLeaf, rows: Sequence[int], handle: DirectoryHandle, holes: set[int]) -> None:
        """Read some files of a leaf, now or later; the leaf waits for them.

        Parameters
        ----------
        holes : rows of files that may have holes.
        """
        sizes = leaf.listing.sizes
        small: list[int] = []
        small_size = 0
        containers: list[int] = []
        for row in rows:
            size = sizes[row]
            if size == 0:
                continue
            leaf.waiting += 1
            name, has_holes = leaf.listing.names[row], row in holes
            if not has_holes and is_container(name, size):
                containers.append(row)
                continue
            if is_read_alone(name, size, has_holes=has_holes):
                self._add_run(leaf, small, handle, small_size)
                self._submit_batch()
                self._submit_stream(leaf, row, handle)
                small, small_size = [], 0
                continue
            if self._batch.size + small_size + size > BATCH_SIZE_BYTES:
                self._add_run(leaf, small, handle, small_size)
                self._submit_batch()
                small, small_size = [], 0
            small.append(row)
            small_size += size
        self._add_run(leaf, small, handle, small_size)
        # The largest first: a master comes before its rounded copy, which can then stand on it.
        for row in sorted(containers, key=lambda row: -sizes[row]):
            self._submit_batch()
            self._submit_stream(leaf, row, handle)

    def finish(self) -> None:
        """Wait for every file that was handed in."""
        self._submit_batch()
        while self._in_flight:
            self._in_flight.popleft()()

    def collect(self, error: OhdiffError) -> None:
        """Something went wrong that does not keep the snapshot from being whole."""
        self.errors.append(error)
        self.progress.errors += 1
        self._observer.error(error)

    def cancel(self) -> None:
        """Stop the readers."""
        for stream in self._streams:
            stream.cancel()

    def report(self, path: bytes, what: str, error: OSError) -> None:
        """One entry could not be read; the snapshot goes on without it."""
        reason = error.strerror or str(error)
        if error.errno in VANISHED:
            reason = "it vanished while the snapshot was made"
        self.collect(SourceError(f"{_shown(path)}: {reason}", item=os.fsdecode(path), during=what))

    def _add_run(self, leaf: OpenLeaf, rows: list[int], handle: DirectoryHandle, size: int) -> None:
        if not rows:
            return
        batch = self._batch
        if len(batch) >= BATCH_FILES_MAX or len(batch.runs) >= self._runs_max:
            self._submit_batch()
            batch = self._batch
        batch.add(FileRun(handle, leaf, rows), size)

    def _submit_batch(self) -> None:
        batch = self._batch
        if not batch.names:
            return
        self._batch = FileBatch()
        future = self._readers.submit(read_batch, batch, self._engine, self._pool, self._pace)
        self._enqueue(lambda: self._take_batch(batch, future))

    def _submit_stream(self, leaf: OpenLeaf, row: int, handle: DirectoryHandle) -> None:
        stream = self._stream(handle, leaf.listing.names[row])
        self._readers.submit(stream.run)
        self._enqueue(lambda: self._take_stream(leaf, row, stream))

    def _stream(self, handle: DirectoryHandle, name: bytes) -> FileStream:
        stream = FileStream(FilePieces(handle, name, self._engine, self._pool, self._pace, self._direct))
        self._streams.add(stream)
        return stream

    def _enqueue(self, take: Callable[[], None]) -> None:
        self._in_flight.append(take)
        if len(self._in_flight) > _AHEAD:
            self._in_flight.popleft()()

    def _take_batch(self, batch: FileBatch, future: Future[BatchResult]) -> None:
        result = future.result()
        failed = {place: status for place, status in enumerate(result.statuses) if status}
        self._store_batch(batch, result, failed)
        contents = self._contents(result, batch.sizes)
        place = 0
        for run in batch.runs:
            known = run.leaf.listing.contents
            for row in run.rows:
                known[row] = contents[place]
                if place in failed:
                    self._take_failed(run, row, failed[place])
                place += 1
            self._writer.release_leaf(run.leaf, len(run.rows))
        self._count_read(len(batch) - len(failed), batch.size - sum(batch.sizes[place] for place in failed))
        last = batch.runs[-1]
        self._show(last.leaf.path(last.rows[-1]))

    def _contents(self, result: BatchResult, sizes: list[int]) -> list[Content]:
        """The content of each file of a batch."""
        return [
            Content(ids, (chunks[0],)) if len(chunks) == 1 else self._content(ids, chunks)
            for ids, chunks in result.files(sizes)
        ]

    def _store_batch(self, batch: FileBatch, result: BatchResult, failed: dict[int, int]) -> None:
        """Store the chunks of all files but those that failed; those with an earlier version one by one."""
        piece, sink, bases = result.piece, self._sink, self._bases
        earlier = self._earlier(batch)
        other = None if bases is None else bases.of_buffer(piece.buffer)
        first = 0
        starts = list(accumulate(result.counts, initial=0))
        for place in sorted({*failed, *earlier}):
            start, end = starts[place], starts[place + 1]
            sink.add_chunks(piece.buffer, piece.cuts, piece.ids, first, start, other)
            if place not in failed and bases is not None:
                content, file_start = earlier[place]
                finder = bases.of_file(content)
                finder.origin = -file_start
                sink.add_chunks(piece.buffer, piece.cuts, piece.ids, start, end, finder)
            first = end
        sink.add_chunks(piece.buffer, piece.cuts, piece.ids, first, len(piece.cuts), other)
        sink.end_buffer(piece.buffer)

    def _earlier(self, batch: FileBatch) -> dict[int, tuple[Content, int]]:
        """For the files of a batch that the parent had, by place: what they held, and where they lie in the buffer."""
        found: dict[int, tuple[Content, int]] = {}
        if self._bases is None or not any(run.leaf.earlier for run in batch.runs):
            return found
        place = start = 0
        for run in batch.runs:
            for row in run.rows:
                content = run.leaf.earlier.get(row)
                if content is not None and content.sizes:
                    found[place] = content, start
                start += batch.sizes[place]
                place += 1
        return found

    def _take_failed(self, run: FileRun, row: int, status: int) -> None:
        """A file of a batch that changed is read again on its own; one that cannot be read is left out."""
        leaf = run.leaf
        leaf.waiting += 1
        if status < 0:
            stream = self._stream(run.handle, leaf.listing.names[row])
            # A thread of its own: all readers may be waiting for somebody to take the pieces of later files.
            threading.Thread(target=stream.run, name="rereader").start()
            self._take_stream(leaf, row, stream)
            return
        self._drop(leaf, row, OSError(status, os.strerror(status)))

    def _take_stream(self, leaf: OpenLeaf, row: int, stream: FileStream) -> None:
        builder = ContentBuilder(self._sink)
        earlier = leaf.earlier.get(row)
        finder = None if self._bases is None or earlier is None else self._bases.of_file(earlier)
        tensors = None
        try:
            for piece in stream:
                if piece.layout is not None and self._tensors is not None and tensors is None:
                    listing = leaf.listing
                    stamps = (leaf.path(row), listing.sizes[row], listing.mtimes[row])
                    tensors = self._tensors.open(*stamps, piece.layout, earlier)
                self._store_piece(piece, finder, tensors)
                self._sink.end_buffer(piece.buffer)
                if finder is not None:
                    finder.origin += piece.cuts[-1]
                builder.add(piece.ids, piece.sizes)
                self._count_read(0, piece.cuts[-1])
                self._show(leaf.path(row))
        except OSError as error:
            self._drop(leaf, row, error)
            return
        finally:
            # Whoever gave up early would leave its reader waiting for somebody to take the next piece.
            stream.cancel()
            self._streams.discard(stream)
        assert stream.end is not None
        end = stream.end
        self.counts.size += end.size - leaf.listing.sizes[row]
        _set_status(leaf.listing, row, end.status, end.size)
        leaf.listing.extents.pop(row, None)
        if end.extents is not None:
            leaf.listing.extents[row] = end.extents
        leaf.listing.contents[row] = builder.finish()
        if end.has_changed:
            leaf.listing.marks[row] |= MARK_CHANGED_WHILE_READ
            self.collect(_changed(leaf.path(row)))
        self._count_read(1, 0)
        self._writer.release_leaf(leaf)

    def _store_piece(self, piece: Piece, earlier: FileBases | None, tensors: FileTensors | None) -> None:
        """Store the chunks of a piece of a file: those of tensors as numbers, all others as bytes."""
        finder: BaseFinder | None = earlier
        if earlier is None and self._bases is not None:
            finder = self._bases.of_buffer(piece.buffer)
        sink, buffer, cuts, ids = self._sink, piece.buffer, piece.cuts, piece.ids
        first = 0
        for number, row in enumerate(piece.rows or ()):
            if row >= 0:
                sink.add_chunks(buffer, cuts, ids, first, number, finder)
                first = number + 1
                chunk_id = ids[number * ID_SIZE : first * ID_SIZE]
                plan = None if tensors is None else tensors.plan(row)
                is_new = sink.add_planned(buffer, cuts[number - 1] if number else 0, cuts[number], chunk_id, plan)
                if tensors is not None:
                    tensors.note(row, chunk_id, is_new=is_new)
        sink.add_chunks(buffer, cuts, ids, first, len(cuts), finder)

    def note_unchanged(self, leaf: OpenLeaf, rows: Iterable[int]) -> None:
        """Files of a leaf are as the parent has them: containers among them may be bases of others."""
        if self._tensors is None:
            return
        listing = leaf.listing
        for row in rows:
            size = listing.sizes[row]
            if is_container(listing.names[row], size):
                self._tensors.note_unchanged(leaf.path(row), size, listing.mtimes[row], listing.contents[row])

    def _content(self, ids: bytes, sizes: list[int]) -> Content:
        builder = ContentBuilder(self._sink)
        builder.add(ids, sizes)
        return builder.finish()

    def _drop(self, leaf: OpenLeaf, row: int, error: OSError) -> None:
        self.report(leaf.path(row), "open", error)
        counts = self.counts
        counts.size -= leaf.listing.sizes[row]
        if row in leaf.earlier:
            counts.changed -= 1
        else:
            counts.new -= 1
        leaf.dropped.append(row)
        leaf.stored = None
        leaf.listing.contents[row] = EMPTY_CONTENT
        self._writer.release_leaf(leaf)

    def _count_read(self, files: int, size: int) -> None:
        self.counts.read_size += size
        self.progress.files_done += files
        self.progress.bytes_done += size

    def _show(self, path: bytes) -> None:
        self.progress.current = [path]
        self._observer.progress(self.progress)


def _set_status(listing: Listing, row: int, status: FileStatus, size: int) -> None:
    """The metadata of the very file that was read."""
    listing.modes[row] = status.mode
    listing.uids[row] = status.uid
    listing.gids[row] = status.gid
    listing.sizes[row] = size
    listing.mtimes[row] = status.mtime_ns
    listing.ctimes[row] = status.ctime_ns
    listing.btimes[row] = status.btime_ns
    listing.inodes[row] = status.inode
    listing.devices[row] = status.device
    listing.link_counts[row] = status.link_count
    listing.rdevs[row] = status.rdev
    listing.flags[row] = status.flags
    listing.xattrs.pop(row, None)
    if status.xattrs:
        listing.xattrs[row] = status.xattrs


def _changed(path: bytes) -> SourceError:
    return SourceError(
        f"{_shown(path)}: it changed while it was read; the snapshot holds what was read",
        item=os.fsdecode(path),
        hint="snapshot again when it is at rest",
    )


def _shown(path: bytes) -> str:
    return path.decode(errors="backslashreplace")
