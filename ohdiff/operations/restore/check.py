"""The jobs that read the target: which chunks of an existing file are right already, and whether a written one is.

Hashing what is there needs nothing from the repository, so a restore in place reads only the blocks that it needs.
"""

from __future__ import annotations

import errno
import os
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from blake3 import blake3

from ohdiff.errors import OhdiffError
from ohdiff.filesystem import read_files
from ohdiff_format.limits import ID_SIZE

from .folders import Folder
from .work import Existing, Extent, FileWork, Problem, RestoreRun, kept

SMALL_FILE_SIZE_BYTES_MAX: Final = 1 << 20
BATCH_SIZE_BYTES: Final = 4 << 20
BATCH_FILES_MAX: Final = 512
UNIT_SIZE_BYTES: Final = 32 << 20
_FOLDERS_PER_BATCH: Final = 32

# For each file of a batch the numbers of its wrong chunks; None if it cannot be read or has changed meanwhile.
Mismatches = list[list[int] | None]


@dataclass(slots=True, eq=False)
class CheckUnit:
    """Some chunks of a larger existing file.

    Attributes
    ----------
    position : of the first of them in the file's content.
    disk_extents : where the file has data now; None means everywhere.
    """

    work: FileWork
    position: int
    ids: list[bytes]
    sizes: list[int]
    disk_extents: Sequence[Extent] | None = None


def find_mismatches(run: RestoreRun, batch: Sequence[Existing]) -> Mismatches:
    """Read small files that are as long as they should be, and compare their chunks."""
    result: Mismatches = []
    start = 0
    while start < len(batch):
        end = _batch_end(batch, start)
        result += _find_mismatches(run, batch[start:end])
        start = end
    return result


def _batch_end(batch: Sequence[Existing], start: int) -> int:
    folders: set[Folder] = set()
    for at in range(start, len(batch)):
        folders.add(batch[at].folder)
        if len(folders) > _FOLDERS_PER_BATCH:
            return at
    return len(batch)


def _find_mismatches(run: RestoreRun, batch: Sequence[Existing]) -> Mismatches:
    buffer = bytearray(sum(item.size for item in batch))
    descriptors: dict[Folder, int] = {}
    try:
        for item in batch:
            if item.folder not in descriptors:
                descriptors[item.folder] = run.folders.acquire(item.folder).fd
        columns = (
            [item.found.sizes[item.at] for item in batch],
            [item.found.mtimes_ns[item.at] for item in batch],
            [item.found.ctimes_ns[item.at] for item in batch],
            [item.found.inodes[item.at] for item in batch],
        )
        fds = [descriptors[item.folder] for item in batch]
        statuses = read_files(fds, [item.name for item in batch], columns, buffer)
    except OSError:
        return [None] * len(batch)
    finally:
        for folder in descriptors:
            run.folders.release(folder)
    result: Mismatches = []
    start = 0
    for item, status in zip(batch, statuses, strict=True):
        content = item.listing.contents[item.row]
        data = memoryview(buffer)[start : start + item.size]
        result.append(None if status else _wrong_chunks(run.id_key, data, content.ids, content.sizes))
        start += item.size
    return result


def _wrong_chunks(key: bytes, data: memoryview, ids: bytes, sizes: Sequence[int]) -> list[int]:
    wrong = []
    start = 0
    for number, size in enumerate(sizes):
        chunk_id = ids[number * ID_SIZE : (number + 1) * ID_SIZE]
        if blake3(data[start : start + size], key=key).digest() != chunk_id:
            wrong.append(number)
        start += size
    return wrong


def check_unit(run: RestoreRun, unit: CheckUnit) -> list[int] | OSError:
    """The numbers of the unit's chunks that the file does not hold, or why it cannot be read."""
    work = unit.work
    if work.is_over:
        return []
    try:
        with run.folders.opened(work.folder) as directory:
            fd = directory.open_file(work.name)
        try:
            return _wrong_in_unit(run.id_key, fd, unit)
        finally:
            os.close(fd)
    except OSError as error:
        return kept(error)


def _wrong_in_unit(key: bytes, fd: int, unit: CheckUnit) -> list[int]:
    wrong = []
    position = unit.position
    buffer = memoryview(bytearray(max(unit.sizes)))
    for number, (chunk_id, size) in enumerate(zip(unit.ids, unit.sizes, strict=True)):
        is_there = _read_chunk(fd, unit.work, position, buffer[:size], unit.disk_extents)
        if not is_there or blake3(buffer[:size], key=key).digest() != chunk_id:
            wrong.append(number)
        position += size
    return wrong


def _read_chunk(
    fd: int, work: FileWork, position: int, buffer: memoryview, disk_extents: Sequence[Extent] | None
) -> bool:
    """Whether the file has the chunk's bytes, as data and not as a hole; they are in the buffer then."""
    filled = 0
    for offset, within, length in work.ranges(position, len(buffer)):
        if disk_extents is not None and not _covers(disk_extents, offset, offset + length):
            return False
        done = 0
        while done < length:
            got = os.preadv(fd, [buffer[within + done : within + length]], offset + done)
            if got == 0:
                return False
            done += got
        filled += length
    return filled == len(buffer)


def _covers(extents: Sequence[Extent], start: int, end: int) -> bool:
    at = bisect_right(extents, (start, end)) - 1
    return any(first <= start and end <= last for first, last in extents[max(at, 0) : at + 2])


def read_back(run: RestoreRun, work: FileWork, name: bytes) -> bool | Problem:
    """Whether a finished file holds what the snapshot says, or why that cannot be told."""
    content = work.listing.contents[work.row]
    position = 0
    try:
        with run.folders.opened(work.folder) as directory:
            fd = directory.open_file(name)
        try:
            if os.fstat(fd).st_size != work.size:
                return False
            for part in run.tree.flat(content):
                unit = CheckUnit(work, position, part.chunk_ids(), list(part.sizes))
                if part.sizes and _wrong_in_unit(run.id_key, fd, unit):
                    return False
                position += sum(part.sizes)
        finally:
            os.close(fd)
    except (OSError, OhdiffError) as error:
        return kept(error)
    return position == work.data_size


def is_refusal(error: OSError) -> bool:
    """Whether a file cannot be written in place, but may be replaced."""
    return error.errno in (errno.EACCES, errno.EPERM, errno.ETXTBSY)
