"""Writing a part of a snapshot as a tar stream: PAX headers carry what the old ones cannot, holes become zeros."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from collections.abc import Iterator
from typing import IO, Final

from ohdiff_format.snapshot import Snapshot

from .observer import Observer
from .tree_reader import Entry, TreeReader

_ZEROS: Final = bytes(1 << 20)
_SECOND_NS: Final = 1_000_000_000
_TYPES: Final = {
    stat.S_IFREG: tarfile.REGTYPE,
    stat.S_IFDIR: tarfile.DIRTYPE,
    stat.S_IFLNK: tarfile.SYMTYPE,
    stat.S_IFIFO: tarfile.FIFOTYPE,
    stat.S_IFCHR: tarfile.CHRTYPE,
    stat.S_IFBLK: tarfile.BLKTYPE,
}


def write_tar(
    tree: TreeReader, snapshot: Snapshot, entries: Iterator[Entry], base: bytes, out: IO[bytes], observer: Observer
) -> None:
    """Write entries, in the order in which they come, with names relative to `base`.

    Of files with several names the first one holds the data. Sockets are left out, and the observer is told.
    """
    first_names: dict[tuple[int, int], str] = {}
    with tarfile.open(
        fileobj=out, mode="w|", format=tarfile.PAX_FORMAT, encoding="utf-8", errors="surrogateescape"
    ) as tar:
        for entry in entries:
            if stat.S_IFMT(entry.mode) not in _TYPES:
                observer.note(f"{entry.path.decode(errors='backslashreplace')} is a socket, which tar cannot hold")
                continue
            info = _header(entry, snapshot, base)
            _link(entry, info, first_names)
            if info.isreg():
                with io.BufferedReader(_FileData(tree, entry), len(_ZEROS)) as data:
                    tar.addfile(info, data)
            else:
                tar.addfile(info)


def file_data(tree: TreeReader, entry: Entry) -> Iterator[bytes | memoryview]:
    """The data of a file from its first to its last byte, holes as zeros."""
    position = 0
    for offset, part in tree.read_file(entry):
        yield from _zeros(offset - position)
        yield part
        position = offset + len(part)
    yield from _zeros(entry.size - position)


def _zeros(size: int) -> Iterator[bytes]:
    while size > 0:
        yield _ZEROS[:size]
        size -= len(_ZEROS)


def _header(entry: Entry, snapshot: Snapshot, base: bytes) -> tarfile.TarInfo:
    listing, row = entry.listing, entry.row
    info = tarfile.TarInfo(entry.path[len(base) :].lstrip(b"/").decode(errors="surrogateescape"))
    info.type = _TYPES[stat.S_IFMT(entry.mode)]
    info.mode = stat.S_IMODE(entry.mode)
    info.uid, info.gid = listing.uids[row], listing.gids[row]
    info.uname, info.gname = snapshot.users.get(info.uid, ""), snapshot.groups.get(info.gid, "")
    info.size = entry.size if entry.is_file else 0
    seconds, rest = divmod(listing.mtimes[row], _SECOND_NS)
    info.mtime = max(seconds, 0)
    fields = {}
    if rest or seconds < 0:
        fields["mtime"] = _decimal(listing.mtimes[row])
    if row in listing.targets:
        info.linkname = listing.targets[row].decode(errors="surrogateescape")
    if info.isdev():
        info.devmajor, info.devminor = os.major(listing.rdevs[row]), os.minor(listing.rdevs[row])
    for name, value in listing.xattrs.get(row, []):
        key = f"SCHILY.xattr.{name.decode(errors='surrogateescape')}"
        fields[key] = value.decode(errors="surrogateescape")
    info.pax_headers = fields
    return info


def _decimal(time_ns: int) -> str:
    """Seconds with nine places, exact also before 1970."""
    sign = "-" if time_ns < 0 else ""
    seconds, rest = divmod(abs(time_ns), _SECOND_NS)
    return f"{sign}{seconds}.{rest:09}"


def _link(entry: Entry, info: tarfile.TarInfo, first_names: dict[tuple[int, int], str]) -> None:
    """Make a further name of a file a link to its first."""
    listing, row = entry.listing, entry.row
    if stat.S_ISDIR(entry.mode) or listing.link_counts[row] < 2:
        return
    identity = (listing.devices[row], listing.inodes[row])
    first = first_names.setdefault(identity, info.name)
    if first != info.name:
        info.type = tarfile.LNKTYPE
        info.linkname = first
        info.size = 0


class _FileData(io.RawIOBase):
    """A file's data as something to read from."""

    def __init__(self, tree: TreeReader, entry: Entry) -> None:
        self._parts = file_data(tree, entry)
        self._rest: memoryview = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while not self._rest:
            part = next(self._parts, None)
            if part is None:
                return 0
            self._rest = memoryview(part)
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count
