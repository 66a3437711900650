"""Leases between processes: how long a better class waits for one, what asking costs, and what a kill costs."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from ohdiff.scheduling.core import MS, SECOND, UNIT_NS, JobClass
from ohdiff.scheduling.lease import Lease

from .figures import heard, line_of, quantile, start

DEVICE = "bench"


def handover(count: int, runtime: Path) -> dict[str, Any]:
    """How long a better class waits for a holder with units of 2 ms, and what asking between two units costs.

    Beside it stands what one thread needs to wake another process, as no handover can be faster than that.
    """
    chance = random.Random(2)
    holder = start("leases", "hold", str(runtime), str(UNIT_NS / SECOND))
    line_of(holder)
    took = []
    lease = Lease(DEVICE, JobClass.INTERACTIVE, runtime)
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
    sleeps = [_slept(0.002) for _ in range(count)]
    return {
        "count": count,
        "p50_ms": round(quantile(took, 0.5), 2),
        "p99_ms": round(quantile(took, 0.99), 2),
        "max_ms": round(max(took), 2),
        "yield_us": round(yield_us, 1),
        "sleep_of_2_ms_p99_ms": round(quantile(sleeps, 0.99), 2),
    }


def recovery(count: int, runtime: Path) -> dict[str, Any]:
    """Kill the holder, every second one while it is stopped: time until the lease is ours, and what went wrong."""
    took = []
    failures = 0
    lease = Lease(DEVICE, JobClass.NORMAL, runtime)
    for number in range(count):
        holder = start("leases", "hold", str(runtime), "10")
        line_of(holder)
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
    return {
        "count": count,
        "p50_ms": round(quantile(took, 0.5), 2),
        "p99_ms": round(quantile(took, 0.99), 2),
        "max_ms": round(max(took), 2),
        "two_holders_or_none": failures,
    }


def main() -> None:
    """Hold a lease in units until killed."""
    with Lease(DEVICE, JobClass.SCAVENGE, Path(sys.argv[2])) as lease:
        print("held", flush=True)
        while True:
            threading.Event().wait(float(sys.argv[3]))
            lease.yield_if_wanted()


def _slept(seconds: float) -> float:
    began = time.perf_counter()
    time.sleep(seconds)
    return (time.perf_counter() - began) * 1e3


if __name__ == "__main__":
    main()
