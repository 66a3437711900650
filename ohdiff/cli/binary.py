"""Standard output for bytes, kept off terminals."""

from __future__ import annotations

import sys
from typing import IO

from ohdiff.errors import UsageError


def binary_output() -> IO[bytes]:
    """Standard output as a binary stream."""
    sys.stdout.flush()
    return sys.stdout.buffer


def refuse_terminal(what: str) -> None:
    """Raise UsageError if standard output is a terminal."""
    if sys.stdout.isatty():
        raise UsageError(f"{what} would garble the terminal", hint="redirect it to a file or into a program")


def is_text(data: bytes | memoryview) -> bool:
    """Whether a terminal can show the beginning of some data."""
    head = bytes(data[:8192])
    return b"\0" not in head and b"\x1b" not in head
