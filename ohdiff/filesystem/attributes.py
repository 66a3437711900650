"""Gives an entry of any type its owner, xattrs, times, mode and flags, without following a symlink.

What cannot be applied is collected, not raised: a restore by an ordinary user goes on without owners and says so
once. The order matters: a new owner clears set-id bits and capabilities, an ACL changes the mode, a read-only file
takes no xattrs, and an immutable one nothing at all.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ohdiff._posix import dress_plain, replace_xattrs, set_flags, set_mode, set_times
from ohdiff.filesystem.directory import DirectoryHandle, checked_name

Failure = tuple[str, OSError]
_SET_ID = stat.S_ISUID | stat.S_ISGID
_FLAG_TYPES = (stat.S_IFREG, stat.S_IFDIR)


@dataclass(frozen=True, slots=True)
class Attributes:
    """What to apply to one entry; None leaves that as it is.

    Attributes
    ----------
    mode : full st_mode; its type says what the entry is.
    mtime_ns : nanoseconds since 1970; the access time is set to it too.
    uid, gid : owner and group.
    xattrs : exactly these, ACLs included; an empty list takes all away.
    flags : exactly these chattr or chflags bits, for files and directories.
    """

    mode: int
    mtime_ns: int
    uid: int | None = None
    gid: int | None = None
    xattrs: Sequence[tuple[bytes, bytes]] | None = None
    flags: int | None = None


def apply_attributes(directory: DirectoryHandle, name: bytes, attributes: Attributes) -> list[Failure]:
    """Apply everything to an entry; a name of `b"."` is the directory itself.

    Returns
    -------
    (what, error) for each part that could not be applied: "owner", "xattr", "times", "mode" or "flags". Without its
    owner a file gets no set-id bits: they would give away the rights of whoever restores it.
    """
    if _is_plain(attributes) and _dress_plain(directory, name, attributes):
        return []
    checked_name(name)
    if attributes.flags is None or stat.S_IFMT(attributes.mode) not in _FLAG_TYPES:
        return _apply_all_but_flags(directory, name, attributes)
    # Opened first, since the mode may take away the right to open it.
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory.fd)
    except OSError as error:
        return [*_apply_all_but_flags(directory, name, attributes), ("flags", error)]
    try:
        failures = _apply_all_but_flags(directory, name, attributes)
        return failures + _apply_flags(fd, name, attributes.flags)
    finally:
        os.close(fd)


def _is_plain(attributes: Attributes) -> bool:
    return not attributes.flags and attributes.xattrs is not None and not attributes.xattrs


def _dress_plain(directory: DirectoryHandle, name: bytes, attributes: Attributes) -> bool:
    """Try it in one call, which is told of nothing that fails: then all is done again, step by step."""
    uid = -1 if attributes.uid is None else attributes.uid
    gid = -1 if attributes.gid is None else attributes.gid
    return dress_plain(directory.fd, name, attributes.mode, attributes.mtime_ns, uid, gid)


def apply_owner(directory: DirectoryHandle, name: bytes, uid: int | None, gid: int | None) -> list[Failure]:
    """Set the owner and the group, of a symlink itself too."""
    if uid is None and gid is None:
        return []
    ids = (-1 if uid is None else uid, -1 if gid is None else gid)
    return _attempt("owner", name, lambda: os.chown(name, *ids, dir_fd=directory.fd, follow_symlinks=False))


def apply_mode(directory: DirectoryHandle, name: bytes, mode: int) -> list[Failure]:
    """Set the permission bits; a symlink has none."""
    if stat.S_ISLNK(mode):
        return []
    return _attempt("mode", name, lambda: set_mode(directory.fd, name, stat.S_IMODE(mode)))


def apply_times(directory: DirectoryHandle, name: bytes, mtime_ns: int) -> list[Failure]:
    """Set the modification and access time, of a symlink itself too."""
    return _attempt("times", name, lambda: set_times(directory.fd, name, mtime_ns))


def apply_xattrs(directory: DirectoryHandle, name: bytes, xattrs: Sequence[tuple[bytes, bytes]]) -> list[Failure]:
    """Make the entry's xattrs exactly these, one failure for each that could not be set or removed."""
    try:
        refused = replace_xattrs(directory.fd, name, list(xattrs))
    except OSError as error:
        return [("xattr", _about(error, name))]
    return [("xattr", OSError(code, f"{os.strerror(code)}: {os.fsdecode(xattr)}", name)) for xattr, code in refused]


def _apply_flags(fd: int, name: bytes, flags: int) -> list[Failure]:
    failures = _attempt("flags", name, lambda: set_flags(fd, flags))
    # A file system without flags has none to take away.
    return failures if flags else [failure for failure in failures if failure[1].errno != errno.ENOTTY]


def _apply_all_but_flags(directory: DirectoryHandle, name: bytes, attributes: Attributes) -> list[Failure]:
    failures = apply_owner(directory, name, attributes.uid, attributes.gid)
    mode = attributes.mode
    if failures and stat.S_ISREG(mode):
        mode &= ~_SET_ID
    if attributes.xattrs is not None:
        failures += _apply_xattrs_despite_mode(directory, name, attributes.xattrs, mode)
    failures += apply_times(directory, name, attributes.mtime_ns)
    return failures + apply_mode(directory, name, mode)


def _apply_xattrs_despite_mode(
    directory: DirectoryHandle, name: bytes, xattrs: Sequence[tuple[bytes, bytes]], mode: int
) -> list[Failure]:
    failures = apply_xattrs(directory, name, xattrs)
    if stat.S_ISLNK(mode) or all(error.errno != errno.EACCES for _, error in failures):
        return failures
    # An owner without the right to write may give it to themselves; the mode comes last anyway.
    if apply_mode(directory, name, stat.S_IRWXU):
        return failures
    return apply_xattrs(directory, name, xattrs)


def _attempt(what: str, name: bytes, call: Callable[[], None]) -> list[Failure]:
    try:
        call()
    except OSError as error:
        return [(what, _about(error, name))]
    return []


def _about(error: OSError, name: bytes) -> OSError:
    error.filename = name
    return error
