"""Reading a file without leaving it in the page cache, unless it was there: a terabyte must not evict others' data.

Whether a file was there is asked of cachestat (Linux 6.5), and else by RWF_NOWAIT, which reads only what is in memory,
at a few places. A file of which anything is cached is left alone: dropping what somebody uses is the greater harm.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, Final

_PROBES: Final = 8
_PAGE: Final = 4096
_CACHESTAT: Final = 451  # the same on every architecture


def is_cached(fd: int, size: int) -> bool:
    """Whether anything of a file is in the page cache; True where the system cannot tell. Ask before reading."""
    pages = cached_pages(fd)
    if pages >= 0:
        return pages > 0
    return _looks_cached(fd, size)


def cached_pages(fd: int) -> int:
    """How many pages of a file are in the page cache; -1 where the system cannot tell."""
    everything = (ctypes.c_uint64 * 2)(0, 0)
    found = (ctypes.c_uint64 * 5)()
    arguments = (ctypes.c_long(_CACHESTAT), ctypes.c_int(fd), everything, found, ctypes.c_uint(0))
    return int(found[0]) if _libc().syscall(*arguments) == 0 else -1


def _looks_cached(fd: int, size: int) -> bool:
    """The same for older systems, at a few places; a probe that finds nothing may start to read ahead there."""
    buffer = bytearray(1)
    with suppress(OSError):
        # Keeps a probe's reading ahead to one page, so that it does not answer the next one.
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        try:
            return any(_has_page(fd, buffer, place) for place in _places(size))
        finally:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_NORMAL)
    return True


@contextmanager
def left_as_found(fd: int, size: int) -> Iterator[Callable[[int], None]]:
    """Drop a file from the page cache while it is read, if it was not there before.

    Gives a function that is to be told up to where the file has been read.
    """
    if is_cached(fd, size):
        yield lambda end: None
        return
    dropped = passed = 0

    def drop_to(end: int) -> None:
        # One call late: the system does not drop pages that are still on their way in with those after them.
        nonlocal dropped, passed
        if passed > dropped:
            drop(fd, dropped, passed - dropped)
            dropped = passed
        passed = end

    try:
        yield drop_to
    finally:
        drop(fd)


def drop(fd: int, start: int = 0, size: int = 0) -> None:
    """Drop clean pages of a file from the page cache, to its end for size 0; those in use elsewhere stay."""
    with suppress(OSError):
        os.posix_fadvise(fd, start, size, os.POSIX_FADV_DONTNEED)


@cache
def _libc() -> Any:
    return ctypes.CDLL(None)


def _places(size: int) -> list[int]:
    last = max(0, size - 1)
    return sorted({last * part // (_PROBES - 1) // _PAGE * _PAGE for part in range(_PROBES)})


def _has_page(fd: int, buffer: bytearray, place: int) -> bool:
    try:
        return os.preadv(fd, [buffer], place, os.RWF_NOWAIT) > 0
    except BlockingIOError:
        return False
