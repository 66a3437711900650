"""The status of many entries of a directory as parallel columns, and of one open file.

Columns keep a folder of 200,000 entries at a few objects a column instead of one object an entry. What of it is
stored in a tree, and what counts as unchanged, is for others to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ohdiff import _posix
from ohdiff.filesystem.directory import DirectoryHandle

Xattrs = list[tuple[bytes, bytes]]
EntryError = tuple[bytes, int, str]


@dataclass(frozen=True, slots=True)
class EntryColumns:
    """Entries of one directory, one row each; those that could not be read are in `errors` only.

    Attributes
    ----------
    names, modes, uids, gids, sizes, inodes, devices, link_counts, rdevs, blocks512 : as lstat has them.
    mtimes_ns, ctimes_ns, btimes_ns : nanoseconds since 1970; a birth time may be `_posix.TIME_UNKNOWN`.
    flags : what chattr or chflags can set, 0 where the file system has none.
    targets : row -> text of a symlink.
    xattrs : row -> (name, value) pairs sorted by name, ACLs included; rows without any are absent.
    errors : (name, errno, what): "stat", "readlink", or "xattr". A name may be here and have its row too, when only
        its xattrs could not be read.
    """

    names: list[bytes]
    modes: list[int]
    uids: list[int]
    gids: list[int]
    sizes: list[int]
    mtimes_ns: list[int]
    ctimes_ns: list[int]
    btimes_ns: list[int]
    inodes: list[int]
    devices: list[int]
    link_counts: list[int]
    rdevs: list[int]
    flags: list[int]
    blocks512: list[int]
    targets: dict[int, bytes]
    xattrs: dict[int, Xattrs]
    errors: list[EntryError]

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True, slots=True)
class FileStatus:
    """The status of one open file, in the terms of `EntryColumns`."""

    mode: int
    uid: int
    gid: int
    size: int
    mtime_ns: int
    ctime_ns: int
    btime_ns: int
    inode: int
    device: int
    link_count: int
    rdev: int
    flags: int
    blocks512: int
    xattrs: Xattrs


def read_entries(directory: DirectoryHandle, names: Sequence[bytes], *, with_xattrs: bool) -> EntryColumns:
    """Read the status of these entries, links not followed.

    About 400 bytes of memory an entry: give a huge folder's names in slices. Xattrs add a fifth to the time of an
    entry that has none; for entries with many, an unchanged ctime says that they are those of last time.
    """
    return EntryColumns(*_posix.stat_columns(directory.fd, list(names), with_xattrs))


def read_xattrs(directory: DirectoryHandle, names: Sequence[bytes]) -> tuple[dict[int, Xattrs], list[EntryError]]:
    """The xattrs of these entries by position, and what could not be read."""
    return _posix.read_xattrs(directory.fd, list(names))


def read_status(fd: int, *, with_xattrs: bool = False) -> FileStatus:
    """The status of an open file or directory."""
    return FileStatus(*_posix.stat_fd(fd, with_xattrs))
