"""Work that is announced and does not wait: on a CPU better classes just run, and lower ones give way to them.

A thread beats for the work, so it need not pass by often; a process that is stopped stops beating and counts no more.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from ohdiff import clock
from ohdiff.errors import DeviceError

from .core import SECOND, JobClass
from .runtime_folder import MOUNTS, open_folder
from .shared_page import Kind, SharedPage, Slot, State, pid_namespace

_BEAT_SECONDS: Final = 0.5


class Presence:
    """Says in a device's page that we are at work, and sees who else is.

    Parameters
    ----------
    device : the device's name.
    job_class : how much our job matters.
    folder : where processes of this user meet.

    Attributes
    ----------
    problem : why nothing is announced, "" if it is.
    """

    def __init__(
        self,
        device: str,
        job_class: JobClass,
        folder: Path,
        *,
        now: Callable[[], int] = clock.monotonic_ns,
        mounts: Path = MOUNTS,
    ) -> None:
        self.problem = ""
        self._job_class = job_class
        self._now = now
        self._began_ns = now()
        self._ended = threading.Event()
        self._page: SharedPage | None = None
        try:
            folder_fd = open_folder(folder, mounts)
            try:
                self._page = SharedPage(folder_fd, device, now)
            finally:
                os.close(folder_fd)
            if not self._page.claim():
                self.problem = "all slots of the page are taken"
        except (DeviceError, OSError) as error:
            self.problem = str(error)
        if self._page is not None:
            self._beat()
            threading.Thread(target=self._run, name="presence", daemon=True).start()

    @property
    def peer_class(self) -> JobClass | None:
        """The best class among others at work that matter more than we do, None for no one."""
        peers = [] if self._page is None else self._page.peers()
        return min((each.job_class for each in peers if each.job_class < self._job_class), default=None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """We are done."""
        self._ended.set()
        if self._page is not None:
            self._page.close()
            self._page = None

    def _run(self) -> None:
        while not self._ended.wait(_BEAT_SECONDS):
            with suppress(OSError):
                self._beat()

    def _beat(self) -> None:
        page = self._page
        if page is not None:
            page.write(
                Slot(
                    number=0,
                    pid=os.getpid(),
                    kind=Kind.OHDIFF,
                    job_class=self._job_class,
                    state=State.RUNNING,
                    pid_namespace=pid_namespace(),
                    beat_ns=self._now(),
                    unit_ns=SECOND,
                    since_ns=self._began_ns,
                )
            )
