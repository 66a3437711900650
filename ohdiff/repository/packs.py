"""Writing packs: sealed blocks streamed to storage, then footer and trailer (SPEC section 6).

A pack is named by the BLAKE3 of its bytes. Data blocks go to one of two open packs, drawn at random, so that the
order and lengths of packs say less about the files (random packing; see SPEC section 15); metadata has a pack of its
own, so that a listing fetches few objects. Full packs are made durable by a thread of their own.
"""

from __future__ import annotations

import os
import random
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import msgspec
from blake3 import blake3

from ohdiff._kernels import are_equal
from ohdiff.breaks import computing
from ohdiff.errors import IntegrityError
from ohdiff_format.envelope import KIND_PACK, Buffer, Sealer
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
_PACK_CHUNKS_MAX: Final = 65_536
# A pack that is being committed is a file and a descriptor, no memory: one that the medium works on, one that waits.
_COMMITS_MAX: Final = 2


class SealingRoom:
    """Memory in which blocks are sealed and opened again, one by one: fresh memory costs a page fault each 4 KiB."""

    def __init__(self) -> None:
        self._sealed = bytearray()
        self._opened = bytearray()

    def seal(self, sealer: Sealer, number: int, payload: Buffer) -> memoryview:
        """The sealed block, valid until the next call; IntegrityError unless it opens to the same bytes."""
        size = len(payload)
        if len(self._opened) < size:
            self._sealed, self._opened = bytearray(size + TAG_SIZE), bytearray(size)
        sealed = memoryview(self._sealed)[: size + TAG_SIZE]
        with computing, memoryview(self._opened)[:size] as opened:
            sealer.seal_into(number, payload, sealed)
            sealer.open_into(number, sealed, opened)
            is_same = are_equal(opened, payload)
        if not is_same:
            raise IntegrityError("a block did not survive encryption", hint="check this machine's memory")
        return sealed


class PackWriter:
    """One open pack."""

    def __init__(self, repository: Repository, is_metadata: bool, room: SealingRoom) -> None:
        self._room = room
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
        sealed = self._room.seal(self._sealer, len(self._blocks), payload)
        self._write(sealed)
        self.chunk_count += len(block.chunk_sizes)
        self._blocks.append(msgspec.structs.replace(block, sealed_size=len(sealed)))

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
        table = [msgspec.structs.replace(block, chunk_prefixes=b"") for block in self._blocks]
        return encode_footer(Footer(self._is_metadata, table))

    def _write(self, data: Buffer) -> None:
        self._hasher.update(data)
        self._writer.write(data)
        self.size += len(data)


class PackSet:
    """The open packs of one run; for one thread at a time.

    Committing waits for the medium twice a pack, so a thread of its own does it while the caller fills the next one.
    An error of a commit is raised by the caller's next call.

    Parameters
    ----------
    on_pack : told of each pack once it is durable, on the committing thread.
    """

    def __init__(self, repository: Repository, on_pack: Callable[[PackRecord], None]) -> None:
        self._repository = repository
        self._on_pack = on_pack
        self._room = SealingRoom()
        self._open: dict[int, PackWriter] = {}
        self._random = random.SystemRandom()
        self._committer = ThreadPoolExecutor(1, thread_name_prefix="committer")
        self._commits: deque[tuple[PackWriter, Future[None]]] = deque()
        self.stored_size = 0

    def append(self, block: BlockRecord, payload: Buffer, is_metadata: bool) -> None:
        """Put a block into an open pack, closing the pack first if the block would overfill it."""
        self._settle_commits(_COMMITS_MAX)
        slot = _OPEN_DATA_PACKS if is_metadata else self._random.randrange(_OPEN_DATA_PACKS)
        pack = self._open.get(slot)
        if pack is not None and pack.size + len(payload) + TAG_SIZE > PACK_SIZE_BYTES:
            self._close(slot)
            pack = None
        if pack is None:
            pack = self._open[slot] = PackWriter(self._repository, is_metadata, self._room)
        pack.append(block, payload)
        if pack.is_well_filled:
            self._close(slot)

    def finish(self) -> None:
        """Close every open pack; all of them are durable when this returns."""
        for slot in list(self._open):
            self._close(slot)
        self._settle_commits(0)
        self._committer.shutdown()

    def abort(self) -> None:
        """Throw away every open pack, and those whose commit has not begun; committed ones stay, unreferenced."""
        waiting = [pack for pack, commit in self._commits if commit.cancel()]
        self._commits.clear()
        for pack in [*waiting, *self._open.values()]:
            pack.abort()
        self._open.clear()
        self._committer.shutdown()

    def _close(self, slot: int) -> None:
        self._settle_commits(_COMMITS_MAX - 1)
        pack = self._open.pop(slot)
        self._commits.append((pack, self._committer.submit(self._commit, pack)))

    def _settle_commits(self, waiting_max: int) -> None:
        """Raise what failed, and wait until at most so many commits are left."""
        while self._commits and (len(self._commits) > waiting_max or self._commits[0][1].done()):
            self._commits[0][1].result()
            self._commits.popleft()

    def _commit(self, pack: PackWriter) -> None:
        """Runs on the committing thread."""
        try:
            record = pack.finish()
        except BaseException:
            pack.abort()
            raise
        self.stored_size += record.size
        self._on_pack(record)
