"""Where a file has data and where holes, and giving a restored file exactly that layout.

Half-open ranges throughout. Which bytes go into the data ranges is the caller's affair.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence

from ohdiff._posix import compare_and_write, data_extents, punch_hole

__all__ = ["data_extents", "may_have_holes", "set_layout"]

Extent = tuple[int, int]
_ZEROS = bytes(1 << 20)
_CANNOT_PUNCH = {errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS}


def may_have_holes(size: int, blocks512: int) -> bool:
    """Whether it is worth asking `data_extents`: a file with fewer blocks than bytes (or a compressed one)."""
    return blocks512 * 512 < size


def set_layout(fd: int, size: int, extents: Sequence[Extent]) -> bool:
    """Give an open file this size, with holes everywhere outside the data ranges.

    What the ranges hold already stays. A gap reads as zeros even where the file system cannot make holes.

    Parameters
    ----------
    extents : sorted, disjoint data ranges within `size`, as `data_extents` gives them.

    Returns
    -------
    Whether every gap became a hole.
    """
    gaps = list(_gaps_between(extents, size))
    # Cutting the file off at its last data and growing it again makes the last hole on every file system.
    os.ftruncate(fd, extents[-1][1] if extents else 0)
    os.ftruncate(fd, size)
    were_punched = [_clear(fd, start, end) for start, end in gaps]
    return all(were_punched)


def _gaps_between(extents: Sequence[Extent], size: int) -> Iterator[Extent]:
    """The ranges between the data; that after the last data is not among them."""
    end_before = 0
    for start, end in extents:
        if not end_before <= start < end <= size:
            raise ValueError("data ranges must be sorted, disjoint and within the file")
        if start > end_before:
            yield end_before, start
        end_before = end


def _clear(fd: int, start: int, end: int) -> bool:
    try:
        punch_hole(fd, start, end - start)
    except OSError as error:
        if error.errno not in _CANNOT_PUNCH:
            raise
        _write_zeros(fd, start, end)
        return False
    return True


def _write_zeros(fd: int, start: int, end: int) -> None:
    for offset in range(start, end, len(_ZEROS)):
        compare_and_write(fd, offset, memoryview(_ZEROS)[: end - offset])
