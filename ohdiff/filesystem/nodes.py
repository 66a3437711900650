"""Creates the entries that are not regular files: directories, links, FIFOs, sockets, devices.

A name that exists, be it a symlink, is FileExistsError: nothing is followed or replaced. New nodes are their owner's
alone until `apply_attributes` gives them their mode.
"""

from __future__ import annotations

import errno
import os
import stat

from ohdiff.filesystem.directory import DirectoryHandle, checked_name


def make_node(directory: DirectoryHandle, name: bytes, mode: int, *, target: bytes = b"", rdev: int = 0) -> None:
    """Create an entry of the type in `mode`.

    Parameters
    ----------
    mode : a full st_mode, of which only the type counts here; a regular file is ValueError.
    target : the text of a symlink.
    rdev : the device number of a character or block device.

    Raises
    ------
    OSError : among others FileExistsError, and PermissionError where only root may create devices.
    """
    checked_name(name)
    kind = stat.S_IFMT(mode)
    if kind == stat.S_IFDIR:
        os.mkdir(name, 0o700, dir_fd=directory.fd)
    elif kind == stat.S_IFLNK:
        os.symlink(target, name, dir_fd=directory.fd)
    elif kind == stat.S_IFIFO:
        os.mkfifo(name, 0o600, dir_fd=directory.fd)
    elif kind in (stat.S_IFCHR, stat.S_IFBLK, stat.S_IFSOCK):
        _make_special(directory, name, kind, rdev)
    else:
        raise ValueError("not the type of a node")


def _make_special(directory: DirectoryHandle, name: bytes, kind: int, rdev: int) -> None:
    try:
        os.mknod(name, kind | 0o600, rdev, dir_fd=directory.fd)
    except NotImplementedError as error:
        raise OSError(errno.ENOTSUP, "this system cannot create it", name) from error


def make_link(directory: DirectoryHandle, name: bytes, source_directory: DirectoryHandle, source_name: bytes) -> None:
    """Give an existing entry a second name; a symlink is linked itself, not what it points at."""
    os.link(
        checked_name(source_name),
        checked_name(name),
        src_dir_fd=source_directory.fd,
        dst_dir_fd=directory.fd,
        follow_symlinks=False,
    )
