"""ohdiff snapshots: list them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from ohdiff.repository.snapshots import StoredSnapshot, read_snapshots

from ..access import opened
from ..selection import snapshot_filter, tell_damaged
from ..shared import Output, filter_options, shared
from ..text import counted, format_size, iso_time, local_time, path_fields, shown


@click.command("snapshots")
@click.option("--latest", type=click.IntRange(min=1), metavar="N", help="Only the last N.")
@filter_options
@shared()
def snapshots(
    output: Output, latest: int | None, hosts: Sequence[str], tags: Sequence[str], paths: Sequence[str]
) -> int:
    """List snapshots, oldest first.

    A damaged one is reported, whatever it was; the others are listed.
    """
    with opened(output) as access:
        listed = read_snapshots(access.repository, snapshot_filter(hosts, tags, paths))
    found = listed.stored if latest is None else listed.stored[-latest:]
    if output.is_json:
        output.records("snapshot", map(snapshot_fields, found))
    output.table(("ID", "Time", "Host", "Tags", "Size", "Paths"), [_row(stored) for stored in found])
    output.summary([counted(len(found), "snapshot")], snapshots=len(found), error_count=len(listed.damaged))
    return tell_damaged(output, listed, "snapshots")


def snapshot_fields(stored: StoredSnapshot) -> dict[str, Any]:
    """A snapshot for programs."""
    snapshot = stored.snapshot
    return {
        "id": stored.snapshot_id.hex(),
        "short_id": stored.short_id,
        "time": iso_time(snapshot.time_ns),
        "time_ns": snapshot.time_ns,
        "hostname": snapshot.host,
        "username": snapshot.user,
        "tags": snapshot.tags,
        "paths": [path_fields(path)["path"] for path in snapshot.paths],
        "paths_exact": [path_fields(path) for path in snapshot.paths],
        "parent": snapshot.parent.hex() or None,
        "program_version": snapshot.program,
        "excludes": snapshot.excludes,
        "statistics": {name: getattr(snapshot.statistics, name) for name in snapshot.statistics.__struct_fields__},
    }


def _row(stored: StoredSnapshot) -> tuple[str, ...]:
    snapshot = stored.snapshot
    return (
        stored.short_id,
        local_time(snapshot.time_ns),
        snapshot.host,
        ",".join(snapshot.tags),
        format_size(snapshot.statistics.size),
        " ".join(shown(path) for path in snapshot.paths),
    )
