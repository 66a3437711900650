"""ohdiff dump: a file, or a folder as tar, on standard output."""

from __future__ import annotations

from collections.abc import Sequence

import click

from ohdiff.errors import UsageError
from ohdiff.operations.tar_stream import file_data, write_tar
from ohdiff.operations.tree_reader import Entry

from ..access import Access, opened
from ..binary import binary_output, is_text, refuse_terminal
from ..progress import Reporter
from ..selection import Selection, select, snapshot_filter
from ..shared import Output, filter_options, shared
from ..text import shown


@click.command("dump")
@click.argument("snapshot", metavar="SNAPSHOT[:PATH]")
@filter_options
@shared()
def dump(output: Output, snapshot: str, hosts: Sequence[str], tags: Sequence[str], paths: Sequence[str]) -> None:
    """Write a file of a snapshot to standard output, or a folder as a tar archive.

    The archive's names are relative to the folder.
    """
    with opened(output) as access:
        selection = select(access, snapshot, snapshot_filter(hosts, tags, paths))
        entry = access.tree.find(selection.stored.root, selection.path)
        if entry is None or entry.is_directory:
            refuse_terminal("a tar archive")
            _write_folder(output, access, selection, entry)
        else:
            write_file(access, entry)


def write_file(access: Access, entry: Entry) -> None:
    """Write a regular file's data to standard output."""
    if not entry.is_file:
        raise UsageError(f"{shown(entry.path)} is not a file", hint="see what it is: ohdiff ls --long")
    out = binary_output()
    is_first = True
    for part in file_data(access.tree, entry):
        if is_first and not is_text(part):
            refuse_terminal(f"the binary file {shown(entry.path)}")
        is_first = False
        out.write(part)
    out.flush()


def _write_folder(output: Output, access: Access, selection: Selection, entry: Entry | None) -> None:
    content, base = (selection.stored.root, b"") if entry is None else (entry.content, entry.path)
    out = binary_output()
    entries = access.tree.walk(content, base)
    write_tar(access.tree, selection.stored.snapshot, entries, base, out, Reporter(output, "dump"))
    out.flush()
