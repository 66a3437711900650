"""Taking up files of a snapshot: gathers them into batches, streams the odd ones, and books what comes back.

Everything here runs on the walking thread; results are taken in the order in which files were handed in, so chunks
reach the blocks in walk order.
"""

from __future__ import annotations

import errno
import os
import resource
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from ohdiff.buffers import BufferPool
from ohdiff.chunking.engine import Engine
from ohdiff.errors import OhdiffError, SourceError
from ohdiff.filesystem import DirectoryHandle, FileStatus
from ohdiff.repository.chunk_writer import ChunkSink
from ohdiff_format.limits import ID_SIZE
from ohdiff_format.tree import EMPTY_CONTENT, MARK_CHANGED_WHILE_READ, Content, Listing

from .file_reading import (
    BATCH_FILES_MAX,
    BATCH_SIZE_BYTES,
    BUFFERS_KEPT,
    LARGE_FILE_SIZE_BYTES,
    BatchResult,
    FileBatch,
    FilePieces,
    FileRun,
    FileStream,
    read_batch,
)
from .observer import Observer, Progress
from .tree_writer import ContentBuilder, OpenLeaf, TreeWriter

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

    Attributes
    ----------
    errors : what could not be read; told to the observer as well.
    """

    def __init__(
        self, engine: Engine, sink: ChunkSink, writer: TreeWriter, readers: ThreadPoolExecutor, observer: Observer
    ) -> None:
        self._engine = engine
        self._sink = sink
        self._writer = writer
        self._readers = readers
        self._observer = observer
        self._pool = BufferPool(BATCH_SIZE_BYTES, BUFFERS_KEPT)
        self._batch = FileBatch()
        self._runs_max = _runs_max()
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
        for row in rows:
            size = sizes[row]
            if size == 0:
                continue
            leaf.waiting += 1
            if size > LARGE_FILE_SIZE_BYTES or row in holes:
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

    def finish(self) -> None:
        """Wait for every file that was handed in."""
        self._submit_batch()
        while self._in_flight:
            self._in_flight.popleft()()

    def cancel(self) -> None:
        """Stop the readers."""
        for stream in self._streams:
            stream.cancel()

    def report(self, path: bytes, what: str, error: OSError) -> None:
        """One entry could not be read; the snapshot goes on without it."""
        reason = error.strerror or str(error)
        if error.errno in VANISHED:
            reason = "it vanished while the snapshot was made"
        self._collect(SourceError(f"{_shown(path)}: {reason}", item=os.fsdecode(path), during=what))

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
        future = self._readers.submit(read_batch, batch, self._engine, self._pool)
        self._enqueue(lambda: self._take_batch(batch, future))

    def _submit_stream(self, leaf: OpenLeaf, row: int, handle: DirectoryHandle) -> None:
        stream = FileStream(FilePieces(handle, leaf.listing.names[row], self._engine, self._pool))
        self._streams.add(stream)
        self._readers.submit(stream.run)
        self._enqueue(lambda: self._take_stream(leaf, row, stream))

    def _enqueue(self, take: Callable[[], None]) -> None:
        self._in_flight.append(take)
        if len(self._in_flight) > _AHEAD:
            self._in_flight.popleft()()

    def _take_batch(self, batch: FileBatch, future: Future[BatchResult]) -> None:
        result = future.result()
        failed = {place: status for place, status in enumerate(result.statuses) if status}
        self._store_batch(result, failed)
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
        ids, cuts = result.piece.ids, result.piece.cuts
        contents = []
        first = 0
        for count, size in zip(result.counts, sizes, strict=True):
            last = first + count
            part = ids[first * ID_SIZE : last * ID_SIZE]
            contents.append(Content(part, (size,)) if count == 1 else self._content(part, _sizes(cuts, first, last)))
            first = last
        return contents

    def _store_batch(self, result: BatchResult, failed: dict[int, int]) -> None:
        """Store the chunks of all files but those that failed."""
        piece = result.piece
        first = 0
        start = 0
        for place in failed:
            last = start + sum(result.counts[first:place])
            self._sink.add_chunks(piece.buffer, piece.cuts, piece.ids, start, last)
            start = last + result.counts[place]
            first = place + 1
        self._sink.add_chunks(piece.buffer, piece.cuts, piece.ids, start, len(piece.cuts))
        self._sink.end_buffer(piece.buffer)

    def _take_failed(self, run: FileRun, row: int, status: int) -> None:
        """A file of a batch that changed is read again on its own; one that cannot be read is left out."""
        leaf = run.leaf
        leaf.waiting += 1
        if status < 0:
            stream = FileStream(FilePieces(run.handle, leaf.listing.names[row], self._engine, self._pool))
            self._streams.add(stream)
            # A thread of its own: all readers may be waiting for somebody to take the pieces of later files.
            threading.Thread(target=stream.run, name="rereader").start()
            self._take_stream(leaf, row, stream)
            return
        self._drop(leaf, row, OSError(status, os.strerror(status)))

    def _take_stream(self, leaf: OpenLeaf, row: int, stream: FileStream) -> None:
        builder = ContentBuilder(self._sink)
        try:
            for piece in stream:
                self._sink.add_chunks(piece.buffer, piece.cuts, piece.ids, 0, len(piece.cuts))
                self._sink.end_buffer(piece.buffer)
                builder.add(piece.ids, _sizes(piece.cuts, 0, len(piece.cuts)))
                self._count_read(0, piece.cuts[-1])
                self._show(leaf.path(row))
        except OSError as error:
            self._drop(leaf, row, error)
            return
        finally:
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
            self._collect(_changed(leaf.path(row)))
        self._count_read(1, 0)
        self._writer.release_leaf(leaf)

    def _content(self, ids: bytes, sizes: list[int]) -> Content:
        builder = ContentBuilder(self._sink)
        builder.add(ids, sizes)
        return builder.finish()

    def _drop(self, leaf: OpenLeaf, row: int, error: OSError) -> None:
        self.report(leaf.path(row), "open", error)
        counts = self.counts
        counts.size -= leaf.listing.sizes[row]
        if row in leaf.known:
            counts.changed -= 1
        else:
            counts.new -= 1
        leaf.dropped.append(row)
        leaf.stored = None
        leaf.listing.contents[row] = EMPTY_CONTENT
        self._writer.release_leaf(leaf)

    def _collect(self, error: OhdiffError) -> None:
        self.errors.append(error)
        self.progress.errors += 1
        self._observer.error(error)

    def _count_read(self, files: int, size: int) -> None:
        self.counts.read_size += size
        self.progress.files_done += files
        self.progress.bytes_done += size

    def _show(self, path: bytes) -> None:
        self.progress.current = [path]
        self._observer.progress(self.progress)


def _runs_max() -> int:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _RUNS_MAX if limit == resource.RLIM_INFINITY else min(_RUNS_MAX, limit // _DESCRIPTOR_SHARE)


def _sizes(cuts: list[int], first: int, last: int) -> list[int]:
    starts = cuts[first - 1 : last - 1] if first else [0, *cuts[: last - 1]]
    return [end - start for start, end in zip(starts, cuts[first:last], strict=True)]


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
