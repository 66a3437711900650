"""Results as data: medians with their range, the markdown table, and the JSON document.

MB is 1e6 bytes throughout.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmark.corpus import TreeSize
from benchmark.machine import machine_line
from benchmark.rounds import PHASES, RESTORE, Failure, Run

MB = 1e6
COLUMNS = ("phase", "tool", "wall s", "min..max", "CPU s", "peak MB", "added MB", "stored MB", "restored equal")


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and range of a figure over the repetitions."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Summary:
    """The repetitions of one tool in one phase on one corpus."""

    corpus: str
    phase: str
    tool: str
    repetitions: int
    wall_seconds: Spread
    cpu_seconds: Spread
    peak_rss_bytes: Spread
    added_bytes: Spread
    stored_bytes: Spread
    differences: dict[str, int]


@dataclass(slots=True)
class Results:
    """Everything a run of the bench has found so far."""

    machine: dict[str, object]
    places: dict[str, str]
    tools: dict[str, str]
    corpora: dict[str, list[TreeSize]]
    repetitions: int
    runs: list[Run] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    is_interrupted: bool = False

    def add(self, outcome: Run | Failure) -> None:
        if isinstance(outcome, Run):
            self.runs.append(outcome)
        else:
            self.failures.append(outcome)

    @property
    def is_clean(self) -> bool:
        """No tool failed, and no restore lost anything but modes or times."""
        return not self.failures and not any(run.differences and run.differences.is_content_lost for run in self.runs)


def spread(values: Iterable[float]) -> Spread:
    figures = sorted(values)
    return Spread(statistics.median(figures), figures[0], figures[-1])


def summarize(results: Results) -> list[Summary]:
    """One summary for each corpus, phase and tool that has run, in that order."""
    summaries = []
    for corpus in results.corpora:
        for phase in PHASES:
            for tool in results.tools:
                runs = [run for run in results.runs if (run.corpus, run.phase, run.tool) == (corpus, phase, tool)]
                if runs:
                    summaries.append(_summary(runs))
    return summaries


def _summary(runs: Sequence[Run]) -> Summary:
    def over(figure: Callable[[Run], float]) -> Spread:
        return spread(map(figure, runs))

    differences: dict[str, int] = {}
    for run in runs:
        for aspect, count in (run.differences.counts if run.differences else {}).items():
            differences[aspect] = max(count, differences.get(aspect, 0))
    return Summary(
        runs[0].corpus,
        runs[0].phase,
        runs[0].tool,
        len(runs),
        wall_seconds=over(lambda run: run.usage.wall_seconds),
        cpu_seconds=over(lambda run: run.usage.cpu_seconds),
        peak_rss_bytes=over(lambda run: run.usage.peak_rss_bytes),
        added_bytes=over(lambda run: run.added_bytes),
        stored_bytes=over(lambda run: run.stored_bytes),
        differences=differences,
    )


def markdown(results: Results) -> str:
    """The report for readers: machine, tools, and a table for each corpus."""
    lines = [f"{machine_line(results.machine)}.", ""]
    lines += [f"- {place}: {words}" for place, words in results.places.items()]
    lines += [f"- {tool}: {version}" for tool, version in results.tools.items()]
    if results.is_interrupted:
        lines += ["", "Interrupted: these are partial results."]
    summaries = summarize(results)
    for corpus, sizes in results.corpora.items():
        lines += ["", f"### {corpus}: {'; '.join(map(_size_words, (1, 2), sizes))}", ""]
        lines += markdown_table(COLUMNS, [_row(summary) for summary in summaries if summary.corpus == corpus])
    lines += _failure_lines(results.failures)
    return "\n".join(lines) + "\n"


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    head = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    return head + [f"| {' | '.join(row)} |" for row in rows]


def _size_words(number: int, size: TreeSize) -> str:
    return f"v{number} {size.files:,} files, {size.content_bytes / MB:,.1f} MB"


def _row(summary: Summary) -> list[str]:
    wall = summary.wall_seconds
    return [
        summary.phase,
        summary.tool,
        f"{wall.median:.2f}",
        f"{wall.low:.2f}..{wall.high:.2f} (n={summary.repetitions})",
        f"{summary.cpu_seconds.median:.2f}",
        f"{summary.peak_rss_bytes.median / MB:.0f}",
        "" if summary.phase == RESTORE else f"{summary.added_bytes.median / MB:.3f}",
        f"{summary.stored_bytes.median / MB:.1f}",
        _equality_words(summary),
    ]


def _equality_words(summary: Summary) -> str:
    if summary.phase != RESTORE:
        return ""
    return ", ".join(f"{count} {aspect}" for aspect, count in summary.differences.items()) or "yes"


def _failure_lines(failures: Sequence[Failure]) -> list[str]:
    lines = []
    for failure in failures:
        lines += ["", f"FAILED: {failure.tool}, {failure.phase} of {failure.corpus}, round {failure.repetition}:"]
        lines += [f"    {line}" for line in failure.message.splitlines()]
    return lines


def document(results: Results) -> dict[str, object]:
    """The report for programs; what asdict gives, and the summaries."""
    return asdict(results) | {"summary": [asdict(summary) for summary in summarize(results)]}


def write_json(path: Path, content: object) -> None:
    write_whole(path, json.dumps(content, indent=2) + "\n")


def write_whole(path: Path, text: str) -> None:
    """Replace a file at once, so that an interruption leaves the last whole state.

    What is there and is no regular file, such as a pipe or /dev/null, is written to and never replaced.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        path.write_text(text)
        return
    part = path.with_name(f"{path.name}.part")
    part.write_text(text)
    os.replace(part, path)  # noqa: PTH105
