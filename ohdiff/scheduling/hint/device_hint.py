"""Tell ohdiff when your job needs the machine, so that backups step aside: copy this one file, or import it.

    from device_hint import device_busy
    for batch in batches:
        with device_busy():
            train(batch)

It writes 64 bytes into a page in memory at the begin and the end of a step, and never waits for anything. Where that
cannot be, it does nothing, and `problem()` says why. Python 3.9 or newer on Linux; no other dependency; Apache-2.0.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import stat
import string
import struct
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

PAGE_SIZE = 4096
SLOT_SIZE = 64
MAGIC = b"ohdiff\0P"
VERSION = 1
CO_RUNNER = 2
MACHINE = "machine"
_NAME_SIGNS = frozenset(string.ascii_letters + string.digits + "._-")
_HEADER = struct.Struct("<8sII")
_SLOT = struct.Struct("<IBBBBQQQQQQQ")
_FLOCK = struct.Struct("hhqqi4x")


class DeviceHint:
    """One job's slot in the page of one device; made once, used for every step, from any thread.

    device: "machine" for all of it, "cpu", or the UUID of an accelerator: as nvidia-smi -L writes it, or as torch does,
        str(torch.cuda.get_device_properties(0).uuid).
    step_seconds_max: a step that is still not over by then is taken for a process that was stopped.
    folder: where the page is; the user's runtime folder unless it is given.
    """

    def __init__(self, device: str = MACHINE, step_seconds_max: float = 10.0, folder: str | None = None) -> None:
        self.problem = ""
        self._lock = threading.Lock()
        self._patience_ns = int(step_seconds_max * 1e9)
        self._busy = self._steps = self._steps_ns = self._since_ns = 0
        self._fd = -1
        _all.add(self)
        try:
            self._namespace = Path("/proc/self/ns/pid").stat().st_ino
            self._fd = _open_page(folder or runtime_folder(), device)
            self._offset = _claim(self._fd)
            self._write()
        except (OSError, ValueError) as error:
            self.close()
            self.problem = str(error)

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """The device is needed while this is open; one step."""
        began_ns = time.monotonic_ns()
        self._mark(1, began_ns)
        try:
            yield
        finally:
            self._mark(-1, began_ns)

    def close(self) -> None:
        """Give the slot back."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError, AttributeError):
                os.pwrite(fd, bytes(SLOT_SIZE), self._offset)
            os.close(fd)

    def forget(self) -> None:
        """In a forked child: the slot is its parent's."""
        fd, self._fd = self._fd, -1
        self._lock = threading.Lock()
        self.problem = "this process was forked; make a hint of its own"
        if fd >= 0:
            os.close(fd)

    def _mark(self, change: int, began_ns: int) -> None:
        if self._fd < 0:
            return
        with self._lock:
            self._busy += change
            now_ns = time.monotonic_ns()
            if change < 0:
                self._steps += 1
                self._steps_ns += now_ns - began_ns
            if self._busy == (1 if change > 0 else 0):
                self._since_ns = now_ns
            try:
                self._write()
            except OSError as error:
                self.problem = str(error)

    def _write(self) -> None:
        times = (self._namespace, time.monotonic_ns(), self._patience_ns, self._since_ns)
        counts = (self._steps & 2**64 - 1, self._steps_ns & 2**64 - 1, 0)
        slot = _SLOT.pack(os.getpid(), CO_RUNNER, 0, 0, 1 if self._busy > 0 else 0, *times, *counts)
        os.pwrite(self._fd, slot, self._offset)


def device_busy(device: str = MACHINE) -> contextlib.AbstractContextManager[None]:
    """Say that the device is needed while this is open: `with device_busy(): step()`."""
    hint = _hints.get(device)
    if hint is None:
        with _hints_lock:
            hint = _hints.get(device)
            if hint is None:
                hint = _hints[device] = DeviceHint(device)
    return hint.busy()


def problem(device: str = MACHINE) -> str:
    """Why `device_busy` says nothing to anybody, "" if it does."""
    hint = _hints.get(device)
    return "nothing was said yet" if hint is None else hint.problem


def runtime_folder() -> str:
    """Where ohdiff and the jobs of one user meet."""
    user = os.geteuid()
    named = os.environ.get("OHDIFF_RUNTIME_DIR")
    if named:
        return named
    session = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{user}"
    with contextlib.suppress(OSError):
        if Path(session).stat().st_uid == user:
            return session + "/ohdiff"
    return f"/dev/shm/ohdiff-{user}"  # noqa: S108 - its owner and mode are checked


def _open_page(folder: str, device: str) -> int:
    if not 0 < len(device) <= 64 or device[0] in ".-_" or set(device) - _NAME_SIGNS:
        raise ValueError(f"not a device's name: {device!r}")
    with contextlib.suppress(FileExistsError):
        Path(folder).mkdir(0o700)
    folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _check(os.fstat(folder_fd), folder)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        fd = os.open(_page_name(device), flags, 0o600, dir_fd=folder_fd)
    finally:
        os.close(folder_fd)
    try:
        status = os.fstat(fd)
        _check(status, device + ".page")
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            raise ValueError(f"{device}.page is not a plain file")
        _prepare(fd)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _page_name(device: str) -> str:
    """A UUID is meant as nvidia-smi writes it, with GPU- in front and small letters."""
    uuid = device.lower()[4 if device[:4].upper() == "GPU-" else 0 :]
    is_uuid = len(uuid) == 36 and uuid.count("-") == 4 and not set(uuid) - set(string.hexdigits + "-")
    return (f"GPU-{uuid}" if is_uuid else device) + ".page"


def _check(status: os.stat_result, name: str) -> None:
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise ValueError(f"{name} is not this user's alone")


def _prepare(fd: int) -> None:
    """Write the header of a new page, or of one that is rubbish; leave another version's alone."""
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        magic, version, _ = _HEADER.unpack(os.pread(fd, _HEADER.size, 0).ljust(_HEADER.size, b"\0"))
        if magic == MAGIC and version != VERSION:
            raise ValueError(f"the page is of version {version}, not {VERSION}")
        if magic != MAGIC:
            os.pwrite(fd, _HEADER.pack(MAGIC, VERSION, 0).ljust(PAGE_SIZE, b"\0"), 0)
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)


def _claim(fd: int) -> int:
    """Lock a free slot, from the end: runs of ohdiff begin at the other one. The kernel frees it when we die."""
    for offset in range(PAGE_SIZE - SLOT_SIZE, 0, -SLOT_SIZE):
        try:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, offset, SLOT_SIZE, 0))
        except (BlockingIOError, PermissionError):
            continue
        return offset
    raise ValueError("all slots of the page are taken")


_hints: dict[str, DeviceHint] = {}
_hints_lock = threading.Lock()
_all: weakref.WeakSet[DeviceHint] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for hint in list(_all):
        hint.close()


def _forget_all() -> None:
    global _hints_lock
    _hints_lock = threading.Lock()
    for hint in list(_all):
        hint.forget()
    _hints.clear()


os.register_at_fork(after_in_child=_forget_all)
