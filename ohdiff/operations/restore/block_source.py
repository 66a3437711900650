"""Reads, opens and decodes blocks for the writers, given the bytes that they stand on.

Whatever goes wrong is left to the chunk reader, which tries once more and knows what to say.
"""

from __future__ import annotations

import threading

from ohdiff.errors import OhdiffError
from ohdiff.repository.block_decoder import decode
from ohdiff.repository.chunk_reader import ChunkReader
from ohdiff.repository.index_segment import BlockLocation
from ohdiff.repository.packs import FOLDER
from ohdiff.repository.repository import Repository
from ohdiff_format.envelope import Buffer
from ohdiff_format.errors import FormatError
from ohdiff_format.limits import TAG_SIZE


class BlockSource:
    """Safe for use from several threads, each of which keeps the memory that it opens blocks in."""

    def __init__(self, repository: Repository, reader: ChunkReader) -> None:
        self._repository = repository
        self._reader = reader
        self._kept = threading.local()

    def load(self, location: BlockLocation, base: Buffer | None = None) -> Buffer:
        """The plain bytes of a block, whose chunks the caller checks.

        Parameters
        ----------
        base : its base chunks back to back, checked; None has them loaded.

        Raises
        ------
        IntegrityError, UnsupportedFormatError, StorageError : as from the chunk reader.
        """
        if base is None and location.base_prefixes:
            return self._reader.load_block(location)
        try:
            return self._decode(location, base or b"")
        except (FormatError, OhdiffError):
            return self._reader.load_block(location)

    def _decode(self, location: BlockLocation, base: Buffer) -> Buffer:
        sealer = self._reader.sealer(location)
        name = f"{FOLDER}/{location.pack_id.hex()}"
        sealed = self._repository.storage.read(name, location.offset, location.sealed_size)
        payload = self._memory(max(len(sealed) - TAG_SIZE, 0))
        sealer.open_into(location.number, sealed, payload)
        plain = decode(location, payload, base)
        # A raw block is its payload, which the next one overwrites.
        return bytes(payload) if plain is payload else plain

    def _memory(self, size: int) -> memoryview:
        """Memory of this thread: fresh memory would be cleared first, at 4 % of a restore of checkpoints."""
        kept = getattr(self._kept, "data", b"")
        if len(kept) < size:
            kept = self._kept.data = bytearray(size)
        return memoryview(kept)[:size]
