"""The local chunk index at scale: build, merge, reload and look up an id table of 20 million synthetic entries.

Runs of a million rows are written, merged ten at a time, and the last table is looked up in a fresh process, so that
the memory of the build does not count. Times include fsync; files are read through a warm page cache.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import subprocess
import sys
import tempfile
import time
from array import array
from pathlib import Path

from ohdiff._kernels import IdTable, merge_id_tables, write_id_table

KEY_SIZE = 16
VALUE_SIZE = 12
RUN_ROWS = 1_000_000
MERGE_WIDTH = 10
TIB_ROWS = (1 << 40) // (64 << 10)
BATCH_KEYS = 4096  # what a snapshot looks up at once
TAG = bytes(32)


def ids(kind: str, number: int, count: int) -> bytes:
    """`count` reproducible ids; those of different kinds or numbers are distinct."""
    return hashlib.shake_128(f"{kind} {number}".encode()).digest(count * KEY_SIZE)


def row_values(count: int) -> bytes:
    """Values whose first word is the row's number in its run, as a run numbers its own packs."""
    words = array("I", bytes(count * VALUE_SIZE))
    words[::3] = array("I", range(count))
    words[1::3] = array("I", range(count))
    return words.tobytes()


def build_runs(folder: Path, entries: int, run_rows: int) -> tuple[list[tuple[Path, int]], float]:
    """Write the runs; give each one's path and row count, and the seconds spent in the table code."""
    runs, seconds = [], 0.0
    for number, first in enumerate(range(0, entries, run_rows)):
        count = min(run_rows, entries - first)
        keys, values, path = ids("present", number, count), row_values(count), folder / f"run-{number}"
        start = time.perf_counter()
        write_id_table(path, keys, values, KEY_SIZE, VALUE_SIZE, TAG)
        seconds += time.perf_counter() - start
        runs.append((path, count))
    return runs, seconds


def merge_runs(folder: Path, runs: list[tuple[Path, int]]) -> tuple[Path, float]:
    """Merge tables, MERGE_WIDTH at a time, until one is left; a first word becomes the row's number over all runs."""
    start, tier = time.perf_counter(), 0
    while len(runs) > 1:
        tier += 1
        groups = [runs[at : at + MERGE_WIDTH] for at in range(0, len(runs), MERGE_WIDTH)]
        runs = [merge_group(group, folder / f"tier-{tier}-{number}") for number, group in enumerate(groups)]
    return runs[0][0], time.perf_counter() - start


def merge_group(group: list[tuple[Path, int]], output: Path) -> tuple[Path, int]:
    biases = [sum(count for _, count in group[:at]) for at in range(len(group))]
    count = merge_id_tables([path for path, _ in group], output, biases, TAG)
    for path, _ in group:
        path.unlink()
    return output, count


def write_probes(folder: Path, entries: int, run_rows: int, lookups: int) -> None:
    """Shuffled present keys taken evenly from every run, the first words they must lead to, and absent keys."""
    wanted = random.Random(1).sample(range(entries), min(lookups, entries))
    by_run: dict[int, bytes] = {}
    present = bytearray(len(wanted) * KEY_SIZE)
    for place in sorted(range(len(wanted)), key=wanted.__getitem__):
        number, row = divmod(wanted[place], run_rows)
        if number not in by_run:
            by_run = {number: ids("present", number, min(run_rows, entries - number * run_rows))}
        present[place * KEY_SIZE : (place + 1) * KEY_SIZE] = by_run[number][row * KEY_SIZE : (row + 1) * KEY_SIZE]
    (folder / "present").write_bytes(present)
    (folder / "words").write_bytes(array("I", wanted).tobytes())
    (folder / "absent").write_bytes(ids("absent", 0, lookups))


def resident_kib() -> int | None:
    """VmRSS of this process; None where there is no /proc."""
    try:
        status = Path("/proc/self/status").read_text()
    except FileNotFoundError:
        return None
    return int(status.partition("VmRSS:")[2].split()[0])


def look_up(table: IdTable, keys: bytes, batch_keys: int) -> tuple[float, list[tuple[bytes, bytes]]]:
    step, answers = batch_keys * KEY_SIZE, []
    start = time.perf_counter()
    for at in range(0, len(keys), step):
        answers.append(table.find(keys[at : at + step]))
    return time.perf_counter() - start, answers


def rate(keys: bytes, seconds: float) -> float:
    return len(keys) / KEY_SIZE / seconds


def measure_look_ups(path: Path, probes: Path) -> dict[str, float | None]:
    """Everything that is measured on the finished table; run it in a process that has built nothing."""
    present, absent = (probes / "present").read_bytes(), (probes / "absent").read_bytes()
    resident_before = resident_kib()
    start = time.perf_counter()
    table = IdTable(path)
    open_seconds = time.perf_counter() - start
    absent_seconds, absent_answers = look_up(table, absent, BATCH_KEYS)
    false_positives = table.filter_pass_count / (len(absent) / KEY_SIZE)
    if any(any(found) for found, _ in absent_answers):
        raise AssertionError("an absent key was found")
    del absent_answers
    for at in range(0, len(present), BATCH_KEYS * KEY_SIZE):
        table.find(present[at : at + BATCH_KEYS * KEY_SIZE])
    resident_after = resident_kib()
    growth = None if resident_before is None or resident_after is None else (resident_after - resident_before) / 1024
    found_seconds, answers = look_up(table, present, BATCH_KEYS)
    check_present(answers, probes)
    single_seconds, _ = look_up(table, present[: 50_000 * KEY_SIZE], 1)
    whole_seconds, answers = look_up(table, present, len(present))
    check_present(answers, probes)
    return {
        "entries": table.count,
        "file MiB": path.stat().st_size / 2**20,
        "open ms": open_seconds * 1000,
        "found/s": rate(present, found_seconds),
        "found/s, one call": rate(present, whole_seconds),
        "found/s, key by key": rate(present[: 50_000 * KEY_SIZE], single_seconds),
        "absent/s": rate(absent, absent_seconds),
        "false positives %": false_positives * 100,
        "resident MiB of the table": table.resident_bytes / 2**20,
        "VmRSS growth MiB": growth,
        "MiB per TiB at 64 KiB": table.resident_bytes / table.count * TIB_ROWS / 2**20,
    }


def check_present(answers: list[tuple[bytes, bytes]], probes: Path) -> None:
    if not all(all(found) for found, _ in answers):
        raise AssertionError("a present key was not found")
    words = array("I", b"".join(values for _, values in answers))[::3]
    if words.tobytes() != (probes / "words").read_bytes():
        raise AssertionError("a key led to the wrong value")


def measure(folder: Path, entries: int, run_rows: int = RUN_ROWS, lookups: int = 1_000_000) -> dict[str, float | None]:
    """Build, merge and look up a table of `entries` rows under `folder`; raise where an answer is wrong."""
    runs, build_seconds = build_runs(folder, entries, run_rows)
    path, merge_seconds = merge_runs(folder, runs)
    write_probes(folder, entries, run_rows, lookups)
    command = [sys.executable, __file__, "--look-up", str(path), str(folder)]
    child = subprocess.run(command, check=True, capture_output=True, text=True)
    figures: dict[str, float | None] = json.loads(child.stdout)
    return {"build s": build_seconds, "merge s": merge_seconds, **figures}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--entries", type=int, default=20_000_000)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--look-up", nargs=2, type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.look_up:
        json.dump(measure_look_ups(*arguments.look_up), sys.stdout)
        return
    # Not in the system's temporary folder, which is often memory: 1.2 GB are written at 20 million entries.
    with tempfile.TemporaryDirectory(dir=".") as folder:
        figures = measure(Path(folder), arguments.entries)
    for name, figure in figures.items():
        print(f"{name:28} {'n/a' if figure is None else f'{figure:16,.2f}'}")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
