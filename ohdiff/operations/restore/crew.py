"""Runs jobs in background threads, and hands what they return to the thread that asked, in which all books are kept."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

_Value = TypeVar("_Value")
_Job = tuple[Callable[[], Any], Callable[[Any], None]]


class Crew:
    """Some threads and a backlog; used by one thread only.

    A job's error is raised in that thread: jobs return what may go wrong with a single entry, and raise the rest.

    Parameters
    ----------
    workers : threads; as many jobs run at a time, and one more is ready for each second one.
    """

    def __init__(self, workers: int) -> None:
        self._executor = ThreadPoolExecutor(workers, thread_name_prefix="restorer")
        self._running_max = workers + (workers + 1) // 2
        self._backlog: deque[_Job] = deque()
        self._running: dict[Future[Any], Callable[[Any], None]] = {}
        self._finished: deque[Future[Any]] = deque()
        self._is_stopped = False

    @property
    def is_busy(self) -> bool:
        """Whether any job's result has not been taken in."""
        return bool(self._backlog or self._running)

    def submit(self, job: Callable[[], _Value], then: Callable[[_Value], None]) -> None:
        """Run `job` in the background when its turn comes, and `then` with its result during a later call.

        After `stop` jobs are dropped.
        """
        if self._is_stopped:
            return
        self._backlog.append((job, then))
        self._start()

    def submit_first(self, job: Callable[[], _Value], then: Callable[[_Value], None]) -> None:
        """As `submit`, ahead of all that wait."""
        if self._is_stopped:
            return
        self._backlog.appendleft((job, then))
        self._start()

    def pump(self) -> None:
        """Take in what is finished, without waiting."""
        while self._finished:
            self._take(self._finished.popleft())

    def wait_until(self, backlog_max: int) -> None:
        """Take in results until so few jobs have not been started."""
        self.pump()
        while len(self._backlog) > backlog_max:
            self._wait()

    def wait_while(self, condition: Callable[[], bool]) -> None:
        """Take in results until the condition does not hold any more, or nothing is left."""
        self.pump()
        while (self._running or self._backlog) and condition():
            self._start()
            self._wait()

    def finish(self) -> None:
        """Take in all results."""
        while self._running or self._backlog:
            self._start()
            self._wait()

    def stop(self) -> None:
        """Drop the backlog, wait for what runs, and take in what it gives; errors of jobs are dropped too."""
        self._is_stopped = True
        self._backlog.clear()
        for future in self._running:
            future.cancel()
        self._executor.shutdown(wait=True)
        for future, then in list(self._running.items()):
            if not future.cancelled() and future.exception() is None:
                then(future.result())
        self._running.clear()

    def _start(self) -> None:
        while self._backlog and len(self._running) < self._running_max:
            job, then = self._backlog.popleft()
            future = self._executor.submit(job)
            self._running[future] = then
            # Called in the thread that ran the job; a deque may be filled and emptied by different threads.
            future.add_done_callback(self._finished.append)

    def _wait(self) -> None:
        wait(self._running, return_when=FIRST_COMPLETED)
        for future in [future for future in self._running if future.done()]:
            self._take(future)

    def _take(self, future: Future[Any]) -> None:
        then = self._running.pop(future, None)
        if then is not None:
            self._start()
            then(future.result())
