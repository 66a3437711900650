"""Listing a source directory as tree leaves: statuses in columns, excludes applied, cut by name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from ohdiff.breaks import break_if_due
from ohdiff.filesystem import DirectoryHandle, EntryColumns, may_have_holes, read_entries
from ohdiff.scheduling.pace import UNPACED, Pace
from ohdiff_format.tree import (
    EMPTY_CONTENT,
    LEAF_ENTRIES_MAX,
    LEAF_ENTRIES_MIN,
    Listing,
    is_leaf_end,
)

from .source_rules import DirectoryRules
from .tree_writer import select_rows

_NAMES_PER_CALL: Final = 4096
# Names looked at before the next unit of work, about 2 ms: asking for one per directory of a few names cost a fifth of
# the time of a snapshot of an unchanged source tree.
_NAMES_PER_UNIT: Final = 512
EntryError = tuple[bytes, int, str]


class SourceListing:
    """Lists one directory after the other.

    Attributes
    ----------
    uids, gids : every owner id met.
    errors : entries of the directory at hand that could not be looked at; the caller takes them out.
    """

    def __init__(self, pace: Pace = UNPACED) -> None:
        self._pace = pace
        self._names_since_unit = 0
        self.uids: set[int] = set()
        self.gids: set[int] = set()
        self.errors: list[EntryError] = []

    def leaves(
        self, handle: DirectoryHandle, path: bytes, names: list[bytes], rules: DirectoryRules
    ) -> Iterator[tuple[Listing, list[int]]]:
        """The listing of each leaf and its rows with fewer blocks than bytes; a huge directory is never held whole."""
        kept = _EMPTY
        sparse: list[int] = []
        for start in range(0, len(names), _NAMES_PER_CALL):
            listing, more = self.entries(handle, path, names[start : start + _NAMES_PER_CALL], rules)
            sparse += [len(kept) + row for row in more]
            kept = _concatenate(kept, listing) if kept.names else listing
            is_last = start + _NAMES_PER_CALL >= len(names)
            first = 0
            for end in _leaf_ends(kept.names, is_last):
                rows = [row - first for row in sparse if first <= row < end]
                yield kept if end - first == len(kept) else select_rows(kept, range(first, end)), rows
                first = end
            sparse = [row - first for row in sparse if row >= first]
            kept = select_rows(kept, range(first, len(kept))) if first < len(kept) else _EMPTY

    def entries(
        self, handle: DirectoryHandle, path: bytes, names: list[bytes], rules: DirectoryRules
    ) -> tuple[Listing, list[int]]:
        """The kept entries among `names`, without xattrs and contents, and the rows of files that may have holes."""
        break_if_due()
        with self._unit(len(names)):
            entries = read_entries(handle, names, with_xattrs=False)
        self.errors += entries.errors
        self.uids.update(entries.uids)
        self.gids.update(entries.gids)
        rows = rules.kept_rows(path, entries)
        listing = _listing_of(entries)
        if rows is None:
            return listing, _rows_with_holes(entries, range(len(listing)))
        return select_rows(listing, rows), _rows_with_holes(entries, rows)

    def _unit(self, name_count: int) -> AbstractContextManager[None]:
        """A unit of work once enough names have been looked at, small directories counting together."""
        self._names_since_unit += name_count
        if self._names_since_unit < _NAMES_PER_UNIT:
            return nullcontext()
        self._names_since_unit = 0
        return self._pace.unit()


_EMPTY: Final = Listing()


def same_columns(stored: Listing, found: Listing) -> bool:
    """Whether two listings of the same names agree in everything but contents, xattrs and extents.

    An entry's ctime changes with its xattrs and its data, so equal columns mean equal xattrs and extents, too.
    """
    return (
        stored.mtimes == found.mtimes
        and stored.ctimes == found.ctimes
        and stored.inodes == found.inodes
        and stored.sizes == found.sizes
        and stored.modes == found.modes
        and stored.uids == found.uids
        and stored.gids == found.gids
        and stored.btimes == found.btimes
        and stored.devices == found.devices
        and stored.link_counts == found.link_counts
        and stored.rdevs == found.rdevs
        and stored.flags == found.flags
        and stored.marks == found.marks
        and stored.targets == found.targets
    )


def _listing_of(entries: EntryColumns) -> Listing:
    count = len(entries)
    return Listing(
        entries.names,
        entries.modes,
        entries.uids,
        entries.gids,
        entries.sizes,
        entries.mtimes_ns,
        entries.ctimes_ns,
        entries.btimes_ns,
        entries.inodes,
        entries.devices,
        entries.link_counts,
        entries.rdevs,
        entries.flags,
        [0] * count,
        [EMPTY_CONTENT] * count,
        entries.targets,
    )


def _rows_with_holes(entries: EntryColumns, rows: range | list[int]) -> list[int]:
    """Rows, counted in `rows`, of files that have fewer blocks than bytes."""
    sizes, blocks, modes = entries.sizes, entries.blocks512, entries.modes
    return [
        place
        for place, row in enumerate(rows)
        if may_have_holes(sizes[row], blocks[row]) and modes[row] & 0xF000 == 0x8000
    ]


def _concatenate(first: Listing, second: Listing) -> Listing:
    columns = [a + b for a, b in zip(first.columns(), second.columns(), strict=True)]
    offset = len(first)
    sparse = [
        a | {offset + row: value for row, value in b.items()}
        for a, b in zip(first.sparse(), second.sparse(), strict=True)
    ]
    return Listing(*columns, *sparse)  # type: ignore[arg-type]


def _leaf_ends(names: list[bytes], is_last: bool) -> list[int]:
    """Where leaves end among these first names of a directory; the rest waits for more names unless `is_last`.

    The same cuts as `ohdiff_format.tree.leaf_bounds` makes of all names at once.
    """
    if len(names) <= LEAF_ENTRIES_MIN:
        return [len(names)] if is_last and names else []
    ends: list[int] = []
    start = 0
    for row, name in enumerate(names, 1):
        if row - start >= LEAF_ENTRIES_MIN and (row - start >= LEAF_ENTRIES_MAX or is_leaf_end(name)):
            ends.append(row)
            start = row
    if is_last and start < len(names):
        ends.append(len(names))
    return ends
