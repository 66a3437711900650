"""The walk of a snapshot: visits directories, compares leaves with the parent snapshot, hands changed files on.

Depth first on an explicit stack, so that depth costs no recursion; the files of a leaf come before its
sub-directories.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from typing import Any, Final

from ohdiff.filesystem import DirectoryHandle, read_xattrs
from ohdiff.repository.index import ChunkIndex
from ohdiff.scheduling.pace import Pace
from ohdiff_format.limits import ID_PREFIX_SIZE, ID_SIZE
from ohdiff_format.tree import EMPTY_CONTENT, MARK_INCOMPLETE, Content, Listing

from .observer import Observer
from .snapshot_files import VANISHED, FileTaker
from .source_listing import SourceListing, same_columns
from .source_paths import PathTree, Target
from .source_rules import DirectoryRules, KeepAll
from .tree_reader import ParentDirectory, TreeReader
from .tree_writer import OpenDirectory, OpenLeaf, TreeWriter

Previous = dict[bytes, tuple[Listing, int]]
Visit = Iterator[Any]
_TYPE_MASK: Final = 0xF000


class SnapshotWalk:
    """One walk.

    Parameters
    ----------
    pace : says when a unit of work may run.
    one_file_system : whether to stay on the file system of each given path.
    settled_ns : files with a ctime from here on are read again even if they look unchanged: they were written so
        shortly before the parent snapshot that a later write may have left the same times.
    is_parent_whole : whether every chunk of the parent is known to be indexed, so that none need be looked up.
    """

    def __init__(
        self,
        index: ChunkIndex,
        tree: TreeReader,
        writer: TreeWriter,
        files: FileTaker,
        observer: Observer,
        *,
        pace: Pace,
        one_file_system: bool,
        settled_ns: int,
        is_parent_whole: bool,
    ) -> None:
        self._settled_ns = settled_ns
        self._is_parent_whole = is_parent_whole
        self._index = index
        self._tree = tree
        self._writer = writer
        self._files = files
        self._observer = observer
        self._one_file_system = one_file_system
        self._source = SourceListing(pace)
        self.directories = 0
        self.others = 0

    @property
    def owner_ids(self) -> tuple[set[int], set[int]]:
        """User and group ids that occur."""
        return self._source.uids, self._source.gids

    def run(self, paths: PathTree | Target, rules: DirectoryRules, parent_root: Content | None) -> Content:
        """Walk everything below the given paths; returns the content of the root once all of it is stored."""
        root = OpenDirectory(b"", None, 0)
        handle = DirectoryHandle.open_root(b"/")
        if isinstance(paths, Target):
            walks = [self._visit(root, handle, parent_root, rules, None)]
        else:
            walks = [self._visit_above(root, handle, paths, parent_root, rules)]
        while walks:
            below = next(walks[-1], None)
            if below is None:
                walks.pop()
            else:
                walks.append(below)
        self._files.finish()
        assert root.content is not None
        return root.content

    def _visit_above(
        self,
        directory: OpenDirectory,
        handle: DirectoryHandle,
        paths: PathTree,
        stored: Content | None,
        rules: DirectoryRules,
    ) -> Visit:
        """A directory above given paths: only what leads to them."""
        wanted = sorted(paths)
        listing, holes = self._source.entries(handle, directory.path, wanted, KeepAll())
        self._report_listing(directory.path, is_given=True)
        if listing.names:
            leaf = self._writer.open_leaf(directory, listing)
            previous = self._previous(leaf, self._parent(stored), handle)
            targets = [row for row, name in enumerate(listing.names) if isinstance(paths[name], Target)]
            self._take_files(leaf, targets, handle, previous, set(holes))
            for row, name in enumerate(listing.names):
                below = paths[name]
                if listing.modes[row] & _TYPE_MASK != stat.S_IFDIR:
                    if not isinstance(below, Target):
                        self._files.report(leaf.path(row), "open", _os_error(errno.ENOTDIR))
                    continue
                child = self._enter(leaf, row, handle, to_pass=not isinstance(below, Target))
                if child is None:
                    continue
                content = _stored_directory(previous, name)
                if isinstance(below, Target):
                    device = listing.devices[row] if self._one_file_system else None
                    yield self._visit(*child, content, rules, device)
                else:
                    yield self._visit_above(*child, below, content, rules)
            self._writer.release_leaf(leaf)
        self._writer.release_directory(directory)

    def _visit(
        self,
        directory: OpenDirectory,
        handle: DirectoryHandle,
        stored: Content | None,
        rules: DirectoryRules,
        device: int | None,
    ) -> Visit:
        """A directory of the source, with everything below it; `device` is the only one to stay on."""
        parent = self._parent(stored)
        names: list[bytes] = []
        try:
            names = handle.names()
            rules = rules.enter(handle, directory.path, names)
        except OSError as error:
            self._files.report(directory.path, "list", error)
            _mark_incomplete(directory)
        for listing, holes in self._source.leaves(handle, directory.path, rules.kept_names(names), rules):
            self._report_listing(directory.path)
            leaf = self._writer.open_leaf(directory, listing)
            previous = self._take_leaf(leaf, parent, handle, set(holes))
            yield from self._visit_children(leaf, handle, previous, rules, device)
            self._writer.release_leaf(leaf)
        self._report_listing(directory.path)
        self._writer.release_directory(directory)
        self._observer.progress(self._files.progress)

    def _visit_children(
        self,
        leaf: OpenLeaf,
        handle: DirectoryHandle,
        previous: Previous,
        rules: DirectoryRules,
        device: int | None,
    ) -> Iterator[Visit]:
        listing = leaf.listing
        for row, mode in enumerate(listing.modes):
            if mode & _TYPE_MASK != stat.S_IFDIR:
                continue
            if device is not None and listing.devices[row] != device:
                self.directories += 1
                listing.contents[row] = EMPTY_CONTENT
                continue
            child = self._enter(leaf, row, handle)
            if child is not None:
                yield self._visit(*child, _stored_directory(previous, listing.names[row]), rules, device)

    def _enter(
        self, leaf: OpenLeaf, row: int, handle: DirectoryHandle, *, to_pass: bool = False
    ) -> tuple[OpenDirectory, DirectoryHandle] | None:
        self.directories += 1
        name = leaf.listing.names[row]
        try:
            child = handle.open_child_to_pass(name) if to_pass else handle.open_child(name)
        except OSError as error:
            self._files.report(leaf.path(row), "open", error)
            leaf.listing.contents[row] = EMPTY_CONTENT
            leaf.stored = None
            if error.errno in VANISHED:
                leaf.dropped.append(row)
            else:
                leaf.listing.marks[row] |= MARK_INCOMPLETE
            return None
        leaf.waiting += 1
        return OpenDirectory(leaf.path(row), leaf, row), child

    def _take_leaf(
        self, leaf: OpenLeaf, parent: ParentDirectory | None, handle: DirectoryHandle, holes: set[int]
    ) -> Previous:
        """Find the content of every row but the directories; returns the parent's rows by name."""
        previous = self._previous(leaf, parent, handle)
        if leaf.stored is not None and self._take_stored(leaf):
            return previous
        self._take_files(leaf, range(len(leaf.listing)), handle, previous, holes)
        return previous

    def _previous(self, leaf: OpenLeaf, parent: ParentDirectory | None, handle: DirectoryHandle) -> Previous:
        """The parent's rows in the range of a leaf; finds out whether the whole leaf is as it was, and its xattrs."""
        listing = leaf.listing
        previous: Previous = {}
        if parent is not None:
            stored = parent.same_leaf(listing.names)
            leaf.bases = parent.leaf_ids
            is_settled = max(listing.ctimes) < self._settled_ns
            if stored is not None and is_settled and same_columns(stored[2], listing):
                leaf.stored = stored
                listing.xattrs = stored[2].xattrs
                listing.extents = dict(stored[2].extents)
                return {name: (stored[2], row) for row, name in enumerate(listing.names)}
            previous = parent.rows(listing.names)
            leaf.bases = parent.leaf_ids
        self._read_xattrs(leaf, previous, handle)
        return previous

    def _read_xattrs(self, leaf: OpenLeaf, previous: Previous, handle: DirectoryHandle) -> None:
        """An equal ctime means equal xattrs; all others are read."""
        listing = leaf.listing
        xattrs = {}
        unknown = []
        for row, name in enumerate(listing.names):
            before = previous.get(name)
            if before is not None and _same_inode(*before, listing, row):
                known = before[0].xattrs.get(before[1])
                if known is not None:
                    xattrs[row] = known
            else:
                unknown.append(row)
        if unknown:
            found, errors = read_xattrs(handle, [listing.names[row] for row in unknown])
            xattrs.update({unknown[place]: pairs for place, pairs in found.items()})
            for name, number, what in errors:
                if number not in VANISHED:
                    self._files.report(leaf.directory.path + b"/" + name, what, _os_error(number))
        listing.xattrs = xattrs

    def _take_stored(self, leaf: OpenLeaf) -> bool:
        """Take all contents from the stored leaf; False if the repository lacks a chunk of them."""
        assert leaf.stored is not None
        contents = leaf.stored[2].contents
        listing = leaf.listing
        rows = [row for row, mode in enumerate(listing.modes) if mode & _TYPE_MASK == stat.S_IFREG]
        if not self._holds([contents[row] for row in rows]):
            leaf.stored = None
            return False
        listing.contents = list(contents)
        self._count_unchanged(leaf, rows)
        self.others += sum(1 for mode in listing.modes if mode & _TYPE_MASK not in (stat.S_IFREG, stat.S_IFDIR))
        return True

    def _take_files(
        self, leaf: OpenLeaf, rows: Sequence[int], handle: DirectoryHandle, previous: Previous, holes: set[int]
    ) -> None:
        """Take what is unchanged from the parent's rows, and have the rest read."""
        listing = leaf.listing
        regular = [row for row in rows if listing.modes[row] & _TYPE_MASK == stat.S_IFREG]
        self.others += sum(1 for row in rows if listing.modes[row] & _TYPE_MASK not in (stat.S_IFREG, stat.S_IFDIR))
        unchanged = self._unchanged(listing, regular, previous)
        for row, (before, before_row) in unchanged.items():
            listing.contents[row] = before.contents[before_row]
            if before_row in before.extents:
                listing.extents[row] = before.extents[before_row]
        self._count_unchanged(leaf, list(unchanged))
        changed = [row for row in regular if row not in unchanged] if unchanged else regular
        self._count_changed(leaf, changed, previous)
        self._files.take(leaf, changed, handle, holes)

    def _count_changed(self, leaf: OpenLeaf, rows: list[int], previous: Previous) -> None:
        listing, counts = leaf.listing, self._files.counts
        known = [row for row in rows if listing.names[row] in previous] if previous else []
        for row in known:
            before, before_row = previous[listing.names[row]]
            is_file = stat.S_ISREG(before.modes[before_row])
            leaf.earlier[row] = before.contents[before_row] if is_file else EMPTY_CONTENT
        counts.changed += len(known)
        counts.new += len(rows) - len(known)
        counts.size += sum([listing.sizes[row] for row in rows])
        if self._observer.wants_items:
            for row in rows:
                self._observer.item("changed" if listing.names[row] in previous else "new", leaf.path(row))

    def _unchanged(self, listing: Listing, rows: Sequence[int], previous: Previous) -> dict[int, tuple[Listing, int]]:
        """The parent's rows of files that need not be read; the keys are rows here."""
        unchanged = {}
        for row in rows:
            before = previous.get(listing.names[row])
            is_settled = listing.ctimes[row] < self._settled_ns
            if before is not None and is_settled and _same_file(*before, listing, row):
                unchanged[row] = before
        if self._holds([before.contents[row] for before, row in unchanged.values()]):
            return unchanged
        return {row: before for row, before in unchanged.items() if self._holds([before[0].contents[before[1]]])}

    def _holds(self, contents: list[Content]) -> bool:
        """Whether the repository has every chunk of some files or directories of the parent."""
        if self._is_parent_whole:
            return True
        ids = [content.ids for content in contents]
        prefixes = b"".join([some[i : i + ID_PREFIX_SIZE] for some in ids for i in range(0, len(some), ID_SIZE)])
        if 0 in self._index.contains(prefixes):
            return False
        return all(self._holds(list(self._tree.parts(content))) for content in contents if content.depth)

    def _count_unchanged(self, leaf: OpenLeaf, rows: list[int]) -> None:
        self._files.note_unchanged(leaf, rows)
        size = sum([leaf.listing.sizes[row] for row in rows])
        counts, progress = self._files.counts, self._files.progress
        counts.unchanged += len(rows)
        counts.size += size
        progress.files_done += len(rows)
        progress.bytes_done += size
        if self._observer.wants_items:
            for row in rows:
                self._observer.item("unchanged", leaf.path(row))

    def _parent(self, stored: Content | None) -> ParentDirectory | None:
        """The parent's directory, unless the index has lost a chunk of its tree, which is then stored again."""
        return None if stored is None or not self._holds([stored]) else ParentDirectory(self._tree, stored)

    def _report_listing(self, path: bytes, *, is_given: bool = False) -> None:
        errors, self._source.errors = self._source.errors, []
        for name, number, what in errors:
            # A name that vanished between listing and looking was deleted in time: nothing is missing.
            if is_given or number not in VANISHED:
                self._files.report(path + b"/" + name, what, _os_error(number))


def _stored_directory(previous: Previous, name: bytes) -> Content | None:
    before = previous.get(name)
    if before is None:
        return None
    listing, row = before
    return listing.contents[row] if stat.S_ISDIR(listing.modes[row]) else None


def _same_inode(before: Listing, before_row: int, listing: Listing, row: int) -> bool:
    return before.ctimes[before_row] == listing.ctimes[row] and before.inodes[before_row] == listing.inodes[row]


def _same_file(before: Listing, before_row: int, listing: Listing, row: int) -> bool:
    return (
        before.sizes[before_row] == listing.sizes[row]
        and before.mtimes[before_row] == listing.mtimes[row]
        and _same_inode(before, before_row, listing, row)
        and stat.S_ISREG(before.modes[before_row])
        and before.marks[before_row] == 0
    )


def _mark_incomplete(directory: OpenDirectory) -> None:
    leaf = directory.leaf
    if leaf is not None:
        leaf.listing.marks[directory.row] |= MARK_INCOMPLETE
        leaf.stored = None


def _os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
