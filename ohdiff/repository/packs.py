"""Writing packs: sealed blocks streamed to storage, then footer and trailer (SPEC section 6).

A pack is named by the BLAKE3 of its bytes. Data blocks go to one of two open packs, drawn at random, so that the
order and lengths of packs say less about the files (random packing; see SPEC section 15); metadata has a pack of its
own, so that a listing fetches few objects.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Final

from blake3 import blake3

from ohdiff.errors import IntegrityError
from ohdiff_format.envelope import KIND_PACK, Buffer
from ohdiff_format.index import PackRecord
from ohdiff_format.limits import TAG_SIZE
from ohdiff_format.pack import (
    NUMBER_FOOTER,
    NUMBER_TRAILER,
    TRAILER_SIZE,
    BlockRecord,
    Footer,
    encode_footer,
    encode_trailer,
    padded_size,
)

from .repository import Repository

FOLDER: Final = "packs"
PACK_SIZE_BYTES: Final = 32 << 20
_OPEN_DATA_PACKS: Final = 2
# From this size on a pack is closed at the first block after which padding would add less than 1 part in 512.
_CLOSABLE_SIZE_BYTES: Final = 16 << 20
_CLOSING_WASTE: Final = 512
_PACK_CHUNKS_MAX: Final = 500_000


class PackWriter:
    """One open pack."""

    def __init__(self, repository: Repository, is_metadata: bool) -> None:
        self._sealer = repository.new_sealer(KIND_PACK)
        self._writer = repository.storage.open_writer(FOLDER)
        self._hasher = blake3()
        self._is_metadata = is_metadata
        self._blocks: list[BlockRecord] = []
        self.size = 0
        self.chunk_count = 0
        self._write(self._sealer.header)

    def append(self, block: BlockRecord, payload: Buffer) -> None:
        """Seal, open again, compare and write one block; `block` describes it but for its sealed size."""
        number = len(self._blocks)
        sealed = self._sealer.seal(number, payload)
        if self._sealer.open(number, sealed) != payload:
            raise IntegrityError("a block did not survive encryption", hint="check this machine's memory")
        self._write(sealed)
        self.chunk_count += len(block.chunk_sizes)
        self._blocks.append(BlockRecord(len(sealed), block.codec, block.chunk_sizes, block.chunk_prefixes))

    @property
    def is_well_filled(self) -> bool:
        """Whether the pack is large, and would be padded by little if it were closed now; or lists very many chunks."""
        if self.chunk_count >= _PACK_CHUNKS_MAX:
            return True
        if self.size < _CLOSABLE_SIZE_BYTES:
            return False
        full_size = self.size + TRAILER_SIZE + len(self._encoded_footer()) + TAG_SIZE
        return padded_size(full_size) - full_size < full_size // _CLOSING_WASTE

    def finish(self) -> PackRecord:
        """Pad, write footer and trailer, and commit; durable when this returns."""
        footer = self._sealer.seal(NUMBER_FOOTER, self._encoded_footer())
        end_size = len(footer) + TRAILER_SIZE
        self._write(os.urandom(padded_size(self.size + end_size) - self.size - end_size))
        self._write(footer)
        self._write(self._sealer.seal(NUMBER_TRAILER, encode_trailer(len(footer))))
        pack_id = self._hasher.digest()
        self._writer.commit(f"{FOLDER}/{pack_id.hex()}")
        return PackRecord(pack_id, self.size, len(self._sealer.header), self._is_metadata, self._blocks)

    def abort(self) -> None:
        """Throw the pack away."""
        self._writer.abort()

    def _encoded_footer(self) -> bytes:
        table = [BlockRecord(block.sealed_size, block.codec, block.chunk_sizes) for block in self._blocks]
        return encode_footer(Footer(self._is_metadata, table))

    def _write(self, data: Buffer) -> None:
        self._hasher.update(data)
        self._writer.write(data)
        self.size += len(data)


class PackSet:
    """The open packs of one run.

    Parameters
    ----------
    on_pack : told of each pack once it is durable.
    """

    def __init__(self, repository: Repository, on_pack: Callable[[PackRecord], None]) -> None:
        self._repository = repository
        self._on_pack = on_pack
        self._open: dict[int, PackWriter] = {}
        self._random = random.SystemRandom()
        self.stored_size = 0

    def append(self, block: BlockRecord, payload: Buffer, is_metadata: bool) -> None:
        """Put a block into an open pack, closing the pack first if the block would overfill it."""
        slot = _OPEN_DATA_PACKS if is_metadata else self._random.randrange(_OPEN_DATA_PACKS)
        pack = self._open.get(slot)
        if pack is not None and pack.size + len(payload) + TAG_SIZE > PACK_SIZE_BYTES:
            self._close(slot)
            pack = None
        if pack is None:
            pack = self._open[slot] = PackWriter(self._repository, is_metadata)
        pack.append(block, payload)
        if pack.is_well_filled:
            self._close(slot)

    def finish(self) -> None:
        """Close every open pack."""
        for slot in list(self._open):
            self._close(slot)

    def abort(self) -> None:
        """Throw every open pack away; packs that were closed stay, unreferenced."""
        for pack in self._open.values():
            pack.abort()
        self._open.clear()

    def _close(self, slot: int) -> None:
        pack = self._open.pop(slot)
        try:
            record = pack.finish()
        except BaseException:
            pack.abort()
            raise
        self.stored_size += record.size
        self._on_pack(record)
