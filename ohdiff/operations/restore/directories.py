"""Directories of the target: made, or taken over as they are, and dressed when everything in them is done."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable

from ohdiff.filesystem import EntryColumns, read_entries
from ohdiff_format.tree import Listing

from .folders import Folder
from .options import OverwritePolicy
from .target import make_enterable, unlock
from .work import RestoreRun


def may_overwrite(policy: OverwritePolicy, mtime_ns: int, existing_mtime_ns: int) -> bool:
    """Whether an existing entry may be changed; the first time is the snapshot's."""
    if policy == "if-newer":
        return mtime_ns > existing_mtime_ns
    return policy != "never"


class Directories:
    """Used by the main thread only."""

    def __init__(self, run: RestoreRun) -> None:
        self._run = run
        self._report = run.report

    def make(self, parent: Folder, listing: Listing, row: int, *, is_update: bool = False) -> Folder | None:
        """A directory that is not there; None if it cannot be made, which has been reported."""
        is_dry = self._run.options.dry_run
        folder = Folder(parent, listing.names[row], is_new=True, is_present=not is_dry)
        folder.action = "updated" if is_update else "restored"
        folder.attributes = self._run.wanted.attributes(listing, row)
        return self._enter(folder, None if is_dry else self._run.entries.make_directory)

    def adopt(self, parent: Folder, listing: Listing, row: int, found: EntryColumns, at: int) -> Folder | None:
        """A directory that is there; None if it cannot be entered, which has been reported."""
        folder = Folder(parent, listing.names[row])
        options = self._run.options
        if may_overwrite(options.overwrite, listing.mtimes[row], found.mtimes_ns[at]):
            differs = self._run.wanted.differ(listing, row, found, at)
            folder.action = "metadata" if differs else "unchanged"
            folder.attributes = self._run.wanted.attributes(listing, row)
        else:
            folder.action = "skipped"
        may_change = folder.attributes is not None and not options.dry_run
        return self._enter(folder, (lambda inner: self._open_up(inner, found, at)) if may_change else None)

    def release(self, folder: Folder, count: int = 1) -> None:
        """So many things less that a directory waits for; after the last it is dressed, and its parent is told."""
        folder.waiting -= count
        while not folder.waiting:
            self._finish(folder)
            if folder.parent is None:
                return
            folder = folder.parent
            folder.waiting -= 1

    def take_root(self, folder: Folder, listing: Listing, row: int) -> None:
        """The target itself stands for a directory of the snapshot; OSError if it cannot be looked at or opened up.

        A mount point, or a directory that is everybody's to write to, keeps its attributes: whoever restores their
        files to `/` or `/tmp` does not mean to hand these over.
        """
        if folder.is_new or not folder.is_present:
            folder.attributes = self._run.wanted.attributes(listing, row)
            return
        folder.action = "skipped"
        with self._run.folders.opened(folder) as directory:
            found = read_entries(directory, [b"."], with_xattrs=True)
            above = os.stat("..", dir_fd=directory.fd)
        is_mount_point = found.devices[0] != above.st_dev or found.inodes[0] == above.st_ino
        is_shared = bool(found.modes[0] & stat.S_ISVTX)
        if is_mount_point or is_shared:
            return
        if may_overwrite(self._run.options.overwrite, listing.mtimes[row], found.mtimes_ns[0]):
            differs = self._run.wanted.differ(listing, row, found, 0)
            folder.action = "metadata" if differs else "unchanged"
            folder.attributes = self._run.wanted.attributes(listing, row)
            if not self._run.options.dry_run:
                self._open_up(folder, found, 0)

    def _enter(self, folder: Folder, prepare: Callable[[Folder], None] | None) -> Folder | None:
        try:
            if prepare is not None:
                prepare(folder)
        except OSError as error:
            assert folder.parent is not None, "the root is entered by the caller"
            self._report.failed(folder.parent, folder.name, error)
            return None
        if folder.parent is not None:
            folder.parent.waiting += 1
        return folder

    def _open_up(self, folder: Folder, found: EntryColumns, at: int) -> None:
        """Let the directory be changed, until its mode and flags are set again at the end."""
        is_closed = not self._run.wanted.is_root and found.modes[at] & stat.S_IRWXU != stat.S_IRWXU
        if not (is_closed or found.flags[at]):
            return
        from_folder, name = (folder, b".") if folder.parent is None else (folder.parent, folder.name)
        with self._run.folders.opened(from_folder) as directory:
            if is_closed:
                make_enterable(directory, name)
            unlock(directory, name, found.flags[at])
        folder.is_touched = True

    def _finish(self, folder: Folder) -> None:
        is_due = folder.is_touched or folder.action == "metadata"
        try:
            if folder.attributes is not None and is_due and not self._run.options.dry_run:
                failures = self._run.entries.dress(folder, b"", folder.attributes)
                self._report.dressing_failed(folder, b"", failures)
        except OSError as error:
            self._report.failed(folder, b"", error)
        else:
            if folder.parent is not None or folder.attributes is not None:
                self._report.did(self._report.result.directories, folder.action, folder, b"")
        if folder.parent is not None:
            self._run.folders.forget(folder)
