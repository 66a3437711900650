"""The lease of a device among ohdiff processes, without a daemon: flock says who has it, the shared page who wants it.

Two files for each device: `.lock`, the lease itself, which the kernel frees whatever ends its holder; and `.gate`, a
turnstile held by whoever is next, so that a holder that gives way cannot overtake whoever it gave way to. A holder asks
once a unit whether a better class waits, or an equal one after its quantum. A holder that is stopped keeps the lease:
its waiters notice that its beat stands still, say so, and wait or go elsewhere; nobody ever breaks the lock.

The handover is that of nvshare's DROP_LOCK (scheduler of 30 s quanta), brought to units of 2 ms and put into files.
"""

from __future__ import annotations

import fcntl
import os
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from ohdiff import clock
from ohdiff.errors import DeviceError

from .core import MS, SECOND, UNIT_NS, JobClass
from .runtime_folder import MOUNTS, check_device_name, open_folder, open_shared
from .shared_page import BEAT_NS, Kind, SharedPage, Slot, State, pid_namespace

# Equal processes take turns of this length: long beside a handover, short beside what a user waits for.
QUANTUM_NS: Final = 50 * MS
STALLED_NS_MIN: Final = 2 * SECOND
_STALLED_UNITS: Final = 20
# Whoever took the lease ahead of a better class backs out; the pause lets the other one wake up and take the gate.
_BACK_OUT_NS: Final = 200_000
_BACK_OUT_NS_MAX: Final = 2 * MS


@dataclass(frozen=True, slots=True)
class Stalled:
    """The holder of a lease has not beaten for `silent_ns`: it is stopped, or hangs."""

    device: str
    pid: int
    silent_ns: int


class Lease:
    """The right to use a device, for one thread of one process.

    Parameters
    ----------
    device : the device's name.
    job_class : how much our job matters.
    folder : where processes of this user meet; see `runtime_folder`.
    unit_ns : how long our units are.
    quantum_ns : how long we keep the lease beside waiters of the same class.
    on_stalled : told, once for each wait, of a holder that does not beat.

    Attributes
    ----------
    problem : why hints do not work, "" if they do. Without them a lease is given up once a quantum, wanted or not.

    Raises
    ------
    DeviceError : the folder or the lock cannot be trusted; the device must then be used without a lease.
    """

    def __init__(
        self,
        device: str,
        job_class: JobClass,
        folder: Path,
        *,
        unit_ns: int = UNIT_NS,
        quantum_ns: int = QUANTUM_NS,
        on_stalled: Callable[[Stalled], None] | None = None,
        now: Callable[[], int] = clock.monotonic_ns,
        mounts: Path = MOUNTS,
    ) -> None:
        self.device = check_device_name(device)
        self.job_class = job_class
        self.problem = ""
        self._unit_ns = unit_ns
        self._quantum_ns = quantum_ns
        self._on_stalled = on_stalled
        self._now = now
        self._namespace = pid_namespace()
        self._page: SharedPage | None = None
        self._files = _LockFiles(device, folder, mounts)
        self._place: _Place | None = None
        self._queued_ns = 0
        self._is_told = False
        self._held_fd = -1
        self._held_since_ns = 0
        self._join_page(device)
        _leases.add(self)

    @property
    def is_held(self) -> bool:
        """Whether the device is ours."""
        return self._held_fd >= 0

    @property
    def peer_class(self) -> JobClass | None:
        """The best class among others that wait, or work without a lease and matter more; None for no one."""
        peers = [] if self._page is None else self._page.peers()
        return min((each.job_class for each in peers if self._is_concerned(each)), default=None)

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def acquire(self, timeout_ns: int | None = None) -> bool:
        """Wait for the device, at most so long; tells whether it is ours."""
        deadline_ns = None if timeout_ns is None else self._now() + timeout_ns
        pause_ns = _BACK_OUT_NS
        try:
            while not self.request():
                left_ns = BEAT_NS if deadline_ns is None else deadline_ns - self._now()
                if left_ns <= 0:
                    self.withdraw()
                    return self.is_held
                if self._place is not None:
                    self._place.reached.wait(min(BEAT_NS, left_ns) / SECOND)
                else:
                    _sleep(pause_ns)
                    pause_ns = min(2 * pause_ns, _BACK_OUT_NS_MAX)
        except BaseException:
            self.withdraw()
            raise
        return True

    def request(self) -> bool:
        """Queue up for the device without waiting; tells whether it is ours.

        Whoever asked must ask again, ten times a second or oftener, until it is, or `withdraw`.
        """
        if self.is_held:
            return True
        self._say(State.WAITING)
        files = self._files
        if self._place is not None and not self._place.want():
            self._place = None
        if self._place is None:
            if not self._take_now():
                self._place, self._queued_ns, self._is_told = _Place(files), self._now(), False
                return False
            return self._accept(files.lock_fd)
        if self._place.reached.is_set():
            place, self._place = self._place, None
            place.check()
            return self._accept(files.lock_fd)
        # The gate's holder may be stopped: the gate is only for fairness and may be passed by.
        if self._now() - self._queued_ns >= BEAT_NS and _try_lock(files.bypass_fd):
            self._leave_place()
            return self._accept(files.bypass_fd)
        self._tell_if_stalled()
        return False

    def withdraw(self) -> None:
        """Do not want the device any more; nothing to do where it is ours."""
        if not self.is_held:
            self._leave_place()
            self._say(State.IDLE)

    def release(self) -> None:
        """Give the device up; nothing to do where it is not ours."""
        if self.is_held:
            self._say(State.IDLE)
            fd, self._held_fd = self._held_fd, -1
            fcntl.flock(fd, fcntl.LOCK_UN)

    def beat(self) -> None:
        """The holder is alive; once a unit, or ten times a second."""
        if self.is_held:
            self._say(State.HOLDING)

    def is_wanted(self) -> bool:
        """Whether we hold the device and should give it up: to a better class at once, to an equal one in turn."""
        if not self.is_held:
            return False
        is_turn_over = self._now() - self._held_since_ns >= self._quantum_ns
        if self.problem:
            return is_turn_over
        peer = self.peer_class
        return peer is not None and (peer < self.job_class or (peer == self.job_class and is_turn_over))

    def yield_if_wanted(self) -> bool:
        """To be called between units: gives the device up and takes it again if another should go first.

        Costs two system calls where nobody waits. Tells whether the device was given up.
        """
        self.beat()
        if self.is_held and not self.is_wanted():
            return False
        self.release()
        self.acquire()
        return True

    def close(self) -> None:
        """Release, and leave the queue and the page."""
        self.release()
        if self._page is not None:
            self._page.close()
            self._page = None
        self._close_files()

    def forget(self) -> None:
        """Close in a forked child, where another thread may hold anything: the lease is its parent's."""
        self._held_fd = -1
        self._page = None
        self._files.close()

    def _renew_files(self) -> None:
        """Somebody removed the lock, or its folder: meet the others at the new one."""
        files = self._files.renewed()
        self._close_files()
        self._files = files
        if self._page is not None:
            self._page.close()
            self._page = None
        self.problem = ""
        self._join_page(self.device)

    def _close_files(self) -> None:
        # A place in the queue that was given up keeps its files until it is reached.
        if self._place is None or self._place.leave():
            self._files.close()
        self._place = None

    def _join_page(self, device: str) -> None:
        try:
            self._page = SharedPage(self._files.folder_fd, device, self._now)
            if not self._page.claim():
                self.problem = "all slots of the page are taken"
        except (DeviceError, OSError) as error:
            self.problem = str(error)

    def _is_concerned(self, peer: Slot) -> bool:
        is_better = peer.job_class < self.job_class
        return peer.state is State.WAITING or (peer.state is State.RUNNING and is_better)

    def _say(self, state: State) -> None:
        page = self._page
        if page is None:
            return
        now_ns = self._now()
        slot = Slot(
            number=0,
            pid=os.getpid(),
            kind=Kind.OHDIFF,
            job_class=self.job_class,
            state=state,
            pid_namespace=self._namespace,
            beat_ns=now_ns,
            unit_ns=self._unit_ns,
            since_ns=self._held_since_ns if state is State.HOLDING else now_ns,
        )
        try:
            page.write(slot)
        except OSError as error:
            self.problem = str(error)

    def _take_now(self) -> bool:
        """Take the lock if neither it nor the gate is taken."""
        files = self._files
        if not _try_lock(files.gate_fd):
            return False
        try:
            return _try_lock(files.lock_fd)
        finally:
            fcntl.flock(files.gate_fd, fcntl.LOCK_UN)

    def _accept(self, fd: int) -> bool:
        """The lock is ours; so is the device, unless the lock is an old one or a better class should have it."""
        if not self._files.is_current():
            fcntl.flock(fd, fcntl.LOCK_UN)
            self._renew_files()
            return False
        peer = self.peer_class
        if peer is not None and peer < self.job_class:
            fcntl.flock(fd, fcntl.LOCK_UN)
            return False
        self._held_fd = fd
        self._held_since_ns = self._now()
        self._say(State.HOLDING)
        if self._page is not None:
            self._page.note_holder()
        return True

    def _leave_place(self) -> None:
        """Give up the place in the queue; its thread stays until the place is reached, and may be joined again."""
        if self._place is not None and self._place.give_up():
            self._place = None

    def _tell_if_stalled(self) -> None:
        holder = None if self._page is None or self._is_told else self._page.holder()
        if holder is None or self._on_stalled is None:
            return
        silent_ns = self._now() - holder.beat_ns
        if silent_ns > max(STALLED_NS_MIN, min(holder.unit_ns, SECOND) * _STALLED_UNITS):
            self._is_told = True
            self._on_stalled(Stalled(self.device, holder.pid, silent_ns))


class _LockFiles:
    """The open files of a lease; the thread that waits uses `lock_fd`, so who passes it by needs another."""

    def __init__(self, device: str, folder: Path, mounts: Path) -> None:
        self._device, self._folder, self._mounts = device, folder, mounts
        self._fds: list[int] = []
        try:
            self.folder_fd = self._keep(open_folder(folder, mounts))
            self.gate_fd = self._keep(open_shared(self.folder_fd, f"{device}.gate"))
            self.lock_fd = self._keep(open_shared(self.folder_fd, f"{device}.lock"))
            self.bypass_fd = self._keep(open_shared(self.folder_fd, f"{device}.lock"))
        except BaseException:
            self.close()
            raise

    def is_current(self) -> bool:
        """Whether the lock still is the file of its name: one that was removed keeps nobody out."""
        try:
            named = os.stat(f"{self._device}.lock", dir_fd=self.folder_fd, follow_symlinks=False)
            return os.path.samestat(named, os.fstat(self.lock_fd)) and os.fstat(self.folder_fd).st_nlink > 0
        except OSError:
            return False

    def renewed(self) -> _LockFiles:
        """The same files, opened again."""
        return _LockFiles(self._device, self._folder, self._mounts)

    def close(self) -> None:
        """Close all; what is locked by them alone becomes free."""
        while self._fds:
            os.close(self._fds.pop())

    def _keep(self, fd: int) -> int:
        self._fds.append(fd)
        return fd


class _Place:
    """A place in the queue for a lease: a thread that blocks in flock, and can be abandoned but not called back.

    It first waits for the gate, then for the lock. When it gets the lock and nobody wants it any more, it frees it.
    """

    def __init__(self, files: _LockFiles) -> None:
        self.reached = threading.Event()
        self._files = files
        self._mutex = threading.Lock()
        self._is_wanted = True
        self._is_over = False
        self._closes_files = False
        self._error: OSError | None = None
        threading.Thread(target=self._run, name="lease", daemon=True).start()

    def want(self) -> bool:
        """Wait here, or again; False if the place was reached when nobody wanted it."""
        with self._mutex:
            self._is_wanted = self._is_wanted or not self._is_over
            return self._is_wanted

    def give_up(self) -> bool:
        """Do not wait; True if the thread has ended, and nothing is held any more."""
        with self._mutex:
            if self._is_over and self._is_wanted:
                with suppress(OSError):
                    fcntl.flock(self._files.lock_fd, fcntl.LOCK_UN)
            self._is_wanted = False
            return self._is_over

    def leave(self) -> bool:
        """Give up for good; False if the files are still in use, and closed by the thread."""
        with self._mutex:
            self._is_wanted = False
            self._closes_files = not self._is_over
            return self._is_over

    def check(self) -> None:
        """Raise what went wrong in the thread."""
        if self._error is not None:
            raise DeviceError(f"the lease cannot be waited for: {self._error.strerror}") from self._error

    def _run(self) -> None:
        files = self._files
        try:
            fcntl.flock(files.gate_fd, fcntl.LOCK_EX)
            fcntl.flock(files.lock_fd, fcntl.LOCK_EX)
        except OSError as error:
            self._error = error
        with self._mutex:
            self._is_over = True
            with suppress(OSError):
                fcntl.flock(files.gate_fd, fcntl.LOCK_UN)
                if not self._is_wanted:
                    fcntl.flock(files.lock_fd, fcntl.LOCK_UN)
            if self._closes_files:
                files.close()
        self.reached.set()


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sleep(duration_ns: int) -> None:
    threading.Event().wait(duration_ns / SECOND)


_leases: weakref.WeakSet[Lease] = weakref.WeakSet()


def _forget_all() -> None:
    for lease in list(_leases):
        lease.forget()


os.register_at_fork(after_in_child=_forget_all)
