"""Reading the files of a folder for a diff: each once, in the background, small ones in batches, few directories open.

What a file holds is told in the thread that asked, in the order in which files were asked for.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ohdiff.buffers import BufferPool
from ohdiff.chunking.engine import Engine
from ohdiff.filesystem import DirectoryHandle
from ohdiff_format.tree import EMPTY_CONTENT, Content

from .descriptors import descriptor_share
from .file_reading import (
    BATCH_FILES_MAX,
    BATCH_SIZE_BYTES,
    FileBatch,
    FilePieces,
    FileRun,
    is_read_alone,
    read_batch,
)
from .restore.folders import Folder, OpenFolders
from .tree_reader import Entry
from .tree_writer import OpenDirectory, OpenLeaf

_READERS: Final = 2
_AHEAD: Final = 2
# Two sides may each have the folders of one batch in the making and of three submitted ones open.
_DESCRIPTOR_SHARE: Final = 16
_RUNS_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class FolderEntry(Entry):
    """An entry of a folder; `has_holes` if it has fewer blocks than bytes."""

    has_holes: bool = False


class OddFile(NamedTuple):
    """What there is to say of a file that was read alone, or that could not be read.

    `extents` are the data ranges of one with holes, flat, or None; `error` is what cut the reading short.
    """

    extents: list[int] | None = None
    error: OSError | None = None


@dataclass(slots=True, eq=False)
class FilesRead:
    """Files of one folder that are being read, and what they hold; `odd` by their place."""

    chunks: list[Content]
    waiting: int
    then: Callable[[FilesRead], None]
    odd: dict[int, OddFile] = field(default_factory=dict)

    def enter(self, start: int, chunks: list[Content]) -> None:
        """What files from this place on hold."""
        self.chunks[start : start + len(chunks)] = chunks
        self.waiting -= len(chunks)
        if not self.waiting:
            self.then(self)


class _Part(NamedTuple):
    """Some files of a request that are in one job."""

    request: FilesRead
    start: int
    files: int


# The chunks of each file of a job, and what is odd by its place in it.
_Found = tuple[list[Content], dict[int, OddFile]]


@dataclass(slots=True, eq=False)
class _Job:
    """Files that are read together; their folders are held open."""

    folders: list[Folder]
    parts: list[_Part]
    future: Future[_Found]


class FolderReader:
    """Reads files of one folder and of those in it; used by one thread only.

    Parameters
    ----------
    folders : where the files are; at most a bounded number is held open.
    """

    def __init__(self, folders: OpenFolders, engine: Engine) -> None:
        self._folders = folders
        self._engine = engine
        self._pool = BufferPool(BATCH_SIZE_BYTES, _READERS + 1)
        self._readers: ThreadPoolExecutor | None = None
        self._batch = FileBatch()
        self._leased: list[Folder] = []
        self._parts: list[_Part] = []
        self._jobs: deque[_Job] = deque()
        self._runs_max = open_folders_max()

    def read(self, folder: Folder, entries: Sequence[FolderEntry], then: Callable[[FilesRead], None]) -> None:
        """Read files of one folder now or later, and tell what they hold; none of `entries` is no call."""
        request = FilesRead([EMPTY_CONTENT] * len(entries), len(entries), then)
        first = 0
        size = 0
        for place, entry in enumerate(entries):
            if is_read_alone(entry.name, entry.size, has_holes=entry.has_holes):
                self._add(folder, entries, request, first, place, size)
                self._submit_batch()
                self._submit_alone(folder, entry, _Part(request, place, 1))
                first, size = place + 1, 0
                continue
            is_other = place > first and entry.listing is not entries[first].listing
            if is_other or self._batch.size + size + entry.size > BATCH_SIZE_BYTES:
                self._add(folder, entries, request, first, place, size)
                if not is_other:
                    self._submit_batch()
                first, size = place, 0
            size += entry.size
        self._add(folder, entries, request, first, len(entries), size)

    def finish(self) -> None:
        """Tell the rest."""
        self._submit_batch()
        while self._jobs:
            self._take()

    def close(self) -> None:
        """Stop reading; what has not been told is dropped."""
        if self._readers is not None:
            self._readers.shutdown(cancel_futures=True)
            self._readers = None
        for job in self._jobs:
            self._release(job.folders)
        self._jobs.clear()
        self._release(self._leased)
        self._batch, self._leased, self._parts = FileBatch(), [], []

    def _add(
        self, folder: Folder, entries: Sequence[FolderEntry], request: FilesRead, first: int, end: int, size: int
    ) -> None:
        """Small files of one listing, which the batch still takes."""
        if first == end:
            return
        if len(self._batch) >= BATCH_FILES_MAX or len(self._batch.runs) >= self._runs_max:
            self._submit_batch()
        handle = self._acquire(folder, request, first, end - first)
        if handle is None:
            return
        self._leased.append(folder)
        listing = entries[first].listing
        rows = [entry.row for entry in entries[first:end]]
        self._batch.add(FileRun(handle, OpenLeaf(OpenDirectory(b"", None, 0), 0, listing), rows), size)
        self._parts.append(_Part(request, first, end - first))

    def _acquire(self, folder: Folder, request: FilesRead, start: int, count: int) -> DirectoryHandle | None:
        try:
            return self._folders.acquire(folder)
        except OSError as error:
            request.odd |= dict.fromkeys(range(start, start + count), OddFile(error=error))
            request.enter(start, [EMPTY_CONTENT] * count)
            return None

    def _submit_batch(self) -> None:
        batch, folders, parts = self._batch, self._leased, self._parts
        if not batch.names:
            return
        self._batch, self._leased, self._parts = FileBatch(), [], []
        self._submit(folders, parts, lambda: _read_batch(batch, self._engine, self._pool))

    def _submit_alone(self, folder: Folder, entry: Entry, part: _Part) -> None:
        handle = self._acquire(folder, part.request, part.start, 1)
        if handle is not None:
            self._submit([folder], [part], lambda: _read_one(handle, entry.name, self._engine, self._pool))

    def _submit(self, folders: list[Folder], parts: list[_Part], job: Callable[[], _Found]) -> None:
        if self._readers is None:
            self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="diff-reader")
        self._jobs.append(_Job(folders, parts, self._readers.submit(job)))
        while len(self._jobs) > _AHEAD:
            self._take()

    def _take(self) -> None:
        job = self._jobs.popleft()
        try:
            chunks, odd = job.future.result()
        finally:
            self._release(job.folders)
        place = 0
        for request, start, files in job.parts:
            for within in range(files) if odd else ():
                if place + within in odd:
                    request.odd[start + within] = odd[place + within]
            request.enter(start, chunks[place : place + files])
            place += files

    def _release(self, folders: list[Folder]) -> None:
        for folder in folders:
            self._folders.release(folder)


def open_folders_max() -> int:
    """How many folders a batch may have open, and how many more are kept open for a while."""
    return descriptor_share(_DESCRIPTOR_SHARE, _RUNS_MAX)


def _read_batch(batch: FileBatch, engine: Engine, pool: BufferPool) -> _Found:
    """Read a batch, and those of its files alone that changed since they were listed; runs in a worker."""
    result = read_batch(batch, engine, pool)
    result.piece.buffer.release()
    chunks = [Content(ids, tuple(sizes)) for ids, sizes in result.files(batch.sizes)]
    odd: dict[int, OddFile] = {}
    if not any(result.statuses):
        return chunks, odd
    handles = [run.handle for run in batch.runs for _ in run.rows]
    for place, status in enumerate(result.statuses):
        if status < 0:
            chunks[place], odd[place] = _read_alone(handles[place], batch.names[place], engine, pool)
        elif status:
            chunks[place], odd[place] = EMPTY_CONTENT, OddFile(error=OSError(status, os.strerror(status)))
    return chunks, odd


def _read_one(handle: DirectoryHandle, name: bytes, engine: Engine, pool: BufferPool) -> _Found:
    chunks, odd = _read_alone(handle, name, engine, pool)
    return [chunks], {0: odd}


def _read_alone(handle: DirectoryHandle, name: bytes, engine: Engine, pool: BufferPool) -> tuple[Content, OddFile]:
    """Read one file piece by piece; runs in a worker."""
    ids = bytearray()
    sizes: list[int] = []
    pieces = FilePieces(handle, name, engine, pool)
    odd = OddFile()
    try:
        for piece in pieces:
            ids += piece.ids
            sizes += piece.sizes
            piece.buffer.release()
    except OSError as error:
        odd = OddFile(error=error.with_traceback(None))
    if pieces.end is not None:
        odd = OddFile(pieces.end.extents)
    return Content(bytes(ids), tuple(sizes)), odd
