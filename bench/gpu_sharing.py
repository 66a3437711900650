"""A job beside us on one CUDA device: how long its requests take, how soon it has the device, and what is left for us.

The job is a process of its own that computes at fixed times, about a third of the time, and either says when (by
device_hint) or not. We cut and hash what lies on the device, as a scavenging snapshot does. Every figure stands beside
the same job alone, in the same run. A step of gpu_session.py.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SECONDS = 6.0
PERIOD_MS = 12.0
BUSY_MS = 4.0
RESIDENT_BYTES = 256 << 20
MATRIX = 2048


@dataclass(frozen=True)
class Beside:
    """A run: each request as (due, begun, ended), each of our units as (submitted, ended), by the monotonic clock."""

    requests: list[tuple[int, int, int]]
    units: list[tuple[int, int]]
    size_bytes: int
    seconds: float

    def latency_ms(self, percent: float) -> float:
        """Of a request, from when it was due."""
        return percentile([(ended - due) / 1e6 for due, _, ended in self.requests], percent)

    def yield_ms(self, percent: float) -> float:
        """From a request's begin until the last unit of ours that was under way then had ended; 0 for none."""
        waits = []
        for _, begun, _ in self.requests:
            under_way = [ended - begun for submitted, ended in self.units if submitted <= begun < ended]
            waits.append(max(under_way, default=0) / 1e6)
        return percentile(waits, percent)

    def units_in_requests(self) -> int:
        """Units that were submitted while a request ran."""
        return sum(begun < submitted < ended for submitted, _ in self.units for _, begun, ended in self.requests)


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that so many percent are not above; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] if ordered else 0.0


def sharing(session: Any) -> str:
    """The step: the job alone, beside us with and without its word, and beside us without any manners."""
    from ohdiff.scheduling.core import JobClass

    alone = beside(None, "telling", SECONDS)
    full = rate_alone()
    session.figure("a job's request alone, p50", alone.latency_ms(50), "ms", f"p99 {alone.latency_ms(99):.3g} ms")
    for name, job_class, kind in (
        ("beside a scavenging run, told", JobClass.SCAVENGE, "telling"),
        ("beside a scavenging run, not told", JobClass.SCAVENGE, "silent"),
        ("beside a run without manners", JobClass.NORMAL, "silent"),
    ):
        run = beside(job_class, kind, SECONDS)
        for percent in (50, 99):
            worse = 100 * (run.latency_ms(percent) / alone.latency_ms(percent) - 1)
            session.figure(f"a job's request {name}, p{percent}", run.latency_ms(percent), "ms", f"{worse:+.1f} %")
        idle = 1 - BUSY_MS / PERIOD_MS
        share = 100 * run.size_bytes / run.seconds / (full * idle)
        session.figure(f"our share of the idle time {name}", share, "%", f"{len(run.units)} units")
        session.figure(f"the device is the job's {name}, p99", run.yield_ms(99), "ms", "after its begin")
    return f"requests of about {BUSY_MS:g} ms every {PERIOD_MS:g} ms, {SECONDS:g} s each"


def rate_alone() -> float:
    """Bytes a second that we cut and hash with the device to ourselves, in units as a scavenging run has them."""
    from ohdiff.scheduling.core import JobClass

    with OurWork(JobClass.SCAVENGE, None) as work:
        work.run(lambda: work.seconds > SECONDS / 3)
    return work.size_bytes / work.seconds


def beside(job_class: Any, kind: str, seconds: float, work: str = "matmul") -> Beside:
    """The job for so long, and our work beside it; of no class for the job alone."""
    with tempfile.TemporaryDirectory(prefix="ohdiff-sharing-") as folder, ExitStack() as stack:
        runtime = Path(folder) / "runtime"
        ours = None if job_class is None else stack.enter_context(OurWork(job_class, runtime))
        command = [sys.executable, __file__, kind, work, str(seconds), str(runtime)]
        job = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        output: list[str] = []
        reader = threading.Thread(target=lambda: output.append(job.communicate()[0]))
        reader.start()
        if ours is not None:
            ours.run(lambda: not reader.is_alive())
        reader.join()
        if job.returncode:
            raise RuntimeError(f"the job ended with {job.returncode}")
        requests = [tuple(each) for each in json.loads(output[0])]
        # Without the time that the job needs to come up.
        first = requests[0][0]
        units = [] if ours is None else [each for each in ours.units if each[1] >= first]
        size = 0 if ours is None else sum(ours.sizes[len(ours.sizes) - len(units) :])
        return Beside(requests, units, size, (requests[-1][2] - first) / 1e9)  # type: ignore[arg-type]


class OurWork:
    """An engine that cuts and hashes the same resident bytes again and again, paced for a class of jobs.

    Attributes
    ----------
    units, sizes : of each unit, when it was submitted and ended, and its bytes.
    """

    def __init__(self, job_class: Any, folder: Path | None) -> None:
        from ohdiff.chunking.cuda.engine import CudaEngine
        from ohdiff.chunking.device_memory import DeviceMemory
        from ohdiff.chunking.rule import ChunkingRule
        from ohdiff.operations.device_pacing import DeviceManners, paced_device

        self.units: list[tuple[int, int]] = []
        self.sizes: list[int] = []
        self._begun = time.monotonic()
        self._engine = CudaEngine(ChunkingRule.from_key(bytes(range(32)), avg_size=32 << 10), bytes(32))
        with self._engine.device.bound():
            pool = self._engine.device.new_pool(2 * RESIDENT_BYTES)
            self._lying = pool.malloc(RESIDENT_BYTES)
        self._memory = DeviceMemory(int(self._lying.ptr), RESIDENT_BYTES, self._engine.device.ordinal, self._lying)
        self._paced: AbstractContextManager[Any] = paced_device(self._engine, DeviceManners(job_class, folder=folder))

    def __enter__(self) -> OurWork:
        self._engine.pace = Noting(self._paced.__enter__(), self)  # type: ignore[assignment]
        return self

    def __exit__(self, *error: Any) -> None:
        self._paced.__exit__(*error)

    @property
    def seconds(self) -> float:
        """Since the begin."""
        return time.monotonic() - self._begun

    @property
    def size_bytes(self) -> int:
        """Of all units."""
        return sum(self.sizes)

    def run(self, is_over: Callable[[], bool]) -> None:
        """Work until then."""
        self._begun = time.monotonic()
        while not is_over():
            self._engine.cut_resident(self._memory)


class Noting:
    """A governor whose units are noted."""

    def __init__(self, governor: Any, work: OurWork) -> None:
        self._governor, self._work = governor, work

    def turn(self, *arguments: Any, **more: Any) -> Any:
        """As the governor's."""
        turn = self._governor.turn(*arguments, **more)
        if turn is not None:
            submit, end, submitted = turn.submit, turn.end, []

            def noted_submit(size_bytes: int) -> None:
                submit(size_bytes)
                submitted.append((time.monotonic_ns(), size_bytes))

            def noted_end(*, is_ok: bool = True) -> None:
                if submitted:
                    self._work.units.append((submitted[0][0], time.monotonic_ns()))
                    self._work.sizes.append(submitted[0][1])
                    submitted.clear()
                end(is_ok=is_ok)

            turn.submit, turn.end = noted_submit, noted_end
        return turn

    def __getattr__(self, name: str) -> Any:
        return getattr(self._governor, name)


def job(kind: str, work: str, seconds: float, folder: str) -> None:
    """The other process: a request every so often; prints when each was due, begun and over."""
    from ohdiff.scheduling.hint.device_hint import DeviceHint

    compute, name = matmul() if work == "matmul" else (lambda: time.sleep(BUSY_MS / 1e3), work)
    hint = DeviceHint(name, folder=folder) if kind == "telling" else None
    period = int(PERIOD_MS * 1e6)
    due, requests = time.monotonic_ns() + period, []
    end = due + int(seconds * 1e9)
    while due < end:
        while time.monotonic_ns() < due:
            time.sleep(0.0001)
        begun = time.monotonic_ns()
        with nullcontext() if hint is None else hint.busy():
            compute()
        requests.append((due, begun, time.monotonic_ns()))
        due += period
    print(json.dumps(requests))


def matmul() -> tuple[Callable[[], None], str]:
    """About `BUSY_MS` of work on the device, and the device's name."""
    from ohdiff.chunking.cuda.device import CudaDevice

    device = CudaDevice()
    cupy = device.cupy
    left, right = (cupy.ones((MATRIX, MATRIX), dtype="float32") for _ in range(2))

    def several(count: int) -> float:
        begun = time.perf_counter()
        for _ in range(count):
            cupy.matmul(left, right)
        device.synchronize()
        return 1e3 * (time.perf_counter() - begun)

    several(20)
    count = max(1, round(20 * BUSY_MS / min(several(20) for _ in range(5))))
    return lambda: several(count) and None, device.description.shared_name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("kind", choices=("telling", "silent"))
    parser.add_argument("work")
    parser.add_argument("seconds", type=float)
    parser.add_argument("folder")
    arguments = parser.parse_args()
    job(arguments.kind, arguments.work, arguments.seconds, arguments.folder)


if __name__ == "__main__":
    main()
