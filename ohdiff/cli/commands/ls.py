"""ohdiff ls: list what is in a snapshot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from ohdiff.operations.tree_reader import Entry

from ..access import Access, opened
from ..entries import entry_fields, long_line
from ..selection import Selection, select, snapshot_filter
from ..shared import Output, filter_options, shared
from ..text import local_time, shown
from .snapshots import snapshot_fields


@click.command("ls")
@click.argument("snapshot", metavar="SNAPSHOT[:PATH]")
@click.option("-l", "--long", "is_long", is_flag=True, help="Show mode, owner, size and time.")
@click.option("-R", "--recursive", "is_recursive", is_flag=True, help="List everything below, too.")
@filter_options
@shared()
def ls(
    output: Output,
    snapshot: str,
    is_long: bool,
    is_recursive: bool,
    hosts: Sequence[str],
    tags: Sequence[str],
    paths: Sequence[str],
) -> None:
    """List the entries of a folder in a snapshot; without a path, of its top.

    SNAPSHOT is latest, latest~N, or the first digits of an id.
    """
    with opened(output) as access:
        selection = select(access, snapshot, snapshot_filter(hosts, tags, paths))
        found = _entries(access, selection, is_recursive)
        stored = selection.stored
        if output.is_json:
            output.record("snapshot", **snapshot_fields(stored))
            output.records("node", map(entry_fields, found))
            return
        output.note(f"snapshot {stored.short_id} of {stored.snapshot.host}, {local_time(stored.snapshot.time_ns)}")
        output.lines(long_line(entry, stored.snapshot) if is_long else shown(entry.path) for entry in found)


def _entries(access: Access, selection: Selection, is_recursive: bool) -> Iterator[Entry]:
    tree = access.tree
    entry = tree.find(selection.stored.root, selection.path)
    if entry is not None and not entry.is_directory:
        yield entry
        return
    content, path = (selection.stored.root, b"") if entry is None else (entry.content, entry.path)
    yield from tree.walk(content, path) if is_recursive else tree.entries(content, path)
