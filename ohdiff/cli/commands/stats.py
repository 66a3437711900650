"""ohdiff stats: sizes, dedup and compression."""

from __future__ import annotations

from collections.abc import Sequence

import click

from ohdiff.operations.statistics import repository_statistics
from ohdiff.repository.snapshots import find_snapshot, list_snapshots

from ..access import opened
from ..selection import snapshot_filter
from ..shared import Output, filter_options, shared
from ..text import format_size


@click.command("stats")
@click.argument("selectors", nargs=-1, metavar="[SNAPSHOT]...")
@filter_options
@shared()
def stats(
    output: Output, selectors: Sequence[str], hosts: Sequence[str], tags: Sequence[str], paths: Sequence[str]
) -> None:
    """Say what snapshots would restore to, and what the repository stores for it.

    Stored sizes and ratios are those of the whole repository; without SNAPSHOT and filters all of it is counted.
    """
    with opened(output) as access:
        accept = snapshot_filter(hosts, tags, paths)
        if selectors:
            stored = [find_snapshot(access.repository, selector, accept) for selector in selectors]
        else:
            stored = list_snapshots(access.repository, accept)
        found = repository_statistics(access.repository, access.index, stored)
    fields = {name: getattr(found, name) for name in found.__slots__}
    output.record("summary", **fields, dedup_ratio=found.dedup_ratio, compression_ratio=found.compression_ratio)
    rows = [
        ("snapshots", f"{found.snapshots:,}"),
        ("files in them", f"{found.files:,}"),
        ("size to restore", format_size(found.source_size)),
        ("after dedup", f"{format_size(found.unique_size)}  ({found.dedup_ratio:.2f} times smaller)"),
        ("after compression", f"{format_size(found.data_stored_size)}  ({found.compression_ratio:.2f} times smaller)"),
        ("metadata", f"{format_size(found.metadata_stored_size)}, plain {format_size(found.metadata_plain_size)}"),
        ("in storage", format_size(found.storage_size)),
        ("packs", f"{found.packs:,}"),
        ("chunks", f"{found.chunks:,}"),
    ]
    if not output.is_json:
        output.lines(f"{name:18} {value}" for name, value in rows)
