"""Gives closed packs to the index: many at a time, and none before the packs of the base chunks that it needs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

from ohdiff.errors import IntegrityError
from ohdiff_format.index import PackRecord

from .index import ChunkIndex
from .lost_bases import split_prefixes

_CHUNKS_PER_INDEX: Final = 100_000
_PACKS_PER_INDEX: Final = 64


class IndexFeed:
    """Collects packs that are durable, from any thread, and stores index objects for them from one thread.

    Parameters
    ----------
    on_indexed : told of packs that the index knows from now on.
    """

    def __init__(self, index: ChunkIndex, on_indexed: Callable[[Sequence[PackRecord]], None]) -> None:
        self._index = index
        self._on_indexed = on_indexed
        self._closed: list[PackRecord] = []
        self._closed_chunks = 0
        self._lock = threading.Lock()

    def add(self, pack: PackRecord) -> None:
        """A pack is durable."""
        with self._lock:
            self._close(pack)

    def flush_if_many(self) -> None:
        """Store an index object if there is enough for one."""
        with self._lock:
            is_enough = self._closed_chunks >= _CHUNKS_PER_INDEX or len(self._closed) >= _PACKS_PER_INDEX
        if is_enough:
            self.flush()

    def flush(self) -> None:
        """Store an index object for every closed pack whose base chunks are durable; the others wait."""
        with self._lock:
            packs, self._closed, self._closed_chunks = self._closed, [], 0
        ready = self._ready(packs)
        waiting = {pack.pack_id for pack in packs} - {pack.pack_id for pack in ready}
        with self._lock:
            for pack in packs:
                if pack.pack_id in waiting:
                    self._close(pack)
        if ready:
            self._index.add(ready)
            self._on_indexed(ready)

    def finish(self) -> None:
        """Store what is left; IntegrityError if a pack still waits: a snapshot that needs it could not be read."""
        self.flush()
        if self._closed:
            raise IntegrityError("a block stands on a chunk that was not stored", hint="snapshot again")

    def _close(self, pack: PackRecord) -> None:
        self._closed.append(pack)
        self._closed_chunks += sum(len(block.chunk_sizes) for block in pack.blocks)

    def _ready(self, packs: list[PackRecord]) -> list[PackRecord]:
        """The packs that stand on nothing but each other and what is indexed."""
        ready = packs
        while True:
            held = {prefix for pack in ready for prefix in _chunks(pack)} if any(map(_bases, ready)) else set()
            kept = [pack for pack in ready if self._are_known(_bases(pack) - held)]
            if len(kept) == len(ready):
                return kept
            ready = kept

    def _are_known(self, prefixes: set[bytes]) -> bool:
        return not prefixes or 0 not in self._index.contains(b"".join(prefixes))


def _chunks(pack: PackRecord) -> list[bytes]:
    return [prefix for block in pack.blocks for prefix in split_prefixes(block.chunk_prefixes)]


def _bases(pack: PackRecord) -> set[bytes]:
    return {prefix for block in pack.blocks for prefix in split_prefixes(block.base_prefixes)}
