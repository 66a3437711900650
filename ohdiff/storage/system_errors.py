"""What a failed system call means for storage: whether a retry can help, and what the user can do.

A failed fsync is not retried by anyone: Linux marks the pages clean after reporting the error once, so that a second
fsync would succeed over lost data. The object is written again from the start, or not at all.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ohdiff.errors import StorageError

# EFBIG is the full disk of a process under a file size limit.
NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
NOT_SUPPORTED: Final = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOTTY})
_TRANSIENT: Final = frozenset(
    {errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
    | {errno.ESTALE, errno.ETIMEDOUT, errno.ECONNRESET, errno.ECONNABORTED, errno.ENOTCONN, errno.EHOSTDOWN}
)
_NO_SPACE_HINT: Final = (
    "free some space there (or raise the quota or the file size limit) and run the command again; "
    "what is already stored is untouched"
)
_ACCESS_HINT: Final = "check who owns the repository's folder and its permissions, or run as the user who made it"
_MISSING_HINT: Final = (
    "is the disk mounted? If the repository was copied by a tool that drops empty folders, make the folder again"
)
_FAULT_HINT: Final = "the disk or its connection reports faults: see the system log, and copy the repository elsewhere"
_HINTS: Final = {
    **dict.fromkeys(NO_SPACE, _NO_SPACE_HINT),
    **dict.fromkeys((errno.EACCES, errno.EPERM), _ACCESS_HINT),
    errno.ENOENT: _MISSING_HINT,
    errno.ENOTDIR: "a part of the path is a file: check the path",
    errno.EXDEV: "the repository's folders must be on one file system: move them together, without links",
    **dict.fromkeys((errno.EIO, getattr(errno, "EUCLEAN", errno.EIO)), _FAULT_HINT),
    errno.EROFS: "the repository is mounted read-only: mount it for writing",
    errno.ESTALE: "the network file system lost the folder: mount it again",
    errno.EMFILE: "too many open files: raise the limit (ulimit -n)",
}


def storage_error(error: OSError, action: str, item: str) -> StorageError:
    """The StorageError for a system call that failed while doing `action` to `item`."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    return StorageError(
        f"cannot {action} {item}: {reason}",
        can_retry=error.errno in _TRANSIENT,
        hint=_HINTS.get(error.errno or 0, ""),
        item=item,
    )


@contextmanager
def reporting(action: str, item: str) -> Iterator[None]:
    """Turn an OSError of the body into a StorageError about `action` and `item`."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, action, item) from error
