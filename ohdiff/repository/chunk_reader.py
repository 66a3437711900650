"""Reading chunks: find the block, open and decode it once, check every chunk against its full id."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from blake3 import blake3

from ohdiff.errors import IntegrityError, ObjectMissingError, UnsupportedFormatError
from ohdiff_format.blocks import decode_block
from ohdiff_format.envelope import HEADER_SIZE_MAX, KIND_PACK, Buffer, Sealer
from ohdiff_format.errors import FormatError, UnknownFeatureError

from . import objects
from .index import ChunkIndex
from .index_segment import BlockLocation, ChunkLocation
from .packs import FOLDER
from .repository import Repository

CACHE_SIZE_BYTES: Final = 48 << 20
_SEALERS_MAX: Final = 4096


class ChunkReader:
    """Reads verified chunks; safe for use from several threads.

    Parameters
    ----------
    cache_size_bytes : decoded blocks are kept up to this, least recently used dropped first.
    """

    def __init__(self, repository: Repository, index: ChunkIndex, cache_size_bytes: int = CACHE_SIZE_BYTES) -> None:
        self._repository = repository
        self._index = index
        self._id_key = repository.chunk_id_key
        self._cache_size_max = cache_size_bytes
        self._cache: OrderedDict[tuple[bytes, int], Buffer] = OrderedDict()
        self._cache_size = 0
        self._sealers: dict[bytes, Sealer] = {}
        self._lock = threading.Lock()

    def locate(self, chunk_ids: Sequence[bytes]) -> list[ChunkLocation]:
        """Where chunks lie; IntegrityError if the repository lacks one."""
        found = self._index.find(chunk_ids)
        for chunk_id, location in zip(chunk_ids, found, strict=True):
            if location is None:
                raise IntegrityError(
                    f"chunk {chunk_id.hex()[:16]} is in no index",
                    hint="run: ohdiff check, which names the files that it touches",
                    item=chunk_id.hex(),
                )
        return [location for location in found if location is not None]

    def read(self, chunk_id: bytes) -> memoryview:
        """The bytes of one chunk, verified."""
        (location,) = self.locate([chunk_id])
        return self.extract(self.block(location.block), location, chunk_id)

    def extract(self, plain: Buffer, location: ChunkLocation, chunk_id: bytes) -> memoryview:
        """The bytes of a chunk out of its decoded block, verified against the full id."""
        data = memoryview(plain)[location.offset : location.offset + location.size]
        if blake3(data, key=self._id_key).digest() != chunk_id:
            pack = location.block.pack_id.hex()
            raise IntegrityError(
                f"pack {pack[:16]} is damaged: chunk {chunk_id.hex()[:16]} is not what was stored",
                hint="run: ohdiff check --read-data",
                item=f"{FOLDER}/{pack}",
            )
        return data

    def block(self, location: BlockLocation) -> Buffer:
        """The plain bytes of a block, from the cache if it is there."""
        key = (location.pack_id, location.number)
        with self._lock:
            cached = self._cache.get(key)
            if cached is not None:
                self._cache.move_to_end(key)
                return cached
        plain = self.load_block(location)
        with self._lock:
            if key not in self._cache:
                self._cache[key] = plain
                self._cache_size += len(plain)
            while self._cache_size > self._cache_size_max and len(self._cache) > 1:
                _, dropped = self._cache.popitem(last=False)
                self._cache_size -= len(dropped)
        return plain

    def load_block(self, location: BlockLocation) -> Buffer:
        """Read, open and decode a block, without the cache."""
        name = f"{FOLDER}/{location.pack_id.hex()}"
        try:
            sealer = self._sealer(location, name)
            sealed = self._repository.storage.read(name, location.offset, location.sealed_size)
        except ObjectMissingError as error:
            raise IntegrityError(
                f"pack {location.pack_id.hex()[:16]} is missing",
                hint="run: ohdiff check, which names the files that it touches",
                item=name,
            ) from error
        except UnsupportedFormatError:
            # A flipped bit may look like a later version; the pack's name tells.
            if objects.hash_object(self._repository, name, self._repository.storage.size(name)) == location.pack_id:
                raise
            raise self._damaged(location, "its bytes do not match its name") from None
        try:
            return decode_block(location.codec, sealer.open(location.number, sealed), location.plain_size)
        except UnknownFeatureError as error:
            raise UnsupportedFormatError(f"{name}: {error}", hint="upgrade ohdiff", item=name) from error
        except FormatError as error:
            raise self._damaged(location, str(error)) from error

    def _damaged(self, location: BlockLocation, what: str) -> IntegrityError:
        return IntegrityError(
            f"pack {location.pack_id.hex()[:16]} is damaged in block {location.number}: {what}",
            hint="run: ohdiff check --read-data, which names the files that it touches",
            item=f"{FOLDER}/{location.pack_id.hex()}",
        )

    def _sealer(self, location: BlockLocation, name: str) -> Sealer:
        sealer = self._sealers.get(location.pack_id)
        if sealer is None:
            header = self._repository.storage.read(name, 0, location.header_size)
            sealer = self._repository.open_sealer(header[:HEADER_SIZE_MAX], KIND_PACK, name)
            if len(self._sealers) >= _SEALERS_MAX:
                self._sealers.clear()
            self._sealers[location.pack_id] = sealer
        return sealer
