"""The two sides of a diff: a snapshot's tree or a folder on disk, both as directories of entries.

A folder's entries have no stored content; its files are cut and hashed when they are asked for, with the engine of
the other side, so that ids compare.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Final, Protocol

from ohdiff.chunking.containers import ByteSource
from ohdiff.chunking.engine import Engine
from ohdiff.errors import SourceError
from ohdiff.filesystem import DirectoryHandle, read_xattrs
from ohdiff_format.tree import Content

from .chunk_source import ChunkSource
from .container_reading import OpenFile
from .diff_reading import FilesRead, FolderEntry, FolderReader, OddFile, open_folders_max
from .observer import Observer
from .restore.folders import Folder, OpenFolders
from .source_listing import SourceListing
from .source_rules import DirectoryRules
from .tree_reader import Entry, TreeReader

_NAMES_PER_LOOK: Final = 4096
TakeChunks = Callable[[list[Content]], None]


class Directory(Protocol):
    """One directory of a side."""

    path: bytes

    def entries(self) -> Iterator[Entry]:
        """Its entries in order of name."""

    def child(self, entry: Entry) -> Directory:
        """A directory in it."""

    def read(self, entries: Sequence[Entry], then: TakeChunks) -> None:
        """Hand over the chunks of each of some files in it, now or at the latest in `finish_reading`.

        Where the data of a folder's file lies is entered into its listing before.
        """

    def finish_reading(self) -> None:
        """Hand over what is left, of all directories of this side."""

    def stop_reading(self) -> None:
        """Hand over nothing more, and end what runs in the background."""

    def data(self, entry: Entry) -> Iterator[tuple[int, bytes | bytearray | memoryview]]:
        """The data of a file in it as (offset, bytes), holes left out."""

    def opened(self, entry: Entry) -> AbstractContextManager[ByteSource | None]:
        """A file in it without holes, to be read at any offset; None if it cannot be opened, which is told.

        An OSError inside the context is told as well, and ends it.
        """

    def same_as(self, other: Directory) -> bool:
        """Whether the two are known to hold the same, down to the last entry."""


class SnapshotDirectory:
    """A directory of a snapshot.

    Parameters
    ----------
    only : the name of the one entry that is meant, or b"" for all.
    """

    def __init__(self, tree: TreeReader, content: Content, path: bytes, only: bytes = b"") -> None:
        self._tree = tree
        self._only = only
        self.content = content
        self.path = path

    def entries(self) -> Iterator[Entry]:
        """Its entries in order of name."""
        entries = self._tree.entries(self.content, self.path)
        return (entry for entry in entries if entry.name == self._only) if self._only else entries

    def entries_apart(self, other: SnapshotDirectory) -> tuple[Iterator[Entry], Iterator[Entry]]:
        """Entries of both, in order of name, but for those that stand in leaves that both have."""
        if self._only or other._only:
            return self.entries(), other.entries()
        shared = self._leaf_ids() & other._leaf_ids()
        sides = (self, other)
        left, right = (side._tree.entries(side.content, side.path, shared) for side in sides)
        return left, right

    def child(self, entry: Entry) -> SnapshotDirectory:
        """A directory in it."""
        return SnapshotDirectory(self._tree, entry.content, entry.path)

    def read(self, entries: Sequence[Entry], then: TakeChunks) -> None:
        """Hand over the chunks of files in it, as stored."""
        then([self.chunks(entry) for entry in entries])

    def finish_reading(self) -> None:
        """Nothing is left."""

    def stop_reading(self) -> None:
        """Nothing runs."""

    def chunks(self, entry: Entry) -> Content:
        """The chunks of a file in it, as stored."""
        return self._tree.joined(entry.content)

    def data(self, entry: Entry) -> Iterator[tuple[int, bytes | bytearray | memoryview]]:
        """The stored data of a file in it."""
        yield from self._tree.read_file(entry)

    @contextmanager
    def opened(self, entry: Entry) -> Iterator[ByteSource]:
        """A stored file in it."""
        yield ChunkSource(self.chunks(entry), self._tree.read_chunk)

    def same_as(self, other: Directory) -> bool:
        """Equal contents are equal trees."""
        return isinstance(other, SnapshotDirectory) and other.content == self.content and other._only == self._only

    def file_chunk_ids(self) -> Iterator[bytes]:
        """The ids of the chunks of all files in it and below, many at a time back to back."""
        if not self._only:
            yield from self._tree.file_chunk_ids(self.content)
            return
        for entry in self.entries():
            if entry.is_directory:
                yield from self._tree.file_chunk_ids(entry.content)
            elif entry.is_file:
                yield self.chunks(entry).ids

    def _leaf_ids(self) -> set[bytes]:
        return {leaf_id for leaf_id, _ in self._tree.chunk_list(self.content)}


class FolderSide:
    """What all directories of one folder on disk share.

    Parameters
    ----------
    observer : told of entries that cannot be read; they are left out.
    """

    def __init__(self, root: Folder, handle: DirectoryHandle, engine: Engine, observer: Observer) -> None:
        self.folders = OpenFolders(root, handle, open_folders_max())
        self.reader = FolderReader(self.folders, engine)
        self.source = SourceListing()
        self._observer = observer

    def report(self, path: bytes, error: OSError) -> None:
        """One entry cannot be read."""
        shown = path.decode(errors="backslashreplace")
        self._observer.error(SourceError(f"{shown}: {error.strerror}", item=os.fsdecode(path)))


def open_folder(
    handle: DirectoryHandle,
    path: bytes,
    engine: Engine,
    rules: DirectoryRules,
    observer: Observer,
    only: bytes = b"",
) -> FolderDirectory:
    """A folder on disk as a side; the handle belongs to it from now on.

    Parameters
    ----------
    path : what its path is said to be.
    only : the name of the one entry that is meant, or b"" for all.
    """
    root = Folder(None, b"")
    return FolderDirectory(FolderSide(root, handle, engine, observer), root, path, rules, only)


class FolderDirectory:
    """A directory on disk; made by `open_folder`."""

    def __init__(self, side: FolderSide, folder: Folder, path: bytes, rules: DirectoryRules, only: bytes = b"") -> None:
        self._side = side
        self._folder = folder
        self._rules = rules
        self._only = only
        self.path = path

    def entries(self) -> Iterator[Entry]:
        """Its entries in order of name, as they are now."""
        try:
            with self._side.folders.opened(self._folder) as handle:
                names = handle.names()
                self._rules = self._rules.enter(handle, self.path, names)
        except OSError as error:
            self._side.report(self.path, error)
            return
        if self._only:
            names = [self._only] if self._only in names else []
        names = self._rules.kept_names(names)
        for start in range(0, len(names), _NAMES_PER_LOOK):
            yield from self._look_at(names[start : start + _NAMES_PER_LOOK])

    def child(self, entry: Entry) -> Directory:
        """A directory in it; one that cannot be opened is reported and taken as empty."""
        folder = Folder(self._folder, entry.name)
        try:
            with self._side.folders.opened(folder):
                pass
        except OSError as error:
            self._side.report(entry.path, error)
            return EmptyDirectory(entry.path)
        return FolderDirectory(self._side, folder, entry.path, self._rules)

    def read(self, entries: Sequence[Entry], then: TakeChunks) -> None:
        """Have files in it cut and hashed; of one that cannot be read, what could be is handed over."""
        own = [entry for entry in entries if isinstance(entry, FolderEntry)]
        assert len(own) == len(entries), "they are this folder's entries"

        def take(found: FilesRead) -> None:
            for place, odd in found.odd.items():
                self._take_odd(own[place], odd)
            then(found.chunks)

        self._side.reader.read(self._folder, own, take)

    def finish_reading(self) -> None:
        """Wait for what is being read."""
        self._side.reader.finish()

    def stop_reading(self) -> None:
        """End the readers."""
        self._side.reader.close()

    def data(self, entry: Entry) -> Iterator[tuple[int, bytes | bytearray | memoryview]]:
        """The data of a file in it, as it is now; ends early, and says so, where it cannot be read."""
        try:
            with self._side.folders.opened(self._folder) as handle:
                fd = handle.open_file(entry.name)
            with os.fdopen(fd, "rb") as file:
                offset = 0
                while part := file.read(1 << 20):
                    yield offset, part
                    offset += len(part)
        except OSError as error:
            self._side.report(entry.path, error)

    @contextmanager
    def opened(self, entry: Entry) -> Iterator[ByteSource | None]:
        """A file in it, as it is now."""
        try:
            with self._side.folders.opened(self._folder) as handle:
                fd = handle.open_file(entry.name)
        except OSError as error:
            self._side.report(entry.path, error)
            yield None
            return
        try:
            yield OpenFile(fd, os.fstat(fd).st_size)
        except OSError as error:
            self._side.report(entry.path, error)
        finally:
            os.close(fd)

    def same_as(self, other: Directory) -> bool:
        """A folder has to be looked at."""
        return False

    def _take_odd(self, entry: Entry, odd: OddFile) -> None:
        if odd.error is not None:
            self._side.report(entry.path, odd.error)
        if odd.extents is not None:
            entry.listing.extents[entry.row] = odd.extents

    def _look_at(self, names: list[bytes]) -> Iterator[Entry]:
        source = self._side.source
        source.errors = []
        try:
            with self._side.folders.opened(self._folder) as handle:
                listing, holes = source.entries(handle, self.path, names, self._rules)
                listing.xattrs, _ = read_xattrs(handle, listing.names)
        except OSError as error:
            self._side.report(self.path, error)
            return
        for name, number, _ in source.errors:
            self._side.report(self.path + b"/" + name, OSError(number, os.strerror(number)))
        with_holes = set(holes)
        for row, name in enumerate(listing.names):
            yield FolderEntry(self.path + b"/" + name, listing, row, row in with_holes)


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

    def read(self, entries: Sequence[Entry], then: TakeChunks) -> None:
        """Cannot be: it has no entries."""
        raise LookupError(self.path)

    def finish_reading(self) -> None:
        """Nothing is left."""

    def stop_reading(self) -> None:
        """Nothing runs."""

    def data(self, entry: Entry) -> Iterator[tuple[int, bytes | bytearray | memoryview]]:
        """Cannot be: it has no entries."""
        raise LookupError(entry.path)

    def opened(self, entry: Entry) -> AbstractContextManager[ByteSource | None]:
        """Cannot be: it has no entries."""
        raise LookupError(entry.path)

    def same_as(self, other: Directory) -> bool:
        """Only another nothing is the same."""
        return isinstance(other, EmptyDirectory)
