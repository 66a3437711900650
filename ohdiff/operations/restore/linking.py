"""Makes the further names of hard-linked entries, at once or when their first name is whole."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Final

from ohdiff.errors import TargetError
from ohdiff_format.tree import Listing

from .folders import Folder
from .links import LinkGroup
from .work import RestoreRun

_CANNOT_LINK: Final = {errno.EMLINK, errno.EPERM, errno.EXDEV, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}


class LinkMaker:
    """Used by the main thread only.

    Parameters
    ----------
    release : one thing less that a folder waits for; every name handed over was counted there.
    restore_alone : restores an entry as one of its own, which releases the folder; told whether it replaces another.
    """

    def __init__(
        self,
        run: RestoreRun,
        release: Callable[[Folder], None],
        restore_alone: Callable[[Folder, Listing, int, bool], None],
    ) -> None:
        self._run = run
        self._release = release
        self._restore_alone = restore_alone

    def add(self, group: LinkGroup, folder: Folder, listing: Listing, row: int) -> None:
        """One more name of a group."""
        if group.state == "open":
            group.waiting.append((folder, listing, row))
        else:
            self._make(group, folder, listing, row)

    def settle(self, group: LinkGroup, is_good: bool) -> None:
        """The group's first name is finished, or has failed."""
        group.state = "good" if is_good else "failed"
        waiting, group.waiting = group.waiting, []
        for folder, listing, row in waiting:
            self._make(group, folder, listing, row)

    def _make(self, group: LinkGroup, folder: Folder, listing: Listing, row: int) -> None:
        name = listing.names[row]
        report = self._run.report
        if group.state == "failed":
            first = report.source_path(group.folder, group.name).decode(errors="backslashreplace")
            report.failed(folder, name, TargetError(f"the same file as {first}, which could not be restored"))
            self._release(folder)
            return
        try:
            action = self._run.entries.link_action(folder, name, group.folder, group.name)
            if action != "unchanged" and not self._run.options.dry_run:
                replaces = action == "updated"
                self._run.entries.put_link(folder, name, group.folder, group.name, replaces=replaces)
        except OSError as error:
            if error.errno in _CANNOT_LINK:
                report.note_once("links", "some hard links could not be made: those files are copies now")
                self._restore_alone(folder, listing, row, action == "updated")
                return
            report.failed(folder, name, error)
        else:
            report.did(report.result.hard_links, action, folder, name)
        self._release(folder)
