"""What a command says, and how: text for people, or one JSON object a line for programs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any, Final

from ohdiff.errors import OhdiffError

from .failures import Failure
from .settings import Settings

_LINES_PER_WRITE: Final = 512


class Output:
    """Says things as the shared flags ask; results go to standard output, all else to standard error."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.is_json = settings.is_json
        self.is_quiet = settings.is_quiet
        self.verbosity = settings.verbosity

    def line(self, text: str = "") -> None:
        """One line of result; nothing with --json."""
        if not self.is_json:
            sys.stdout.write(text + "\n")

    def lines(self, texts: Iterable[str]) -> None:
        """Many lines of result, written in batches."""
        batch: list[str] = []
        for text in texts:
            batch.append(text)
            if len(batch) >= _LINES_PER_WRITE:
                sys.stdout.write("\n".join(batch) + "\n")
                batch.clear()
        if batch:
            sys.stdout.write("\n".join(batch) + "\n")

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Aligned columns; nothing with --json."""
        if self.is_json:
            return
        widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
        for row in (header, *rows):
            self.line("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())

    def record(self, message_type: str, **fields: Any) -> None:
        """One JSON object on standard output; nothing without --json."""
        if self.is_json:
            sys.stdout.write(json_line(message_type, **fields))

    def records(self, message_type: str, items: Iterable[dict[str, Any]]) -> None:
        """Many JSON objects of one type, written in batches."""
        self.lines(json_line(message_type, **fields)[:-1] for fields in items)

    def summary(self, text: Iterable[str], **fields: Any) -> None:
        """What came of the command: for people unless --quiet, or as the last JSON object."""
        self.record("summary", **fields)
        if not self.is_json and not self.is_quiet:
            self.lines(text)

    def note(self, message: str) -> None:
        """Something worth knowing, on standard error."""
        if not self.is_quiet and not self.is_json:
            _say(f"ohdiff: {message}")

    def warning(self, message: str) -> None:
        """Something that the user should change; also said with --quiet."""
        _say(json_line("warning", message=message)[:-1] if self.is_json else f"warning: {message}")

    def error(self, error: OhdiffError, during: str) -> None:
        """One thing failed while the rest goes on."""
        if self.is_json:
            _say(json_line("error", message=error.message, during=during, item=error.item), end="")
            return
        _say(f"error: {error.message}" + (f" ({error.hint})" if error.hint else ""))


@contextmanager
def open_output(settings: Settings) -> Iterator[Output]:
    """The output of one command."""
    yield Output(settings)
    sys.stdout.flush()


def json_line(message_type: str, **fields: Any) -> str:
    """One object as a line."""
    import msgspec

    # msgspec refuses surrogates, which paths out of the system may carry.
    try:
        data = msgspec.json.encode({"message_type": message_type, **fields})
    except UnicodeEncodeError:
        data = msgspec.json.encode({"message_type": message_type, **_without_surrogates(fields)})
    return data.decode() + "\n"


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="surrogateescape").decode(errors="replace")
    if isinstance(value, dict):
        return {key: _without_surrogates(item) for key, item in value.items()}
    return [_without_surrogates(item) for item in value] if isinstance(value, list | tuple) else value


def report_failure(failure: Failure, error: BaseException, *, is_json: bool) -> None:
    """Say on standard error why the command ends."""
    # Only a command that fails pays for these modules: help answers in the time that click takes.
    import traceback

    from .environment import is_debugging

    if is_debugging():
        traceback.print_exception(error, file=sys.stderr)
    if is_json:
        message = failure.message if not failure.hint else f"{failure.message} ({failure.hint})"
        _say(json_line("exit_error", code=failure.code, message=message, item=failure.item), end="")
        return
    _say(f"ohdiff: {failure.message}")
    if failure.hint:
        _say(f"  {failure.hint}")


def _say(text: str, end: str = "\n", stream: IO[str] | None = None) -> None:
    # What stands on the same terminal comes out in the order in which it was said.
    sys.stdout.flush()
    target = stream or sys.stderr
    target.write(text + end)
    target.flush()
