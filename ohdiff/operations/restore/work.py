"""What is passed between the parts of a restore: its surroundings, one file in the making, and where its data goes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, Literal, NamedTuple, TypeVar

from ohdiff.errors import OhdiffError
from ohdiff.filesystem import EntryColumns
from ohdiff.repository.index import ChunkIndex
from ohdiff_format.tree import Listing

from ..tree_reader import TreeReader
from .attributes import Wanted
from .block_source import BlockSource
from .crew import Crew
from .folders import Folder, OpenFolders
from .links import LinkGroup
from .options import RestoreOptions
from .report import RestoreReport
from .target import TargetEntries

Extent = tuple[int, int]
Way = Literal["new", "replace", "in place"]
Problem = OhdiffError | OSError

# The smallest run of zeros that `sparse` makes a hole of, aligned to its size in the file: a block of most systems.
HOLE_CELL_SIZE_BYTES: Final = 4 << 10


_Error = TypeVar("_Error", bound=OhdiffError | OSError)


def kept(error: _Error) -> _Error:
    """The error without the frames that it came through: they hold whole blocks, and refer back to it."""
    error.__traceback__ = error.__cause__ = error.__context__ = None
    return error


@dataclass(frozen=True, slots=True)
class RestoreRun:
    """Everything that the parts of one restore share."""

    options: RestoreOptions
    tree: TreeReader
    index: ChunkIndex
    blocks: BlockSource
    id_key: bytes
    folders: OpenFolders
    entries: TargetEntries
    wanted: Wanted
    report: RestoreReport
    crew: Crew


class Layout:
    """Maps positions in a file's content, which is its data alone, to offsets in the file.

    Parameters
    ----------
    extents : sorted, disjoint data ranges of the file.
    """

    def __init__(self, extents: Sequence[Extent]) -> None:
        self.extents = extents
        self._starts = list(accumulate((end - start for start, end in extents), initial=0))

    @property
    def data_size(self) -> int:
        """Bytes of data in the file."""
        return self._starts[-1]

    def ranges(self, position: int, size: int) -> Iterator[tuple[int, int, int]]:
        """The (offset in the file, offset in the piece, length) of each part of a piece of content."""
        done = 0
        at = bisect_right(self._starts, position) - 1
        while done < size and at < len(self.extents):
            within = position + done - self._starts[at]
            start, end = self.extents[at]
            length = min(size - done, end - start - within)
            yield start + within, done, length
            done += length
            at += 1


class Existing(NamedTuple):
    """A regular file that is there, and the row that says what it should be."""

    folder: Folder
    listing: Listing
    row: int
    found: EntryColumns
    at: int
    group: LinkGroup | None

    @property
    def name(self) -> bytes:
        """Its file name."""
        return self.listing.names[self.row]

    @property
    def size(self) -> int:
        """The size that it should have."""
        return self.listing.sizes[self.row]

    @property
    def has_size(self) -> bool:
        """Whether it is as long as it should be."""
        return self.found.sizes[self.at] == self.size

    @property
    def has_mtime(self) -> bool:
        """Whether its time is what it should be."""
        return self.found.mtimes_ns[self.at] == self.listing.mtimes[self.row]


class FileWork:
    """One file that is written piece by piece.

    Attributes
    ----------
    way : "new" under its own name, "replace" under a temporary name, or "in place".
    written_name : the name it has until it is finished.
    existing : what was there, unless it is new.
    layout : where its data lies, or None if it has no holes.
    has_wrong_holes : the existing file has other holes, or another size, than it should.
    waiting : pieces and checks that are not done, and one more until all are planned.
    written : bytes written so far.
    is_changed : something was or must be written.
    is_over : nothing more is to be done for it.
    """

    __slots__ = (
        "error",
        "existing",
        "folder",
        "group",
        "has_wrong_holes",
        "is_begun",
        "is_changed",
        "is_over",
        "layout",
        "listing",
        "row",
        "waiting",
        "way",
        "written",
        "written_name",
    )

    def __init__(
        self, folder: Folder, listing: Listing, row: int, way: Way, group: LinkGroup | None, existing: Existing | None
    ) -> None:
        self.folder = folder
        self.listing = listing
        self.row = row
        self.way = way
        self.group = group
        self.existing = existing
        self.written_name = listing.names[row]
        flat = listing.extents.get(row)
        self.layout = None if flat is None else Layout(list(zip(flat[::2], flat[1::2], strict=True)))
        self.has_wrong_holes = False
        self.waiting = 1
        self.written = 0
        self.is_begun = False
        self.is_changed = way != "in place"
        self.is_over = False
        self.error: Problem | None = None

    @property
    def name(self) -> bytes:
        """Its final name."""
        return self.listing.names[self.row]

    @property
    def size(self) -> int:
        """Its final size."""
        return self.listing.sizes[self.row]

    @property
    def data_size(self) -> int:
        """Bytes of data in it."""
        return self.size if self.layout is None else self.layout.data_size

    @property
    def old_flags(self) -> int:
        """The flags of what was there."""
        return 0 if self.existing is None else self.existing.found.flags[self.existing.at]

    def ranges(self, position: int, size: int) -> Iterator[tuple[int, int, int]]:
        """Where a piece of its content goes, as `Layout.ranges`."""
        if self.layout is not None:
            return self.layout.ranges(position, size)
        return iter([(position, 0, size)])
