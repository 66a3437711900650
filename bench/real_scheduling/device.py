"""The emulated device, those who use it, and how soon we step aside.

The server, the co-runner and our loop are processes with real clocks, of real-time priorities where these are allowed:
what is looked at is how a device is shared, not how this machine's cores are.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

from ohdiff import clock
from ohdiff.scheduling.core import MS, SECOND, Job, JobClass, Unit, UnitDone
from ohdiff.scheduling.emulated import EmulatedDevice, EmulatedServer, WakingClock
from ohdiff.scheduling.hint.device_hint import DeviceHint
from ohdiff.scheduling.policies.compose import Arbiter, PolicySettings, build_policy
from ohdiff.scheduling.real_loop import LeasedDevice, RealLoop
from ohdiff.scheduling.shared_page import SharedPage
from ohdiff.scheduling.signals import CoRunnerSignals
from ohdiff.scheduling.simulator.co_runners import poisson_arrivals

from .figures import line_of, quantile, start
from .stalls import CO_RUNNER, OURS, take_real_time
from .stalls import DEVICE as DEVICE_PRIORITY

DEVICE = "gpu0"
RATE = 1 << 30
PER_SECOND, SERVICE_NS = 60.0, 5 * MS
Times = list[tuple[int, int]]  # when each request came, and when it was answered


class Endless:
    """Work without end, until it is told to stop; keeps when its units were on the device."""

    def __init__(self) -> None:
        self.uses: list[tuple[int, int]] = []
        self.done_ns = self.unit_ns_max = 0
        self.is_over = False
        self._numbers = 0

    def jobs(self) -> tuple[Job, ...]:
        """One job."""
        return () if self.is_over else (Job(1, JobClass.SCAVENGE, 0, 1 << 40),)

    def next_unit(self, job: int, device: str, size_bytes: int, *, is_probe: bool) -> Unit | None:
        """A unit of that size."""
        if self.is_over:
            return None
        self._numbers += 1
        return Unit(self._numbers, job, size_bytes, max(1, size_bytes * SECOND // RATE), is_probe)

    def take(self, device: str, done: UnitDone) -> None:
        """Note it."""
        self.uses.append((done.submitted_ns, done.ended_ns))
        self.done_ns += done.unit.expected_ns
        self.unit_ns_max = max(self.unit_ns_max, done.unit.expected_ns)


@contextmanager
def served() -> Iterator[Path]:
    """A running device, and the folder of its socket."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        process = start("device", "serve", folder)
        try:
            line_of(process)
            yield Path(folder)
        finally:
            process.kill()
            process.wait()


def run_ours(folder: Path, settings: PolicySettings, run_beside: Callable[[], None]) -> Endless:
    """Our loop while something else runs in this thread."""
    page = SharedPage.in_folder(folder / "runtime", DEVICE)
    device = EmulatedDevice(folder / "socket", DEVICE, RATE)
    signals = CoRunnerSignals(DEVICE, [page])
    work = Endless()
    policy, waking = build_policy(settings), WakingClock([device])
    loop = RealLoop(policy, [LeasedDevice(device)], work, waking, co_runners=signals.read, is_woken=True)

    def run() -> None:
        take_real_time(OURS)
        loop.run()

    thread = threading.Thread(target=run)
    thread.start()
    run_beside()
    work.is_over = True
    thread.join()
    device.park()
    page.close()
    return work


def yields(count: int) -> dict[str, Any]:
    """From a co-runner's word to the end of our last unit; it does not use the device."""
    with served() as folder:
        hint = DeviceHint(DEVICE, folder=str(folder / "runtime"))
        busy: list[tuple[int, int]] = []

        def be_busy() -> None:
            threading.Event().wait(0.2)
            for number in range(count):
                with hint.busy():
                    began_ns = clock.monotonic_ns()
                    threading.Event().wait(0.006 + 0.0007 * (number % 5))
                    busy.append((began_ns, clock.monotonic_ns()))
                threading.Event().wait(0.008 + 0.0011 * (number % 7))

        settings = PolicySettings(arbiter=Arbiter.PRIORITY)
        work = run_ours(folder, settings, be_busy)
        hint.close()
    waits = [
        max([ended - began for submitted, ended in work.uses if submitted < until and ended > began], default=0) / MS
        for began, until in busy
    ]
    return {
        "count": count,
        "unit_ms": round(work.unit_ns_max / MS, 2),
        "p50_ms": round(quantile(waits, 0.5), 2),
        "p99_ms": round(quantile(waits, 0.99), 2),
        "max_ms": round(max(waits), 2),
    }


def queue_of_requests(folder: Path, seconds: float, seed: int, *, is_telling: bool) -> Popen[str]:
    """A co-runner that is ready to begin."""
    process = start("device", "queue", str(folder), str(seconds), str(seed), "told" if is_telling else "", stdin=PIPE)
    line_of(process)
    return process


def times_of(process: Popen[str]) -> Times:
    """Let a co-runner begin, and hear of its requests at its end."""
    numbers = [int(word) for word in process.communicate("go\n")[0].split()]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def pause(seconds: float) -> None:
    """Nothing for so long."""
    if seconds > 0:
        threading.Event().wait(seconds)


def main() -> None:
    """Be the device, or its co-runner."""
    folder = Path(sys.argv[2])
    take_real_time(DEVICE_PRIORITY if sys.argv[1] == "serve" else CO_RUNNER)
    if sys.argv[1] == "serve":
        server = EmulatedServer(folder / "socket")
        print("ready", flush=True)
        server.run()
    else:
        seconds, seed = float(sys.argv[3]), int(sys.argv[4])
        hint = DeviceHint(DEVICE, folder=str(folder / "runtime")) if sys.argv[5] else None
        # As the simulator makes its first co-runner's.
        arrivals = poisson_arrivals(PER_SECOND, SERVICE_NS, int(seconds * SECOND), seed * 100, is_service_random=False)
        serve_queue(folder, arrivals, hint)


def serve_queue(folder: Path, arrivals: Iterator[tuple[int, float]], hint: DeviceHint | None) -> None:
    """Serve requests on the device, first come first served; prints when each came and when it was answered."""
    device = EmulatedDevice(folder / "socket", DEVICE, RATE)
    waking = WakingClock([device])
    print("ready", flush=True)
    sys.stdin.readline()
    times: list[int] = []
    began_ns = clock.monotonic_ns()
    with ExitStack() as busy:
        is_busy = False
        for number, (at_ns, service_ns) in enumerate(arrivals, 1):
            due_ns = began_ns + at_ns
            # A server is busy for as long as requests wait.
            if due_ns > clock.monotonic_ns():
                busy.close()
                is_busy = False
                pause((due_ns - clock.monotonic_ns()) / SECOND)
            if hint is not None and not is_busy:
                busy.enter_context(hint.busy())
                is_busy = True
            device.submit(Unit(number, 1, 1, int(service_ns)))
            while not device.poll():
                waking.wait_until(clock.monotonic_ns() + SECOND)
            times += (due_ns, clock.monotonic_ns())
    print(*times, flush=True)


if __name__ == "__main__":
    main()
