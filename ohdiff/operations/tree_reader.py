"""Reading trees: the leaves of a directory, the chunks of a file, and the entry at a path (SPEC section 8)."""

from __future__ import annotations

import stat
from bisect import bisect_left
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from typing import TypeVar

from ohdiff.errors import IntegrityError, NoSnapshotError
from ohdiff.repository.chunk_reader import ChunkReader
from ohdiff_format.errors import FormatError
from ohdiff_format.tree import Content, Listing, decode_content, decode_leaf_contents, decode_listing

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry: a row of a listing, and the path that leads to it from the snapshot's root (b"" is the root)."""

    path: bytes
    listing: Listing
    row: int

    @property
    def name(self) -> bytes:
        """The entry's file name."""
        return self.listing.names[self.row]

    @property
    def mode(self) -> int:
        """The full st_mode."""
        return self.listing.modes[self.row]

    @property
    def size(self) -> int:
        """The file's size in bytes, holes included."""
        return self.listing.sizes[self.row]

    @property
    def content(self) -> Content:
        """The file's data or the directory's leaves."""
        return self.listing.contents[self.row]

    @property
    def is_directory(self) -> bool:
        """Whether it is a directory."""
        return stat.S_ISDIR(self.mode)

    @property
    def is_file(self) -> bool:
        """Whether it is a regular file."""
        return stat.S_ISREG(self.mode)

    @property
    def extents(self) -> list[tuple[int, int]]:
        """Where its data lies, half-open; one extent of everything for a file without holes."""
        flat = self.listing.extents.get(self.row)
        if flat is None:
            return [(0, self.size)] if self.size else []
        return list(zip(flat[::2], flat[1::2], strict=True))


class TreeReader:
    """Reads the trees of a repository; every chunk of them is verified."""

    def __init__(self, chunks: ChunkReader) -> None:
        self._chunks = chunks

    def flat(self, content: Content) -> Iterator[Content]:
        """The same content as parts of depth 0, in order; memory does not grow with its length."""
        if content.depth == 0:
            yield content
            return
        for inner in self.parts(content):
            yield from self.flat(inner)

    def parts(self, content: Content) -> Iterator[Content]:
        """The content lists that a content of depth 1 or more is made of."""
        for chunk_id in content.chunk_ids():
            inner = self._decode(chunk_id, decode_content)
            if inner.depth != content.depth - 1:
                raise IntegrityError(f"the content list {chunk_id.hex()[:16]} has another depth than its parent says")
            yield inner

    def read_chunk(self, chunk_id: bytes) -> memoryview:
        """The bytes of one chunk, verified."""
        return self._chunks.read(chunk_id)

    def chunk_list(self, content: Content) -> Iterator[tuple[bytes, int]]:
        """The (id, length) of each chunk of a file, in order."""
        for part in self.flat(content):
            yield from part.pairs()

    def joined(self, content: Content) -> Content:
        """The same content at depth 0, all of it in memory."""
        if content.depth == 0:
            return content
        parts = list(self.flat(content))
        return Content(b"".join(part.ids for part in parts), tuple(size for part in parts for size in part.sizes))

    def leaves(self, content: Content, without: Set[bytes] = frozenset()) -> Iterator[tuple[bytes, int, Listing]]:
        """The (id, length, listing) of each leaf of a directory, in order of name, but for those of some ids."""
        last = b""
        for chunk_id, size in self.chunk_list(content):
            if chunk_id in without:
                continue
            listing = self._decode(chunk_id, decode_listing, size)
            if listing.names and listing.names[0] <= last:
                raise IntegrityError(f"the tree leaf {chunk_id.hex()[:16]} is out of order")
            last = listing.names[-1] if listing.names else last
            yield chunk_id, size, listing

    def entries(self, content: Content, path: bytes, without: Set[bytes] = frozenset()) -> Iterator[Entry]:
        """The entries of the directory at `path`, in order of name, but for those in leaves of some ids."""
        for _, _, listing in self.leaves(content, without):
            for row, name in enumerate(listing.names):
                yield Entry(path + b"/" + name, listing, row)

    def walk(self, content: Content, path: bytes = b"") -> Iterator[Entry]:
        """Every entry below the directory at `path`: each before what is in it, in order of name."""
        stack = [self.entries(content, path)]
        while stack:
            entry = next(stack[-1], None)
            if entry is None:
                stack.pop()
                continue
            yield entry
            if entry.is_directory:
                stack.append(self.entries(entry.content, entry.path))

    def file_chunk_ids(self, content: Content) -> Iterator[bytes]:
        """The ids of the chunks of all files in a directory and below, many at a time back to back, in no order."""
        waiting = [content]
        while waiting:
            for leaf_id, size in self.chunk_list(waiting.pop()):
                leaf = self._decode(leaf_id, decode_leaf_contents, size)
                yield leaf.file_ids
                for file in leaf.deep_files:
                    yield from (part.ids for part in self.flat(file))
                waiting += reversed(leaf.directories)

    def find(self, root: Content, path: bytes) -> Entry | None:
        """The entry at an absolute path; None means the root itself. NoSnapshotError if there is none."""
        entry: Entry | None = None
        content = root
        walked = b""
        for name in path.split(b"/"):
            if name in (b"", b"."):
                continue
            if entry is not None and not entry.is_directory:
                raise _not_found(path)
            entry = self._child(content, walked, name, path)
            content, walked = entry.content, entry.path
        return entry

    def directory(self, root: Content, path: bytes) -> tuple[Content, bytes]:
        """The content of the directory at a path, and the path without odd slashes."""
        entry = self.find(root, path)
        if entry is None:
            return root, b""
        if not entry.is_directory:
            raise NoSnapshotError(f"{_shown(path)} is not a directory in the snapshot")
        return entry.content, entry.path

    def read_file(self, entry: Entry) -> Iterator[tuple[int, memoryview]]:
        """The data of a file as (offset in the file, bytes); holes are left out."""
        extents = iter(entry.extents)
        position, end = next(extents, (0, 0))
        for chunk_id, _ in self.chunk_list(entry.content):
            data = self._chunks.read(chunk_id)
            while data:
                if position == end:
                    position, end = next(extents, (-1, -1))
                    if position < 0:
                        raise IntegrityError(f"{_shown(entry.path)} has more data than its size says")
                part = data[: end - position]
                yield position, part
                position += len(part)
                data = data[len(part) :]
        if position != end or next(extents, None) is not None:
            raise IntegrityError(f"{_shown(entry.path)} has less data than its size says")

    def _child(self, content: Content, directory: bytes, name: bytes, path: bytes) -> Entry:
        for _, _, listing in self.leaves(content):
            if listing.names and name <= listing.names[-1]:
                row = bisect_left(listing.names, name)
                if listing.names[row] == name:
                    return Entry(directory + b"/" + name, listing, row)
                break
        raise _not_found(path)

    def _decode(self, chunk_id: bytes, decode: Callable[[bytes], _Value], size: int | None = None) -> _Value:
        try:
            return decode(bytes(self._chunks.read(chunk_id, size)))
        except FormatError as error:
            raise IntegrityError(f"the tree chunk {chunk_id.hex()[:16]} cannot be read: {error}") from error


class ParentDirectory:
    """A directory of the parent snapshot, read in step with the source: rows are asked for in order of name."""

    def __init__(self, tree: TreeReader, content: Content) -> None:
        self._leaves = tree.leaves(content)
        self._current: list[tuple[bytes, int, Listing]] = []

    def same_leaf(self, names: list[bytes]) -> tuple[bytes, int, Listing] | None:
        """The stored leaf that holds exactly these names, if there is one."""
        self._advance(names[0])
        for leaf in self._current:
            if leaf[2].names == names:
                return leaf
        return None

    def rows(self, names: list[bytes]) -> dict[bytes, tuple[Listing, int]]:
        """The stored rows in the range of these sorted names, by name."""
        self._advance(names[0])
        last = names[-1]
        while not self._current or self._current[-1][2].names[-1] < last:
            leaf = next(self._leaves, None)
            if leaf is None:
                break
            if leaf[2].names:
                self._current.append(leaf)
        return {name: (listing, row) for _, _, listing in self._current for row, name in enumerate(listing.names)}

    @property
    def leaf_ids(self) -> list[bytes]:
        """The ids of the stored leaves that the names asked for last lie in, or would."""
        return [leaf_id for leaf_id, _, _ in self._current]

    def _advance(self, first: bytes) -> None:
        """Drop leaves that end before `first`, and have at least one that does not."""
        self._current = [leaf for leaf in self._current if leaf[2].names[-1] >= first]
        while not self._current:
            leaf = next(self._leaves, None)
            if leaf is None:
                return
            if leaf[2].names and leaf[2].names[-1] >= first:
                self._current.append(leaf)


def _shown(path: bytes) -> str:
    return path.decode(errors="backslashreplace")


def _not_found(path: bytes) -> NoSnapshotError:
    return NoSnapshotError(f"there is no {_shown(path)} in the snapshot", hint="look with: ohdiff ls")
