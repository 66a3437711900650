"""Scheduling on this machine's CPU: what manners cost alone, what a co-runner feels, and how leases change hands.

    python bench/scheduling_real.py [--seconds 3] [--rounds 3] [--out bench/results/NAME]

Every figure of a table comes from one run, in turns of all its rows, so that a machine that is busy with other things
is so for all of them alike; spreads are the smallest and the largest round. Writes NAME.md and NAME.json.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

from ohdiff.scheduling.core import MS, SECOND, JobClass
from ohdiff.scheduling.governor import CPU, Governor, GovernorOptions
from ohdiff.scheduling.hint.device_hint import DeviceHint
from ohdiff.scheduling.lease import Lease
from ohdiff.scheduling.manners import lowered
from ohdiff.scheduling.pace import UNPACED, Pace
from ohdiff.scheduling.policies.compose import Arbiter, PolicySettings, build_policy

UNIT_BYTES = 1 << 20
THREADS = 2
STEP_ROUNDS = 3000
MODES = ("none", "nice 19", "idle class", "governor", "governor + hint")


def main() -> None:
    """Measure everything, or be one of the measured processes."""
    if sys.argv[1:2] == ["backup"]:
        backup(sys.argv[2], float(sys.argv[3]), Path(sys.argv[4]))
        return
    if sys.argv[1:2] == ["job"]:
        job(float(sys.argv[2]), Path(sys.argv[3]) if sys.argv[3] else None)
        return
    if sys.argv[1:2] == ["holder"]:
        hold(Path(sys.argv[2]), float(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        runtime = Path(folder) / "runtime"
        results: dict[str, Any] = {
            "machine": machine(),
            "solo": solo(options.seconds, options.rounds, runtime),
            "beside": beside(options.seconds, options.rounds, runtime),
            "handover": handover(200, runtime),
            "kills": kills(options.kills, runtime),
        }
    text = as_markdown(results)
    print(text)
    if options.out is not None:
        options.out.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n")
        options.out.with_suffix(".md").write_text(text)


def machine() -> dict[str, Any]:
    """What this was measured on."""
    model = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), "")
    return {
        "cpu": model.partition(":")[2].strip() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_before": os.getloadavg()[0],
        "kind": "CPU only, no accelerator",
    }


def backup(mode: str, seconds: float, runtime: Path) -> None:
    """A snapshot's kind of work for some time: reads, hashes and compresses units in two threads; prints how many."""
    with ExitStack() as stack:
        pace: Pace = UNPACED
        if mode == "nice 19":
            os.nice(19)
        if mode in ("idle class", "governor", "governor + hint"):
            stack.enter_context(lowered(JobClass.SCAVENGE))
        if mode.startswith(("governor", "solo governor")):
            cores = frozenset(os.sched_getaffinity(0))
            policy = build_policy(PolicySettings(arbiter=Arbiter.AUTO))
            governor = Governor(policy, GovernorOptions(JobClass.SCAVENGE, cores, THREADS, runtime))
            pace = stack.enter_context(governor)
        before = time.process_time()
        rate = work(pace, seconds, stack)
        print(rate, (time.process_time() - before) / max(1.0, rate * seconds), flush=True)


def work(pace: Pace, seconds: float, stack: ExitStack) -> float:
    """Units a second; the stack is closed at the end, so that threads that are still held up may go."""
    text = (b"".join(b"%d lines of a log, the same and not the same\n" % (n * n) for n in range(40_000)))[:UNIT_BYTES]
    counts = [0] * THREADS
    began = time.monotonic()

    def run(place: int) -> None:
        while time.monotonic() < began + seconds:
            with pace.unit(UNIT_BYTES):
                hashlib.blake2b(text).digest()
                zlib.compress(text, 1)
            counts[place] += time.monotonic() < began + seconds

    threads = [threading.Thread(target=run, args=(place,)) for place in range(THREADS)]
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    stack.close()
    for thread in threads:
        thread.join()
    return sum(counts) / seconds


def job(seconds: float, runtime: Path | None) -> None:
    """A latency-sensitive job: short steps with pauses between; prints the time of each in microseconds."""
    hint = None if runtime is None else DeviceHint(CPU, folder=str(runtime))
    chance = random.Random(1)
    until = time.monotonic() + seconds
    steps = []
    while time.monotonic() < until:
        began = time.perf_counter()
        with nullcontext() if hint is None else hint.busy():
            digest = b""
            for _ in range(STEP_ROUNDS):
                digest = hashlib.sha256(digest).digest()
        steps.append((time.perf_counter() - began) * 1e6)
        time.sleep(chance.uniform(0.002, 0.008))
    print(*(round(step) for step in steps), flush=True)


def start(*arguments: str) -> subprocess.Popen[str]:
    """One of the measured processes."""
    return subprocess.Popen([sys.executable, __file__, *arguments], stdout=subprocess.PIPE, text=True)


def heard(process: subprocess.Popen[str]) -> str:
    """All that it says."""
    return process.communicate()[0].strip()


def solo(seconds: float, rounds: int, runtime: Path) -> list[dict[str, Any]]:
    """Units a second, and processor time for a unit, with a governor and its lease to those without, in turns.

    The second is the cost of the mechanism, whoever else is at work; the first also holds what was left to others.
    """
    rates, costs = [], []
    for _ in range(rounds):
        alone = measured(start("backup", "none", str(seconds), str(runtime)))
        governed = measured(start("backup", "solo governor", str(seconds), str(runtime)))
        rates.append(governed[0] / alone[0])
        costs.append(governed[1] / alone[1])
    return [
        {"what": "units per second, governor / none", **spread(rates)},
        {"what": "processor time of a unit, governor / none", **spread(costs)},
    ]


def measured(process: subprocess.Popen[str]) -> tuple[float, float]:
    """Units a second, and seconds of processor time for each."""
    rate, cost = heard(process).split()
    return float(rate), float(cost)


def beside(seconds: float, rounds: int, runtime: Path) -> list[dict[str, Any]]:
    """The job's step times beside each kind of backup, and what the backup gets, as ratios to each alone."""
    p50: dict[str, list[float]] = {mode: [] for mode in MODES}
    p99: dict[str, list[float]] = {mode: [] for mode in MODES}
    got: dict[str, list[float]] = {mode: [] for mode in MODES}
    for _ in range(rounds):
        alone = quantiles(heard(start("job", str(seconds), "")))
        full = measured(start("backup", "none", str(seconds), str(runtime)))[0]
        for mode in MODES:
            other = start("backup", mode, str(seconds + 1), str(runtime))
            time.sleep(0.7)
            steps = quantiles(heard(start("job", str(seconds - 1), str(runtime) if "hint" in mode else "")))
            got[mode].append(measured(other)[0] / full)
            p50[mode].append(steps[0] / alone[0])
            p99[mode].append(steps[1] / alone[1])
    return [
        {"mode": mode, "p50": spread(p50[mode]), "p99": spread(p99[mode]), "backup": spread(got[mode])}
        for mode in MODES
    ]


def quantiles(line: str) -> tuple[float, float]:
    """The median and the 99th percentile."""
    steps = sorted(float(word) for word in line.split())
    return steps[len(steps) // 2], steps[len(steps) * 99 // 100]


def hold(runtime: Path, unit_seconds: float) -> None:
    """Hold a lease in units until killed."""
    with Lease("bench", JobClass.SCAVENGE, runtime) as lease:
        print("held", flush=True)
        while True:
            time.sleep(unit_seconds)
            lease.yield_if_wanted()


def handover(count: int, runtime: Path) -> dict[str, Any]:
    """How long a better class waits for a holder with units of 2 ms; times of flock and yield alone."""
    chance = random.Random(2)
    holder = start("holder", str(runtime), "0.002")
    assert holder.stdout is not None
    holder.stdout.readline()
    took = []
    lease = Lease("bench", JobClass.INTERACTIVE, runtime)
    for _ in range(count):
        began = time.perf_counter()
        lease.acquire()
        took.append((time.perf_counter() - began) * 1e3)
        lease.release()
        time.sleep(chance.uniform(0.003, 0.008))
    holder.kill()
    heard(holder)
    lease.acquire()
    began = time.perf_counter()
    for _ in range(2000):
        lease.yield_if_wanted()
    yield_us = (time.perf_counter() - began) / 2000 * 1e6
    lease.close()
    took.sort()
    return {
        "count": count,
        "p50_ms": round(took[count // 2], 2),
        "p99_ms": round(took[count * 99 // 100], 2),
        "max_ms": round(took[-1], 2),
        "yield_us": round(yield_us, 1),
    }


def kills(count: int, runtime: Path) -> dict[str, Any]:
    """Kill the holder, every second one while it is stopped: time until the lease is ours, and what went wrong."""
    took = []
    failures = 0
    lease = Lease("bench", JobClass.NORMAL, runtime)
    for number in range(count):
        holder = start("holder", str(runtime), "10")
        assert holder.stdout is not None
        holder.stdout.readline()
        failures += lease.acquire(0)
        if number % 2:
            os.kill(holder.pid, signal.SIGSTOP)
            failures += lease.acquire(20 * MS)
        began = time.perf_counter()
        holder.kill()
        failures += not lease.acquire(10 * SECOND)
        took.append((time.perf_counter() - began) * 1e3)
        lease.release()
        heard(holder)
    lease.close()
    took.sort()
    return {
        "count": count,
        "p50_ms": round(took[count // 2], 2),
        "max_ms": round(took[-1], 2),
        "two_holders_or_none": failures,
    }


def spread(values: list[float]) -> dict[str, float]:
    """The middle, the smallest and the largest."""
    return {
        "median": round(statistics.median(values), 3),
        "least": round(min(values), 3),
        "most": round(max(values), 3),
    }


def as_markdown(results: dict[str, Any]) -> str:
    """The tables."""
    about, handed, killed = results["machine"], results["handover"], results["kills"]
    lines = [
        "# Scheduling on a CPU, real processes",
        "",
        f"{about['cpu']}, {about['cores']} cores, no accelerator, Linux {about['kernel']}, Python {about['python']}; "
        f"load {about['load_before']:.1f} before the run. Made by `bench/scheduling_real.py`. Figures are ratios "
        "within one run: median (least to most of the rounds).",
        "",
        "| alone | |",
        "|---|---|",
        *(f"| {row['what']} | {in_words(row)} |" for row in results["solo"]),
        "",
        "A job with steps of some milliseconds and pauses, beside two threads that hash and compress:",
        "",
        "| backup | step p50 / alone | step p99 / alone | backup's rate / alone |",
        "|---|---|---|---|",
        *(
            f"| {row['mode']} | {in_words(row['p50'])} | {in_words(row['p99'])} | {in_words(row['backup'])} |"
            for row in results["beside"]
        ),
        "",
        "| lease | |",
        "|---|---|",
        f"| handover to a better class, units of 2 ms, {handed['count']} times | p50 {handed['p50_ms']} ms, "
        f"p99 {handed['p99_ms']} ms, most {handed['max_ms']} ms |",
        f"| asking between two units | {handed['yield_us']} µs |",
        f"| holder killed, every second one while stopped, {killed['count']} times | p50 {killed['p50_ms']} ms, "
        f"most {killed['max_ms']} ms until it was ours; two holders or none: {killed['two_holders_or_none']} |",
        "",
    ]
    return "\n".join(lines)


def in_words(found: dict[str, float]) -> str:
    """A spread in a cell."""
    return f"{found['median']:.3f} ({found['least']:.3f} to {found['most']:.3f})"


if __name__ == "__main__":
    main()
