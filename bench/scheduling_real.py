"""Scheduling on this machine's CPU and an emulated device, real processes: cost, impact, yields, leases, faults.

    python bench/scheduling_real.py [--quick] [--only PART ...] [--out bench/results/NAME]

Every figure of a table comes from one run, in turns of all its rows, so that a machine that is busy with other things
is so for all of them alike; spreads are the smallest and the largest round. Takes nine minutes on two cores, and should
have them to itself. Writes NAME.md and NAME.json, NAME being DATE-scheduling-real-cpu where it is not given.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parent.parent / "tests"))

from benchmark.machine import describe_machine, machine_line
from real_scheduling.device import yields
from real_scheduling.figures import in_words
from real_scheduling.http_loop import beside
from real_scheduling.judge import against_simulator
from real_scheduling.leases import handover, recovery
from real_scheduling.solo import solo
from support.faults import inject

RESULTS = Path(__file__).parent / "results"
PARTS = ("faults", "handover", "recovery", "yields", "solo", "simulator", "http")


def main() -> None:
    """Measure everything, or some parts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of it, to see whether it runs")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    date = time.strftime("%Y-%m-%d")
    out = options.out or RESULTS / f"{date}-scheduling-real-cpu"
    results = run(options.only, is_quick=options.quick)
    text = as_markdown(results)
    print(text)
    out.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n")
    out.with_suffix(".md").write_text(text)


def run(parts: list[str], *, is_quick: bool) -> dict[str, Any]:
    """All results; the parts with forks first, while this process has no threads."""
    results: dict[str, Any] = {"machine": describe_machine(), "load before": os.getloadavg()[0]}
    with ExitStack() as stack:
        memory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm")))
        disk = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (disk / "memory").symlink_to(memory)
        os.environ["OHDIFF_RUNTIME_DIR"] = str(memory / "runtime")
        os.environ["XDG_CACHE_HOME"] = str(memory / "cache")
        (memory / "faults").mkdir()
        part = 10 if is_quick else 1
        measures: dict[str, Callable[[], Any]] = {
            "faults": lambda: asdict(inject(memory / "faults", 1000 // part)),
            "handover": lambda: handover(1000 // part, memory / "runtime"),
            "recovery": lambda: recovery(60 // part, memory / "runtime"),
            "yields": lambda: yields(600 // part),
            "solo": lambda: solo(2.5, 1 if is_quick else 4, memory / "runtime"),
            "simulator": lambda: against_simulator(3.0 if is_quick else 13.0, 1 if is_quick else 4),
            "http": lambda: beside(2.0 if is_quick else 6.0, 1 if is_quick else 3, disk),
        }
        for name in parts:
            began = time.monotonic()
            results[name] = measures[name]()
            print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr)
    return results


def as_markdown(results: dict[str, Any]) -> str:
    """The tables."""
    lines = [
        "# Scheduling on a CPU, real processes",
        "",
        f"{machine_line(results['machine'])}; no accelerator; load {results['load before']:.1f} before the run.",
        "Made by `python bench/scheduling_real.py`. Median (least to most of the rounds) where there is a spread.",
        "",
    ]
    tables: dict[str, Callable[[Any], list[str]]] = {
        "http": _http,
        "handover": _handover,
        "recovery": _recovery,
        "yields": _yields,
        "faults": _faults,
        "solo": _solo,
        "simulator": _simulator,
    }
    for name, table in tables.items():
        if name in results:
            lines += [*table(results[name]), ""]
    return "\n".join(lines)


def _http(rows: list[dict[str, Any]]) -> list[str]:
    return [
        "An HTTP server with requests at chance times, beside first snapshots of 900 MB: latency over that alone.",
        "Server and snapshot are of different sessions. A cold tree's files are not in the page cache before.",
        "p50 and p99 are of the requests of all rounds together; in brackets stand the least and most of one round.",
        "",
        "| tree | snapshot | p50 | p99 | snapshot read, MB/s | of the tree in the page cache after |",
        "|---|---|---|---|---|---|",
        *(
            f"| {row['tree']} | {row['mode']} | {in_words(row['p50'])} | {in_words(row['p99'])} "
            f"| {in_words(row['MB/s'])} | {in_words(row['left'])} |"
            for row in rows
        ),
    ]


def _handover(found: dict[str, Any]) -> list[str]:
    return [
        f"Lease, handed over to a better class by a holder with units of 2 ms, {found['count']} times: "
        f"p50 {found['p50_ms']} ms, p99 {found['p99_ms']} ms, most {found['max_ms']} ms. "
        f"A sleep of 2 ms took {found['sleep_of_2_ms_p99_ms']} ms at p99. "
        f"Asking between two units: {found['yield_us']} µs.",
    ]


def _recovery(found: dict[str, Any]) -> list[str]:
    return [
        f"Holder killed, every second one while stopped, {found['count']} times: p50 {found['p50_ms']} ms, "
        f"p99 {found['p99_ms']} ms, most {found['max_ms']} ms until the lease was ours; "
        f"two holders or none: {found['two_holders_or_none']}.",
    ]


def _yields(found: dict[str, Any]) -> list[str]:
    return [
        f"From a co-runner's word to the end of our last unit, emulated device, units of {found['unit_ms']} ms, "
        f"{found['count']} times: p50 {found['p50_ms']} ms, p99 {found['p99_ms']} ms, most {found['max_ms']} ms.",
    ]


def _faults(found: dict[str, Any]) -> list[str]:
    injected = found["kills"] + found["stops"] + found["device_errors"] + found["device_deaths"]
    return [
        f"{injected} faults on three workers that share an emulated device by leases ({found['kills']} kills, "
        f"{found['stops']} stops, {found['device_errors']} failed units, {found['device_deaths']} deaths of the "
        f"device): of {found['pieces']} pieces {found['wrong']} wrong, {found['missing']} missing, "
        f"{found['twice']} done twice; two on the device at once: {found['overlaps']}; stuck: {found['stuck']}.",
    ]


def _solo(rows: list[dict[str, Any]]) -> list[str]:
    return ["| alone | |", "|---|---|", *(f"| {row['what']} | {in_words(row)} |" for row in rows)]


def _simulator(found: dict[str, Any]) -> list[str]:
    calibration, tau, stalls = found["calibration"], found["tau"], found["stalls"]
    figures = {"share": "our share", "p50_ms": "p50 ms", "p99_ms": "p99 ms", "p99_unstalled_ms": "p99 ms, unstalled"}
    columns = [f"{kind} {figure}" for figure in figures for kind in ("real", "simulated", "error")]
    return [
        "The emulated device against the simulator, the same requests at the same times. Calibrated by five "
        f"micro-benchmarks: a request takes {calibration['request_us']} µs besides its service, and "
        f"{calibration['wake_us']} µs more where the server slept; from the end of one of our units to the start of "
        f"the one that takes its place pass {calibration['launch_us']} µs, {calibration['launch_short_us']} µs where "
        f"units are short, and {calibration['launch_told_us']} µs beside a co-runner that tells of itself. Turns are "
        "as long as the device was told to make them. Errors are simulated / real - 1.",
        "",
        f"The machine stood {stalls['count']} times in {stalls['watched_s']:.0f} s for longer than 2 ms, "
        f"{stalls['sum_ms']:.0f} ms in all and {stalls['most_ms']} ms at most, as real-time witnesses on its cores "
        "saw. Unstalled are the requests of which none, nor any that they queued behind, met such a time; the same "
        "numbers are taken on both sides. Figures are of all rounds together, in brackets the least and most of one.",
        "",
        "| policy | requests | unstalled | "
        + " | ".join(f"{words} | simulated | error" for words in figures.values())
        + " |",
        "|---|" + "---|" * (2 + len(columns)),
        *(
            f"| {name} | {row['requests']} | {row['unstalled']} | "
            + " | ".join(in_words(row[column]) for column in columns)
            + " |"
            for name, row in found["policies"].items()
        ),
        "",
        "Order of policies, those left out whose real rounds overlap, Kendall's tau: "
        + ", ".join(f"{words} {tau[figure]}" for figure, words in figures.items())
        + f". ({found['date']})",
    ]


if __name__ == "__main__":
    main()
