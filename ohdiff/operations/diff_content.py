"""What changed inside a file: a unified diff for text, changed tensors and byte ranges for the rest."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ohdiff_format.tree import EMPTY_CONTENT, Content

from .diff import Change
from .diff_sides import Directory
from .diff_tensors import TensorsCompared, TensorSide, compare_tensors, may_have_tensors
from .tree_reader import Entry

TEXT_SIZE_BYTES_MAX: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class ContentChange:
    """Either `lines` of a unified diff, or half-open `ranges` of the new file that the old one does not have.

    With these, for two containers, the `tensors` that differ.
    """

    lines: list[str] | None
    ranges: list[tuple[int, int]]
    tensors: TensorsCompared | None = None


def content_change(change: Change) -> ContentChange:
    """The difference of two files."""
    before, after = _text(change.sides[0], change.before), _text(change.sides[1], change.after)
    if before is not None and after is not None:
        return ContentChange(list(_unified(change, before, after)), [])
    chunks = [each.pairs() for each in _chunks(change)]
    return ContentChange(None, changed_ranges(*chunks), _tensors(change))


def changed_ranges(before: list[tuple[bytes, int]], after: list[tuple[bytes, int]]) -> list[tuple[int, int]]:
    """Half-open ranges of the new data whose chunks the old data does not have, neighbours joined."""
    known = {chunk_id for chunk_id, _ in before}
    ranges: list[tuple[int, int]] = []
    offset = 0
    for chunk_id, size in after:
        if chunk_id not in known:
            start = ranges.pop()[0] if ranges and ranges[-1][1] == offset else offset
            ranges.append((start, offset + size))
        offset += size
    return ranges


def _tensors(change: Change) -> TensorsCompared | None:
    """The tensors that differ between two containers without holes; None for other files."""
    (left, right), before, after = change.sides, change.before, change.after
    if left is None or right is None or before is None or after is None:
        return None
    if not _may_have_tensors(before) or not _may_have_tensors(after):
        return None
    found = None
    with left.opened(before) as old, right.opened(after) as new:
        if old is not None and new is not None:
            old_chunks, new_chunks = _chunks(change)
            found = compare_tensors(TensorSide(old, old_chunks), TensorSide(new, new_chunks))
    return found


def _may_have_tensors(entry: Entry) -> bool:
    return entry.is_file and entry.row not in entry.listing.extents and may_have_tensors(entry.name)


def _chunks(change: Change) -> list[Content]:
    return [each or EMPTY_CONTENT for each in change.chunks]


def _unified(change: Change, before: str, after: str) -> Iterator[str]:
    old = change.path if change.before is None else change.before.path
    return difflib.unified_diff(
        before.splitlines(keepends=True),
        after.splitlines(keepends=True),
        "a" + old.decode(errors="backslashreplace"),
        "b" + change.path.decode(errors="backslashreplace"),
    )


def _text(side: Directory | None, entry: Entry | None) -> str | None:
    """A file as text, "" for none, or None if it is not text or too large to show."""
    if side is None or entry is None or not entry.is_file:
        return ""
    if entry.size > TEXT_SIZE_BYTES_MAX or entry.row in entry.listing.extents:
        return None
    data = b"".join(part for _, part in side.data(entry))
    if b"\0" in data:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None
