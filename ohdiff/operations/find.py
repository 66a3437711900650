"""Finding entries in many snapshots: a directory that several snapshots share is read once."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator
from typing import Final

from ohdiff_format.tree import Content, Listing

from .tree_reader import Entry, TreeReader
from .tree_writer import select_rows

# About 1 KB each.
_ENTRIES_KEPT_MAX: Final = 50_000


class Finder:
    """Searches one snapshot after the other.

    Parameters
    ----------
    fits : says of a path, from the snapshot's root, whether it is wanted.
    """

    def __init__(self, tree: TreeReader, fits: Callable[[bytes], bool]) -> None:
        self._tree = tree
        self._fits = fits
        self._kept: dict[tuple[bytes, Content], list[tuple[Entry, bool]]] = {}
        self._kept_count = 0

    def search(self, root: Content) -> Iterator[Entry]:
        """The wanted entries of a tree: each before what is in it, in order of name."""
        stack = [self._entries(b"", root)]
        while stack:
            found = next(stack[-1], None)
            if found is None:
                stack.pop()
                continue
            entry, is_wanted = found
            if is_wanted:
                yield entry
            if entry.is_directory:
                stack.append(self._entries(entry.path, entry.content))

    def _entries(self, path: bytes, content: Content) -> Iterator[tuple[Entry, bool]]:
        """The wanted entries of a directory, and its directories, wanted or not."""
        kept = self._kept.get((path, content))
        if kept is not None:
            yield from kept
            return
        found: list[tuple[Entry, bool]] | None = []
        for _, _, listing in self._tree.leaves(content):
            pairs = self._of_leaf(path, listing)
            yield from pairs
            if found is not None:
                found += pairs
                if self._kept_count + len(found) > _ENTRIES_KEPT_MAX:
                    found = None
        if found is not None:
            self._kept_count += len(found) + 1
            self._kept[path, content] = found

    def _of_leaf(self, path: bytes, listing: Listing) -> list[tuple[Entry, bool]]:
        wanted = {row for row, name in enumerate(listing.names) if self._fits(path + b"/" + name)}
        rows = [row for row, mode in enumerate(listing.modes) if row in wanted or stat.S_ISDIR(mode)]
        # The rest of the listing is let go.
        slim = select_rows(listing, rows)
        return [
            (Entry(path + b"/" + name, slim, place), row in wanted)
            for place, (row, name) in enumerate(zip(rows, slim.names, strict=True))
        ]
