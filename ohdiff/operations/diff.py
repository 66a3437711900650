"""Comparing two trees, each a snapshot or a folder: what was added, removed, modified, moved, or changed its type.

Directories that are known to be the same are not entered. Files of equal size are compared by their chunks, unless
size, times and inode already say that the file is the one that was stored.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

from .diff_sides import Directory, EmptyDirectory, SnapshotDirectory
from .tree_reader import Entry

Kind = Literal["added", "removed", "modified", "type", "metadata", "moved"]
KINDS: Final[tuple[Kind, ...]] = ("added", "removed", "modified", "type", "metadata", "moved")


@dataclass(slots=True, eq=False)
class Change:
    """One difference; a moved entry has `before` at its old path.

    `details` names what changed of the metadata: mode, owner, mtime, xattrs, flags, links.
    """

    kind: Kind
    path: bytes
    before: Entry | None
    after: Entry | None
    details: list[str] = field(default_factory=list)
    sides: tuple[Directory | None, Directory | None] = (None, None)


@dataclass(slots=True)
class DiffResult:
    """All differences in order of path, and how many bytes they are.

    Attributes
    ----------
    new_size : bytes of added and modified files that the left side does not hold anywhere.
    shared_size : bytes of the same files that it does hold.
    removed_size : bytes of removed files.
    """

    changes: list[Change] = field(default_factory=list)
    new_size: int = 0
    shared_size: int = 0
    removed_size: int = 0

    def count(self, kind: Kind) -> int:
        """How many differences of one kind there are."""
        return sum(change.kind == kind for change in self.changes)


def diff(left: Directory, right: Directory, *, with_metadata: bool = False) -> DiffResult:
    """Compare two directories and everything below; `with_metadata` lists entries of which only metadata changed."""
    changes: list[Change] = []
    stack: list[Iterator[Change | tuple[Directory, Directory]]] = [_compare(left, right, with_metadata)]
    while stack:
        item = next(stack[-1], None)
        if item is None:
            stack.pop()
        elif isinstance(item, Change):
            changes.append(item)
        else:
            stack.append(_compare(*item, with_metadata))
    changes = _find_moves(changes)
    result = DiffResult(sorted(changes, key=lambda change: change.path))
    _add_up(result, left)
    return result


def _compare(left: Directory, right: Directory, with_metadata: bool) -> Iterator[Change | tuple[Directory, Directory]]:
    """The differences of two directories, and the pairs of directories to compare next."""
    if left.same_as(right):
        return
    for before, after in _pairs(left.entries(), right.entries()):
        if before is None or after is None or stat.S_IFMT(before.mode) != stat.S_IFMT(after.mode):
            yield from _replaced(left, right, before, after)
            continue
        if before.is_directory:
            if with_metadata and (details := _metadata_changes(before, after)):
                yield Change("metadata", after.path, before, after, details, (left, right))
            yield left.child(before), right.child(after)
        elif not _same_data(left, right, before, after):
            yield Change("modified", after.path, before, after, _metadata_changes(before, after), (left, right))
        elif with_metadata and (details := _metadata_changes(before, after)):
            yield Change("metadata", after.path, before, after, details, (left, right))


def _replaced(
    left: Directory, right: Directory, before: Entry | None, after: Entry | None
) -> Iterator[Change | tuple[Directory, Directory]]:
    """An entry that is only on one side, or of another type on each."""
    if before is not None and after is not None:
        yield Change("type", after.path, before, after, [], (left, right))
    elif after is not None:
        yield Change("added", after.path, None, after, [], (left, right))
    elif before is not None:
        yield Change("removed", before.path, before, None, [], (left, right))
    if before is not None and before.is_directory:
        yield left.child(before), EmptyDirectory(before.path)
    if after is not None and after.is_directory:
        yield EmptyDirectory(after.path), right.child(after)


def _pairs(left: Iterator[Entry], right: Iterator[Entry]) -> Iterator[tuple[Entry | None, Entry | None]]:
    """Entries of equal name together, others alone; both sides ascend by name."""
    before, after = next(left, None), next(right, None)
    while before is not None or after is not None:
        if after is None or (before is not None and before.name < after.name):
            yield before, None
            before = next(left, None)
        elif before is None or after.name < before.name:
            yield None, after
            after = next(right, None)
        else:
            yield before, after
            before, after = next(left, None), next(right, None)


def _same_data(left: Directory, right: Directory, before: Entry, after: Entry) -> bool:
    if stat.S_ISLNK(after.mode):
        return before.listing.targets.get(before.row) == after.listing.targets.get(after.row)
    if not after.is_file:
        return before.listing.rdevs[before.row] == after.listing.rdevs[after.row]
    if before.size != after.size:
        return False
    if after.size == 0 or _is_same_file(before, after):
        return True
    if isinstance(left, SnapshotDirectory) and isinstance(right, SnapshotDirectory):
        return before.content == after.content and before.extents == after.extents
    # A folder's extents are known once its chunks are: they hold the data only, and not where it lies.
    return left.chunks(before) == right.chunks(after) and before.extents == after.extents


def _is_same_file(before: Entry, after: Entry) -> bool:
    """The rule by which a snapshot skips unchanged files."""

    def stamp(entry: Entry) -> tuple[int, ...]:
        listing, row = entry.listing, entry.row
        return (listing.mtimes[row], listing.ctimes[row], listing.inodes[row], listing.marks[row])

    return stamp(before) == stamp(after) and after.listing.marks[after.row] == 0


def _metadata_changes(before: Entry, after: Entry) -> list[str]:
    a, b, i, j = before.listing, after.listing, before.row, after.row
    pairs = {
        "mode": (a.modes[i], b.modes[j]),
        "owner": ((a.uids[i], a.gids[i]), (b.uids[j], b.gids[j])),
        "mtime": (a.mtimes[i], b.mtimes[j]),
        "xattrs": (a.xattrs.get(i, []), b.xattrs.get(j, [])),
        "flags": (a.flags[i], b.flags[j]),
    }
    return [name for name, (old, new) in pairs.items() if old != new]


def _find_moves(changes: list[Change]) -> list[Change]:
    """Pair removed with added files of the same content; the first of each in order of path."""
    removed: dict[int, list[Change]] = {}
    for change in changes:
        if change.kind == "removed" and change.before is not None and change.before.is_file and change.before.size:
            removed.setdefault(change.before.size, []).append(change)
    moved_from: set[int] = set()
    result = []
    for change in changes:
        source = _source_of(change, removed, moved_from) if change.kind == "added" else None
        if source is None:
            result.append(change)
            continue
        moved_from.add(id(source))
        result.append(Change("moved", change.path, source.before, change.after, [], (source.sides[0], change.sides[1])))
    return [change for change in result if id(change) not in moved_from]


def _source_of(change: Change, removed: dict[int, list[Change]], taken: set[int]) -> Change | None:
    after = change.after
    if after is None or not after.is_file:
        return None
    candidates = [other for other in removed.get(after.size, []) if id(other) not in taken]
    if not candidates:
        return None
    wanted = chunks_after(change)
    return next((other for other in candidates if chunks_before(other) == wanted and _same_extents(other, after)), None)


def _same_extents(removed: Change, after: Entry) -> bool:
    return removed.before is not None and removed.before.extents == after.extents


def chunks_before(change: Change) -> list[tuple[bytes, int]]:
    """The chunks of the left side's file."""
    side = change.sides[0]
    return [] if side is None or change.before is None else side.chunks(change.before)


def chunks_after(change: Change) -> list[tuple[bytes, int]]:
    """The chunks of the right side's file."""
    side = change.sides[1]
    return [] if side is None or change.after is None else side.chunks(change.after)


def _add_up(result: DiffResult, left: Directory) -> None:
    """Sort the bytes of the right side's changed files into new and shared."""
    unseen: dict[bytes, int] = {}
    total = 0
    for change in result.changes:
        if change.kind == "removed" and change.before is not None and change.before.is_file:
            result.removed_size += change.before.size
        if change.kind in ("added", "modified", "type", "moved") and change.after is not None and change.after.is_file:
            for chunk_id, size in chunks_after(change):
                total += size
                unseen[chunk_id] = unseen.get(chunk_id, 0) + size
    for change in result.changes:
        if change.before is not None and change.before.is_file and change.kind != "metadata":
            _forget(unseen, chunks_before(change))
    if unseen and isinstance(left, SnapshotDirectory):
        for entry in left.walk():
            if entry.is_file:
                _forget(unseen, left.chunks(entry))
    result.new_size = sum(unseen.values())
    result.shared_size = total - result.new_size


def _forget(unseen: dict[bytes, int], chunks: list[tuple[bytes, int]]) -> None:
    for chunk_id, _ in chunks:
        unseen.pop(chunk_id, None)
