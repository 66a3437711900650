"""The entry point: prepares the process, then runs the command group."""

from __future__ import annotations

import os
import resource
import signal
import sys
from functools import partial
from types import FrameType
from typing import NoReturn

import click

from ohdiff import __version__
from ohdiff.errors import EXIT_FAILED, EXIT_INTERRUPTED

from .group import LazyGroup
from .shared import shared_options


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="ohdiff", message="%(prog)s %(version)s")
@partial(shared_options, dry_run=True)
def cli() -> None:
    """Differential backup: snapshot, compare and restore folders.

    Without --repo and OHDIFF_REPOSITORY a repository in your data folder is used; the first snapshot makes it.
    """


def main() -> NoReturn:
    """Run the command line and exit."""
    _raise_descriptor_limit()
    _install_signal_handlers()
    _accept_all_names()
    try:
        code = cli.main(prog_name="ohdiff", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read the output has seen enough. The interpreter flushes at its end, and must not fail there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = EXIT_FAILED
    sys.exit(code)


def _raise_descriptor_limit() -> None:
    """A walk holds a descriptor a level, and many files at a time."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            return


def _install_signal_handlers() -> None:
    """The first interrupt ends the command in order, the second at once; neither can harm the repository."""
    signal.signal(signal.SIGINT, _interrupt)
    signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(number: int, _: FrameType | None) -> None:
    signal.signal(signal.SIGINT, _exit_now)
    signal.signal(signal.SIGTERM, _exit_now)
    os.write(2, b"\nohdiff: stopping in order; once more to stop at once\n")
    raise KeyboardInterrupt


def _exit_now(number: int, _: FrameType | None) -> None:
    os._exit(EXIT_INTERRUPTED)


def _accept_all_names() -> None:
    """A locale without UTF-8 must not make a file name an error."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
