"""Temporary files of local storage: where an object grows until it is whole, and how to tell a dead writer's.

A writer holds its temporary with flock, which ends with the process however it ends. No clock is asked: a temporary
that nobody holds has no writer. Between hosts a network file system may keep locks to itself; then a live temporary
can look dead, and removing it fails that writer's commit with an error, never an object.
"""

from __future__ import annotations

import errno
import re
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Final

from .contract import Buffer, ObjectInfo
from .system_calls import SystemCalls

TEMPORARY_FOLDER: Final = "tmp"
# One system call per MiB: larger writes are no faster, and small appends are gathered to this size.
WRITE_SIZE_BYTES: Final = 1 << 20
_TEMPORARY_NAME: Final = re.compile(r"[0-9a-f]{32}")
_ATTEMPTS_MAX: Final = 16


class TemporaryFile:
    """A file that is removed unless something else gave its bytes another name. Every method may raise OSError."""

    def __init__(self, calls: SystemCalls, path: Path, descriptor: int) -> None:
        self.path = path
        self.size = 0
        self._calls = calls
        self._descriptor = descriptor
        self._gathered = bytearray()
        self._written = 0

    def hold(self) -> bool:
        """Lock the file until it is closed; False if somebody took its name away before."""
        self._calls.hold(self._descriptor)
        try:
            self._calls.stat(self.path)
        except FileNotFoundError:
            return False
        return True

    def write(self, buffer: Buffer) -> None:
        """Append the bytes of `buffer`, of which nothing is kept."""
        with memoryview(buffer) as view, view.cast("B") as data:
            self.size += len(data)
            if len(data) >= WRITE_SIZE_BYTES:
                self._flush()
                self._write_all(data)
                return
            self._gathered += data
            if len(self._gathered) >= WRITE_SIZE_BYTES:
                self._flush()

    def finish(self) -> None:
        """Return when the file is whole, read-only and on the medium."""
        self._flush()
        self._calls.make_read_only(self._descriptor)
        self._calls.sync_file(self._descriptor)

    def read_at(self, size: int, offset: int) -> bytes:
        """Bytes of a finished file."""
        return self._calls.read_at(self._descriptor, size, offset)

    def remove(self) -> None:
        """Take the name away; the bytes go too, unless another name holds them."""
        with suppress(FileNotFoundError):
            self._calls.unlink(self.path)

    def close(self) -> None:
        """Let go of the file; whatever name it has stays."""
        self._calls.forget(self._descriptor)
        self._calls.close(self._descriptor)

    def _flush(self) -> None:
        with memoryview(self._gathered) as data:
            self._write_all(data)
        self._gathered.clear()

    def _write_all(self, data: memoryview) -> None:
        done = 0
        while done < len(data):
            written = self._calls.write(self._descriptor, data[done:])
            if not written:
                raise OSError(errno.EIO, "nothing was written")
            done += written
        if len(data) >= WRITE_SIZE_BYTES:
            self._calls.start_writeback(self._descriptor, self._written, len(data))
        self._written += len(data)


def create_temporary(calls: SystemCalls, folder: Path) -> TemporaryFile:
    """A new temporary in `folder`, held until it is closed.

    Someone who clears away may take it between its making and its locking; then another is made.
    """
    for _ in range(_ATTEMPTS_MAX):
        path = folder / secrets.token_hex(16)
        temporary = TemporaryFile(calls, path, calls.create_file(path))
        try:
            if temporary.hold():
                return temporary
        except OSError:
            temporary.remove()
            temporary.close()
            raise
        temporary.close()
    raise FileNotFoundError(f"new files vanish from {folder}")


def list_stale(calls: SystemCalls, folder: Path) -> list[ObjectInfo]:
    """The temporaries in `folder` that nobody holds."""
    paths = [folder / entry.name for entry in calls.scan(folder) if _TEMPORARY_NAME.fullmatch(entry.name)]
    found = (_stale_info(calls, path) for path in paths)
    return sorted(info for info in found if info is not None)


def remove_stale(calls: SystemCalls, folder: Path, name: str) -> bool:
    """Remove a temporary, unless someone holds it."""
    if not _TEMPORARY_NAME.fullmatch(name):
        raise ValueError(f"not the name of a temporary: {name!r}")
    try:
        descriptor = calls.open_file(folder / name)
    except FileNotFoundError:
        return True
    try:
        if calls.is_held(descriptor):
            return False
        with suppress(FileNotFoundError):
            calls.unlink(folder / name)
    finally:
        calls.close(descriptor)
    return True


def _stale_info(calls: SystemCalls, path: Path) -> ObjectInfo | None:
    try:
        descriptor = calls.open_file(path)
    except FileNotFoundError:
        return None
    try:
        if calls.is_held(descriptor):
            return None
        return ObjectInfo(path.name, calls.stat_open(descriptor).st_size)
    finally:
        calls.close(descriptor)
