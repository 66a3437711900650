"""Why two snapshots share little or much: what one has that the other had, and how the rest of it is stored.

Both trees are walked side by side, and what is equal is not entered; then the earlier one is walked as a whole, since
a file may have been anywhere. In memory are 16 bytes of the id of each chunk that is not at its old place, and the
largest files; nothing else grows with the snapshots.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Final, NamedTuple

from ohdiff.repository.chunk_reader import ChunkReader
from ohdiff.repository.index_segment import ChunkLocation
from ohdiff_format.limits import ID_PREFIX_SIZE
from ohdiff_format.tree import Content

from .statistics import Form, Tally, form_of, total
from .tree_reader import Entry, TreeReader

_LOOK_UP_CHUNKS: Final = 16_384
_SUFFIX_LENGTH_MAX: Final = 16


@dataclass(slots=True)
class Share:
    """Bytes of the later snapshot, and where they come from.

    Attributes
    ----------
    files, changed_files : all, and those that the earlier snapshot does not have with the same data at the same path.
    shared_size : bytes that the earlier snapshot has, in whatever file.
    repeated_size : bytes that are new, but for the second time or more.
    forms : the chunks that are new, by how they are stored. A chunk's stored size is its part of the block's.
    """

    files: int = 0
    changed_files: int = 0
    shared_size: int = 0
    repeated_size: int = 0
    forms: dict[Form, Tally] = field(default_factory=dict)

    @property
    def added(self) -> Tally:
        """All chunks that are new."""
        return total(self.forms.values())

    @property
    def size(self) -> int:
        """All bytes."""
        return self.shared_size + self.repeated_size + self.added.plain_size

    def add_chunk(self, location: ChunkLocation) -> None:
        """A chunk that is new."""
        block = location.block
        stored = block.sealed_size * location.size / block.plain_size
        self.forms.setdefault(form_of(block), Tally()).add(location.size, stored, block.depth)

    def add_all(self, other: Share) -> None:
        """Count what another one counts."""
        self.files += other.files
        self.changed_files += other.changed_files
        self.shared_size += other.shared_size
        self.repeated_size += other.repeated_size
        for form, tally in other.forms.items():
            self.forms.setdefault(form, Tally()).add(tally.plain_size, tally.stored_size, tally.depth, tally.count)


@dataclass(frozen=True, slots=True)
class FileShare:
    """A file that changed, or is new."""

    path: bytes
    share: Share


@dataclass(frozen=True, slots=True)
class Explanation:
    """All data, the same by the suffix of names, metadata, and the files that take the most room, largest first."""

    data: Share
    kinds: dict[bytes, Share]
    metadata: Share
    largest: list[FileShare]


def explain(
    tree: TreeReader, chunks: ChunkReader, before: Content | None, after: Content, *, path: bytes = b"", limit: int = 20
) -> Explanation:
    """Compare two directories that are at `path` in their snapshots.

    Parameters
    ----------
    before : None stands for nothing, so that all of `after` is new.
    limit : how many files to name.
    """
    return _Explainer(tree, chunks, before, after, path, limit).run()


def suffix_of(name: bytes) -> bytes:
    """The end of a name that tells its kind, in lower case; b"" where none does, as for a number."""
    stem, dot, end = name.rpartition(b".")
    tells = stem.strip(b".") and end and len(end) < _SUFFIX_LENGTH_MAX and not end.isdigit()
    return (dot + end).lower() if tells else b""


class _Met(NamedTuple):
    """A folder's own content, or a file with its entry; `is_same` if the earlier snapshot has it at this path."""

    entry: Entry | None
    content: Content
    is_same: bool


@dataclass(slots=True)
class _Waiting:
    """Chunks that are to be looked up: those that are new, and all of metadata, whose sizes only the index tells."""

    share: Share
    new: list[bytes] = field(default_factory=list)
    shared: list[bytes] = field(default_factory=list)
    repeated: list[bytes] = field(default_factory=list)
    path: bytes | None = None


class _Explainer:
    def __init__(
        self, tree: TreeReader, chunks: ChunkReader, before: Content | None, after: Content, path: bytes, limit: int
    ) -> None:
        self._tree = tree
        self._chunks = chunks
        self._before = before
        self._after = after
        self._path = path
        self._limit = limit
        # Chunks that are not where they were; after the earlier snapshot was walked, those that it has nowhere.
        self._new: set[bytes] = set()
        self._met: set[bytes] = set()
        self._same_folders: set[bytes] = set()
        self._waiting: list[_Waiting] = []
        self._waiting_chunks = 0
        self._kinds: dict[bytes, Share] = {}
        self._metadata = Share()
        self._largest: list[tuple[float, int, FileShare]] = []
        self._order = count(0, -1)

    def run(self) -> Explanation:
        """Walk three times: what may be new, what is not, and where the new chunks lie."""
        for met in self._side_by_side() if self._before is not None else ():
            if not met.is_same:
                self._new.update(prefix for prefix, _ in self._data_chunks(met))
                self._new.update(self._metadata_chunks(met))
        if self._before is not None:
            self._walk_before(self._before)
        for met in self._side_by_side():
            self._take_data(met)
            self._take_metadata(self._metadata_chunks(met))
        self._look_up()
        data = Share()
        for share in self._kinds.values():
            data.add_all(share)
        kinds = dict(sorted(self._kinds.items(), key=lambda item: (-item[1].added.stored_size, item[0])))
        return Explanation(data, kinds, self._metadata, [item[2] for item in sorted(self._largest, reverse=True)])

    def _side_by_side(self) -> Iterator[_Met]:
        """The folders and files of the later snapshot, but for folders that are as they were."""
        stack = [(self._before, self._after, self._path)]
        while stack:
            before, after, path = stack.pop()
            if before == after:
                self._same_folders.add(path)
                continue
            yield _Met(None, after, is_same=False)
            olds = iter(()) if before is None else self._tree.entries(before, path)
            for old, new in _with_earlier(olds, self._tree.entries(after, path)):
                if new.is_directory:
                    stack.append((old.content if old is not None and old.is_directory else None, new.content, new.path))
                elif new.is_file:
                    is_same = old is not None and old.is_file and old.content == new.content
                    yield _Met(new, new.content, is_same)

    def _walk_before(self, before: Content) -> None:
        """Learn of every chunk of the earlier snapshot, and count what lies in folders that are as they were."""
        stack = [(before, self._path, self._path in self._same_folders)]
        while stack:
            content, path, is_same = stack.pop()
            self._note_before(_Met(None, content, is_same))
            for entry in self._tree.entries(content, path):
                if entry.is_directory:
                    stack.append((entry.content, entry.path, is_same or entry.path in self._same_folders))
                elif entry.is_file:
                    self._note_before(_Met(entry, entry.content, is_same))

    def _note_before(self, met: _Met) -> None:
        if self._new:
            self._new.difference_update(prefix for prefix, _ in self._data_chunks(met))
            self._new.difference_update(self._metadata_chunks(met))
        if met.is_same:
            self._take_data(met)
            self._take_metadata(self._metadata_chunks(met))

    def _data_chunks(self, met: _Met) -> Iterator[tuple[bytes, int]]:
        """The beginning of the id, and the length, of each chunk of a file."""
        if met.entry is not None:
            for chunk_id, size in self._tree.chunk_list(met.content):
                yield chunk_id[:ID_PREFIX_SIZE], size

    def _metadata_chunks(self, met: _Met) -> Iterator[bytes]:
        """The same of what describes it: content lists, and the leaves of a folder."""
        yield from self._lists(met.content)
        if met.entry is None:
            for chunk_id, _ in self._tree.chunk_list(met.content):
                yield chunk_id[:ID_PREFIX_SIZE]

    def _lists(self, content: Content) -> Iterator[bytes]:
        if content.depth:
            for chunk_id, inner in zip(content.chunk_ids(), self._tree.parts(content), strict=True):
                yield chunk_id[:ID_PREFIX_SIZE]
                yield from self._lists(inner)

    def _take_data(self, met: _Met) -> None:
        """Sort the bytes of a file."""
        if met.entry is None:
            return
        share = Share(1, int(not met.is_same))
        waiting = _Waiting(share, path=met.entry.path)
        if met.is_same:
            share.shared_size = sum(met.content.sizes)
        else:
            for prefix, size in self._data_chunks(met):
                if prefix in self._met:
                    share.repeated_size += size
                elif self._is_new(prefix):
                    waiting.new.append(prefix)
                else:
                    share.shared_size += size
        self._wait(waiting)

    def _take_metadata(self, prefixes: Iterator[bytes]) -> None:
        waiting = _Waiting(self._metadata)
        for prefix in prefixes:
            if prefix in self._met:
                waiting.repeated.append(prefix)
            elif self._is_new(prefix):
                waiting.new.append(prefix)
            else:
                waiting.shared.append(prefix)
        self._wait(waiting)

    def _is_new(self, prefix: bytes) -> bool:
        """Whether the earlier snapshot lacks a chunk that was not met before; now it is."""
        if self._before is not None and prefix not in self._new:
            return False
        self._new.discard(prefix)
        self._met.add(prefix)
        return True

    def _wait(self, waiting: _Waiting) -> None:
        """Many chunks are looked up in one call."""
        self._waiting.append(waiting)
        self._waiting_chunks += 1 + len(waiting.new) + len(waiting.shared) + len(waiting.repeated)
        if self._waiting_chunks >= _LOOK_UP_CHUNKS:
            self._look_up()

    def _look_up(self) -> None:
        prefixes = [prefix for each in self._waiting for prefix in (*each.new, *each.shared, *each.repeated)]
        locations = iter(self._chunks.locate(prefixes))
        for each in self._waiting:
            for location in islice(locations, len(each.new)):
                each.share.add_chunk(location)
            each.share.shared_size += sum(location.size for location in islice(locations, len(each.shared)))
            each.share.repeated_size += sum(location.size for location in islice(locations, len(each.repeated)))
            if each.path is not None:
                self._finish(FileShare(each.path, each.share))
        self._waiting = []
        self._waiting_chunks = 0

    def _finish(self, file: FileShare) -> None:
        self._kinds.setdefault(suffix_of(file.path.rpartition(b"/")[2]), Share()).add_all(file.share)
        stored = file.share.added.stored_size
        if not stored:
            return
        heapq.heappush(self._largest, (stored, next(self._order), file))
        if len(self._largest) > self._limit:
            heapq.heappop(self._largest)


def _with_earlier(before: Iterator[Entry], after: Iterator[Entry]) -> Iterator[tuple[Entry | None, Entry]]:
    """Each entry of `after` with that of `before` of its name; both ascend by name."""
    old = next(before, None)
    for new in after:
        while old is not None and old.name < new.name:
            old = next(before, None)
        yield old if old is not None and old.name == new.name else None, new
