"""Which attributes an entry gets: as the snapshot says, but for owners that this user cannot give away.

A file that does not get its owner gets no set-id bits either: they would lend the rights of whoever restores it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from ohdiff.filesystem import Attributes, EntryColumns
from ohdiff_format.tree import Listing


class Wanted:
    """Turns rows of a listing into attributes, for the user who runs this.

    Parameters
    ----------
    restore_owner : False leaves every entry to that user.

    Attributes
    ----------
    lost_owner : whether some entry was met that cannot get its owner, though that was asked for.
    """

    def __init__(self, *, restore_owner: bool) -> None:
        self._uid = os.geteuid()
        self._gid = os.getegid()
        self._groups = {self._gid, *os.getgroups()}
        self._gives_all = restore_owner and self._uid == 0
        self._gives_own = restore_owner and self._uid != 0
        self.lost_owner = False

    @property
    def is_root(self) -> bool:
        """Whether permissions do not bind this user."""
        return self._uid == 0

    def may_write(self, mode: int, uid: int) -> bool:
        """Whether this user may write to a file without changing its mode, and dress it."""
        return self._uid == 0 or (uid == self._uid and bool(mode & stat.S_IWUSR))

    def owner(self, uid: int, gid: int) -> tuple[int | None, int | None]:
        """The owner and group to give; None leaves it as it was made."""
        if self._gives_all:
            return uid, gid
        if not self._gives_own:
            return None, None
        is_own, is_member = uid == self._uid, gid in self._groups
        if not (is_own and is_member):
            self.lost_owner = True
        return (uid if is_own else None), (gid if is_member else None)

    def mode(self, mode: int, uid: int, gid: int) -> int:
        """The mode without set-id bits of somebody else."""
        if self._gives_all or not stat.S_ISREG(mode):
            return mode
        if uid != self._uid:
            mode &= ~stat.S_ISUID
        if gid not in self._groups or not self._gives_own:
            mode &= ~stat.S_ISGID
        return mode

    def attributes(self, listing: Listing, row: int) -> Attributes:
        """Everything that an entry gets."""
        uid, gid = self.owner(listing.uids[row], listing.gids[row])
        return Attributes(
            mode=self.mode(listing.modes[row], listing.uids[row], listing.gids[row]),
            mtime_ns=listing.mtimes[row],
            uid=uid,
            gid=gid,
            xattrs=listing.xattrs.get(row, ()),
            flags=listing.flags[row],
        )

    def columns(self, rows: Sequence[tuple[Listing, int]]) -> tuple[list[int], list[int] | None, list[int] | None]:
        """The modes, owners and groups of many new regular files, as `create_files` takes them."""
        modes = [listing.modes[row] for listing, row in rows]
        uids = [listing.uids[row] for listing, row in rows]
        gids = [listing.gids[row] for listing, row in rows]
        if self._gives_all:
            return modes, uids, gids
        modes = [self.mode(*values) for values in zip(modes, uids, gids, strict=True)]
        if not self._gives_own:
            return modes, None, None
        given = [self.owner(uid, gid) for uid, gid in zip(uids, gids, strict=True)]
        own_uids = [self._uid] * len(given)
        return modes, own_uids, [self._gid if gid is None else gid for _, gid in given]

    def differ(self, listing: Listing, row: int, found: EntryColumns, at: int) -> bool:
        """Whether an existing entry of the right type has other attributes than it should."""
        mode = self.mode(listing.modes[row], listing.uids[row], listing.gids[row])
        if found.mtimes_ns[at] != listing.mtimes[row] or (found.modes[at] != mode and not stat.S_ISLNK(mode)):
            return True
        uid, gid = self.owner(listing.uids[row], listing.gids[row])
        if (uid is not None and uid != found.uids[at]) or (gid is not None and gid != found.gids[at]):
            return True
        if found.xattrs.get(at, []) != listing.xattrs.get(row, []):
            return True
        has_flags = stat.S_ISREG(mode) or stat.S_ISDIR(mode)
        return has_flags and found.flags[at] != listing.flags[row]
