"""Describes a directory, or the same part of a snapshot, entry by entry, so that the two compare as dicts.

A directory is looked at with the standard library alone (lstat, SEEK_DATA, listxattr), none of the code under test.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ohdiff.operations.tree_reader import Entry, TreeReader
from ohdiff.repository.snapshots import StoredSnapshot

Extents = tuple[tuple[int, int], ...]
_READ_SIZE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Description:
    """One entry; `first_name` is the path of the first entry that is the same file, `digest` covers holes as zeros."""

    mode: int
    uid: int
    gid: int
    mtime_ns: int
    rdev: int
    first_name: bytes
    target: bytes = b""
    xattrs: tuple[tuple[bytes, bytes], ...] = ()
    size: int = 0
    digest: str = ""
    extents: Extents = ()


def describe_folder(path: Path, *, without_xattrs: bool = False) -> dict[bytes, Description]:
    """Every entry below a directory, the directory itself as b"", by path relative to it."""
    top = os.fsencode(path)
    first_names: dict[tuple[int, int], bytes] = {}
    found = {}
    for entry in [b"", *sorted(_paths_below(top))]:
        full = top + entry
        status = os.lstat(full)
        first = entry
        if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
            first = first_names.setdefault((status.st_dev, status.st_ino), entry)
        size, digest, extents = _content(full) if stat.S_ISREG(status.st_mode) else (0, "", ())
        found[entry] = Description(
            mode=status.st_mode,
            uid=status.st_uid,
            gid=status.st_gid,
            mtime_ns=status.st_mtime_ns,
            rdev=status.st_rdev,
            first_name=first,
            target=os.readlink(full) if stat.S_ISLNK(status.st_mode) else b"",
            xattrs=() if without_xattrs else _xattrs(full),
            size=size,
            digest=digest,
            extents=extents,
        )
    return found


def describe_snapshot(tree: TreeReader, stored: StoredSnapshot, path: Path) -> dict[bytes, Description]:
    """The same of what a snapshot holds at and below `path`; reads and verifies every chunk."""
    top = os.fsencode(path)
    root = tree.find(stored.root, top)
    assert root is not None
    entries = [root, *(tree.walk(root.content, root.path) if root.is_directory else [])]
    entries.sort(key=lambda entry: entry.path)
    first_names: dict[tuple[int, int], bytes] = {}
    found = {}
    for entry in entries:
        name = entry.path[len(top) :]
        listing, row = entry.listing, entry.row
        first = name
        if listing.link_counts[row] > 1 and not entry.is_directory:
            first = first_names.setdefault((listing.devices[row], listing.inodes[row]), name)
        size, digest, extents = _stored_content(tree, entry) if entry.is_file else (0, "", ())
        found[name] = Description(
            mode=entry.mode,
            uid=listing.uids[row],
            gid=listing.gids[row],
            mtime_ns=listing.mtimes[row],
            rdev=listing.rdevs[row],
            first_name=first,
            target=listing.targets.get(row, b""),
            xattrs=tuple(listing.xattrs.get(row, ())),
            size=size,
            digest=digest,
            extents=extents,
        )
    return found


def differences(left: dict[bytes, Description], right: dict[bytes, Description]) -> dict[bytes, tuple[object, object]]:
    """Entries that are not equal on both sides; short to read when a test fails."""
    return {
        key: (left.get(key), right.get(key)) for key in left.keys() | right.keys() if left.get(key) != right.get(key)
    }


def _paths_below(top: bytes) -> Iterator[bytes]:
    """Paths of every entry, relative to `top` with a leading slash; none may be longer than the system allows."""
    pending = [b""]
    while pending:
        folder = pending.pop()
        with os.scandir(top + folder) as entries:
            for entry in entries:
                yield folder + b"/" + entry.name
                if entry.is_dir(follow_symlinks=False):
                    pending.append(folder + b"/" + entry.name)


def _content(path: bytes) -> tuple[int, str, Extents]:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        size = os.fstat(fd).st_size
        extents = tuple(_data_ranges(fd, size))
        return size, _digest((start, os.pread(fd, end - start, start)) for start, end in extents), extents
    finally:
        os.close(fd)


def _data_ranges(fd: int, size: int) -> Iterator[tuple[int, int]]:
    end = 0
    while end < size:
        try:
            start = os.lseek(fd, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return
        end = os.lseek(fd, start, os.SEEK_HOLE)
        yield start, end


def _stored_content(tree: TreeReader, entry: Entry) -> tuple[int, str, Extents]:
    return entry.size, _digest(tree.read_file(entry)), tuple(entry.extents)


def _digest(pieces: Iterable[tuple[int, bytes | memoryview]]) -> str:
    """Hash data where it lies: the offset of every run of bytes, however the run was split, and its bytes."""
    hasher = hashlib.sha256()
    position = -1
    for offset, data in pieces:
        if offset != position:
            hasher.update(b"at %d:" % offset)
        hasher.update(data)
        position = offset + len(data)
    return hasher.hexdigest()


def _xattrs(path: bytes) -> tuple[tuple[bytes, bytes], ...]:
    try:
        names = os.listxattr(path, follow_symlinks=False)
    except OSError as error:
        if error.errno not in (errno.ENOTSUP, errno.EPERM):
            raise
        return ()
    values = {os.fsencode(name): os.getxattr(path, name, follow_symlinks=False) for name in names}
    return tuple(sorted(values.items()))
