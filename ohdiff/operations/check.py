"""Checking a repository: every snapshot's trees lead to chunks that are there, and, on demand, that are what they say.

Packs need no key to be checked against their names; their blocks are then opened, decoded and hashed. Damage is
collected and traced to the files that it touches; checking never writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from blake3 import blake3

from ohdiff.errors import IntegrityError, OhdiffError, StorageError, UnsupportedFormatError
from ohdiff.repository import objects, packs, snapshots
from ohdiff.repository.chunk_reader import ChunkReader
from ohdiff.repository.index import FOLDER as INDEX_FOLDER
from ohdiff.repository.index import ChunkIndex, open_index
from ohdiff.repository.index_segment import BlockLocation
from ohdiff.repository.lost_bases import split_prefixes
from ohdiff.repository.repository import Repository
from ohdiff.repository.snapshots import StoredSnapshot
from ohdiff_format.envelope import KIND_INDEX
from ohdiff_format.index import NUMBER_BODY, PackRecord, decode_index
from ohdiff_format.limits import ID_PREFIX_SIZE
from ohdiff_format.tree import Content

from .observer import Observer, Progress
from .tree_reader import Entry, TreeReader

_TOUCHED_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class Part:
    """The share of packs whose data is read: slice `number` (from 1) of `count`, drawn by pack id."""

    number: int = 1
    count: int = 1

    def has(self, pack_id: bytes) -> bool:
        """Whether a pack belongs to this share; over all numbers, each pack belongs to one."""
        return int.from_bytes(pack_id[:8], "big") % self.count == self.number - 1


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong; `touched` are (snapshot id, path) pairs of files that cannot be restored for it."""

    message: str
    item: str
    touched: list[tuple[str, bytes]] = field(default_factory=list)


@dataclass(slots=True)
class CheckResult:
    """What was looked at and what was found wrong; sizes in bytes."""

    snapshots: int = 0
    packs: int = 0
    chunks: int = 0
    read_packs: int = 0
    read_size: int = 0
    unused_packs: int = 0
    problems: list[Problem] = field(default_factory=list)


def check(repository: Repository, part: Part | None, observer: Observer, *, workers: int = 2) -> CheckResult:
    """Check everything but the data of packs, and that of the packs in `part`, too, unless it is None."""
    # Snapshots first: what one of them needs was indexed before it, whatever others commit meanwhile.
    snapshot_ids = sorted(objects.list_ids(repository, snapshots.FOLDER))
    index = open_index(repository, skip_damaged=True)
    try:
        return _Check(repository, index, observer, workers).run(snapshot_ids, part)
    finally:
        index.close()


class _Check:
    def __init__(self, repository: Repository, index: ChunkIndex, observer: Observer, workers: int) -> None:
        self._repository = repository
        self._index = index
        self._observer = observer
        self._workers = workers
        self._chunks = ChunkReader(repository, index)
        self._tree = TreeReader(self._chunks)
        self._id_key = repository.chunk_id_key
        self._damaged: dict[bytes, str] = {}
        self._seen_leaves: set[bytes] = set()
        self._skips_seen = True
        self._touched: dict[str, list[tuple[str, bytes]]] = {}
        self._progress = Progress()
        self._result = CheckResult()

    def run(self, snapshot_ids: list[bytes], part: Part | None) -> CheckResult:
        result = self._result
        records = self._read_index()
        self._compare_packs(records)
        if part is not None:
            self._read_packs([record for record in records.values() if part.has(record.pack_id)])
        self._trace_bases(records)
        stored = list(self._read_snapshots(snapshot_ids))
        result.snapshots = len(stored)
        self._walk_all(stored, skips_seen=not self._damaged)
        if self._touched and not self._damaged:
            # Something is lost: a leaf that was walked for one snapshot may hide it from another.
            self._touched.clear()
            self._walk_all(stored, skips_seen=False)
        for item, touched in self._touched.items():
            result.problems.append(Problem(f"{item} is needed and missing or damaged", item, touched))
        return result

    def _read_index(self) -> dict[bytes, PackRecord]:
        records: dict[bytes, PackRecord] = {}
        for object_id in sorted(objects.list_ids(self._repository, INDEX_FOLDER)):
            try:
                index = objects.read_object(
                    self._repository, INDEX_FOLDER, KIND_INDEX, NUMBER_BODY, object_id, decode_index
                )
            except OhdiffError as error:
                self._report(error, f"{INDEX_FOLDER}/{object_id.hex()}")
                continue
            records.update({pack.pack_id: pack for pack in index.packs})
        self._result.chunks = sum(len(block.chunk_sizes) for pack in records.values() for block in pack.blocks)
        return records

    def _compare_packs(self, records: dict[bytes, PackRecord]) -> None:
        stored = objects.list_ids(self._repository, packs.FOLDER)
        self._result.packs = len(stored)
        self._result.unused_packs = len(stored.keys() - records.keys())
        for pack_id, record in records.items():
            size = stored.get(pack_id)
            if size == record.size:
                continue
            what = "is missing" if size is None else f"has {size} bytes and should have {record.size}"
            name = f"{packs.FOLDER}/{pack_id.hex()}"
            self._result.problems.append(Problem(f"{name} {what}", name))
            self._damage(record, name)

    def _read_packs(self, records: list[PackRecord]) -> None:
        self._progress.total_bytes = sum(record.size for record in records)
        with ThreadPoolExecutor(self._workers) as workers:
            for record, error in zip(records, workers.map(self._read_pack, records), strict=True):
                self._result.read_packs += 1
                self._result.read_size += record.size
                self._progress.bytes_done += record.size
                self._observer.progress(self._progress)
                if error is not None:
                    self._report(error, f"{packs.FOLDER}/{record.pack_id.hex()}")

    def _read_pack(self, record: PackRecord) -> OhdiffError | None:
        """Check the pack's name against its bytes, then decode and hash every block; notes what is damaged."""
        name = f"{packs.FOLDER}/{record.pack_id.hex()}"
        first_error: OhdiffError | None = None
        try:
            if objects.hash_object(self._repository, name, record.size) != record.pack_id:
                first_error = IntegrityError(f"{name}: its bytes do not match its name", item=name)
        except (StorageError, IntegrityError) as error:
            self._damage(record, name)
            return error
        offset = record.header_size
        for number, block in enumerate(record.blocks):
            location = BlockLocation(
                record.pack_id,
                record.header_size,
                record.is_metadata,
                number,
                offset,
                block.sealed_size,
                block.plain_size,
                block.codec,
                block.base_prefixes,
                block.parameters,
            )
            offset += block.sealed_size
            try:
                plain = self._chunks.load_block(location)
            except (StorageError, IntegrityError, UnsupportedFormatError) as error:
                first_error = first_error or error
                self._damaged.update(dict.fromkeys(split_prefixes(block.chunk_prefixes), name))
                continue
            for prefix, data in zip(
                split_prefixes(block.chunk_prefixes), _slices(memoryview(plain), block.chunk_sizes), strict=True
            ):
                if blake3(data, key=self._id_key).digest()[:ID_PREFIX_SIZE] != prefix:
                    first_error = first_error or IntegrityError(f"{name}: a chunk is not what was stored", item=name)
                    self._damaged[prefix] = name
        return first_error

    def _trace_bases(self, records: dict[bytes, PackRecord]) -> None:
        """Note as damaged what stands on base chunks that are damaged or in no index."""
        blocks = [block for record in records.values() for block in record.blocks if block.base_prefixes]
        for block in sorted(blocks, key=lambda block: block.depth):
            bases = split_prefixes(block.base_prefixes)
            known = self._index.contains(block.base_prefixes)
            lost = [self._damaged[base] for base in bases if base in self._damaged]
            lost += [f"base chunk {base.hex()}" for base, is_known in zip(bases, known, strict=True) if not is_known]
            if lost:
                self._damaged.update(dict.fromkeys(split_prefixes(block.chunk_prefixes), lost[0]))

    def _damage(self, record: PackRecord, name: str) -> None:
        for block in record.blocks:
            self._damaged.update(dict.fromkeys(split_prefixes(block.chunk_prefixes), name))

    def _read_snapshots(self, snapshot_ids: list[bytes]) -> Iterator[StoredSnapshot]:
        for snapshot_id in snapshot_ids:
            try:
                yield snapshots.load_snapshot(self._repository, snapshot_id)
            except OhdiffError as error:
                self._report(error, f"{snapshots.FOLDER}/{snapshot_id.hex()}")

    def _walk_all(self, stored: Iterable[StoredSnapshot], *, skips_seen: bool) -> None:
        self._skips_seen = skips_seen
        for each in stored:
            self._walk(each)

    def _walk(self, stored: StoredSnapshot) -> None:
        stack = [self._entries(stored, stored.root, b"")]
        while stack:
            entry = next(stack[-1], None)
            if entry is None:
                stack.pop()
            elif entry.is_directory:
                stack.append(self._entries(stored, entry.content, entry.path))

    def _entries(self, stored: StoredSnapshot, content: Content, path: bytes) -> Iterator[Entry]:
        """The entries of a directory's leaves that were not walked yet; checks the chunks of its files."""
        try:
            for chunk_id, size, listing in self._tree.leaves(content):
                if self._skips_seen and chunk_id in self._seen_leaves:
                    continue
                self._seen_leaves.add(chunk_id)
                entries = [Entry(path + b"/" + name, listing, row) for row, name in enumerate(listing.names)]
                self._check_files(stored, [entry for entry in entries if entry.is_file])
                self._progress.files_done += len(entries)
                self._progress.bytes_done += size
                yield from entries
            self._observer.progress(self._progress)
        except (IntegrityError, StorageError) as error:
            self._touch(error.item or "a tree", stored, path or b"/")

    def _check_files(self, stored: StoredSnapshot, entries: list[Entry]) -> None:
        owners: list[Entry] = []
        ids: list[bytes] = []
        for entry in entries:
            try:
                for part in self._tree.flat(entry.content):
                    ids += part.chunk_ids()
                    owners += [entry] * len(part.sizes)
            except (IntegrityError, StorageError) as error:
                self._touch(error.item or "a content list", stored, entry.path)
        known = self._index.contains(b"".join([chunk_id[:ID_PREFIX_SIZE] for chunk_id in ids]))
        for entry, chunk_id, is_known in zip(owners, ids, known, strict=True):
            if not is_known:
                self._touch(f"chunk {chunk_id.hex()}", stored, entry.path)
            elif chunk_id[:ID_PREFIX_SIZE] in self._damaged:
                self._touch(self._damaged[chunk_id[:ID_PREFIX_SIZE]], stored, entry.path)

    def _touch(self, item: str, stored: StoredSnapshot, path: bytes) -> None:
        touched = self._touched.setdefault(item, [])
        if len(touched) < _TOUCHED_MAX and (not touched or touched[-1] != (stored.short_id, path)):
            touched.append((stored.short_id, path))

    def _report(self, error: OhdiffError, item: str) -> None:
        problem = Problem(error.message, error.item or item)
        # A damaged base chunk is met again by each block that stands on it.
        if problem not in self._result.problems:
            self._result.problems.append(problem)
            self._observer.error(error)


def _slices(data: memoryview, sizes: Iterable[int]) -> Iterator[memoryview]:
    start = 0
    for size in sizes:
        yield data[start : start + size]
        start += size
