"""Comparing two trees, each a snapshot or a folder: what was added, removed, modified, moved, or changed its type.

Directories that are known to be the same are not entered. Files of equal size are compared by their chunks, unless
size, times and inode already say that the file is the one that was stored.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal

from ohdiff_format.limits import ID_SIZE
from ohdiff_format.tree import EMPTY_CONTENT, Content

from .diff_sides import Directory, EmptyDirectory, SnapshotDirectory
from .tree_reader import Entry

Kind = Literal["added", "removed", "modified", "type", "metadata", "moved"]
KINDS: Final[tuple[Kind, ...]] = ("added", "removed", "modified", "type", "metadata", "moved")

_PAIRS_MAX: Final = 4096


@dataclass(slots=True, eq=False)
class Change:
    """One difference; a moved entry has `before` at its old path.

    `details` names what changed of the metadata: mode, owner, mtime, xattrs, flags, links. `chunks` are those of the
    file on either side, unless only metadata changed.
    """

    kind: Kind
    path: bytes
    before: Entry | None
    after: Entry | None
    details: list[str] = field(default_factory=list)
    sides: tuple[Directory | None, Directory | None] = (None, None)
    chunks: list[Content | None] = field(default_factory=lambda: [None, None])


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
    comparison = _Comparison(with_metadata=with_metadata)
    stack: list[Iterator[Change | _Undecided | tuple[Directory, Directory]]] = [_compare(left, right, with_metadata)]
    try:
        while stack:
            item = next(stack[-1], None)
            if item is None:
                stack.pop()
            elif isinstance(item, Change):
                comparison.add(item)
            elif isinstance(item, _Undecided):
                comparison.decide(item)
            else:
                stack.append(_compare(*item, with_metadata))
        left.finish_reading()
        right.finish_reading()
    finally:
        left.stop_reading()
        right.stop_reading()
    changes = _find_moves(sorted(comparison.changes, key=lambda change: change.path))
    result = DiffResult(changes)
    _add_up(result, left)
    return result


@dataclass(slots=True, eq=False)
class _Undecided:
    """Pairs of files of equal size that have to be read, of the same two directories."""

    sides: tuple[Directory, Directory]
    pairs: list[tuple[Entry, Entry]]


class _Comparison:
    """Collects the changes, and has the files read that they are about, each once."""

    def __init__(self, *, with_metadata: bool) -> None:
        self.changes: list[Change] = []
        self._with_metadata = with_metadata

    def add(self, change: Change) -> None:
        """A change of which only the chunks of its files are still to be found."""
        self.changes.append(change)
        if change.kind == "metadata":
            return
        for number, (side, entry) in enumerate(zip(change.sides, (change.before, change.after), strict=True)):
            if side is None or entry is None or not entry.is_file:
                continue
            if entry.size:
                side.read([entry], partial(_enter_chunks, change, number))
            else:
                change.chunks[number] = EMPTY_CONTENT

    def decide(self, pairs: _Undecided) -> None:
        """Files that are to be read first."""
        found: dict[int, list[Content]] = {}
        for number, side in enumerate(pairs.sides):
            side.read([pair[number] for pair in pairs.pairs], partial(self._have_read, pairs, found, number))

    def _have_read(
        self, pairs: _Undecided, found: dict[int, list[Content]], number: int, chunks: list[Content]
    ) -> None:
        found[number] = chunks
        if len(found) < len(pairs.sides):
            return
        for (before, after), left, right in zip(pairs.pairs, found[0], found[1], strict=True):
            # A folder's extents are known once its chunks are: they hold the data only, and not where it lies.
            is_same = left == right and _same_extents(before, after)
            if is_same and not self._with_metadata:
                continue
            details = _metadata_changes(before, after)
            if not is_same:
                change = Change("modified", after.path, before, after, details, pairs.sides, [left, right])
                self.changes.append(change)
            elif details:
                self.changes.append(Change("metadata", after.path, before, after, details, pairs.sides))


def _enter_chunks(change: Change, number: int, chunks: list[Content]) -> None:
    change.chunks[number] = chunks[0]


def _compare(
    left: Directory, right: Directory, with_metadata: bool
) -> Iterator[Change | _Undecided | tuple[Directory, Directory]]:
    """The differences of two directories, and the pairs of directories to compare next."""
    if left.same_as(right):
        return
    undecided: list[tuple[Entry, Entry]] = []
    for before, after in _pairs(*_entries(left, right)):
        if before is None or after is None or stat.S_IFMT(before.mode) != stat.S_IFMT(after.mode):
            yield from _replaced(left, right, before, after)
            continue
        if before.is_directory:
            if with_metadata and (details := _metadata_changes(before, after)):
                yield Change("metadata", after.path, before, after, details, (left, right))
            yield left.child(before), right.child(after)
            continue
        is_same = _same_data(left, right, before, after)
        if is_same is None:
            undecided.append((before, after))
            if len(undecided) >= _PAIRS_MAX:
                yield _Undecided((left, right), undecided)
                undecided = []
        elif not is_same:
            yield Change("modified", after.path, before, after, _metadata_changes(before, after), (left, right))
        elif with_metadata and (details := _metadata_changes(before, after)):
            yield Change("metadata", after.path, before, after, details, (left, right))
    if undecided:
        yield _Undecided((left, right), undecided)


def _entries(left: Directory, right: Directory) -> tuple[Iterator[Entry], Iterator[Entry]]:
    """The entries of both in order of name; of two snapshots only those that may differ."""
    if isinstance(left, SnapshotDirectory) and isinstance(right, SnapshotDirectory):
        return left.entries_apart(right)
    return left.entries(), right.entries()


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


def _same_data(left: Directory, right: Directory, before: Entry, after: Entry) -> bool | None:
    """Whether two entries of the same type hold the same; None if they have to be read."""
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
    return None


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
        sides, chunks = (source.sides[0], change.sides[1]), [source.chunks[0], change.chunks[1]]
        result.append(Change("moved", change.path, source.before, change.after, [], sides, chunks))
    return [change for change in result if id(change) not in moved_from]


def _source_of(change: Change, removed: dict[int, list[Change]], taken: set[int]) -> Change | None:
    after = change.after
    if after is None or not after.is_file:
        return None
    candidates = [other for other in removed.get(after.size, []) if id(other) not in taken]
    if not candidates:
        return None
    wanted = change.chunks[1]
    return next((other for other in candidates if other.chunks[0] == wanted and _is_at(other, after)), None)


def _is_at(removed: Change, after: Entry) -> bool:
    """Whether the data of two files of equal content lies at the same places."""
    return removed.before is not None and _same_extents(removed.before, after)


def _same_extents(before: Entry, after: Entry) -> bool:
    """Whether the data of two files of equal size lies at the same places."""
    if before.row not in before.listing.extents and after.row not in after.listing.extents:
        return True
    return before.extents == after.extents


def _add_up(result: DiffResult, left: Directory) -> None:
    """Sort the bytes of the right side's changed files into new and shared."""
    unseen: dict[bytes, int] = {}
    total = 0
    for change in result.changes:
        if change.kind == "removed" and change.before is not None and change.before.is_file:
            result.removed_size += change.before.size
        after = change.chunks[1]
        if after is not None:
            for chunk_id, size in after.pairs():
                total += size
                unseen[chunk_id] = unseen.get(chunk_id, 0) + size
    for change in result.changes:
        if change.chunks[0] is not None:
            _forget(unseen, change.chunks[0].ids)
    if isinstance(left, SnapshotDirectory):
        elsewhere = left.file_chunk_ids()
        while unseen and (ids := next(elsewhere, None)) is not None:
            _forget(unseen, ids)
    result.new_size = sum(unseen.values())
    result.shared_size = total - result.new_size


def _forget(unseen: dict[bytes, int], ids: bytes) -> None:
    for start in range(0, len(ids), ID_SIZE):
        unseen.pop(ids[start : start + ID_SIZE], None)
