"""ohdiff stats: sizes, and what dedup, resemblance and compression save."""

from __future__ import annotations

from collections.abc import Sequence

import click

from ohdiff.operations.statistics import RepositoryStatistics, repository_statistics

from ..access import opened
from ..forms import HEADER, form_rows, forms_fields, tally_fields
from ..selection import selected, snapshot_filter, tell_damaged
from ..shared import Output, filter_options, shared
from ..text import format_size


@click.command("stats")
@click.argument("selectors", nargs=-1, metavar="[SNAPSHOT]...")
@filter_options
@shared()
def stats(
    output: Output, selectors: Sequence[str], hosts: Sequence[str], tags: Sequence[str], paths: Sequence[str]
) -> int:
    """Say what snapshots would restore to, and what the repository stores for it.

    Stored sizes and ratios are those of the whole repository; without SNAPSHOT and filters all of it is counted. Dedup
    is what is stored once; resemblance is what is stored as a difference from something like it; compression is the
    rest.
    """
    with opened(output) as access:
        listed = selected(access, selectors, snapshot_filter(hosts, tags, paths))
        found = repository_statistics(access.repository, access.index, listed.stored)
    if output.is_json:
        _record(output, found)
    else:
        output.lines(f"{name:18} {value}" for name, value in _rows(found))
        if found.forms:
            output.line()
            output.table(HEADER, form_rows(found.forms))
    return tell_damaged(output, listed, "stats")


def _record(output: Output, found: RepositoryStatistics) -> None:
    fields = {name: getattr(found, name) for name in found.__slots__ if name != "forms"}
    output.record(
        "summary",
        **fields,
        dedup_ratio=found.dedup_ratio,
        resemblance_ratio=found.resemblance.ratio,
        compression_ratio=found.compression.ratio,
        overall_ratio=found.overall_ratio,
        resemblance=tally_fields(found.resemblance),
        compression=tally_fields(found.compression),
        forms=forms_fields(found.forms),
    )


def _rows(found: RepositoryStatistics) -> list[tuple[str, str]]:
    rows = [
        ("snapshots", f"{found.snapshots:,}"),
        ("files in them", f"{found.files:,}"),
        ("size to restore", format_size(found.source_size)),
        ("after dedup", f"{format_size(found.unique_size)}  ({found.dedup_ratio:.2f} times smaller)"),
        ("stored", f"{format_size(found.data_stored_size)}  ({found.overall_ratio:.2f} times smaller in all)"),
    ]
    for name, tally in (("  by resemblance", found.resemblance), ("  by compression", found.compression)):
        sizes = f"{format_size(tally.plain_size)} in {format_size(tally.stored_size)}"
        rows.append((name, f"{sizes}  ({tally.ratio:.2f} times smaller)"))
    return [
        *rows,
        ("metadata", f"{format_size(found.metadata_stored_size)}, plain {format_size(found.metadata_plain_size)}"),
        ("in storage", format_size(found.storage_size)),
        ("packs", f"{found.packs:,}"),
        ("chunks", f"{found.chunks:,}"),
    ]
