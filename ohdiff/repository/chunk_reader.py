"""Reading chunks: find the block, open and decode it once, with the base chunks that it stands on, check every id."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Final

from blake3 import blake3

from ohdiff.breaks import computing
from ohdiff.errors import IntegrityError, ObjectMissingError, UnsupportedFormatError
from ohdiff_format.blocks import CODEC_ZSTD, decode_block_into
from ohdiff_format.envelope import HEADER_SIZE_MAX, KIND_PACK, Buffer, Sealer
from ohdiff_format.errors import FormatError, UnknownFeatureError
from ohdiff_format.limits import BASE_SIZE_BYTES_MAX, DEPTH_MAX

from . import objects
from .block_cache import ROOM_SIZE_BYTES, BlockCache, DecodedBlock
from .block_decoder import decode
from .index import ChunkIndex
from .index_segment import BlockLocation, ChunkLocation
from .lost_bases import split_prefixes
from .packs import FOLDER
from .repository import Repository

CACHE_SIZE_BYTES: Final = 24 << 20
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
        self._blocks = BlockCache(cache_size_bytes)
        # A decoded block, and where in it the chunk that was read last ends.
        self._next: tuple[Buffer, int] | None = None
        self._sealers: dict[bytes, Sealer] = {}

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

    def read(self, chunk_id: bytes, size: int | None = None) -> memoryview:
        """The bytes of one chunk, verified.

        Parameters
        ----------
        size : its length, where that is known: chunks that are read in the order in which they were stored then need
            no look-up, since each is tried where the one before ended.
        """
        if size is not None:
            data = self._read_next(chunk_id, size)
            if data is not None:
                return data
        (location,) = self.locate([chunk_id])
        plain = self.block(location.block)
        self._next = (plain, location.offset + location.size)
        return self._verified(plain, location, chunk_id)

    def _read_next(self, chunk_id: bytes, size: int) -> memoryview | None:
        if self._next is None:
            return None
        plain, start = self._next
        data = memoryview(plain)[start : start + size]
        if len(data) != size or blake3(data, key=self._id_key).digest() != chunk_id:
            return None
        self._next = (plain, start + size)
        return data

    def _verified(self, plain: Buffer, location: ChunkLocation, chunk_id: bytes) -> memoryview:
        """The bytes of a chunk whose id, or the beginning of it, is given."""
        data = memoryview(plain)[location.offset : location.offset + location.size]
        if blake3(data, key=self._id_key).digest()[: len(chunk_id)] != chunk_id:
            pack = location.block.pack_id.hex()
            raise IntegrityError(
                f"pack {pack[:16]} is damaged: chunk {chunk_id.hex()[:16]} is not what was stored",
                hint="run: ohdiff check --read-data",
                item=f"{FOLDER}/{pack}",
            )
        return data

    def block(self, location: BlockLocation) -> Buffer:
        """The plain bytes of a block, from the cache if it is there."""
        return self._blocks.take(location, lambda: DecodedBlock(self._load(location, 0)))

    def bases(self, prefixes: bytes) -> bytes:
        """The bytes of base chunks, named by 16 bytes each, back to back and verified."""
        return self._bases(prefixes, 0)

    def bases_at(self, places: Iterable[tuple[bytes, ChunkLocation]]) -> bytes:
        """As `bases`, of chunks whose places are known already."""
        return self._bases_at(places, 0)

    def load_block(self, location: BlockLocation) -> Buffer:
        """Read, open and decode a block, without the cache but for what it stands on."""
        return self._load(location, 0)

    def sealer(self, location: BlockLocation) -> Sealer:
        """What opens the blocks of the pack that a block lies in."""
        sealer = self._sealers.get(location.pack_id)
        if sealer is None:
            name = f"{FOLDER}/{location.pack_id.hex()}"
            header = self._repository.storage.read(name, 0, location.header_size)
            sealer = self._repository.open_sealer(header[:HEADER_SIZE_MAX], KIND_PACK, name)
            if len(self._sealers) >= _SEALERS_MAX:
                self._sealers.clear()
            self._sealers[location.pack_id] = sealer
        return sealer

    def _bases(self, prefixes: bytes, chain: int) -> bytes:
        """The base chunks of a block upon which stand `chain` others."""
        names = split_prefixes(prefixes)
        places: list[tuple[bytes, ChunkLocation]] = []
        for name, location in zip(names, self._index.find(names), strict=True):
            if location is None:
                raise IntegrityError(
                    f"base chunk {name.hex()} is in no index",
                    hint="run: ohdiff check, which names the files that it touches",
                    item=name.hex(),
                )
            places.append((name, location))
        return self._bases_at(places, chain)

    def _bases_at(self, places: Iterable[tuple[bytes, ChunkLocation]], chain: int) -> bytes:
        parts: list[bytes] = []
        for block, group in groupby(places, key=lambda place: place[1].block):
            parts.append(self._bases_in(block, list(group), chain))
            if sum(map(len, parts)) > BASE_SIZE_BYTES_MAX:
                raise IntegrityError("the base chunks of a block are larger than their limit")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _bases_in(self, block: BlockLocation, places: Sequence[tuple[bytes, ChunkLocation]], chain: int) -> bytes:
        """Base chunks that lie in one block: copied, so that the block need not stay for the sake of a few."""
        if chain >= DEPTH_MAX:
            raise self._damaged(block, f"base chunk {places[0][0].hex()} stands on a chain that does not end")
        with self._blocks.using(block, lambda: self._load_base(block, chain + 1)) as plain:
            return b"".join([self._verified(plain, location, name) for name, location in places])

    def _load_base(self, location: BlockLocation, chain: int) -> DecodedBlock:
        """A block of base chunks: in memory that is used again where that saves much."""
        if location.codec != CODEC_ZSTD or not ROOM_SIZE_BYTES // 2 < location.plain_size <= ROOM_SIZE_BYTES:
            return DecodedBlock(self._load(location, chain))
        opened = self._open(location)
        with self._blocks.room() as room, self._naming(location):
            plain = memoryview(room)[: location.plain_size]
            with computing:
                decode_block_into(location.codec, opened, plain)
        return DecodedBlock(plain, room)

    def _load(self, location: BlockLocation, chain: int) -> Buffer:
        opened = self._open(location)
        base = self._bases(location.base_prefixes, chain) if location.base_prefixes else b""
        with self._naming(location):
            return decode(location, opened, base)

    def _open(self, location: BlockLocation) -> bytes:
        """Read a block and decrypt it."""
        name = f"{FOLDER}/{location.pack_id.hex()}"
        try:
            sealer = self.sealer(location)
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
        with self._naming(location):
            return sealer.open(location.number, sealed)

    @contextmanager
    def _naming(self, location: BlockLocation) -> Iterator[None]:
        """What does not decode is an error of this block."""
        try:
            yield
        except UnknownFeatureError as error:
            name = f"{FOLDER}/{location.pack_id.hex()}"
            raise UnsupportedFormatError(f"{name}: {error}", hint="upgrade ohdiff", item=name) from error
        except FormatError as error:
            raise self._damaged(location, str(error)) from error

    def _damaged(self, location: BlockLocation, what: str) -> IntegrityError:
        return IntegrityError(
            f"pack {location.pack_id.hex()[:16]} is damaged in block {location.number}: {what}",
            hint="run: ohdiff check --read-data, which names the files that it touches",
            item=f"{FOLDER}/{location.pack_id.hex()}",
        )
