"""Another process that wants leases: does as it is told, a line at a time, and says what came of it.

`python -m support.lease_agent FOLDER DEVICE CLASS`; see `main` for the commands. `Agent` runs one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from ohdiff.scheduling.core import MS, SECOND, JobClass
from ohdiff.scheduling.lease import Lease

DEVICE = "gpu-1"


class Agent:
    """A process with a lease of its own."""

    def __init__(self, folder: Path, job_class: JobClass = JobClass.SCAVENGE, device: str = DEVICE) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.lease_agent", str(folder), device, job_class.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        self.pid = self._process.pid
        assert self.hear() == "ready"

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def say(self, command: str) -> None:
        """Give a command."""
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()

    def hear(self) -> str:
        """The next answer."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def ask(self, command: str) -> str:
        """Give a command and hear the answer."""
        self.say(command)
        return self.hear()

    def stop(self) -> None:
        """Stop it, until `go_on`; returns when it has stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitpid(self.pid, os.WUNTRACED)

    def go_on(self) -> None:
        """Let it run again."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kill it; returns when it is dead."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None and not stream.closed:
                stream.close()


def main() -> None:
    """Obey."""
    folder, device, job_class = sys.argv[1:]
    lease = Lease(device, JobClass[job_class], Path(folder), quantum_ns=5 * MS)
    print("ready", flush=True)
    while command := sys.stdin.readline().split():
        match command:
            case ["acquire"]:
                lease.acquire()
                answer = "held"
            case ["release"]:
                lease.release()
                answer = "free"
            case ["hold", *_]:
                # Units of so many milliseconds, until it is killed.
                lease.acquire()
                print("held", flush=True)
                while True:
                    threading.Event().wait(int(command[1]) * MS / SECOND)
                    lease.yield_if_wanted()
            case ["units", count, path]:
                answer = _units(lease, int(count), Path(path))
            case ["fork"]:
                answer = str(_forked_sleeper())
            case _:
                answer = "what?"
        print(answer, flush=True)


def _units(lease: Lease, count: int, path: Path) -> str:
    """Run units that note their begin and end in a file shared by all; two at once would be seen there."""
    turns = 0
    with open(path, "ab", buffering=0) as file:
        lease.acquire()
        for _ in range(count):
            file.write(b"begin %d\n" % os.getpid())
            threading.Event().wait(MS / SECOND)
            file.write(b"end %d\n" % os.getpid())
            turns += lease.yield_if_wanted()
        lease.release()
    return str(turns)


def _forked_sleeper() -> int:
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    return child


if __name__ == "__main__":
    main()
