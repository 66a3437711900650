"""DirectoryHandle: an open directory, from which its entries are reached by one name at a time.

No name here may be a path, and no symlink is followed below the root, so a walk or a restore stays where it began
whatever is swapped underneath it. Errors are OSError.
"""

from __future__ import annotations

import errno
import os
import stat
from types import TracebackType
from typing import Self

from ohdiff._posix import list_names

_NO_ATIME = getattr(os, "O_NOATIME", 0)
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_ENTRY = os.O_NOFOLLOW | os.O_CLOEXEC
# Linux opens a directory without the right to list it; elsewhere that right is needed.
_PASS = getattr(os, "O_PATH", os.O_RDONLY)


class DirectoryHandle:
    """Owns the descriptor of an open directory, and closes it when dropped.

    Parameters
    ----------
    fd : an open directory; it belongs to the handle from now on.
    """

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def open_root(cls, path: bytes | str | os.PathLike[str]) -> Self:
        """Open the directory that a user named; links in the path are the user's own and are followed."""
        return cls(_open_for_reading(os.fspath(path), _DIRECTORY, None))

    @property
    def fd(self) -> int:
        """The descriptor, valid while the handle is open."""
        if self._fd < 0:
            raise ValueError("the directory is closed")
        return self._fd

    def fileno(self) -> int:
        """The descriptor, for what takes any open file."""
        return self.fd

    def names(self) -> list[bytes]:
        """All names in the directory, sorted by their bytes."""
        return list_names(self.fd)

    def open_child(self, name: bytes) -> Self:
        """Open a directory in this one; a symlink is ELOOP or ENOTDIR."""
        return type(self)(_open_for_reading(checked_name(name), _DIRECTORY | _ENTRY, self.fd))

    def open_child_to_pass(self, name: bytes) -> Self:
        """Open a directory on the way to others: `names` need not work, as it may be entered but not listed."""
        try:
            return self.open_child(name)
        except PermissionError:
            return type(self)(os.open(checked_name(name), _PASS | os.O_DIRECTORY | _ENTRY, dir_fd=self.fd))

    def make_child(self, name: bytes) -> Self:
        """Create a directory that only its owner can enter, and open it."""
        os.mkdir(checked_name(name), 0o700, dir_fd=self.fd)
        return self.open_child(name)

    def open_file(self, name: bytes) -> int:
        """Open a regular file for reading; the descriptor is the caller's. Anything else is EINVAL, or ELOOP."""
        flags = os.O_RDONLY | os.O_NONBLOCK | _ENTRY
        return _only_regular(_open_for_reading(checked_name(name), flags, self.fd), name)

    def open_file_for_update(self, name: bytes) -> int:
        """Open an existing regular file for reading and writing in place."""
        flags = os.O_RDWR | os.O_NONBLOCK | _ENTRY
        return _only_regular(os.open(checked_name(name), flags, dir_fd=self.fd), name)

    def create_file(self, name: bytes) -> int:
        """Create a regular file that only its owner can read, for reading and writing; EEXIST if the name is taken."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | _ENTRY
        return os.open(checked_name(name), flags, 0o600, dir_fd=self.fd)

    def close(self) -> None:
        """Close the descriptor; closing twice does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


def checked_name(name: bytes) -> bytes:
    """The name, if it is a single path component; ValueError otherwise."""
    if not name or name == b".." or b"/" in name or b"\0" in name:
        raise ValueError("not the name of a directory entry")
    return name


def _open_for_reading(name: bytes | str, flags: int, dir_fd: int | None) -> int:
    # Only an entry's owner may leave its access time alone; all others are answered EPERM.
    try:
        return os.open(name, flags | _NO_ATIME, dir_fd=dir_fd)
    except PermissionError as error:
        if error.errno != errno.EPERM:
            raise
    return os.open(name, flags, dir_fd=dir_fd)


def _only_regular(fd: int, name: bytes) -> int:
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise OSError(errno.EINVAL, "not a regular file", name)
