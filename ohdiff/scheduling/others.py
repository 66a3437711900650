"""The other processes on a device: those of ohdiff, by lease or presence, and co-runners, by the pages they tell in."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from ohdiff.errors import DeviceError

from .core import SECOND, CoRunner, JobClass
from .lease import Lease, Stalled
from .presence import Presence
from .shared_page import SharedPage
from .signals import CoRunnerSignals

# Co-runners tell here that they want the whole machine to be left alone, whichever device they use.
MACHINE: Final = "machine"


class Others:
    """Who else is there; without a folder nobody is.

    Parameters
    ----------
    device : the device that is shared.
    job_class : how much our job matters.
    folder : where processes of this user meet, None to meet nobody.
    takes_lease : whether the device has one user of ohdiff at a time, by its lease. Else we only say that we are at
        work, and how much that matters.
    note : told in words what a user should know.

    Attributes
    ----------
    are_telling : whether any co-runner told of itself when last asked.
    """

    def __init__(
        self,
        device: str,
        job_class: JobClass,
        folder: Path | None,
        note: Callable[[str], None],
        now: Callable[[], int],
        *,
        takes_lease: bool,
    ) -> None:
        self._device = device
        self._note = note
        self._lease: Lease | None = None
        self._presence: Presence | None = None
        self._signals: CoRunnerSignals | None = None
        self.are_telling = False
        self._stack = ExitStack()
        if folder is None:
            return
        try:
            if takes_lease:
                self._open_lease(job_class, folder, now)
            else:
                self._presence = self._stack.enter_context(Presence(device, job_class, folder, now=now))
        except DeviceError as error:
            note(f"{error.message}; nobody else is given way to")

    @property
    def is_leased(self) -> bool:
        """Whether nothing but the policy keeps us from the device."""
        return self._lease is None or self._lease.is_held

    @property
    def is_wanted(self) -> bool:
        """Whether another waits for the lease that we hold, and should have it."""
        return self._lease is not None and self._lease.is_wanted()

    @property
    def peer_class(self) -> JobClass | None:
        """The best class of others to whom we should give way."""
        if self._lease is not None:
            return self._lease.peer_class
        return None if self._presence is None else self._presence.peer_class

    def co_runners(self, now_ns: int) -> tuple[CoRunner, ...]:
        """Who tells of itself."""
        found = () if self._signals is None else self._signals.read(now_ns)
        self.are_telling = bool(found)
        return found

    def keep_lease(self, *, wants: bool, is_idle: bool) -> bool:
        """Ask for the lease, beat, or give it up at a unit's border; tells whether units may start."""
        lease = self._lease
        if lease is None:
            return True
        if not lease.is_held:
            if wants:
                return lease.request()
            lease.withdraw()
            return False
        lease.beat()
        is_to_go = lease.is_wanted() if wants else lease.peer_class is not None
        if not is_to_go:
            return True
        if is_idle:
            lease.release()
        return False

    def close(self) -> None:
        """We are done."""
        self._stack.close()

    def _open_lease(self, job_class: JobClass, folder: Path, now: Callable[[], int]) -> None:
        self._lease = Lease(self._device, job_class, folder, on_stalled=self._say_stalled, now=now)
        self._stack.callback(self._lease.close)
        pages = []
        for name in (self._device, MACHINE):
            page = SharedPage.in_folder(folder, name, now)
            self._stack.callback(page.close)
            pages.append(page)
        self._signals = CoRunnerSignals(self._device, pages)

    def _say_stalled(self, stalled: Stalled) -> None:
        self._note(
            f"process {stalled.pid}, another ohdiff, has held the turn on {self._device} for "
            f"{stalled.silent_ns // SECOND} s without a sign of life; waiting for it"
        )
