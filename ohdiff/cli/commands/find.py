"""ohdiff find: which snapshots hold files whose names fit."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Callable, Iterator, Sequence

import click

from ohdiff.errors import UsageError
from ohdiff.operations.find import Finder
from ohdiff.operations.tree_reader import Entry
from ohdiff.repository.snapshots import StoredSnapshot

from ..access import opened
from ..entries import entry_fields, long_line
from ..selection import selected, snapshot_filter, tell_damaged
from ..shared import Output, filter_options, shared
from ..text import counted, local_time, shown


@click.command("find")
@click.argument("patterns", metavar="PATTERN...", nargs=-1, required=True)
@click.option("-s", "--snapshot", "selectors", multiple=True, metavar="SNAPSHOT", help="Search only this snapshot.")
@click.option("-i", "--ignore-case", "ignores_case", is_flag=True, help="Take upper and lower case as the same.")
@click.option("-l", "--long", "is_long", is_flag=True, help="Show mode, owner, size and time.")
@filter_options
@shared()
def find(
    output: Output,
    patterns: Sequence[str],
    selectors: Sequence[str],
    ignores_case: bool,
    is_long: bool,
    hosts: Sequence[str],
    tags: Sequence[str],
    paths: Sequence[str],
) -> int:
    """Find entries in snapshots by shell patterns.

    A pattern with a slash is matched against the whole path, any other against the name alone. Several patterns find
    what fits one of them.
    """
    fits = _matcher(patterns, ignores_case)
    count = 0
    with opened(output) as access:
        listed = selected(access, selectors, snapshot_filter(hosts, tags, paths))
        finder = Finder(access.tree, fits)
        for each in listed.stored:
            count += _show(output, each, finder.search(each.root), is_long)
    output.summary([counted(count, "match").replace("matchs", "matches")], matches=count, snapshots=len(listed.stored))
    return tell_damaged(output, listed, "find")


def _matcher(patterns: Sequence[str], ignores_case: bool) -> Callable[[bytes], bool]:
    flags = re.IGNORECASE if ignores_case else 0
    whole: list[re.Pattern[bytes]] = []
    names: list[re.Pattern[bytes]] = []
    for pattern in patterns:
        if not pattern:
            raise UsageError("an empty pattern finds nothing")
        (whole if "/" in pattern else names).append(re.compile(os.fsencode(fnmatch.translate(pattern)), flags))

    def fits(path: bytes) -> bool:
        name = path[path.rindex(b"/") + 1 :]
        return any(each.match(name) for each in names) or any(each.match(path) for each in whole)

    return fits


def _show(output: Output, stored: StoredSnapshot, found: Iterator[Entry], is_long: bool) -> int:
    """Say what was found in one snapshot; returns how many."""
    count = 0
    for entry in found:
        if output.is_json:
            output.record("match", snapshot=stored.snapshot_id.hex(), **entry_fields(entry))
        else:
            if count == 0:
                output.line(f"snapshot {stored.short_id}, {local_time(stored.snapshot.time_ns)}")
            output.line("  " + (long_line(entry, stored.snapshot) if is_long else shown(entry.path)))
        count += 1
    return count
