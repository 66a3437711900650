"""Building trees while their files are still being read: a leaf is stored once the content of its last row is known.

Leaves and directories count what they wait for. Whoever learns a content tells the leaf; the last one to do so stores
it, which may complete the directory, and so on up to the root.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from ohdiff_format.limits import ID_SIZE
from ohdiff_format.tree import Content, Listing, encode_content, encode_listing

INLINE_CHUNKS_MAX: Final = 1024
_PART_CHUNKS_MIN: Final = 128
_PART_CHUNKS_MAX: Final = 2048
_PART_CUT_MASK: Final = 0x1FF
# A leaf of this size is cut in halves: rows of files of many chunks, or with large xattrs, could overfill a chunk.
_LEAF_SIZE_BYTES_MAX: Final = 4 << 20


class MetadataSink(Protocol):
    """Stores one chunk of metadata, which may resemble others of these ids, and gives its id."""

    def add_metadata(self, data: bytes, bases: Sequence[bytes] = ()) -> bytes: ...


class ContentBuilder:
    """Gathers the chunks of one file or directory; a list of more than INLINE_CHUNKS_MAX is stored in parts.

    Parts end where an id says so, so that an edit in a huge file changes a few parts of its list. Memory is bounded
    by the inline limit on each level.
    """

    def __init__(self, sink: MetadataSink, depth: int = 0) -> None:
        self._sink = sink
        self._depth = depth
        self._ids = bytearray()
        self._sizes: list[int] = []
        self._upper: ContentBuilder | None = None

    def add(self, ids: bytes, sizes: Sequence[int]) -> None:
        """Append chunks."""
        self._ids += ids
        self._sizes += sizes
        while len(self._sizes) > INLINE_CHUNKS_MAX + _PART_CHUNKS_MAX:
            self._store_part(self._part_end())

    def finish(self) -> Content:
        """The whole content."""
        if self._upper is None and len(self._sizes) <= INLINE_CHUNKS_MAX:
            return Content(bytes(self._ids), tuple(self._sizes), self._depth)
        while self._sizes:
            self._store_part(self._part_end())
        assert self._upper is not None
        return self._upper.finish()

    def _part_end(self) -> int:
        count = len(self._sizes)
        ids = self._ids
        for row in range(_PART_CHUNKS_MIN - 1, min(count, _PART_CHUNKS_MAX)):
            if (ids[row * ID_SIZE] | ids[row * ID_SIZE + 1] << 8) & _PART_CUT_MASK == 0:
                return row + 1
        return min(count, _PART_CHUNKS_MAX)

    def _store_part(self, end: int) -> None:
        part = Content(bytes(self._ids[: end * ID_SIZE]), tuple(self._sizes[:end]), self._depth)
        del self._ids[: end * ID_SIZE]
        del self._sizes[:end]
        if self._upper is None:
            self._upper = ContentBuilder(self._sink, self._depth + 1)
        self._upper.add(self._sink.add_metadata(encode_content(part)), [sum(part.sizes)])


@dataclass(slots=True, eq=False)
class OpenDirectory:
    """A directory whose leaves are being found.

    `waiting` counts its leaves that are not stored, and one more until it has been listed to the end.
    """

    path: bytes
    leaf: OpenLeaf | None
    row: int
    waiting: int = 1
    leaves: list[list[tuple[bytes, int]]] = field(default_factory=list)
    content: Content | None = None


@dataclass(slots=True, eq=False)
class OpenLeaf:
    """A leaf whose contents are being found; `waiting` counts its rows without one, and one more while it is filled.

    `stored` is the leaf of the parent snapshot that agrees in every column, if there is one: when the contents agree
    as well, it is used again without encoding. `earlier` holds the parent's content of files that are read again,
    `dropped` the rows of those that could not be read. `bases` are ids of the parent's leaves of the same names.
    """

    directory: OpenDirectory
    slot: int
    listing: Listing
    waiting: int = 1
    stored: tuple[bytes, int, Listing] | None = None
    earlier: dict[int, Content] = field(default_factory=dict)
    dropped: list[int] = field(default_factory=list)
    bases: Sequence[bytes] = ()

    def path(self, row: int) -> bytes:
        """The path of an entry."""
        return self.directory.path + b"/" + self.listing.names[row]


class TreeWriter:
    """Stores leaves and directories as they become complete."""

    def __init__(self, sink: MetadataSink) -> None:
        self._sink = sink

    def open_leaf(self, directory: OpenDirectory, listing: Listing) -> OpenLeaf:
        """A new leaf at the end of its directory."""
        leaf = OpenLeaf(directory, len(directory.leaves), listing)
        directory.leaves.append([])
        directory.waiting += 1
        return leaf

    def release_leaf(self, leaf: OpenLeaf, count: int = 1) -> None:
        """Some things less to wait for; stores the leaf, and what it completes, when nothing is left."""
        leaf.waiting -= count
        while leaf.waiting == 0:
            directory = leaf.directory
            directory.leaves[leaf.slot] = self._store(leaf)
            upper = self._release(directory)
            if upper is None:
                return
            leaf = upper
            leaf.waiting -= 1

    def release_directory(self, directory: OpenDirectory) -> None:
        """The directory has been listed to the end."""
        upper = self._release(directory)
        if upper is not None:
            self.release_leaf(upper)

    def _release(self, directory: OpenDirectory) -> OpenLeaf | None:
        directory.waiting -= 1
        if directory.waiting:
            return None
        builder = ContentBuilder(self._sink)
        for stored in directory.leaves:
            for chunk_id, size in stored:
                builder.add(chunk_id, [size])
        directory.content = builder.finish()
        directory.leaves.clear()
        if directory.leaf is not None:
            directory.leaf.listing.contents[directory.row] = directory.content
        return directory.leaf

    def _store(self, leaf: OpenLeaf) -> list[tuple[bytes, int]]:
        """The (id, length) of the stored leaf: none if nothing is left of it, several if it is too large for one."""
        if leaf.stored is not None and leaf.stored[2].contents == leaf.listing.contents:
            return [leaf.stored[:2]]
        listing = without_rows(leaf.listing, leaf.dropped) if leaf.dropped else leaf.listing
        return self._store_listing(listing, leaf.bases)

    def _store_listing(self, listing: Listing, bases: Sequence[bytes]) -> list[tuple[bytes, int]]:
        if not listing.names:
            return []
        data = encode_listing(listing)
        if len(data) <= _LEAF_SIZE_BYTES_MAX or len(listing) == 1:
            return [(self._sink.add_metadata(data, bases), len(data))]
        middle = len(listing) // 2
        halves = [select_rows(listing, range(middle)), select_rows(listing, range(middle, len(listing)))]
        return [stored for half in halves for stored in self._store_listing(half, bases)]


def without_rows(listing: Listing, dropped: Sequence[int]) -> Listing:
    """The listing without some rows."""
    gone = set(dropped)
    return select_rows(listing, [row for row in range(len(listing)) if row not in gone])


def select_rows(listing: Listing, rows: Sequence[int]) -> Listing:
    """The listing of some rows, in their order."""
    places = {row: place for place, row in enumerate(rows)}
    columns = [[column[row] for row in rows] for column in listing.columns()]
    sparse = [{places[row]: value for row, value in values.items() if row in places} for values in listing.sparse()]
    return Listing(*columns, *sparse)  # type: ignore[arg-type]
