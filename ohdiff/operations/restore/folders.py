"""The target's directories: where they are, what they wait for, and a bounded number of them held open.

A directory is always reached name by name from the target's root, and no symlink is followed, so that nothing planted
in the target leads outside. Deep trees and many directories need no more descriptors than shallow ones.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ohdiff.filesystem import Attributes, DirectoryHandle

from .options import Action

OPEN_FOLDERS_MAX: Final = 256


class Folder:
    """A directory of the target.

    Attributes
    ----------
    parent, name : where it is; the root has no parent.
    attributes : what it gets when everything in it is done, or None.
    action : what is told of it then.
    waiting : entries in it that are not done yet, and one more while it is being walked.
    is_present : False where a dry run would have made it.
    is_new : this run made it, so that nothing is in it that the run did not make.
    is_touched : this run changed something in it, and with that its times.
    leases : who is using its open descriptor.
    """

    __slots__ = ("action", "attributes", "is_new", "is_present", "is_touched", "leases", "name", "parent", "waiting")

    def __init__(self, parent: Folder | None, name: bytes, *, is_new: bool = False, is_present: bool = True) -> None:
        self.parent = parent
        self.name = name
        self.attributes: Attributes | None = None
        self.action: Action = "restored"
        self.waiting = 1
        self.is_new = is_new
        self.is_present = is_present
        self.is_touched = is_new
        self.leases = 0

    @property
    def path(self) -> bytes:
        """The path below the root: b"" for the root itself, else with a slash in front."""
        names = []
        folder = self
        while folder.parent is not None:
            names.append(folder.name)
            folder = folder.parent
        return b"".join(b"/" + name for name in reversed(names))


class OpenFolders:
    """Opens directories when they are needed, and closes those not used for longest; safe for several threads.

    Parameters
    ----------
    root, handle : the target and its descriptor, which stays open until `close`.
    open_max : how many are held open, beyond those in use.
    """

    def __init__(self, root: Folder, handle: DirectoryHandle, open_max: int = OPEN_FOLDERS_MAX) -> None:
        self._open: OrderedDict[Folder, DirectoryHandle] = OrderedDict({root: handle})
        self._open_max = open_max
        self._lock = threading.Lock()
        root.leases = 1

    def acquire(self, folder: Folder) -> DirectoryHandle:
        """The open directory, valid until `release`; OSError if it cannot be reached."""
        with self._lock:
            handle = self._open.get(folder)
            if handle is None:
                handle = self._reopen(folder)
            else:
                self._open.move_to_end(folder)
            folder.leases += 1
            return handle

    def release(self, folder: Folder) -> None:
        """The directory is not needed any more, for now."""
        with self._lock:
            folder.leases -= 1

    @contextmanager
    def opened(self, folder: Folder) -> Iterator[DirectoryHandle]:
        """The open directory, for a while."""
        handle = self.acquire(folder)
        try:
            yield handle
        finally:
            self.release(folder)

    def forget(self, folder: Folder) -> None:
        """The directory is done, or gone: close it."""
        with self._lock:
            if folder.leases == 0:
                handle = self._open.pop(folder, None)
                if handle is not None:
                    handle.close()

    def close(self) -> None:
        """Close everything."""
        with self._lock:
            for handle in self._open.values():
                handle.close()
            self._open.clear()

    def _reopen(self, folder: Folder) -> DirectoryHandle:
        missing = []
        nearest = folder
        while nearest not in self._open:
            missing.append(nearest)
            assert nearest.parent is not None, "the root is always open"
            nearest = nearest.parent
        handle = self._open[nearest]
        for step in reversed(missing):
            handle = self._open[step] = handle.open_child(step.name)
            self._trim(step)
        return handle

    def _trim(self, kept: Folder) -> None:
        for _ in range(len(self._open)):
            if len(self._open) <= self._open_max:
                return
            folder, handle = self._open.popitem(last=False)
            if folder.leases or folder is kept:
                self._open[folder] = handle
            else:
                handle.close()


def mount_id(fd: int) -> int:
    """The mount that an open directory is on, where the system tells; 0 elsewhere.

    Device numbers do not tell a directory from what is bind-mounted on it out of the same file system.
    """
    try:
        with open(f"/proc/self/fdinfo/{fd}", "rb") as file:
            for line in file:
                if line.startswith(b"mnt_id:"):
                    return int(line.split()[1])
    except OSError:
        pass
    return 0


def is_same_mount(first: DirectoryHandle, second: DirectoryHandle) -> bool:
    """Whether two open directories lie on the same mounted file system."""
    same_device = os.fstat(first.fd).st_dev == os.fstat(second.fd).st_dev
    return same_device and mount_id(first.fd) == mount_id(second.fd)
