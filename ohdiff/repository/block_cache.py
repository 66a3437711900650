"""Decoded blocks that are kept for a while: several threads share one decoding, and memory is used again.

A fresh buffer of 8 MiB costs 2,000 page faults, a fifth of the time to decode a block into it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from ohdiff_format.envelope import Buffer

from .index_segment import BlockLocation

# Room for one block of any usual size.
ROOM_SIZE_BYTES: Final = 8 << 20


@dataclass(slots=True, eq=False)
class DecodedBlock:
    """The bytes of a block.

    Attributes
    ----------
    room : what they lie in, if it may hold another block once nobody uses this one any more.
    users : how many do now.
    is_taken : whether somebody may use them for ever.
    """

    plain: Buffer
    room: bytearray | None = None
    users: int = 0
    is_taken: bool = False

    @property
    def size(self) -> int:
        """The memory that it takes."""
        return len(self.plain) if self.room is None else len(self.room)


class BlockCache:
    """Blocks by their place in a pack; safe for use from several threads.

    Parameters
    ----------
    size_bytes_max : blocks are kept up to this, least recently used dropped first.
    """

    def __init__(self, size_bytes_max: int) -> None:
        self._size_max = size_bytes_max
        self._size = 0
        self._blocks: OrderedDict[tuple[bytes, int], DecodedBlock] = OrderedDict()
        self._loading: dict[tuple[bytes, int], Future[None]] = {}
        self._lock = threading.Lock()

    def take(self, location: BlockLocation, load: Callable[[], DecodedBlock]) -> Buffer:
        """The bytes of a block, to be kept for as long as the caller likes."""
        block = self._enter(location, load)
        with self._lock:
            block.is_taken = True
            block.users -= 1
        return block.plain

    @contextmanager
    def using(self, location: BlockLocation, load: Callable[[], DecodedBlock]) -> Iterator[Buffer]:
        """The bytes of a block, which may be overwritten when this ends."""
        block = self._enter(location, load)
        try:
            yield block.plain
        finally:
            with self._lock:
                block.users -= 1

    @contextmanager
    def room(self) -> Iterator[bytearray]:
        """Memory for `load` to decode a block into: that of a block which has to go for its sake, if there is one.

        It counts as that of a kept block from now on, unless decoding fails.
        """
        with self._lock:
            room = self._free_room() if self._size + ROOM_SIZE_BYTES > self._size_max else None
            self._size += ROOM_SIZE_BYTES
        try:
            yield bytearray(ROOM_SIZE_BYTES) if room is None else room
        except BaseException:
            with self._lock:
                self._size -= ROOM_SIZE_BYTES
            raise

    def _free_room(self) -> bytearray | None:
        for key, block in self._blocks.items():
            if block.room is not None and not block.users and not block.is_taken:
                self._drop(key)
                return block.room
        return None

    def _enter(self, location: BlockLocation, load: Callable[[], DecodedBlock]) -> DecodedBlock:
        """The block, with one more user."""
        key = (location.pack_id, location.number)
        while True:
            mine: Future[None] | None = None
            with self._lock:
                block = self._blocks.get(key)
                if block is not None:
                    self._blocks.move_to_end(key)
                    block.users += 1
                    return block
                loading = self._loading.get(key)
                # One that stands on others is loaded by whoever wants it: bases in a circle would wait for each other.
                if loading is None and not location.base_prefixes:
                    mine = self._loading[key] = Future()
            if mine is not None:
                return self._load_for_all(key, load, mine)
            if loading is None:
                return self._remember(key, load())
            # It may have been dropped again before this thread gets to it.
            loading.result()

    def _load_for_all(
        self, key: tuple[bytes, int], load: Callable[[], DecodedBlock], loading: Future[None]
    ) -> DecodedBlock:
        """Load a block that others may be waiting for meanwhile."""
        try:
            block = self._remember(key, load())
        except BaseException as error:
            loading.set_exception(error)
            raise
        finally:
            with self._lock:
                del self._loading[key]
        loading.set_result(None)
        return block

    def _remember(self, key: tuple[bytes, int], block: DecodedBlock) -> DecodedBlock:
        """Keep a block that has just been loaded, unless another thread was first."""
        with self._lock:
            block.users += 1
            if key not in self._blocks:
                self._blocks[key] = block
                self._size += 0 if block.room is not None else block.size
            while self._size > self._size_max and len(self._blocks) > 1:
                self._drop(next(iter(self._blocks)))
        return block

    def _drop(self, key: tuple[bytes, int]) -> None:
        self._size -= self._blocks.pop(key).size
