"""Entries of a snapshot, as lines and as JSON fields."""

from __future__ import annotations

import stat
from typing import Any

from ohdiff.operations.tree_reader import Entry
from ohdiff_format.snapshot import Snapshot
from ohdiff_format.tree import TIME_UNKNOWN

from .text import iso_time, local_time, path_fields, shown

_TYPES = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "dir",
    stat.S_IFLNK: "symlink",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "chardev",
    stat.S_IFBLK: "dev",
}


def long_line(entry: Entry, snapshot: Snapshot) -> str:
    """An entry like `ls -l` shows it."""
    listing, row = entry.listing, entry.row
    user = snapshot.users.get(listing.uids[row], str(listing.uids[row]))
    group = snapshot.groups.get(listing.gids[row], str(listing.gids[row]))
    target = listing.targets.get(row)
    arrow = "" if target is None else f" -> {shown(target)}"
    return (
        f"{stat.filemode(entry.mode)} {user:8} {group:8} {entry.size:12} "
        f"{local_time(listing.mtimes[row])} {shown(entry.path)}{arrow}"
    )


def entry_fields(entry: Entry) -> dict[str, Any]:
    """An entry for programs."""
    listing, row = entry.listing, entry.row
    fields: dict[str, Any] = {
        **path_fields(entry.path),
        "type": _TYPES.get(stat.S_IFMT(entry.mode), "unknown"),
        "mode": entry.mode,
        "permissions": stat.filemode(entry.mode),
        "uid": listing.uids[row],
        "gid": listing.gids[row],
        "size": entry.size,
        "mtime": iso_time(listing.mtimes[row]),
        "ctime": iso_time(listing.ctimes[row]),
        "inode": listing.inodes[row],
        "links": listing.link_counts[row],
    }
    if listing.btimes[row] != TIME_UNKNOWN:
        fields["birth_time"] = iso_time(listing.btimes[row])
    if row in listing.targets:
        fields.update(path_fields(listing.targets[row], "link_target"))
    if row in listing.xattrs:
        fields["xattrs"] = {shown(name): len(value) for name, value in listing.xattrs[row]}
    if row in listing.extents:
        fields["extents"] = entry.extents
    return fields
