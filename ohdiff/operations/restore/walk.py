"""The walk: goes through a snapshot's tree beside the target, and decides on each entry what becomes of it.

One directory at a time, each before what is in it; memory grows with depth, not with the number of entries. Whatever
takes data or waiting is handed to the books of files, links and directories.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from ohdiff.errors import IntegrityError
from ohdiff.filesystem import EntryColumns, read_entries
from ohdiff_format.tree import Listing

from .directories import Directories, may_overwrite
from .existing import ExistingFiles
from .files import FileBook
from .folders import Folder
from .linking import LinkMaker
from .links import LinkGroup, LinkGroups
from .options import Tally
from .work import Existing, RestoreRun

_TYPE_BITS: Final = 0o170000
_NOTHING: Final[dict[bytes, int]] = {}


@dataclass(slots=True, eq=False)
class Frame:
    """A directory that is being walked.

    Attributes
    ----------
    leaves : the rest of its leaves.
    path : its path in the snapshot, kept only where paths are matched.
    is_included : everything in it is meant, but for what is excluded.
    folder : its place in the target; None until something in it is restored, if only that makes it needed.
    is_blocked : it cannot be entered, or is to be left alone.
    may_delete : the listing is known to be complete, and entries that it lacks may go.
    extra : names in the target that no leaf has had so far.
    listing, found, places, inner : the current leaf, the status of its entries that exist, their rows in `found`, and
        the rows of directories still to be walked.
    """

    leaves: Iterator[Listing]
    path: bytes
    is_included: bool
    above: Frame | None = None
    row: int = 0
    folder: Folder | None = None
    is_blocked: bool = False
    may_delete: bool = True
    extra: set[bytes] = field(default_factory=set)
    listing: Listing = field(default_factory=Listing)
    found: EntryColumns | None = None
    places: dict[bytes, int] = field(default_factory=dict)
    inner: Iterator[tuple[int, bool]] = field(default_factory=lambda: iter(()))


class RestoreWalk:
    """Walks and decides; used by the main thread only."""

    def __init__(self, run: RestoreRun) -> None:
        self._run = run
        self._report = run.report
        options = run.options
        self._has_filters = options.include is not None or options.exclude is not None
        self._groups = LinkGroups()
        self.directories = Directories(run)
        release = self.directories.release
        self._links = LinkMaker(run, release, self._restore_alone)
        self.files = FileBook(run, release, self._links.settle)
        self.existing = ExistingFiles(run, self.files, release, self._links.settle)
        self._stack: list[Frame] = []

    def run(self, root: Frame) -> None:
        """Walk everything below a frame whose folder is the target itself."""
        self._stack = [root]
        self._look_at_target(root)
        while self._stack:
            self._step(self._stack[-1])
            self.files.advance()

    def _step(self, frame: Frame) -> None:
        inner = next(frame.inner, None)
        if inner is not None:
            self._walk_into(frame, *inner)
            return
        listing = self._next_leaf(frame)
        if listing is not None:
            self._take_leaf(frame, listing)
            return
        self._stack.pop()
        if frame.folder is not None:
            if frame.may_delete and self._run.options.delete:
                self._delete_extra(frame, frame.folder)
            self.directories.release(frame.folder)

    def _next_leaf(self, frame: Frame) -> Listing | None:
        try:
            return next(frame.leaves, None)
        except IntegrityError as error:
            # What is not known to be missing from the snapshot is not deleted.
            frame.may_delete = False
            self._report_directory(frame, error)
            return None

    def _report_directory(self, frame: Frame, error: IntegrityError) -> None:
        if frame.folder is not None:
            self._report.failed(frame.folder, b"", error)
            return
        above = frame.above
        while above is not None and above.folder is None:
            frame, above = above, above.above
        assert above is not None and above.folder is not None, "the root has a folder"
        self._report.failed(above.folder, above.listing.names[frame.row], error)

    # Leaves.

    def _take_leaf(self, frame: Frame, listing: Listing) -> None:
        frame.listing = listing
        frame.found, frame.places = None, _NOTHING
        rows = self._chosen(frame, listing)
        if frame.folder is not None:
            self._look_at_entries(frame, frame.folder)
        frame.inner = iter([(row, included) for row, included in rows if stat.S_ISDIR(listing.modes[row])])
        others = [row for row, included in rows if included and not stat.S_ISDIR(listing.modes[row])]
        if others and self._ensure_folder() is not None:
            self._take_entries(frame, others)

    def _chosen(self, frame: Frame, listing: Listing) -> list[tuple[int, bool]]:
        """The rows that are not excluded, and whether they are included as such."""
        if not self._has_filters:
            return [(row, True) for row in range(len(listing))]
        include, exclude = self._run.options.include, self._run.options.exclude
        rows = []
        for row, name in enumerate(listing.names):
            path = frame.path + b"/" + name
            if exclude is None or not exclude(path):
                rows.append((row, frame.is_included or include is None or include(path)))
        return rows

    def _take_entries(self, frame: Frame, rows: Sequence[int]) -> None:
        folder, listing, places = frame.folder, frame.listing, frame.places
        assert folder is not None, "it has just been ensured"
        folder.waiting += len(rows)
        modes, link_counts, names = listing.modes, listing.link_counts, listing.names
        new = [
            row
            for row in rows
            if modes[row] & _TYPE_BITS == stat.S_IFREG and link_counts[row] <= 1 and names[row] not in places
        ]
        if len(new) < len(rows):
            taken = set(new)
            for row in rows:
                if row not in taken:
                    self._take_entry(frame, folder, row)
        if new:
            self.files.take_new_files(folder, listing, new)

    def _take_entry(self, frame: Frame, folder: Folder, row: int) -> None:
        listing = frame.listing
        name = listing.names[row]
        at = frame.places.get(name)
        if at is not None and not self._clear_way(frame, folder, row, at):
            self.directories.release(folder)
            return
        if at is not None and frame.found is not None and stat.S_ISDIR(frame.found.modes[at]):
            at = None  # The directory in the way is gone.
        group = None
        if listing.link_counts[row] > 1:
            group = self._groups.find(listing, row)
            if group is not None:
                self._links.add(group, folder, listing, row)
                return
            group = self._groups.begin(folder, listing, row)
        self._restore_entry(folder, listing, row, group, frame.found, at)

    def _clear_way(self, frame: Frame, folder: Folder, row: int, at: int) -> bool:
        """Whether what exists may be changed; a directory in the way of something else is removed, if it may be."""
        listing, found = frame.listing, frame.found
        assert found is not None, "its row is known"
        name, mode = listing.names[row], listing.modes[row]
        if not may_overwrite(self._run.options.overwrite, listing.mtimes[row], found.mtimes_ns[at]):
            self._report.did(self._tally(mode), "skipped", folder, name)
            return False
        if not stat.S_ISDIR(found.modes[at]):
            return True
        if not self._run.options.delete:
            self._report.failed(folder, name, IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR)))
            return False
        return self._delete(folder, name, found.modes[at])

    def _restore_entry(
        self,
        folder: Folder,
        listing: Listing,
        row: int,
        group: LinkGroup | None,
        found: EntryColumns | None,
        at: int | None,
    ) -> None:
        if not stat.S_ISREG(listing.modes[row]):
            self._restore_node(folder, listing, row, group, found, at)
        elif at is None or found is None:
            self.files.take_new(folder, listing, row, group, replaces=False)
        elif stat.S_ISREG(found.modes[at]):
            self.existing.take(Existing(folder, listing, row, found, at, group))
        else:
            self.files.take_new(folder, listing, row, group, replaces=True)

    def _restore_node(
        self,
        folder: Folder,
        listing: Listing,
        row: int,
        group: LinkGroup | None,
        found: EntryColumns | None,
        at: int | None,
    ) -> None:
        name = listing.names[row]
        others = self._report.result.others
        is_good = True
        try:
            if found is None or at is None:
                self._put_node(folder, listing, row, replaces=False)
                self._report.did(others, "restored", folder, name)
            elif not _is_same_node(listing, row, found, at):
                self._put_node(folder, listing, row, replaces=True, old_flags=found.flags[at])
                self._report.did(others, "updated", folder, name)
            elif self._run.wanted.differ(listing, row, found, at):
                self._dress_node(folder, listing, row)
                self._report.did(others, "metadata", folder, name)
            else:
                self._report.did(others, "unchanged", folder, name)
        except OSError as error:
            self._report.failed(folder, name, error)
            is_good = False
        if group is not None:
            self._links.settle(group, is_good)
        self.directories.release(folder)

    def _put_node(self, folder: Folder, listing: Listing, row: int, *, replaces: bool, old_flags: int = 0) -> None:
        if not self._run.options.dry_run:
            failures = self._run.entries.put_node(folder, listing, row, replaces=replaces, old_flags=old_flags)
            self._report.dressing_failed(folder, listing.names[row], failures)

    def _dress_node(self, folder: Folder, listing: Listing, row: int) -> None:
        if not self._run.options.dry_run:
            attributes = self._run.wanted.attributes(listing, row)
            failures = self._run.entries.dress(folder, listing.names[row], attributes)
            self._report.dressing_failed(folder, listing.names[row], failures)

    def _restore_alone(self, folder: Folder, listing: Listing, row: int, replaces: bool) -> None:
        if stat.S_ISREG(listing.modes[row]):
            self.files.take_new(folder, listing, row, None, replaces=replaces)
            return
        try:
            self._put_node(folder, listing, row, replaces=replaces)
            self._report.did(self._report.result.others, "restored", folder, listing.names[row])
        except OSError as error:
            self._report.failed(folder, listing.names[row], error)
        self.directories.release(folder)

    # Directories.

    def _walk_into(self, frame: Frame, row: int, is_included: bool) -> None:
        listing = frame.listing
        path = frame.path + b"/" + listing.names[row] if self._has_filters else b""
        content = listing.contents[row]
        leaves = (leaf for _, _, leaf in self._run.tree.leaves(content))
        inner = Frame(leaves, path, is_included, frame, row)
        self._stack.append(inner)
        if is_included and self._ensure_folder() is None:
            self._stack.pop()

    def _ensure_folder(self) -> Folder | None:
        """The folder of the innermost frame, made now if need be; None if it cannot be or must be left alone."""
        first = len(self._stack)
        while self._stack[first - 1].folder is None:
            first -= 1
        for frame in self._stack[first:]:
            above = frame.above
            assert above is not None and above.folder is not None, "the root has a folder"
            if frame.is_blocked or above.is_blocked:
                return None
            frame.folder = self._enter(above, above.folder, frame.row)
            if frame.folder is None:
                frame.is_blocked = True
                return None
            self._look_at_target(frame)
        return self._stack[-1].folder

    def _enter(self, above: Frame, parent: Folder, row: int) -> Folder | None:
        listing, found = above.listing, above.found
        at = above.places.get(listing.names[row])
        if at is None or found is None:
            return self.directories.make(parent, listing, row)
        if stat.S_ISDIR(found.modes[at]):
            return self.directories.adopt(parent, listing, row, found, at)
        name = listing.names[row]
        if not may_overwrite(self._run.options.overwrite, listing.mtimes[row], found.mtimes_ns[at]):
            self._report.did(self._report.result.directories, "skipped", parent, name)
            return None
        if not self._remove(parent, name):
            return None
        return self.directories.make(parent, listing, row, is_update=True)

    # The target.

    def _look_at_target(self, frame: Frame) -> None:
        """Learn what is in a directory that was there before."""
        folder = frame.folder
        if folder is None or folder.is_new or not folder.is_present:
            return
        try:
            with self._run.folders.opened(folder) as directory:
                frame.extra = set(directory.names())
        except OSError as error:
            frame.may_delete = False
            self._report.failed(folder, b"", error)
            return
        if frame.listing.names:
            self._look_at_entries(frame, folder)

    def _look_at_entries(self, frame: Frame, folder: Folder) -> None:
        """Read the status of the current leaf's entries that exist."""
        names = [name for name in frame.listing.names if name in frame.extra] if frame.extra else []
        if not names:
            return
        frame.extra.difference_update(names)
        try:
            with self._run.folders.opened(folder) as directory:
                found = read_entries(directory, names, with_xattrs=True)
        except OSError as error:
            self._report.failed(folder, b"", error)
            return
        frame.found = found
        frame.places = {name: at for at, name in enumerate(found.names)}

    def _delete_extra(self, frame: Frame, folder: Folder) -> None:
        include, exclude = self._run.options.include, self._run.options.exclude
        for name in sorted(frame.extra):
            path = frame.path + b"/" + name
            is_meant = frame.is_included or include is None or include(path)
            if not is_meant or (exclude is not None and exclude(path)):
                continue
            try:
                mode = self._run.entries.mode(folder, name)
            except OSError as error:
                self._report.failed(folder, name, error)
                continue
            if mode is not None:
                self._delete(folder, name, mode)

    def _delete(self, folder: Folder, name: bytes, mode: int) -> bool:
        if not self._remove(folder, name):
            return False
        self._report.did(self._tally(mode), "deleted", folder, name)
        return True

    def _remove(self, folder: Folder, name: bytes) -> bool:
        if self._run.options.dry_run:
            return True
        try:
            self._run.entries.remove(folder, name)
        except OSError as error:
            self._report.failed(folder, name, error)
            return False
        return True

    def _tally(self, mode: int) -> Tally:
        result = self._report.result
        if stat.S_ISREG(mode):
            return result.files
        return result.directories if stat.S_ISDIR(mode) else result.others


def _is_same_node(listing: Listing, row: int, found: EntryColumns, at: int) -> bool:
    """Whether an existing entry has the type and, by that, the target or device number that it should have."""
    mode = listing.modes[row]
    if stat.S_IFMT(mode) != stat.S_IFMT(found.modes[at]):
        return False
    if stat.S_ISLNK(mode):
        return listing.targets.get(row, b"") == found.targets.get(at)
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        return listing.rdevs[row] == found.rdevs[at]
    return True
