"""Bases of new chunks out of the repository: finds candidates for each file, and loads them when a block is encoded."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from ohdiff.buffers import PooledBuffer
from ohdiff.delta.frames import Base, Budget, compress
from ohdiff.delta.places import EarlierVersion
from ohdiff.errors import IntegrityError, OhdiffError, StorageError
from ohdiff.repository.chunk_reader import ChunkReader
from ohdiff.repository.encoding import Encoded
from ohdiff.repository.index import ChunkIndex
from ohdiff.repository.index_segment import BlockLocation, ChunkLocation
from ohdiff.repository.lost_bases import split_prefixes
from ohdiff_format.blocks import CODEC_DELTA
from ohdiff_format.limits import ID_PREFIX_SIZE
from ohdiff_format.tree import Content

from .chunk_source import ChunkSource
from .resembling import BufferBases, Resembling
from .tree_reader import TreeReader

# A delta on a delta on plain bytes: whatever is read takes two further loads at most.
DEPTH_MAX: Final = 2
# Of more base bytes the compressor would find the first ones no more, and reading one chunk would cost too much.
_BASE_SIZE_BYTES_MAX: Final = 3 << 19


class StoredBases:
    """Bases that the repository holds; safe for use from several threads.

    Attributes
    ----------
    errors : what could not be read although the index has it, by item; what would have stood on it is stored plain.
    """

    def __init__(
        self, index: ChunkIndex, chunks: ChunkReader, tree: TreeReader, resembling: Resembling | None = None
    ) -> None:
        self._index = index
        self._chunks = chunks
        self._tree = tree
        self._lock = threading.Lock()
        self.budget = Budget()
        self.resembling = resembling
        self.errors: dict[str | None, OhdiffError] = {}

    def of_file(self, earlier: Content) -> FileBases:
        """The finder for the new version of a file."""
        return FileBases(EarlierVersion(self._chunk_list(earlier)))

    def of_buffer(self, buffer: PooledBuffer) -> BufferBases | None:
        """The finder for files without an earlier version; None if nothing can be found."""
        if self.resembling is None or self.resembling.is_empty:
            return None
        return BufferBases(self.resembling, buffer)

    def plan(self, candidates: Sequence[bytes], *, is_metadata: bool) -> DeltaPlan:
        """See `DeltaPlanner`."""
        return DeltaPlan(self, candidates, is_metadata=is_metadata)

    def load(self, candidates: Sequence[bytes], *, is_metadata: bool) -> Base | None:
        """The bytes of those candidates that are stored, shallow enough, and together not too large."""
        try:
            chosen = self._choose(candidates, is_metadata=is_metadata)
            if not chosen:
                return None
            depth = 1 + max(location.block.depth for location in chosen.values())
            return Base(b"".join(chosen), self._chunks.bases_at(chosen.items()), depth)
        except (IntegrityError, StorageError) as error:
            self.note(error)
            return None

    def read(self, prefix: bytes) -> bytes | None:
        """The bytes of one chunk of data, named by 16 bytes of its id; None if it cannot be had."""
        try:
            return self._chunks.bases(prefix) if self._locate([prefix]) else None
        except (IntegrityError, StorageError) as error:
            self.note(error)
            return None

    def block_of(self, prefix: bytes) -> BlockLocation | None:
        """The block of one chunk of data; None if the index does not know it."""
        place = self._locate([prefix]).get(prefix)
        return None if place is None else place.block

    def file(self, content: Content) -> StoredFile:
        """A file of the repository to be read at any offset."""
        return StoredFile(self._index, self._chunks, self._tree.joined(content))

    def note(self, error: OhdiffError) -> None:
        """Something could not be read that would have been a base."""
        with self._lock:
            self.errors.setdefault(error.item, error)

    def _choose(self, candidates: Sequence[bytes], *, is_metadata: bool) -> dict[bytes, ChunkLocation]:
        found = self._locate(candidates, is_metadata=is_metadata)
        deep = [prefix for prefix, location in found.items() if location.block.depth >= DEPTH_MAX]
        below: dict[bytes, None] = {}
        for prefix in deep:
            # What a deep chunk stands on is like it, and less deep.
            below.update(dict.fromkeys(split_prefixes(found.pop(prefix).block.base_prefixes)))
        if below:
            further = self._locate([prefix for prefix in below if prefix not in found], is_metadata=is_metadata)
            found |= {prefix: place for prefix, place in further.items() if place.block.depth < DEPTH_MAX}
        size = 0
        chosen = {}
        for prefix, location in found.items():
            size += location.size
            if size <= _BASE_SIZE_BYTES_MAX:
                chosen[prefix] = location
        return chosen

    def _locate(self, prefixes: Sequence[bytes], *, is_metadata: bool = False) -> dict[bytes, ChunkLocation]:
        places = self._index.find(prefixes)
        return {
            prefix: place
            for prefix, place in zip(prefixes, places, strict=True)
            if place is not None and place.block.is_metadata == is_metadata
        }

    def _chunk_list(self, content: Content) -> Iterator[tuple[bytes, int]]:
        try:
            for chunk_id, size in self._tree.chunk_list(content):
                yield chunk_id[:ID_PREFIX_SIZE], size
        except (IntegrityError, StorageError) as error:
            self.note(error)


class StoredFile(ChunkSource):
    """A file of the repository, read at any offset."""

    def __init__(self, index: ChunkIndex, chunks: ChunkReader, content: Content) -> None:
        super().__init__(content, chunks.read)
        self._index = index

    def chunks_at(self, ranges: Sequence[tuple[int, int]]) -> list[tuple[bytes, BlockLocation] | None]:
        """For each range, if it is exactly one chunk that the repository has, 16 bytes of its id, and its block."""
        rows = {bounds: row for row, bounds in enumerate(pairwise([0, *self._ends]))}
        wanted = [rows.get(bounds) for bounds in ranges]
        ids = [self._ids[row] for row in wanted if row is not None]
        places = iter(self._index.find(ids))
        found: list[tuple[bytes, BlockLocation] | None] = []
        for row in wanted:
            place = None if row is None else next(places)
            found.append(None if row is None or place is None else (self._ids[row][:ID_PREFIX_SIZE], place.block))
        return found


class FileBases:
    """Finds bases for the new chunks of one file.

    Attributes
    ----------
    origin : offset in the file of the first byte of the buffer that chunks are added from.
    """

    def __init__(self, earlier: EarlierVersion) -> None:
        self._earlier = earlier
        self.origin = 0

    def note_duplicate(self, prefix: bytes, start: int) -> None:
        """See `BaseFinder`."""
        self._earlier.note_duplicate(prefix, self.origin + start)

    def candidates(self, start: int, end: int) -> Sequence[bytes]:
        """See `BaseFinder`."""
        return self._earlier.at(self.origin + start, self.origin + end)


class DeltaPlan:
    """Encodes a block as a delta against whichever candidates can be used."""

    def __init__(self, source: StoredBases, candidates: Sequence[bytes], *, is_metadata: bool) -> None:
        self._source = source
        self._candidates = candidates
        self._is_metadata = is_metadata
        self._is_tried = False

    def encode(self, plain: memoryview) -> Encoded | None:
        """See `EncodingPlan`."""
        if not self._source.budget.allows():
            return None
        base = self._source.load(self._candidates, is_metadata=self._is_metadata)
        if base is None:
            return None
        self._is_tried = True
        payload = compress(plain, base)
        return Encoded(CODEC_DELTA, payload, len(plain), base.prefixes, bytes([base.depth]), base.data)

    def settle(self, *, is_taken: bool) -> None:
        """See `EncodingPlan`."""
        if self._is_tried:
            self._source.budget.settle(is_taken=is_taken)
