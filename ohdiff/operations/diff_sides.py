"""The two sides of a diff: a snapshot's tree or a folder on disk, both as directories of entries.

A folder's entries have no stored content; its chunks are cut and hashed when they are asked for, with the engine of
the other side, so that ids compare.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from operator import sub
from typing import Protocol

from ohdiff.buffers import BufferPool
from ohdiff.chunking.engine import Engine
from ohdiff.errors import SourceError
from ohdiff.filesystem import DirectoryHandle, read_xattrs
from ohdiff_format.limits import ID_SIZE
from ohdiff_format.tree import Content

from .file_reading import BATCH_SIZE_BYTES, FilePieces
from .observer import Observer
from .source_listing import SourceListing
from .source_rules import DirectoryRules
from .tree_reader import Entry, TreeReader

Chunks = list[tuple[bytes, int]]


class Directory(Protocol):
    """One directory of a side."""

    path: bytes

    def entries(self) -> Iterator[Entry]:
        """Its entries in order of name."""

    def child(self, entry: Entry) -> Directory:
        """A directory in it."""

    def chunks(self, entry: Entry) -> Chunks:
        """The (id, length) of the chunks of a file in it."""

    def data(self, entry: Entry) -> Iterator[tuple[int, bytes | bytearray | memoryview]]:
        """The data of a file in it as (offset, bytes), holes left out."""

    def same_as(self, other: Directory) -> bool:
        """Whether the two are known to hold the same, down to the last entry."""


class SnapshotDirectory:
    """A directory of a snapshot."""

    def __init__(self, tree: TreeReader, content: Content, path: bytes) -> None:
        self._tree = tree
        self.content = content
        self.path = path

    def entries(self) -> Iterator[Entry]:
        """Its entries in order of name."""
        return self._tree.entries(self.content, self.path)

    def child(self, entry: Entry) -> SnapshotDirectory:
        """A directory in it."""
        return SnapshotDirectory(self._tree, entry.content, entry.path)

    def chunks(self, entry: Entry) -> Chunks:
        """The chunks of a file in it, as stored."""
        return list(self._tree.chunk_list(entry.content))

    def data(self, entry: Entry) -> Iterator[tuple[int, bytes | bytearray | memoryview]]:
        """The stored data of a file in it."""
        yield from self._tree.read_file(entry)

    def same_as(self, other: Directory) -> bool:
        """Equal contents are equal trees."""
        return isinstance(other, SnapshotDirectory) and other.content == self.content

    def walk(self) -> Iterator[Entry]:
        """Every entry below."""
        return self._tree.walk(self.content, self.path)


class FolderDirectory:
    """A directory on disk.

    Parameters
    ----------
    observer : told of entries that cannot be read; they are left out.
    """

    def __init__(
        self,
        handle: DirectoryHandle,
        path: bytes,
        engine: Engine,
        rules: DirectoryRules,
        observer: Observer,
        pool: BufferPool | None = None,
    ) -> None:
        self._handle = handle
        self._engine = engine
        self._rules = rules
        self._observer = observer
        self._pool = pool or BufferPool(BATCH_SIZE_BYTES, 2)
        self.path = path

    def entries(self) -> Iterator[Entry]:
        """Its entries in order of name, as they are now."""
        source = SourceListing()
        try:
            names = self._handle.names()
            self._rules = self._rules.enter(self._handle, self.path, names)
        except OSError as error:
            self._report(self.path, error)
            return
        for listing, _ in source.leaves(self._handle, self.path, self._rules.kept_names(names), self._rules):
            listing.xattrs, _ = read_xattrs(self._handle, listing.names)
            for row, name in enumerate(listing.names):
                yield Entry(self.path + b"/" + name, listing, row)
        for name, number, _ in source.errors:
            self._report(self.path + b"/" + name, OSError(number, os.strerror(number)))

    def child(self, entry: Entry) -> Directory:
        """A directory in it; one that cannot be opened is reported and taken as empty."""
        try:
            handle = self._handle.open_child(entry.name)
        except OSError as error:
            self._report(entry.path, error)
            return EmptyDirectory(entry.path)
        return FolderDirectory(handle, entry.path, self._engine, self._rules, self._observer, self._pool)

    def chunks(self, entry: Entry) -> Chunks:
        """The chunks of a file in it, cut and hashed now."""
        chunks: Chunks = []
        pieces = FilePieces(self._handle, entry.name, self._engine, self._pool)
        try:
            for piece in pieces:
                ids = [piece.ids[i : i + ID_SIZE] for i in range(0, len(piece.ids), ID_SIZE)]
                starts = [0, *piece.cuts[:-1]]
                chunks += zip(ids, map(sub, piece.cuts, starts), strict=True)
                piece.buffer.release()
        except OSError as error:
            self._report(entry.path, error)
        if pieces.end is not None and pieces.end.extents is not None:
            entry.listing.extents[entry.row] = pieces.end.extents
        return chunks

    def data(self, entry: Entry) -> Iterator[tuple[int, bytes | bytearray | memoryview]]:
        """The data of a file in it, as it is now; ends early, and says so, where it cannot be read."""
        try:
            fd = self._handle.open_file(entry.name)
            with os.fdopen(fd, "rb") as file:
                offset = 0
                while part := file.read(1 << 20):
                    yield offset, part
                    offset += len(part)
        except OSError as error:
            self._report(entry.path, error)

    def same_as(self, other: Directory) -> bool:
        """A folder has to be looked at."""
        return False

    def _report(self, path: bytes, error: OSError) -> None:
        shown = path.decode(errors="backslashreplace")
        self._observer.error(SourceError(f"{shown}: {error.strerror}", item=os.fsdecode(path)))


class EmptyDirectory:
    """Stands for what is not there."""

    def __init__(self, path: bytes) -> None:
        self.path = path

    def entries(self) -> Iterator[Entry]:
        """None."""
        return iter(())

    def child(self, entry: Entry) -> Directory:
        """Cannot be: it has no entries."""
        raise LookupError(entry.path)

    def chunks(self, entry: Entry) -> Chunks:
        """Cannot be: it has no entries."""
        raise LookupError(entry.path)

    def data(self, entry: Entry) -> Iterator[tuple[int, bytes | bytearray | memoryview]]:
        """Cannot be: it has no entries."""
        raise LookupError(entry.path)

    def same_as(self, other: Directory) -> bool:
        """Only another nothing is the same."""
        return isinstance(other, EmptyDirectory)
