"""What the mechanism costs where nobody else is at work: units with a governor and its lease against units without."""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import time
import zlib
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ohdiff.scheduling.core import JobClass
from ohdiff.scheduling.governor import Governor, GovernorOptions
from ohdiff.scheduling.pace import UNPACED, Pace
from ohdiff.scheduling.policies.compose import Arbiter, PolicySettings, build_policy

from .figures import heard, spread, start

# As large as the batches that a snapshot reads, and the blocks that it compresses.
UNIT_BYTES = 8 << 20
THREADS = 2


def solo(seconds: float, rounds: int, runtime: Path) -> list[dict[str, Any]]:
    """Units a second, and processor time for a unit, in turns.

    The second is the cost of the mechanism, whoever else is at work; the first also holds what was left to others.
    """
    rates, costs = [], []
    for _ in range(rounds):
        alone = _measured("none", seconds, runtime)
        governed = _measured("governor", seconds, runtime)
        rates.append(governed[0] / alone[0])
        costs.append(governed[1] / alone[1])
    return [
        {"what": "units per second, governor / none", **spread(rates)},
        {"what": "processor time of a unit, governor / none", **spread(costs)},
    ]


def _measured(mode: str, seconds: float, runtime: Path) -> tuple[float, float]:
    """Units a second, and seconds of processor time for each."""
    rate, cost = heard(start("solo", mode, str(seconds), str(runtime))).split()
    return float(rate), float(cost)


def main() -> None:
    """A snapshot's kind of work for some time: hashes and compresses units in two threads."""
    mode, seconds, runtime = sys.argv[1], float(sys.argv[2]), Path(sys.argv[3])
    with ExitStack() as stack:
        pace: Pace = UNPACED
        if mode == "governor":
            cores = frozenset(os.sched_getaffinity(0))
            policy = build_policy(PolicySettings(arbiter=Arbiter.AUTO))
            pace = stack.enter_context(Governor(policy, GovernorOptions(JobClass.SCAVENGE, cores, THREADS, runtime)))
            # At first it takes others to be there, for 0.3 s of a run that may take hours.
            time.sleep(1.0)
        before = time.process_time()
        units = _work(pace, seconds, stack)
        print(units / seconds, (time.process_time() - before) / max(1, units), flush=True)


def _work(pace: Pace, seconds: float, stack: ExitStack) -> int:
    """Units done; the stack is closed at the end, so that threads that are still held up may go."""
    text = (b"".join(b"%d lines of a log, the same and not the same\n" % (n * n) for n in range(200_000)))[:UNIT_BYTES]
    counts = [0] * THREADS
    until = time.monotonic() + seconds

    def run(place: int) -> None:
        while time.monotonic() < until:
            with pace.unit(UNIT_BYTES):
                hashlib.blake2b(text).digest()
                zlib.compress(text, 1)
            counts[place] += time.monotonic() < until

    threads = [threading.Thread(target=run, args=(place,)) for place in range(THREADS)]
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    stack.close()
    for thread in threads:
        thread.join()
    return sum(counts)


if __name__ == "__main__":
    main()
