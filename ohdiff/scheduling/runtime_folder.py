"""The folder where processes of one user meet: locks and pages of the devices, on this machine only.

A folder or file of another user, one that others may write, a link, or one on a network file system is refused: flock
does not mean the same there. Whoever is refused works without lease and hints, which costs manners and nothing else.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Final

from ohdiff.errors import DeviceError

MOUNTS: Final = Path("/proc/self/mountinfo")
# A list of what is known to be local: whether an unknown one locks across machines cannot be told.
_LOCAL_FILE_SYSTEMS: Final = frozenset(
    {"tmpfs", "ramfs", "devtmpfs", "ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "jfs", "zfs", "bcachefs", "overlay"}
)
_DEVICE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


def open_folder(path: Path, mounts: Path = MOUNTS) -> int:
    """A descriptor of the folder, which is made (mode 0700) if it is not there; its parent must be.

    Raises
    ------
    DeviceError : the folder cannot be trusted, or cannot be made.
    """
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise DeviceError(
            f"{path}: {error.strerror}; devices cannot be shared with other runs", item=str(path)
        ) from error
    try:
        _check(path, os.fstat(fd), stat.S_IFDIR)
        kind = file_system_of(os.path.realpath(path), mounts.read_text(encoding="utf-8", errors="surrogateescape"))
        if kind not in _LOCAL_FILE_SYSTEMS:
            raise DeviceError(f"{path} is on {kind or 'an unknown file system'}, which may lie on another machine")
    except BaseException:
        os.close(fd)
        raise
    return fd


def open_shared(folder_fd: int, name: str) -> int:
    """A descriptor, for reading and writing, of a file in the folder; made (mode 0600) if it is not there.

    Raises
    ------
    DeviceError : it is not a plain file of this user alone.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        fd = os.open(name, flags, 0o600, dir_fd=folder_fd)
    except OSError as error:
        raise DeviceError(f"{name}: {error.strerror}", item=name) from error
    try:
        status = os.fstat(fd)
        _check(Path(name), status, stat.S_IFREG)
        if status.st_nlink > 1:
            raise DeviceError(f"{name} has another name elsewhere", item=name)
    except BaseException:
        os.close(fd)
        raise
    return fd


def check_device_name(device: str) -> str:
    """The name, if it can be a file's.

    Raises
    ------
    ValueError : it is empty, too long, or has other signs than letters, digits, points, lines and dashes.
    """
    if not _DEVICE_NAME.fullmatch(device):
        raise ValueError(f"not a device's name: {device!r}")
    return device


def file_system_of(path: str, mounts: str) -> str:
    """The type of the file system that holds an absolute path without links, by the text of a mountinfo file."""
    best, kind = "", ""
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) < 5 or not after:
            continue
        point = _ESCAPED.sub(lambda match: chr(int(match[1], 8)), fields[4])
        holds = point == "/" or path == point or path.startswith(point + "/")
        # Of two mounts on one point the later one hides the earlier.
        if holds and len(point) >= len(best):
            best, kind = point, after.split(" ")[0]
    return kind


def _check(path: Path, status: os.stat_result, kind: int) -> None:
    if stat.S_IFMT(status.st_mode) != kind:
        raise DeviceError(f"{path} is not what it should be", item=str(path))
    if status.st_uid != os.geteuid():
        raise DeviceError(f"{path} belongs to another user", item=str(path), hint="remove it, or have it removed")
    if status.st_mode & 0o077:
        raise DeviceError(f"{path} is open to other users", item=str(path), hint="remove it: it is made again")
