"""Figures with their spread, and processes that are measured."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

BENCH = Path(__file__).parent.parent


def spread(values: Sequence[float], digits: int = 3) -> dict[str, float]:
    """The middle, the smallest and the largest."""
    return {
        "median": round(statistics.median(values), digits),
        "least": round(min(values), digits),
        "most": round(max(values), digits),
    }


def in_words(found: dict[str, float]) -> str:
    """A spread in a cell: the middle, or the figure of all rounds together, and the extremes."""
    return f"{found.get('median', found.get('whole', 0.0)):.3f} ({found['least']:.3f} to {found['most']:.3f})"


def quantile(values: Sequence[float], part: float) -> float:
    """The value that stands at this part of them."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def start(module: str, *arguments: str, stdin: int | None = None) -> subprocess.Popen[str]:
    """A measured process in a session of its own, as jobs and backups are: sessions share a machine as groups."""
    return subprocess.Popen(
        [sys.executable, "-m", f"real_scheduling.{module}", *arguments],
        stdin=stdin,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=environment(),
    )


def environment() -> dict[str, str]:
    """In which processes see the modules that this one sees."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(BENCH), *sys.path])}


def heard(process: subprocess.Popen[str]) -> str:
    """All that it says."""
    return process.communicate()[0].strip()


def line_of(process: subprocess.Popen[str]) -> str:
    """The next thing that it says."""
    assert process.stdout is not None
    return process.stdout.readline().strip()
