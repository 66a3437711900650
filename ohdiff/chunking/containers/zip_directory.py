"""The stored (uncompressed) entries of a zip archive, or of several archives one after the other.

Python's zipfile believes more than is safe here: it takes sizes from one header without looking at the other, and
accepts overlaps. This reads the central directory and each stored entry's own header, and refuses what is not exact.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from .tensors import HEADER_SIZE_BYTES_MAX, ByteSource, MalformedError, read_exactly

ENTRIES_MAX: Final = 262_144
ARCHIVES_MAX: Final = 65_536
MAGIC: Final = b"PK\x03\x04"

_END: Final = struct.Struct("<4sHHHHIIH")
_END64: Final = struct.Struct("<4sQHHIIQQQQ")
_LOCATOR64: Final = struct.Struct("<4sIQI")
_CENTRAL: Final = struct.Struct("<4sHHHHHHIIIHHHHHII")
_LOCAL: Final = struct.Struct("<4sHHHHHIIIHH")
_COMMENT_SIZE_BYTES_MAX: Final = 0xFFFF
_FULL16: Final = 0xFFFF
_FULL32: Final = 0xFFFF_FFFF
_FLAG_ENCRYPTED: Final = 1
_ID_ZIP64: Final = 1


@dataclass(frozen=True, slots=True)
class Entry:
    """One stored entry: its name, and the half-open range of its bytes in the file."""

    name: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Directory:
    """Where a central directory lies, and where its archive begins in the file."""

    archive_start: int
    start: int
    size: int
    count: int


@dataclass(frozen=True, slots=True)
class _Central:
    """What the central directory says of an entry; `offset` counts from the start of the archive."""

    name: bytes
    flags: int
    method: int
    packed_size: int
    plain_size: int
    offset: int


def read_archives(source: ByteSource) -> list[list[Entry]]:
    """The stored entries of each archive, by place; only the last archive may end in a comment.

    Raises
    ------
    MalformedError
        The file is not made of whole archives, or their headers contradict one another.
    """
    archives: list[list[Entry]] = []
    end, count = source.size, 0
    while end > 0:
        directory = _find_directory(source, end, _COMMENT_SIZE_BYTES_MAX if end == source.size else 0)
        count += directory.count
        if count > ENTRIES_MAX or len(archives) == ARCHIVES_MAX:
            raise MalformedError
        archives.append(_stored_entries(source, directory))
        end = directory.archive_start
    return archives[::-1]


def _find_directory(source: ByteSource, end: int, comment_size_max: int) -> _Directory:
    tail_start = max(0, end - _END.size - comment_size_max)
    tail = read_exactly(source, tail_start, end - tail_start)
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or len(tail) - at < _END.size:
        raise MalformedError
    _, disk, directory_disk, count_here, count, size, offset, comment_size = _END.unpack_from(tail, at)
    if disk or directory_disk or count_here != count or len(tail) - at - _END.size != comment_size:
        raise MalformedError
    return _placed(source, tail_start + at, count, size, offset)


def _placed(source: ByteSource, end_at: int, count: int, size: int, offset: int) -> _Directory:
    """The directory that ends where the end record begins, or where the records of zip64 before it do."""
    locator_at = end_at - _LOCATOR64.size
    locator = read_exactly(source, locator_at, _LOCATOR64.size) if locator_at >= 0 else b""
    if not locator.startswith(b"PK\x06\x07"):
        return _checked(end_at, count, size, offset)
    _, disk, end64_offset, disks = _LOCATOR64.unpack(locator)
    end64_at = locator_at - _END64.size
    record = _END64.unpack(read_exactly(source, end64_at, _END64.size))
    if record[:2] != (b"PK\x06\x06", _END64.size - 12) or disk or disks != 1 or record[4] or record[5]:
        raise MalformedError
    here, count64, size64, offset64 = record[6:]
    narrow = zip((count, size, offset), (count64, size64, offset64), (_FULL16, _FULL32, _FULL32), strict=True)
    if here != count64 or any(value not in (wide, full) for value, wide, full in narrow):
        raise MalformedError
    directory = _checked(end64_at, count64, size64, offset64)
    if directory.archive_start + end64_offset != end64_at:
        raise MalformedError
    return directory


def _checked(directory_end: int, count: int, size: int, offset: int) -> _Directory:
    start = directory_end - size
    if count > ENTRIES_MAX or not count * _CENTRAL.size <= size <= HEADER_SIZE_BYTES_MAX or start < offset:
        raise MalformedError
    return _Directory(start - offset, start, size, count)


def _stored_entries(source: ByteSource, directory: _Directory) -> list[Entry]:
    data = read_exactly(source, directory.start, directory.size)
    stored = [_entry(source, directory, central) for central in _centrals(data, directory.count) if _is_stored(central)]
    entries = sorted(stored, key=lambda entry: (entry.start, entry.end))
    if len({entry.name for entry in entries}) != len(entries):
        raise MalformedError
    if any(left.end > right.start for left, right in pairwise(entries)):
        raise MalformedError
    return entries


def _is_stored(central: _Central) -> bool:
    return central.method == 0 and not central.flags & _FLAG_ENCRYPTED


def _centrals(data: bytes, count: int) -> Iterator[_Central]:
    position = 0
    for _ in range(count):
        if len(data) - position < _CENTRAL.size:
            raise MalformedError
        fields = _CENTRAL.unpack_from(data, position)
        name_size, extra_size, comment_size, disk = fields[10:14]
        name_at = position + _CENTRAL.size
        extra_at = name_at + name_size
        position = extra_at + extra_size + comment_size
        if fields[0] != b"PK\x01\x02" or disk or position > len(data):
            raise MalformedError
        sizes = _widened((fields[9], fields[8], fields[16]), data[extra_at : extra_at + extra_size])
        yield _Central(data[name_at:extra_at], fields[3], fields[4], sizes[1], sizes[0], sizes[2])
    if position != len(data):
        raise MalformedError


def _widened(narrow: tuple[int, int, int], extra: bytes) -> list[int]:
    """(plain size, packed size, offset), those that are all ones replaced from the zip64 field, in this order."""
    wide = iter(_zip64_field(extra) if _FULL32 in narrow else ())
    try:
        return [next(wide) if value == _FULL32 else value for value in narrow]
    except StopIteration:
        raise MalformedError from None


def _zip64_field(extra: bytes) -> tuple[int, ...]:
    position = 0
    while len(extra) - position >= 4:
        field_id, size = struct.unpack_from("<HH", extra, position)
        position += 4
        if field_id == _ID_ZIP64 and size <= len(extra) - position:
            return struct.unpack_from(f"<{size // 8}Q", extra, position)
        position += size
    return ()


def _entry(source: ByteSource, directory: _Directory, central: _Central) -> Entry:
    """The entry with its data's place, which follows from its own header alone."""
    if central.packed_size != central.plain_size:
        raise MalformedError
    at = directory.archive_start + central.offset
    local = _LOCAL.unpack(read_exactly(source, at, _LOCAL.size))
    name_size, extra_size = local[9:]
    name = read_exactly(source, at + _LOCAL.size, name_size)
    if local[0] != MAGIC or local[3] != central.method or name != central.name:
        raise MalformedError
    start = at + _LOCAL.size + name_size + extra_size
    if start + central.plain_size > directory.start:
        raise MalformedError
    return Entry(name.decode("utf-8", "backslashreplace"), start, start + central.plain_size)
