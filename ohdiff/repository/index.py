"""The chunk index: which chunks the repository holds, and where (SPEC section 7).

The truth is the repository's index objects. Beside them stands a local, rebuildable copy in segments, like a
log-structured merge tree: a run adds one segment, small segments are merged, look-ups ask each. It is tied to the
repository's id, and to the set of index objects that it was built from: when one of those is gone, it is rebuilt.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from operator import or_
from pathlib import Path
from typing import Final

import msgspec

from ohdiff.errors import IntegrityError, StorageError
from ohdiff_format.envelope import KIND_INDEX
from ohdiff_format.index import NUMBER_BODY, Index, PackRecord, decode_index, encode_index
from ohdiff_format.limits import ID_PREFIX_SIZE

from . import objects
from .index_segment import (
    BlockLocation,
    ChunkLocation,
    DamagedSegmentError,
    IndexSegment,
    merge_segments,
    write_segment,
)
from .lost_bases import bases_of, find_broken, split_prefixes, unknown
from .repository import Repository

FOLDER: Final = "index"
_LAYOUT_VERSION: Final = 2
_SEGMENTS_MAX: Final = 8
_CHUNKS_PER_RUN: Final = 1_000_000


class _Manifest(msgspec.Struct):
    """The local file that says which segments stand for which index objects."""

    layout: int
    repository_id: bytes
    segments: list[str]
    sources: list[bytes]
    broken: list[bytes]
    whole: bytes = b""


class ChunkIndex:
    """Look-ups over all index objects of a repository; open it with `open_index`."""

    def __init__(self, repository: Repository, folder: Path, is_temporary: bool) -> None:
        self._repository = repository
        self._folder = folder
        self._is_temporary = is_temporary
        self._segments: list[IndexSegment] = []
        self._sources: set[bytes] = set()
        # Normally none: what an index object that is gone took with it.
        self._broken: frozenset[bytes] = frozenset()
        self._whole = b""

    @property
    def chunk_count(self) -> int:
        """Entries of all segments; a chunk that was stored twice counts twice."""
        return sum(segment.chunk_count for segment in self._segments)

    @property
    def resident_size_bytes(self) -> int:
        """Memory held by filters and directories."""
        return sum(segment.ids.resident_bytes for segment in self._segments)

    def contains(self, prefixes: bytes) -> bytes:
        """One byte, 0 or 1, for each 16-byte id prefix, back to back."""
        found = bytes(len(prefixes) // ID_PREFIX_SIZE)
        for segment in self._segments:
            found = bytes(map(or_, found, segment.contains(prefixes)))
        if self._broken:
            names = split_prefixes(prefixes)
            found = bytes([flag and name not in self._broken for flag, name in zip(found, names, strict=True)])
        return found

    def find(self, chunk_ids: Sequence[bytes]) -> list[ChunkLocation | None]:
        """Where each chunk lies, or None for those that the repository does not hold whole."""
        found = self._find(chunk_ids)
        if self._broken:
            return [
                None if chunk_id[:ID_PREFIX_SIZE] in self._broken else place
                for chunk_id, place in zip(chunk_ids, found, strict=True)
            ]
        return found

    def _find(self, chunk_ids: Sequence[bytes]) -> list[ChunkLocation | None]:
        prefixes = b"".join([chunk_id[:ID_PREFIX_SIZE] for chunk_id in chunk_ids])
        result: list[ChunkLocation | None] = [None] * len(chunk_ids)
        for segment in self._segments:
            try:
                found = segment.find(prefixes)
            except DamagedSegmentError as error:
                raise IntegrityError(
                    f"the local index in {self._folder} is damaged: {error}",
                    hint="delete that folder: it is made again from the repository",
                    item=str(self._folder),
                ) from error
            for row, location in enumerate(found):
                known = result[row]
                # Of several places the one that stands on the fewest others.
                if location is not None and (known is None or location.block.depth <= known.block.depth):
                    result[row] = location
        return result

    def blocks(self) -> Iterator[BlockLocation]:
        """Every block that any index object names."""
        for segment in self._segments:
            yield from segment.blocks()

    def add(self, packs: Sequence[PackRecord]) -> bytes:
        """Store an index object for packs that are durable already, and learn it; returns its id."""
        plain = encode_index(Index(list(packs)))
        object_id = objects.write_object(self._repository, FOLDER, KIND_INDEX, NUMBER_BODY, plain)
        with _exclusive(self._folder):
            self._learn(packs, [object_id])
            if self._broken:
                self._broken = find_broken(self._segments, self._find)
            self._save()
        return object_id

    def is_whole_for(self, snapshot_id: bytes) -> bool:
        """Whether everything that a snapshot needs is surely indexed: it was at its end, and nothing is lost since."""
        return self._whole == snapshot_id and not self._broken

    def note_whole(self, snapshot_id: bytes) -> None:
        """Everything that a snapshot needs is indexed; said of the latest one, at its end. Forgotten if need be."""
        self._whole = snapshot_id
        if not self._is_temporary:
            with contextlib.suppress(StorageError), _exclusive(self._folder):
                self._save()

    def close(self) -> None:
        """Release the local files."""
        for segment in self._segments:
            segment.close()
        self._segments = []
        if self._is_temporary:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _load(self, skip_damaged: bool) -> None:
        with _exclusive(self._folder):
            self._catch_up(skip_damaged)

    def _catch_up(self, skip_damaged: bool) -> None:
        stored = objects.list_ids(self._repository, FOLDER)
        manifest = self._read_manifest()
        if manifest is not None and set(manifest.sources) <= stored.keys():
            self._open_segments(manifest)
        missing = sorted(stored.keys() - self._sources)
        if missing:
            has_lost = self._learn_objects(missing, skip_damaged)
            if has_lost or self._broken:
                self._broken = find_broken(self._segments, self._find)
            self._save()

    def _open_segments(self, manifest: _Manifest) -> None:
        opened: list[IndexSegment] = []
        try:
            for name in manifest.segments:
                opened.append(IndexSegment(self._folder / name))
        except (OSError, DamagedSegmentError):
            # A lost or damaged local file only costs the time to read the index objects again.
            for segment in opened:
                segment.close()
            return
        self._segments = opened
        self._sources = set(manifest.sources)
        self._broken = frozenset(manifest.broken)
        self._whole = manifest.whole

    def _learn_objects(self, object_ids: Iterable[bytes], skip_damaged: bool) -> bool:
        """Returns whether something of what was learned stands on chunks that are not there."""
        packs: list[PackRecord] = []
        learned: list[bytes] = []
        bases: list[bytes] = []
        chunk_count = 0
        for object_id in object_ids:
            try:
                index = objects.read_object(self._repository, FOLDER, KIND_INDEX, NUMBER_BODY, object_id, decode_index)
            except IntegrityError:
                if skip_damaged:
                    continue
                raise
            packs += index.packs
            learned.append(object_id)
            chunk_count += sum(len(block.chunk_sizes) for pack in index.packs for block in pack.blocks)
            if chunk_count >= _CHUNKS_PER_RUN:
                bases = self._learn_run(packs, learned, bases)
                packs, learned, chunk_count = [], [], 0
        return bool(self._learn_run(packs, learned, bases))

    def _learn_run(self, packs: Sequence[PackRecord], sources: Sequence[bytes], bases: list[bytes]) -> list[bytes]:
        """Learn some packs; returns what of their bases, and of earlier ones, is not known yet."""
        self._learn(packs, sources)
        return unknown(bases + bases_of(packs), self._find)

    def _learn(self, packs: Sequence[PackRecord], sources: Sequence[bytes]) -> None:
        if packs:
            stem = self._new_stem()
            write_segment(stem, packs, self._repository.config.id)
            self._segments.append(IndexSegment(stem))
            if len(self._segments) > _SEGMENTS_MAX:
                self._merge_smallest()
        self._sources.update(sources)

    def _merge_smallest(self) -> None:
        # Another process may have dropped segments that this one still has open; they serve look-ups only.
        present = [segment for segment in self._segments if segment.is_on_disk]
        ordered = sorted(present, key=lambda segment: segment.chunk_count)
        small = ordered[: _SEGMENTS_MAX // 2 + 1]
        if len(small) < 2:
            return
        kept = [segment for segment in self._segments if segment not in small]
        stem = self._new_stem()
        merge_segments(stem, small, self._repository.config.id)
        self._segments = [*kept, IndexSegment(stem)]
        for segment in small:
            segment.close()

    def _new_stem(self) -> Path:
        return self._folder / f"segment-{secrets.token_hex(8)}"

    def _manifest_path(self) -> Path:
        return self._folder / "manifest.json"

    def _read_manifest(self) -> _Manifest | None:
        try:
            manifest = msgspec.json.decode(self._manifest_path().read_bytes(), type=_Manifest)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None
        is_ours = manifest.layout == _LAYOUT_VERSION and manifest.repository_id == self._repository.config.id
        is_plain = all(name == Path(name).name for name in manifest.segments)
        return manifest if is_ours and is_plain else None

    def _save(self) -> None:
        """Replace the manifest, then drop segments that it does not name.

        When another process has dropped some of ours, its manifest stands: the next one to open reads what that lacks.
        """
        if not all(segment.is_on_disk for segment in self._segments):
            return
        names = [segment.stem.name for segment in self._segments]
        sources, broken = sorted(self._sources), sorted(self._broken)
        manifest = _Manifest(_LAYOUT_VERSION, self._repository.config.id, names, sources, broken, self._whole)
        temporary = self._manifest_path().with_suffix(f".{os.getpid()}")
        temporary.write_bytes(msgspec.json.encode(manifest))
        temporary.replace(self._manifest_path())
        for path in self._folder.glob("segment-*"):
            if path.stem not in names:
                with contextlib.suppress(FileNotFoundError):
                    path.unlink()


@contextlib.contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """The only process that changes the local files, so that none drops what another is making."""
    try:
        with (folder / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise StorageError(
            f"the local index in {folder} cannot be written: {error.strerror}",
            hint="make room there, or choose another cache folder",
            item=str(folder),
        ) from error


def open_index(repository: Repository, *, skip_damaged: bool = False) -> ChunkIndex:
    """The chunk index, brought up to date with the index objects in storage.

    Parameters
    ----------
    skip_damaged : go without index objects that are damaged, for who reports them; else they are an IntegrityError.
    """
    folder = repository.cache_folder
    is_temporary = folder is None
    if folder is None:
        folder = Path(tempfile.mkdtemp(prefix="ohdiff-index-"))
    else:
        folder = folder / FOLDER
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    index = ChunkIndex(repository, folder, is_temporary)
    try:
        index._load(skip_damaged)
    except BaseException:
        index.close()
        raise
    return index
