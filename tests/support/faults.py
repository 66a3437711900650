"""Kills, stops and device errors by the hundred, on processes that share an emulated device; and what came out of it.

Workers with leases do numbered pieces of work on the device and write down each result. They are killed and stopped at
any time, the device fails units and dies itself; whoever was killed is started again and goes on from what it wrote.
In the end every piece must have been done once and rightly, and no two workers may have used the device at one time.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from ohdiff import clock
from ohdiff.scheduling.core import MS, SECOND, Job, JobClass, Unit, UnitDone
from ohdiff.scheduling.emulated import EmulatedDevice, EmulatedServer, RealClock
from ohdiff.scheduling.lease import Lease
from ohdiff.scheduling.policies.compose import Arbiter, PolicySettings, build_policy
from ohdiff.scheduling.real_loop import LeasedDevice, RealLoop

DEVICE = "gpu-1"
CLASSES = (JobClass.SCAVENGE, JobClass.SCAVENGE, JobClass.NORMAL)
_RATE = 1 << 30
_BAD_NS = 2 * MS
_FAILING_EVERY = 23


@dataclass
class Verdict:
    """What was done to the workers, and what became of their work.

    Attributes
    ----------
    wrong, missing, twice : pieces with a wrong result, without one, and with two.
    overlaps : times at which two workers used the device at once.
    stuck : workers that did not end when they were told to.
    """

    kills: int = 0
    stops: int = 0
    device_errors: int = 0
    device_deaths: int = 0
    pieces: int = 0
    wrong: int = 0
    missing: int = 0
    twice: int = 0
    overlaps: int = 0
    stuck: int = 0

    @property
    def injected(self) -> int:
        """All that was done to them."""
        return self.kills + self.stops + self.device_errors + self.device_deaths

    @property
    def is_good(self) -> bool:
        """Whether nothing went wrong."""
        return not (self.wrong or self.missing or self.twice or self.overlaps or self.stuck)


def inject(folder: Path, count: int, seed: int = 1) -> Verdict:
    """Run workers in a folder, and do at least so much to them; forks, so no thread of the caller may matter to it."""
    chance = random.Random(seed)
    verdict = Verdict()
    crew = _Crew(folder, verdict)
    crew.start()
    try:
        while verdict.injected < count:
            threading.Event().wait(chance.uniform(0.002, 0.02))
            roll = chance.random()
            worker = chance.choice(crew.workers)
            if roll < 0.45:
                crew.kill(worker)
            elif roll < 0.97:
                crew.stop(worker, chance.uniform(0.001, 0.02))
            else:
                crew.kill_device()
            crew.count_errors()
    finally:
        crew.end()
    crew.count_errors()
    _judge(folder, crew.dead_at_ns, verdict)
    return verdict


@dataclass
class _Worker:
    """A worker by its number, in the life that it has now."""

    number: int
    pid: int = 0


@dataclass
class _Crew:
    """The processes: forked, since a thousand new interpreters would take minutes."""

    folder: Path
    verdict: Verdict
    workers: list[_Worker] = field(default_factory=list)
    dead_at_ns: dict[int, int] = field(default_factory=dict)
    device_pid: int = 0

    def start(self) -> None:
        self._start_device()
        self.workers = [_Worker(number) for number in range(len(CLASSES))]
        for worker in self.workers:
            self._start_worker(worker)

    def kill(self, worker: _Worker) -> None:
        """Kill a worker, and start it again."""
        self._end(worker.pid)
        self.verdict.kills += 1
        self._start_worker(worker)

    def stop(self, worker: _Worker, seconds: float) -> None:
        """Stop a worker for a while."""
        os.kill(worker.pid, signal.SIGSTOP)
        threading.Event().wait(seconds)
        os.kill(worker.pid, signal.SIGCONT)
        self.verdict.stops += 1

    def kill_device(self) -> None:
        """The device is lost with everything on it, and comes back."""
        self._end(self.device_pid)
        self.verdict.device_deaths += 1
        self._start_device()

    def count_errors(self) -> None:
        """Units that the device failed, by what the workers saw."""
        with suppress(FileNotFoundError):
            self.verdict.device_errors = (self.folder / "errors").stat().st_size

    def end(self) -> None:
        """Let the workers finish what they have begun."""
        (self.folder / "stop").touch()
        until_ns = clock.monotonic_ns() + 30 * SECOND
        for worker in self.workers:
            while not _has_ended(worker.pid):
                if clock.monotonic_ns() > until_ns:
                    self.verdict.stuck += 1
                    self._end(worker.pid)
                    break
                threading.Event().wait(0.005)
        self._end(self.device_pid)

    def _start_worker(self, worker: _Worker) -> None:
        worker.pid = _forked(lambda: _work(self.folder, worker.number))

    def _start_device(self) -> None:
        path = self.folder / "socket"
        path.unlink(missing_ok=True)
        self.device_pid = _forked(EmulatedServer(path, failing_every=_FAILING_EVERY).run)

    def _end(self, pid: int) -> None:
        # The time before the kill: what the process did after is not held against others.
        self.dead_at_ns[pid] = clock.monotonic_ns()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _forked(run: Callable[[], object]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            run()
        finally:
            os._exit(0)
    return pid


def _has_ended(pid: int) -> bool:
    return os.waitpid(pid, os.WNOHANG)[0] == pid


def _work(folder: Path, number: int) -> None:
    """A worker's life."""
    device = EmulatedDevice(folder / "socket", DEVICE, _RATE)
    lease = Lease(DEVICE, CLASSES[number], folder / "runtime", quantum_ns=5 * MS)
    policy = build_policy(PolicySettings(arbiter=Arbiter.PRIORITY, unit_ns=MS))
    loop = RealLoop(policy, [LeasedDevice(device, lease)], _Pieces(folder, number), RealClock(), bad_ns_min=_BAD_NS)
    loop.run()
    lease.close()


class _Pieces:
    """Work without end, one piece a unit, until the folder says stop; each result goes to the worker's own file."""

    def __init__(self, folder: Path, number: int) -> None:
        self._number = number
        self._stop = folder / "stop"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._results = os.open(folder / f"results.{number}", flags, 0o600)
        self._uses = os.open(folder / "uses", flags, 0o600)
        self._errors = os.open(folder / "errors", flags, 0o600)
        self._next = len((folder / f"results.{number}").read_bytes().splitlines())
        self._units = 0
        self._todo: int | None = None

    def jobs(self) -> tuple[Job, ...]:
        """One job, while there is something to do."""
        if self._todo is None and self._stop.exists():
            return ()
        return (Job(1, CLASSES[self._number], 0, 1 << 30),)

    def next_unit(self, job: int, device: str, size_bytes: int, *, is_probe: bool) -> Unit | None:
        """The next piece."""
        if self._todo is not None or self._stop.exists():
            return None
        self._todo = self._next
        self._units += 1
        self._say(b"+")
        return Unit(self._units, job, size_bytes, MS)

    def take(self, device: str, done: UnitDone) -> None:
        """Write its result down, or do it again."""
        self._say(b"-")
        piece, self._todo = self._todo, None
        if not done.is_ok:
            os.write(self._errors, b"x")
        elif piece is not None:
            os.write(self._results, b"%d %s\n" % (piece, _result(self._number, piece)))
            self._next = piece + 1

    def _say(self, what: bytes) -> None:
        os.write(self._uses, b"%s %d %d\n" % (what, os.getpid(), clock.monotonic_ns()))


def _result(number: int, piece: int) -> bytes:
    return hashlib.sha256(b"%d %d" % (number, piece)).hexdigest().encode()


def _judge(folder: Path, dead_at_ns: dict[int, int], verdict: Verdict) -> None:
    for number in range(len(CLASSES)):
        found = [line.split() for line in (folder / f"results.{number}").read_bytes().splitlines()]
        pieces = [int(piece) for piece, _ in found]
        verdict.pieces += len(pieces)
        verdict.wrong += sum(result != _result(number, int(piece)) for piece, result in found)
        verdict.twice += len(pieces) - len(set(pieces))
        verdict.missing += max(pieces, default=-1) + 1 - len(set(pieces))
    uses = _uses((folder / "uses").read_bytes().splitlines(), dead_at_ns)
    verdict.overlaps = sum(later[0] < earlier[1] for earlier, later in pairwise(uses))


def _uses(lines: list[bytes], dead_at_ns: dict[int, int]) -> list[tuple[int, int]]:
    """When the device was used, from and to, in order."""
    uses: list[tuple[int, int]] = []
    begun: dict[int, int] = {}
    for what, pid_word, at_word in (line.split() for line in lines):
        pid, at_ns = int(pid_word), int(at_word)
        if what == b"+":
            begun[pid] = at_ns
        elif pid in begun:
            uses.append((begun.pop(pid), at_ns))
    uses += [(at_ns, dead_at_ns[pid]) for pid, at_ns in begun.items() if pid in dead_at_ns]
    return sorted(uses)
