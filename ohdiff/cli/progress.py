"""Observers of long operations: a bar on a terminal, JSON status lines, or plain lines when piped."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from ohdiff import clock
from ohdiff.errors import OhdiffError
from ohdiff.operations.estimate import SourceEstimate
from ohdiff.operations.observer import Progress

from .environment import updates_per_second
from .output import Output
from .text import format_duration, format_size, path_fields, shown

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

_JSON_FPS_MAX: Final = 10.0
_WIDTH_FOR_PATHS: Final = 140
_SECOND_NS: Final = 1_000_000_000


class Reporter:
    """Says errors, notes, and with --verbose single items; shows no progress.

    Parameters
    ----------
    during : what the command does, for error records.
    fps : how often `_show` is called a second, 0 for never.
    item_verbosity : from which -v on items are told.
    """

    def __init__(self, output: Output, during: str, fps: float = 0.0) -> None:
        self._output = output
        self._during = during
        self._interval_ns = int(_SECOND_NS / fps) if fps else 0
        self.started_ns = clock.monotonic_ns()
        self._next_ns = self.started_ns + self._interval_ns
        self.wants_items = output.verbosity > 0
        self.last = Progress()
        self.error_count = 0
        self.estimate: SourceEstimate | None = None

    @property
    def is_showing(self) -> bool:
        """Whether anyone sees progress, so that totals are worth counting."""
        return self._interval_ns > 0

    @property
    def elapsed_seconds(self) -> float:
        """How long the operation has been running."""
        return (clock.monotonic_ns() - self.started_ns) / _SECOND_NS

    def progress(self, progress: Progress) -> None:
        """Show it, if it is time."""
        self.last = progress
        if not self._interval_ns:
            return
        now = clock.monotonic_ns()
        if now >= self._next_ns:
            self._next_ns = now + self._interval_ns
            if self.estimate is not None and self.estimate.is_complete:
                progress.total_files, progress.total_bytes = self.estimate.files, self.estimate.size
            self._show(progress)

    def item(self, action: str, path: bytes) -> None:
        """One entry, on standard output."""
        if action == "unchanged" and self._output.verbosity < 2:
            return
        if self._output.is_json:
            self._output.record("verbose_status", action=action, item=shown(path), **path_fields(path))
        else:
            self._output.line(f"{action:9}  {shown(path)}")

    def error(self, error: OhdiffError) -> None:
        """One entry failed."""
        self.error_count += 1
        self._output.error(error, self._during)

    def note(self, message: str) -> None:
        """Something worth saying once."""
        self._output.note(message)

    def _show(self, progress: Progress) -> None:
        """Show progress now."""

    def _remaining_seconds(self, progress: Progress) -> float | None:
        if not 0 < progress.bytes_done < progress.total_bytes:
            return None
        return self.elapsed_seconds * (progress.total_bytes - progress.bytes_done) / progress.bytes_done


class JsonReporter(Reporter):
    """Status lines for programs."""

    def _show(self, progress: Progress) -> None:
        fields: dict[str, Any] = {
            "percent_done": _share(progress),
            "files_done": progress.files_done,
            "total_files": progress.total_files,
            "bytes_done": progress.bytes_done,
            "total_bytes": progress.total_bytes,
            "error_count": progress.errors,
            "seconds_elapsed": round(self.elapsed_seconds, 3),
            "current_files": [path_fields(path)["path"] for path in progress.current],
            "engine": progress.engine,
        }
        remaining = self._remaining_seconds(progress)
        if remaining is not None:
            fields["seconds_remaining"] = round(remaining, 1)
        self._output.record("status", **fields)


class PlainReporter(Reporter):
    """Lines of progress on standard error, for logs; only when OHDIFF_PROGRESS_FPS asks for them."""

    def _show(self, progress: Progress) -> None:
        self._output.note(_words(progress, self.elapsed_seconds))


class BarReporter(Reporter):
    """A bar on the terminal."""

    def __init__(self, output: Output, during: str, fps: float, bar: Bar, task: TaskID) -> None:
        super().__init__(output, during, fps)
        self._bar = bar
        self._task = task

    def _show(self, progress: Progress) -> None:
        current = shown(progress.current[0])[-50:] if progress.current else ""
        self._bar.update(
            self._task,
            completed=progress.bytes_done,
            total=progress.total_bytes or None,
            files=f"{progress.files_done:,}" + (f" of {progress.total_files:,}" if progress.total_files else ""),
            engine=progress.engine,
            current=current,
        )


@contextmanager
def reporting(output: Output, during: str) -> Iterator[Reporter]:
    """The observer that fits the output."""
    fps = updates_per_second()
    if output.is_json:
        yield JsonReporter(output, during, min(fps or _JSON_FPS_MAX, _JSON_FPS_MAX))
    elif output.is_quiet:
        yield Reporter(output, during)
    elif sys.stderr.isatty():
        with _bar(during, fps or 10.0) as (bar, task):
            yield BarReporter(output, during, fps or 10.0, bar, task)
    else:
        yield PlainReporter(output, during, fps or 0.0)


@contextmanager
def _bar(during: str, fps: float) -> Iterator[tuple[Bar, TaskID]]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = Console(stderr=True)
    words = "{task.fields[files]} files  {task.fields[engine]}"
    if console.width >= _WIDTH_FOR_PATHS:
        words += "  {task.fields[current]}"
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None if console.width >= _WIDTH_FOR_PATHS else 8),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        TextColumn(words, markup=False),
    )
    bar = Progress(
        *columns,
        console=console,
        transient=True,
        refresh_per_second=fps,
        redirect_stdout=sys.stdout.isatty(),
    )
    with bar:
        yield bar, bar.add_task(during, total=None, files="0", engine="", current="")


def _share(progress: Progress) -> float:
    if not progress.total_bytes:
        return 0.0
    return round(min(1.0, progress.bytes_done / progress.total_bytes), 4)


def _words(progress: Progress, seconds: float) -> str:
    share = f"{_share(progress):.0%}  " if progress.total_bytes else ""
    rate = format_size(progress.bytes_done / seconds) if seconds else "0 B"
    return (
        f"{share}{progress.files_done:,} files  {format_size(progress.bytes_done)}  {rate}/s  "
        f"{format_duration(seconds)}  {progress.engine}"
    )
