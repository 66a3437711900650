"""ohdiff restore: bring a snapshot, or a part of it, into a folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import click

from ohdiff.errors import EXIT_FAILED, UsageError
from ohdiff.operations.excludes import compile_patterns
from ohdiff.operations.observer import Silent
from ohdiff.operations.restore import RestoreOptions, RestoreResult, restore
from ohdiff.operations.restore.options import OverwritePolicy, PathMatcher
from ohdiff.repository.snapshots import StoredSnapshot
from ohdiff.scheduling.core import JobClass

from ..access import Access, opened
from ..allocator import reuse_large_blocks
from ..environment import processor_count
from ..manners import announced
from ..progress import reporting
from ..selection import select, snapshot_filter
from ..shared import Output, filter_options, shared
from ..text import counted, format_duration, format_size, shown

_WORKERS_MAX: Final = 8
_PLAN_PATHS_MAX: Final = 20


@click.command("restore")
@click.argument("snapshot", metavar="SNAPSHOT[:PATH]")
@click.option("-t", "--target", type=click.Path(), metavar="FOLDER", help="Where to; made if it is not there.")
@click.option(
    "--overwrite",
    type=click.Choice(["always", "if-changed", "if-newer", "never"]),
    default="always",
    show_default=True,
    help="What becomes of files that are there.",
)
@click.option("--delete", "is_deleting", is_flag=True, help="Remove what the snapshot does not have.")
@click.option("--verify", is_flag=True, help="Read back what was written.")
@click.option("--sparse", is_flag=True, help="Make holes of long runs of zeros.")
@click.option("-i", "--include", "includes", multiple=True, metavar="PATTERN", help="Restore only what fits.")
@click.option("-e", "--exclude", "excludes", multiple=True, metavar="PATTERN", help="Leave out what fits.")
@click.option("--no-owner", is_flag=True, help="Leave everything to the user who restores.")
@click.option("-y", "--yes", "is_sure", is_flag=True, help="Do not ask.")
@filter_options
@shared(dry_run=True)
def restore_command(
    output: Output,
    snapshot: str,
    target: str | None,
    overwrite: OverwritePolicy,
    is_deleting: bool,
    verify: bool,
    sparse: bool,
    includes: Sequence[str],
    excludes: Sequence[str],
    no_owner: bool,
    is_sure: bool,
    hosts: Sequence[str],
    tags: Sequence[str],
    paths: Sequence[str],
) -> int:
    """Restore a snapshot, or the folder or file at PATH in it, into a folder.

    Files that are there are read, and only what differs is written. Patterns are those of a .gitignore, and meant
    from the snapshot's top.
    """
    if target is None:
        raise UsageError("no target was given", hint="name a folder: ohdiff restore SNAPSHOT --target FOLDER")
    with opened(output) as access:
        reuse_large_blocks()
        selection = select(access, snapshot, snapshot_filter(hosts, tags, paths))
        options = RestoreOptions(
            target=os.fsencode(target),
            source=selection.path,
            overwrite=overwrite,
            delete=is_deleting,
            dry_run=output.settings.is_dry_run,
            verify=verify,
            sparse=sparse,
            include=_matcher(includes),
            exclude=_matcher(excludes),
            restore_owner=not no_owner,
            workers=max(2, min(processor_count(), _WORKERS_MAX)),
        )
        if is_deleting and not options.dry_run and not is_sure and _is_home_or_root(target):
            _confirm_deletion(access, selection.stored, options)
        with announced(JobClass.INTERACTIVE), reporting(output, "restore") as reporter:
            result = restore(access.repository, access.index, access.chunks, selection.stored, options, reporter)
            seconds = reporter.elapsed_seconds
    _summarize(output, result, selection.stored, options, seconds)
    return result.exit_code or (EXIT_FAILED if result.is_stopped_early else 0)


def _matcher(patterns: Sequence[str]) -> PathMatcher | None:
    if not patterns:
        return None
    check: Callable[[str], bool] = compile_patterns(patterns).match_file

    def fits(path: bytes) -> bool:
        # Whether an entry is a directory is not known here: `name/` fits a file of that name as well.
        relative = os.fsdecode(path[1:])
        return check(relative) or check(relative + "/")

    return fits


class _Deletions(Silent):
    """Counts what a dry run would delete, and keeps the first paths."""

    wants_items = True

    def __init__(self) -> None:
        self.count = 0
        self.first: list[bytes] = []

    def item(self, action: str, path: bytes) -> None:
        """One entry."""
        if action == "deleted":
            self.count += 1
            self.first += [path][: _PLAN_PATHS_MAX - len(self.first)]


def _is_home_or_root(target: str) -> bool:
    return Path(target).resolve() in (Path("/"), Path.home().resolve())


def _confirm_deletion(access: Access, stored: StoredSnapshot, options: RestoreOptions) -> None:
    """Deleting in the root or a home folder is most likely a slip: show the plan, and ask."""
    found = _Deletions()
    restore(access.repository, access.index, access.chunks, stored, replace(options, dry_run=True), found)
    if not found.count:
        return
    plan = f"{counted(found.count, 'entry')} below {shown(options.target)} would be deleted"
    if not sys.stdin.isatty():
        raise UsageError(plan, hint="look at them with --dry-run --verbose; then add --yes")
    for path in found.first:
        click.echo(f"  delete {shown(path)}", err=True)
    click.echo(plan, err=True)
    click.confirm("go on?", abort=True, err=True)


def _summarize(
    output: Output, result: RestoreResult, stored: StoredSnapshot, options: RestoreOptions, seconds: float
) -> None:
    files = result.files
    verb = "would be " if options.dry_run else ""
    text = [
        f"files: {files.restored:,} {verb}restored, {files.updated:,} updated, {files.metadata:,} with new metadata, "
        f"{files.unchanged:,} unchanged, {files.skipped:,} skipped, {files.deleted:,} deleted",
        f"folders: {result.directories.restored:,} {verb}restored; hard links: {result.hard_links.restored:,}; "
        f"others: {result.others.restored:,}",
        f"{format_size(result.bytes_written)} {verb}written, {format_size(result.bytes_kept)} kept, "
        f"in {format_duration(seconds)}",
    ]
    if result.errors:
        text.append(f"{counted(len(result.errors), 'entry')} failed")
    output.summary(
        text,
        snapshot_id=stored.snapshot_id.hex(),
        target=os.fsdecode(options.target),
        total_duration=seconds,
        bytes_written=result.bytes_written,
        bytes_kept=result.bytes_kept,
        error_count=len(result.errors),
        stopped_early=result.is_stopped_early,
        dry_run=options.dry_run,
        **{
            name: {field: getattr(tally, field) for field in tally.__slots__}
            for name, tally in (
                ("files", result.files),
                ("directories", result.directories),
                ("others", result.others),
                ("hard_links", result.hard_links),
            )
        },
    )
