"""How fast is each component by itself, in GB/s on one thread: scan, hash, compress, encrypt, and the index look-up.

The cases take turns (A B C, A B C, ...), so that a noisy moment does not fall on one of them alone.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmark.component_cases import (
    Case,
    Sample,
    cipher_cases,
    engine_cases,
    floor_cases,
    random_sample,
    read_sample,
    zstd_cases,
)
from benchmark.errors import SetupError
from benchmark.machine import describe_machine, library_versions, machine_line
from benchmark.report import Spread, markdown_table, spread, write_json, write_whole
from index_scale import measure as measure_index

COLUMNS = ("component", "variant", "data", "GB/s", "min..max", "GB per CPU s", "note")
INDEX_LOOKUPS_MAX = 200_000


@dataclass(frozen=True, slots=True)
class Result:
    """The speed of a case over all repeats."""

    component: str
    variant: str
    sample: str
    size_bytes: int
    gigabytes_per_second: Spread
    gigabytes_per_cpu_second: Spread
    note: str


def argument_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--data",
        action="append",
        type=Path,
        default=[],
        metavar="PATH",
        help="also work on this file, or on the files of this folder; may be given more than once",
    )
    parser.add_argument("--size", type=int, default=64, metavar="MIB", help="MiB of each kind of data; default: 64")
    parser.add_argument("--repeats", type=int, default=7, metavar="COUNT", help="passes of each case; default: 7")
    parser.add_argument(
        "--index-entries", type=int, default=1_000_000, metavar="COUNT", help="rows of the index table; 0: leave it out"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured")
    parser.add_argument("--table", type=Path, metavar="FILE", help="write the markdown table, else it is printed")
    return parser


def gather_samples(paths: Sequence[Path], size: int) -> list[Sample]:
    """The random sample and one of each path; SetupError where there is nothing to read."""
    samples = [random_sample(size)]
    for path in paths:
        if not path.exists():
            raise SetupError(f"{path}: no such file or folder")
        samples.append(read_sample(path, size))
        if not samples[-1].data:
            raise SetupError(f"{path}: no bytes to work on")
    return samples


def gather_cases(samples: Sequence[Sample], folder: Path) -> list[Case]:
    """Every case; those that do not care what the bytes are run on the random sample only."""
    cases = [*floor_cases(samples[0], folder), *cipher_cases(samples[0])]
    for sample in samples:
        cases += [*engine_cases(sample), *zstd_cases(sample)]
    return cases


def measure(cases: Sequence[Case], repeats: int) -> list[Result]:
    """Run every case `repeats` times, in turn, after one pass that is not counted."""
    passes: list[list[tuple[float, float]]] = [[] for _ in cases]
    for case in cases:
        case.run()
    for _ in range(repeats):
        for case, seconds in zip(cases, passes, strict=True):
            seconds.append(time_pass(case))
    return [_result(case, seconds) for case, seconds in zip(cases, passes, strict=True)]


def time_pass(case: Case) -> tuple[float, float]:
    """Wall and CPU seconds of one pass; the latter are this thread's, so other programs disturb them less."""
    wall, cpu = time.perf_counter(), time.thread_time()
    case.run()
    return time.perf_counter() - wall, time.thread_time() - cpu


def _result(case: Case, seconds: Sequence[tuple[float, float]]) -> Result:
    wall, cpu = (spread(case.size_bytes / 1e9 / figure for figure in column) for column in zip(*seconds, strict=True))
    return Result(case.component, case.variant, case.sample, case.size_bytes, wall, cpu, case.note)


def index_figures(folder: Path, entries: int) -> dict[str, float | None]:
    """What index_scale measures on a small table."""
    if not entries:
        return {}
    return measure_index(folder, entries, lookups=min(entries, INDEX_LOOKUPS_MAX))


def markdown(machine: dict[str, object], results: Sequence[Result], index: dict[str, float | None]) -> str:
    rows = [_row(result) for result in results]
    lines = [f"{machine_line(machine)}. One thread.", "", *markdown_table(COLUMNS, rows)]
    if index:
        figures = [[name, _figure_words(figure)] for name, figure in index.items() if figure is not None]
        lines += ["", *markdown_table(("index look-up", "figure"), figures)]
    return "\n".join(lines) + "\n"


def _row(result: Result) -> list[str]:
    speed = result.gigabytes_per_second
    cpu = result.gigabytes_per_cpu_second
    numbers = (f"{speed.median:.3f}", f"{speed.low:.3f}..{speed.high:.3f}", f"{cpu.median:.3f}")
    return [result.component, result.variant, result.sample, *numbers, result.note]


def _figure_words(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= 1000 else f"{figure:.3g}"


def run(arguments: argparse.Namespace) -> None:
    if min(arguments.repeats, arguments.size) < 1 or arguments.index_entries < 0:
        raise SetupError("--repeats and --size must be at least 1, --index-entries at least 0")
    samples = gather_samples(arguments.data, arguments.size << 20)
    machine = describe_machine() | {"libraries": library_versions()}
    with tempfile.TemporaryDirectory() as name:
        results = measure(gather_cases(samples, Path(name)), arguments.repeats)
        index = index_figures(Path(name), arguments.index_entries)
    table = markdown(machine, results, index)
    if arguments.json:
        write_json(arguments.json, {"machine": machine, "results": list(map(asdict, results)), "index": index})
    if arguments.table:
        write_whole(arguments.table, table)
    else:
        sys.stdout.write(table)


def main() -> int:
    parser = argument_parser()
    try:
        run(parser.parse_args())
    except SetupError as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
