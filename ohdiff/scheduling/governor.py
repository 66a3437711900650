"""The CPU's driver: threads of a snapshot ask it around each unit of work, and it makes them wait while others need it.

What is a unit is left to those threads: a batch that is read, cut and hashed, or a block that is compressed, some
milliseconds each. The governor reads the signals, asks the policy when the contract says so, and lets as many threads
run as are granted. Scavenging processes take turns by the CPU's lease; all others just say that they are at work.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from ohdiff import clock
from ohdiff.breaks import break_if_due
from ohdiff.errors import DeviceError

from .company import Company
from .core import (
    MS,
    SECOND,
    DeviceKind,
    DeviceView,
    Host,
    Job,
    JobClass,
    Policy,
    UnitReport,
    View,
)
from .cores import OwnCores
from .decision_log import DecisionLog
from .others import Others
from .signals import HostSignals, ThreadTimes
from .standing import StandingDecision
from .window import Stage, Window, Work

CPU: Final = "cpu"
# How often signals are read: by threads at the borders of units, and by the governor's own thread.
_LOOK_TOLD_NS: Final = 4 * MS  # while a co-runner says what it does
_LOOK_NS: Final = 20 * MS
_LOOK_PAUSED_TOLD_SECONDS: Final = 0.005
_LOOK_PAUSED_SECONDS: Final = 0.02
_LOOK_IDLE_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class GovernorOptions:
    """What a governor is for.

    Parameters
    ----------
    job_class : how much the job matters. Only SCAVENGE follows pressure and co-runners; the others give way to better
        ohdiff processes and to nobody else.
    cores : the processors that we may use, by number.
    threads : the most threads that the job has at work.
    folder : where processes of this user meet, None to work without lease and hints.
    share_milli : the most of its time that each thread is at work, in thousandths.
    deadline_ns : by the monotonic clock, when the job should be done.
    work : asked for what there is to do in all, what units have done included.
    press : told when the deadline leaves no more room for others, and when it does so again.
    """

    job_class: JobClass
    cores: frozenset[int]
    threads: int
    folder: Path | None = None
    share_milli: int = 1000
    deadline_ns: int | None = None
    work: Callable[[], Work] = Work
    press: Callable[[bool], None] = lambda is_last_call: None


@dataclass(slots=True)
class GovernorCounts:
    """What became of it: units run, their bytes, and how long nothing was let run that wanted to."""

    units: int = 0
    size_bytes: int = 0
    paused_ns: int = 0


class Governor:
    """Lets threads run units; a context manager that is left when the job is done.

    Parameters
    ----------
    policy : decides.
    log : gets every decision.
    note : told in words what a user should know, each thing once.

    Attributes
    ----------
    counts : so far.
    leaves_page_cache : whether files should be read without leaving them in the page cache.
    """

    def __init__(
        self,
        policy: Policy,
        options: GovernorOptions,
        *,
        log: DecisionLog | None = None,
        note: Callable[[str], None] = lambda message: None,
        now: Callable[[], int] = clock.monotonic_ns,
        host: Callable[[int], Host] | None = None,
    ) -> None:
        self._options = options
        self._is_scavenging = self.leaves_page_cache = options.job_class is JobClass.SCAVENGE
        self._standing = StandingDecision(policy, log)
        self._note = note
        self._now = now
        self._host = host or HostSignals(options.cores).read
        self._others = Others(CPU, options.job_class, options.folder, note, now, takes_lease=self._is_scavenging)
        self._company = Company(OwnCores(options.cores))
        self._times = ThreadTimes()
        self._arrived_ns = now()
        self._rate = _Rate(min(options.threads, max(1, len(options.cores))) * options.share_milli)
        deadline_ns = options.deadline_ns
        self._window = None if deadline_ns is None else Window(self._arrived_ns, deadline_ns)
        self._stage = Stage.EARLY
        self._last: UnitReport | None = None
        self._served_ns = 0
        self._turn = threading.Condition()
        self._wanted = threading.Event()
        self._ended = threading.Event()
        self._is_over = False
        self._active = self._waiting = self._allowed = 0
        self._paused_since_ns = -1
        self._look_at_ns = 0
        self._own = _Own()
        self._told: set[str] = set()
        self.counts = GovernorCounts()
        self._thread = threading.Thread(target=self._watch, name="governor", daemon=True)

    def __enter__(self) -> Self:
        with self._turn:
            self._look(self._now())
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._turn:
            self._is_over = True
            self._turn.notify_all()
        self._wanted.set()
        self._ended.set()
        self._thread.join()
        self._company.leave()
        self._others.close()

    @contextmanager
    def unit(self, size_bytes: int = 0) -> Iterator[None]:
        """One unit of work of about so many bytes; waits first, for as long as others need the machine.

        Not to be held while waiting for another thread that needs a unit.
        """
        self._enter()
        began_ns = self._now()
        ran_ns, waited_ns = self._times.read()
        try:
            yield
        finally:
            ran_to_ns, waited_to_ns = self._times.read()
            self._leave(size_bytes, began_ns, ran_to_ns - ran_ns, waited_to_ns - waited_ns)
            break_if_due()

    def _enter(self) -> None:
        with self._turn:
            now_ns = self._now()
            if now_ns >= self._look_at_ns:
                self._look(now_ns)
            while not (self._is_over or self._may_start()):
                self._wait()
            self._active += 1

    def _may_start(self) -> bool:
        return self._active < self._allowed and self._gap_left_ns() <= 0

    def _wait(self) -> None:
        self._waiting += 1
        self._wanted.set()
        gap_ns = self._gap_left_ns() if self._active < self._allowed else 0
        try:
            self._turn.wait(gap_ns / SECOND if gap_ns > 0 else None)
        finally:
            self._waiting -= 1

    def _leave(self, size_bytes: int, began_ns: int, ran_ns: int, waited_ns: int) -> None:
        with self._turn:
            now_ns = self._now()
            self._active -= 1
            self.counts.units += 1
            self.counts.size_bytes += size_bytes
            self._served_ns += ran_ns
            self._rate.add(size_bytes, _alone_ns(now_ns - began_ns, ran_ns, waited_ns))
            self._last = UnitReport(now_ns, ran_ns + waited_ns, max(1, ran_ns))
            self._standing.note_unit(CPU, self._last)
            self._own.ended_ns, self._own.took_ns = now_ns, now_ns - began_ns - waited_ns
            if now_ns >= self._look_at_ns or (self._active == 0 and (self._allowed == 0 or self._others.is_wanted)):
                self._look(now_ns)
            self._turn.notify()

    def _gap_left_ns(self) -> int:
        """What is left of this thread's pause after its last unit, by the grant of now.

        In proportion to the unit: those on a CPU are as long as they are. Waiting for a core is no part of it.
        """
        grant, share_milli, took_ns = self._standing.grant(CPU), self._options.share_milli, self._own.took_ns
        gap_ns = took_ns * (1000 - share_milli) // share_milli
        if grant is not None:
            gap_ns = max(gap_ns, took_ns * grant.gap_ns // max(1, grant.unit_ns))
        return self._own.ended_ns + gap_ns - self._now()

    def _look(self, now_ns: int) -> None:
        """Read the signals, decide if it is time, and let threads go; the caller holds the lock."""
        if self._is_over:
            return
        self._look_at_ns = now_ns + (_LOOK_TOLD_NS if self._others.are_telling else _LOOK_NS)
        before = self._standing.grant(CPU)
        try:
            allowed = self._decide(now_ns)
        except (DeviceError, OSError) as error:
            self._tell("broken", f"{error}; others are given way to no more")
            allowed, self._is_over = self._options.threads, True
        if allowed > self._allowed or self._is_over or self._standing.grant(CPU) != before:
            self._turn.notify_all()
        self._allowed = allowed
        self._count_pause(now_ns)

    def _decide(self, now_ns: int) -> int:
        """How many threads may run."""
        is_ours = self._keep_lease()
        self._refresh(now_ns)
        if not is_ours and (is_ours := self._keep_lease()):
            # What was granted before the lease was ours was only leave to queue for it.
            self._refresh(now_ns)
        grant = self._standing.grant(CPU)
        if grant is None or not is_ours:
            return 0
        return grant.threads if self._is_scavenging else self._options.threads

    def _keep_lease(self) -> bool:
        return self._others.keep_lease(wants=self._standing.grant(CPU) is not None, is_idle=self._active == 0)

    def _refresh(self, now_ns: int) -> None:
        work = self._options.work()
        if self._window is not None:
            self._keep_window(self._window, work, now_ns)
        view = self._view(now_ns, work)
        if self._is_scavenging:
            self._behave(now_ns, view)
        self._standing.refresh(now_ns, view)

    def _behave(self, now_ns: int, view: View) -> None:
        """Leave cores to others, until the deadline leaves no more room for them."""
        if self._stage is Stage.LAST:
            self._company.leave()
        else:
            self._company.look(now_ns, view.host, view.co_runners)

    def _keep_window(self, window: Window, work: Work, now_ns: int) -> None:
        """See how near the deadline is, and say so when it cannot be kept."""
        stage = window.stage(now_ns, self._left(work.likely_bytes), self._rate.expected)
        if stage is Stage.PRESSING and self._stage is Stage.LAST:
            stage = Stage.LAST
        is_last_call = stage is Stage.LAST
        if is_last_call != (self._stage is Stage.LAST):
            self._options.press(is_last_call)
        self._stage = stage
        late_ns = window.late_ns(now_ns, self._left(work.least_bytes), self._rate.most)
        if late_ns > 0:
            self._tell("late", _in_words(late_ns))

    def _left(self, size_bytes: int) -> int:
        return max(1, size_bytes - self.counts.size_bytes)

    def _view(self, now_ns: int, work: Work) -> View:
        options = self._options
        job = Job(
            job=1,
            job_class=options.job_class,
            arrived_ns=self._arrived_ns,
            bytes_left=self._left(work.likely_bytes),
            served_ns=self._served_ns,
            deadline_ns=self._deadline_ns(now_ns),
        )
        device = DeviceView(
            CPU,
            DeviceKind.CPU,
            self._rate.expected,
            is_leased=self._others.is_leased,
            peer_class=self._others.peer_class,
            in_flight=self._active,
            last_unit=self._last,
            served_ns=self._served_ns,
            threads_max=options.threads,
        )
        if not self._is_scavenging:
            return View((job,), (device,))
        return View((job,), (device,), self._others.co_runners(now_ns), self._host(now_ns))

    def _deadline_ns(self, now_ns: int) -> int | None:
        """What the policy hears of the deadline: nothing while it is far, and at last call that it has come."""
        if self._stage is Stage.EARLY:
            return None
        return now_ns if self._stage is Stage.LAST else self._options.deadline_ns

    def _count_pause(self, now_ns: int) -> None:
        is_paused = self._waiting > 0 and self._active == 0
        if self._paused_since_ns >= 0:
            self.counts.paused_ns += now_ns - self._paused_since_ns
        self._paused_since_ns = now_ns if is_paused else -1

    def _tell(self, topic: str, message: str) -> None:
        if topic not in self._told:
            self._told.add(topic)
            self._note(message)

    def _watch(self) -> None:
        """Looks for threads that wait, and beats for the lease while no unit ends; the governor's own thread."""
        while True:
            with self._turn:
                if self._is_over:
                    return
                self._look(self._now())
                is_waited_for, are_told = self._waiting > 0, self._others.are_telling
                if is_waited_for and self._active < self._allowed:
                    self._turn.notify_all()
                self._wanted.clear()
            # Those who wait say so again whenever they are woken: while somebody does, that must not wake this thread.
            if is_waited_for:
                self._ended.wait(_LOOK_PAUSED_TOLD_SECONDS if are_told else _LOOK_PAUSED_SECONDS)
            else:
                self._wanted.wait(_LOOK_IDLE_SECONDS)


class _Rate:
    """What the CPU does for us when it is ours: bytes of units over the time that units take less their waits.

    Parameters
    ----------
    parallel_milli : how many units run at a time, in thousandths.
    """

    # Before any unit ended: small files, cut, hashed and compressed on one core of 2020, take about so long.
    _FIRST_BYTES_PER_S: Final = 100_000_000
    # So much of it counts as seen; what may be promised at the most is as many times that.
    _FIRST_BYTES: Final = 32 << 20
    _FIRST_DOUBT: Final = 8

    def __init__(self, parallel_milli: int) -> None:
        self._parallel_milli = parallel_milli
        self._bytes = self._FIRST_BYTES
        self._ns = self._FIRST_BYTES * SECOND // self._FIRST_BYTES_PER_S
        self._is_seen = False

    def add(self, size_bytes: int, took_ns: int) -> None:
        """A unit ended."""
        self._bytes += size_bytes
        self._ns += max(0, took_ns)
        if self._bytes >= 2 * self._FIRST_BYTES:
            self._is_seen = True

    @property
    def expected(self) -> int:
        """Bytes a second."""
        return max(1, self._bytes * self._parallel_milli * (SECOND // 1000) // self._ns)

    @property
    def most(self) -> int:
        """The same, and while little was seen as much as it may turn out to be."""
        return self.expected if self._is_seen else self.expected * self._FIRST_DOUBT


class _Own(threading.local):
    """What each thread keeps for itself: when its last unit ended, and how long it took."""

    ended_ns = 0
    took_ns = 0


def _alone_ns(took_ns: int, ran_ns: int, waited_ns: int) -> int:
    """How long a unit would have taken with the machine to itself.

    One that others held up also waited for threads that were held up with the interpreter's lock: its own time counts.
    """
    is_held_up = waited_ns * 4 > took_ns and ran_ns > 0
    return ran_ns if is_held_up else took_ns - waited_ns


def _in_words(late_ns: int) -> str:
    minutes, seconds = divmod(late_ns // SECOND, 60)
    by = f"{minutes} min {seconds} s" if minutes else f"{max(1, seconds)} s"
    return f"the deadline will be missed by about {by}, even if nobody else needs the machine from now on"
