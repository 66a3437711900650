"""From any exception to what the user is told and the exit code."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import Final

import click

from ohdiff.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_STORAGE, EXIT_USAGE, OhdiffError

_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@dataclass(frozen=True, slots=True)
class Failure:
    """What ended a command."""

    code: int
    message: str
    hint: str = ""
    item: str = ""
    is_unexpected: bool = False


def failure_of(error: BaseException) -> Failure:
    """What an exception means to the user."""
    if isinstance(error, OhdiffError):
        return Failure(error.exit_code, error.message, error.hint, error.item)
    if isinstance(error, click.Abort | KeyboardInterrupt):
        return Failure(EXIT_INTERRUPTED, "interrupted")
    if isinstance(error, click.ClickException):
        return Failure(EXIT_USAGE if isinstance(error, click.UsageError) else EXIT_FAILED, *_click_words(error))
    if isinstance(error, MemoryError):
        return Failure(EXIT_FAILED, "out of memory", "close other programs, or give a lower --memory")
    if isinstance(error, OSError):
        return _system_failure(error)
    return Failure(
        EXIT_FAILED,
        f"unexpected {type(error).__name__}: {error}",
        "this is a bug in ohdiff: please report it, with what OHDIFF_DEBUG=1 shows",
        is_unexpected=True,
    )


def _click_words(error: click.ClickException) -> tuple[str, str]:
    message = error.format_message()
    context = getattr(error, "ctx", None)
    return message, "" if context is None else f"see: {context.command_path} --help"


def _system_failure(error: OSError) -> Failure:
    name = "" if error.filename is None else os.fsencode(error.filename).decode(errors="backslashreplace")
    reason = error.strerror or str(error)
    message = f"{name}: {reason}" if name else reason
    if error.errno in _SPACE:
        return Failure(EXIT_STORAGE, message, "make room there, then run the same command again", name)
    return Failure(EXIT_STORAGE if error.errno == errno.EIO else EXIT_FAILED, message, "", name)
