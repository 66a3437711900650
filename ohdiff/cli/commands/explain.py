"""ohdiff explain: why two snapshots share little or much."""

from __future__ import annotations

from typing import Any, NamedTuple

import click

from ohdiff.errors import NoSnapshotError
from ohdiff.operations.explain import Explanation, FileShare, Share, explain
from ohdiff.repository.snapshots import ANY, StoredSnapshot, find_snapshot
from ohdiff_format.tree import Content

from ..access import Access, opened
from ..forms import HEADER, form_label, form_rows, forms_fields, tally_fields, tally_row
from ..selection import Selection, select
from ..shared import Output, shared
from ..text import counted, format_size, local_time, path_fields, shown


class _Pair(NamedTuple):
    """What is explained, and against what; `before` is None for a snapshot without a parent."""

    before: Selection | None
    after: Selection


@click.command("explain")
@click.argument("before", metavar="[A]", required=False)
@click.argument("after", metavar="[B]", required=False)
@click.option("--limit", type=click.IntRange(0), default=20, show_default=True, help="How many files to name.")
@shared()
def explain_command(output: Output, before: str | None, after: str | None, limit: int) -> None:
    """Say why snapshot B shares little or much with A: what of B's data A has, and how the rest is stored.

    With one snapshot, it is compared with its parent; with none, that is the latest one. SNAPSHOT:/sub/path means this
    folder only. Stored sizes are those of blocks, shared out among the chunks in them.
    """
    with opened(output) as access:
        pair = _pair(access, before, after)
        old = None if pair.before is None else _content(access, pair.before)[0]
        content, path = _content(access, pair.after)
        found = explain(access.tree, access.chunks, old, content, path=path, limit=limit)
    if output.is_json:
        _record(output, pair, found)
    else:
        _show(output, pair, found)


def _pair(access: Access, before: str | None, after: str | None) -> _Pair:
    if after is not None:
        return _Pair(select(access, before or "latest", ANY), select(access, after, ANY))
    only = select(access, before or "latest", ANY)
    parent = _parent(access, only.stored)
    return _Pair(None if parent is None else Selection(parent, only.path), only)


def _parent(access: Access, stored: StoredSnapshot) -> StoredSnapshot | None:
    parent_id = stored.snapshot.parent.hex()
    try:
        return find_snapshot(access.repository, parent_id) if parent_id else None
    except NoSnapshotError as error:
        raise NoSnapshotError(
            f"the parent of {stored.short_id}, {parent_id[:8]}, is not there any more",
            hint=f"name another to compare with: ohdiff explain A {stored.short_id}",
        ) from error


def _content(access: Access, selection: Selection) -> tuple[Content, bytes]:
    return access.tree.directory(selection.stored.root, selection.path)


def _show(output: Output, pair: _Pair, found: Explanation) -> None:
    against = "nothing, as it has no parent" if pair.before is None else _title(pair.before)
    output.line(f"{_title(pair.after)} against {against}")
    output.line()
    files = found.data
    output.line(f"{counted(files.files, 'file')}, {files.changed_files:,} of them new or changed")
    for name, share in (("data", found.data), ("metadata", found.metadata)):
        output.line(f"{name:9} {_sentence(share)}")
    if found.data.forms:
        output.line()
        output.table(HEADER, [*form_rows(found.data.forms), tally_row("all new data", found.data.added)])
        output.line()
        output.table(("kind", "files", "changed", "shared", "repeated", "new", "takes"), _kind_rows(found))
    if found.largest:
        output.line()
        output.table(("takes", "new", "shared", "mostly", "path"), list(map(_file, found.largest)))


def _title(selection: Selection) -> str:
    path = f":{shown(selection.path)}" if selection.path else ""
    return f"{selection.stored.short_id}{path} ({local_time(selection.stored.snapshot.time_ns)})"


def _sentence(share: Share) -> str:
    added = share.added
    repeated = f", {format_size(share.repeated_size)} repeated" if share.repeated_size else ""
    return (
        f"{format_size(share.size)}: {format_size(share.shared_size)} shared{repeated}, "
        f"{format_size(added.plain_size)} new, which takes {format_size(added.stored_size)}"
    )


def _kind_rows(found: Explanation) -> list[tuple[str, ...]]:
    """A row for each kind of file that changed, and one for all others."""
    changed = {suffix: share for suffix, share in found.kinds.items() if share.changed_files}
    rows = [_kind(shown(suffix) if suffix else "no suffix", share) for suffix, share in changed.items()]
    rest = Share()
    for suffix in found.kinds.keys() - changed.keys():
        rest.add_all(found.kinds[suffix])
    return [*rows, _kind("unchanged kinds", rest)] if rest.files else rows


def _kind(label: str, share: Share) -> tuple[str, ...]:
    added = share.added
    sizes = (share.shared_size, share.repeated_size, added.plain_size, added.stored_size)
    return (label, f"{share.files:,}", f"{share.changed_files:,}", *map(format_size, sizes))


def _file(file: FileShare) -> tuple[str, ...]:
    added = file.share.added
    sizes = (added.stored_size, added.plain_size, file.share.shared_size)
    mostly = max(file.share.forms.items(), key=lambda item: item[1].stored_size)[0]
    return (*map(format_size, sizes), form_label(mostly), shown(file.path))


def _record(output: Output, pair: _Pair, found: Explanation) -> None:
    for fields in forms_fields(found.data.forms):
        output.record("form", **fields)
    for suffix, share in found.kinds.items():
        output.record("kind", suffix=shown(suffix) if suffix else "", **_fields(share))
    for file in found.largest:
        output.record("file", **path_fields(file.path), **_fields(file.share))
    before = None if pair.before is None else pair.before.stored.snapshot_id.hex()
    output.record(
        "summary",
        before=before,
        after=pair.after.stored.snapshot_id.hex(),
        data=_fields(found.data),
        metadata=_fields(found.metadata),
    )


def _fields(share: Share) -> dict[str, Any]:
    return {
        "files": share.files,
        "changed_files": share.changed_files,
        "size": share.size,
        "shared_size": share.shared_size,
        "repeated_size": share.repeated_size,
        "new": tally_fields(share.added),
        "forms": forms_fields(share.forms),
    }
