"""What changed inside a file: a unified diff for text, changed byte ranges for the rest."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from .diff import Change
from .diff_reading import NO_CHUNKS
from .diff_sides import Directory
from .tree_reader import Entry

TEXT_SIZE_BYTES_MAX: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class ContentChange:
    """Either `lines` of a unified diff, or half-open `ranges` of the new file that the old one does not have."""

    lines: list[str] | None
    ranges: list[tuple[int, int]]


def content_change(change: Change) -> ContentChange:
    """The difference of two files."""
    before, after = _text(change.sides[0], change.before), _text(change.sides[1], change.after)
    if before is not None and after is not None:
        return ContentChange(list(_unified(change, before, after)), [])
    chunks = [(each or NO_CHUNKS).pairs() for each in change.chunks]
    return ContentChange(None, changed_ranges(*chunks))


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
