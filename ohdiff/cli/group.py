"""The command group: knows all commands by name, imports the one that is asked for, and turns errors into codes."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import click
from click.shell_completion import CompletionItem

from . import failures
from .output import report_failure


class Place(NamedTuple):
    """Where a command lives, and what it says of itself in the list."""

    module: str
    attribute: str
    short_help: str


COMMANDS: Final = {
    "init": Place("init", "init", "Make a repository."),
    "snapshot": Place("snapshot", "snapshot", "Snapshot files and folders."),
    "backup": Place("snapshot", "snapshot", "The same as snapshot."),
    "snapshots": Place("snapshots", "snapshots", "List snapshots."),
    "ls": Place("ls", "ls", "List what is in a snapshot."),
    "find": Place("find", "find", "Find files in all snapshots."),
    "cat": Place("cat", "cat", "Show a file of a snapshot, or an object of the repository."),
    "dump": Place("dump", "dump", "Write a file, or a folder as tar, to standard output."),
    "diff": Place("diff", "diff_command", "Compare snapshots and folders."),
    "restore": Place("restore", "restore_command", "Restore a snapshot into a folder."),
    "check": Place("check", "check_command", "Check the repository, and name the files that damage touches."),
    "stats": Place("stats", "stats", "Sizes, dedup, resemblance and compression."),
    "explain": Place("explain", "explain_command", "Why two snapshots share little or much."),
    "key": Place("key", "key", "List, add, remove, export and change keys."),
    "devices": Place("devices", "devices", "What this machine can compute with."),
    "calibrate": Place("calibrate", "calibrate", "Measure the accelerator, for --engine auto."),
    "simulate": Place("simulate", "simulate_command", "Simulate how snapshots share a machine with other jobs."),
    "completion": Place("completion", "completion", "Print a shell's completion script."),
}


class LazyGroup(click.Group):
    """Lists commands without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every command, in the order of use."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command."""
        place = COMMANDS.get(cmd_name)
        if place is None:
            return None
        module = importlib.import_module(f"ohdiff.cli.commands.{place.module}")
        command: click.Command = getattr(module, place.attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, place.short_help) for name, place in COMMANDS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names of commands that fit; options when a dash was typed."""
        if incomplete.startswith("-"):
            return click.Command.shell_complete(self, ctx, incomplete)
        return [
            CompletionItem(name, help=place.short_help)
            for name, place in COMMANDS.items()
            if name.startswith(incomplete)
        ]

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> Any:
        """Run; every error becomes a message and an exit code."""
        is_standalone = extra.pop("standalone_mode", True)
        words = list(sys.argv[1:] if args is None else args)
        try:
            code = super().main(words, prog_name, standalone_mode=False, **extra) or 0
        except Exception as error:  # noqa: BLE001 - the end of the line: each becomes a sentence and an exit code
            failure = failures.failure_of(error)
            report_failure(failure, error, is_json="--json" in words)
            code = failure.code
        except KeyboardInterrupt as error:
            failure = failures.failure_of(error)
            report_failure(failure, error, is_json="--json" in words)
            code = failure.code
        if is_standalone:
            sys.exit(code)
        return code
