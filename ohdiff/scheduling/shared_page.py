"""The shared page of a device: 63 slots of hints by which processes of one user tell each other what they want.

A slot belongs to whoever holds the lock on its bytes, so the kernel itself ends the claim of a dead process. Everything
in a page is a hint: rubbish in it costs speed, never safety, as who may use the device is settled by flock alone
(lease.py). The page is read and written, not mapped: one truncated by somebody would kill whoever touches a mapping.

Layout, little-endian: magic 8 bytes, version u32, the slot of the lease's holder plus one u32, zeros up to 64; then
slots of 64 bytes: pid u32, kind u8, class u8, state u8, busy u8, then u64 each: pid namespace, beat, unit, since,
steps, time of these steps, and a zero. Times are CLOCK_MONOTONIC nanoseconds. `hint/` holds writers of the same.
"""

from __future__ import annotations

import fcntl
import os
import struct
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final, Self

from ohdiff import clock
from ohdiff.errors import DeviceError

from .core import MS, SECOND, JobClass
from .runtime_folder import check_device_name, open_folder, open_shared

PAGE_SIZE: Final = 4096
SLOT_SIZE: Final = 64
SLOT_COUNT: Final = PAGE_SIZE // SLOT_SIZE - 1
MAGIC: Final = b"ohdiff\x00P"
VERSION: Final = 1

_HEADER: Final = struct.Struct("<8sII")
_HOLDER: Final = struct.Struct("<I")
_HOLDER_OFFSET: Final = 12
_SLOT: Final = struct.Struct("<IBBBBQQQQQQQ")
_KINDS: Final = SLOT_SIZE + 4
_STATES: Final = SLOT_SIZE + 6
# struct flock of every 64-bit Linux: type, whence, start, length, pid.
_FLOCK: Final = struct.Struct("hhqqi4x")

# A waiter beats ten times a second; one that is silent this long is stopped, or its machine is beyond help.
BEAT_NS: Final = 100 * MS
SILENT_NS: Final = 2 * SECOND
_PATIENCE_NS_MAX: Final = 600 * SECOND


class Kind(IntEnum):
    """Whose slot it is."""

    NOBODY = 0
    OHDIFF = 1
    CO_RUNNER = 2


class State(IntEnum):
    """What an ohdiff process does about the device."""

    IDLE = 0
    WAITING = 1
    HOLDING = 2
    RUNNING = 3  # at work without the lease, as on a CPU, and to be given way by lower classes


@dataclass(frozen=True, slots=True)
class Slot:
    """What a slot says.

    Parameters
    ----------
    number : 0 to SLOT_COUNT - 1.
    unit_ns : of an ohdiff process, how long its units are; of a co-runner, how long a busy step may take.
    since_ns : when `state`, or busy, last changed.
    steps, steps_ns : steps of a co-runner so far, and the time of all of them together.
    """

    number: int
    pid: int = 0
    kind: int = Kind.NOBODY
    job_class: JobClass = JobClass.SCAVENGE
    state: State = State.IDLE
    is_busy: bool = False
    pid_namespace: int = 0
    beat_ns: int = 0
    unit_ns: int = 0
    since_ns: int = 0
    steps: int = 0
    steps_ns: int = 0

    def packed(self) -> bytes:
        """The 64 bytes of it."""
        numbers = (self.pid_namespace, self.beat_ns, self.unit_ns, self.since_ns, self.steps, self.steps_ns, 0)
        return _SLOT.pack(self.pid, self.kind, self.job_class, self.state, self.is_busy, *numbers)

    def is_silent(self, now_ns: int, patience_ns: int = SILENT_NS) -> bool:
        """Whether its last beat is too old, or is none: nobody beats in the future."""
        return not -SECOND <= now_ns - self.beat_ns <= patience_ns

    def is_busy_at(self, now_ns: int) -> bool:
        """Whether a co-runner's busy mark still counts: a step that never ends is a process that was stopped."""
        return self.is_busy and not self.is_silent(now_ns, min(self.unit_ns or SILENT_NS, _PATIENCE_NS_MAX))


def unpacked(number: int, data: bytes) -> Slot | None:
    """The slot in 64 bytes, None where they make no sense."""
    if len(data) != SLOT_SIZE:
        return None
    pid, kind, job_class, state, busy, *numbers = _SLOT.unpack(data)
    try:
        return Slot(number, pid, Kind(kind), JobClass(job_class), State(state), busy == 1, *numbers[:6])
    except ValueError:
        return None


class SharedPage:
    """One device's page, with at most one slot of our own.

    Parameters
    ----------
    folder_fd : the folder, see runtime_folder; not kept.
    device : the device's name.

    Raises
    ------
    DeviceError : the file cannot be trusted, or belongs to another version.
    """

    def __init__(self, folder_fd: int, device: str, now: Callable[[], int] = clock.monotonic_ns) -> None:
        self._now = now
        self._fd = open_shared(folder_fd, f"{check_device_name(device)}.page")
        self._own: int | None = None
        try:
            self._prepare(device)
        except BaseException:
            self.close()
            raise
        _pages.add(self)

    @classmethod
    def in_folder(cls, folder: Path, device: str, now: Callable[[], int] = clock.monotonic_ns) -> Self:
        """The page of a device in the folder where processes of this user meet, which is made if it is not there."""
        folder_fd = open_folder(folder)
        try:
            return cls(folder_fd, device, now)
        finally:
            os.close(folder_fd)

    @property
    def own(self) -> int | None:
        """The number of our slot, None without one."""
        return self._own

    def close(self) -> None:
        """Give the slot up."""
        if self._fd >= 0:
            with suppress(OSError):
                self.clear()
            fd, self._fd = self._fd, -1
            os.close(fd)

    def forget(self) -> None:
        """Close in a forked child: the slot is its parent's."""
        self._own = None
        self.close()

    def claim(self) -> bool:
        """Take a free slot; False if all are taken."""
        for number in range(SLOT_COUNT):
            if self._own is not None:
                break
            with suppress(BlockingIOError, PermissionError):
                fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _lock(fcntl.F_WRLCK, number))
                self._own = number
        return self._own is not None

    def write(self, slot: Slot) -> None:
        """Say something in our slot; its number is set here."""
        if self._own is not None:
            os.pwrite(self._fd, slot.packed(), _offset(self._own))

    def clear(self) -> None:
        """Say nothing any more, and give the slot back."""
        if self._own is not None:
            number, self._own = self._own, None
            os.pwrite(self._fd, bytes(SLOT_SIZE), _offset(number))
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _lock(fcntl.F_UNLCK, number))

    def note_holder(self) -> None:
        """The lease is ours: whoever waits may look at our beat."""
        number = 0 if self._own is None else self._own + 1
        os.pwrite(self._fd, _HOLDER.pack(number), _HOLDER_OFFSET)

    def holder(self) -> Slot | None:
        """Who seems to hold the lease, None if that is not told."""
        data = self._read()
        number = _HOLDER.unpack_from(data, _HOLDER_OFFSET)[0] - 1
        if not 0 <= number < SLOT_COUNT or number == self._own:
            return None
        slot = self._slot(data, number)
        return slot if slot is not None and slot.state is State.HOLDING and self._is_alive(slot) else None

    def peers(self) -> list[Slot]:
        """What the other live ohdiff processes do that do anything, by number; one system call where none does."""
        data = self._read()
        marks = data[_STATES::SLOT_SIZE]
        if not any(marks):
            return []
        now_ns = self._now()
        return [
            slot
            for number, mark in enumerate(marks)
            if mark != State.IDLE
            and number != self._own
            and (slot := self._slot(data, number)) is not None
            and slot.kind is Kind.OHDIFF
            and not slot.is_silent(now_ns)
            and self._is_alive(slot)
        ]

    def co_runners(self) -> list[Slot]:
        """The slots of all live co-runners, by number."""
        data = self._read()
        kinds = data[_KINDS::SLOT_SIZE]
        if Kind.CO_RUNNER not in kinds:
            return []
        return [
            slot
            for number, kind in enumerate(kinds)
            if kind == Kind.CO_RUNNER and (slot := self._slot(data, number)) is not None and self._is_alive(slot)
        ]

    def _prepare(self, device: str) -> None:
        """Write the header of a new page, or of one that is rubbish."""
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        try:
            data = self._read()
            magic, version, _ = _HEADER.unpack_from(data)
            if magic == MAGIC and version != VERSION:
                raise DeviceError(f"the page of {device} is of version {version}, not {VERSION}", item=device)
            if magic != MAGIC:
                os.pwrite(self._fd, _HEADER.pack(MAGIC, VERSION, 0).ljust(PAGE_SIZE, b"\0"), 0)
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _read(self) -> bytes:
        return os.pread(self._fd, PAGE_SIZE, 0).ljust(PAGE_SIZE, b"\0")

    @staticmethod
    def _slot(data: bytes, number: int) -> Slot | None:
        return unpacked(number, data[_offset(number) : _offset(number) + SLOT_SIZE])

    def _is_alive(self, slot: Slot) -> bool:
        """Whether somebody else holds the lock on a slot, and is not just a forked child of whom it was."""
        answer = fcntl.fcntl(self._fd, fcntl.F_OFD_GETLK, _lock(fcntl.F_WRLCK, slot.number))
        if _FLOCK.unpack(answer)[0] == fcntl.F_UNLCK:
            return False
        return slot.pid_namespace != pid_namespace() or _is_process(slot.pid)


def pid_namespace() -> int:
    """Tells which processes' numbers mean the same; 0 where that is not known."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino  # noqa: PTH116 - asked for at every look, and five times as fast
    except OSError:
        return 0


def _is_process(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return pid > 0


def _offset(number: int) -> int:
    return SLOT_SIZE * (number + 1)


def _lock(kind: int, number: int) -> bytes:
    return _FLOCK.pack(kind, os.SEEK_SET, _offset(number), SLOT_SIZE, 0)


# A forked child shares its parent's locks; it must not keep them alive when the parent dies.
_pages: weakref.WeakSet[SharedPage] = weakref.WeakSet()


def _forget_all() -> None:
    for page in list(_pages):
        page.forget()


os.register_at_fork(after_in_child=_forget_all)
