"""Storing chunks: dedup against the index, gather new ones into blocks, encode, verify, pack, index.

Three parties: the caller's thread looks up ids and gathers blocks; workers of a shared pool encode each block, decode
it again and compare (encoding); one packer thread seals and writes blocks in order (packing). Bounded queues between
them keep memory bounded.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from blake3 import blake3

from ohdiff.buffers import PooledBuffer
from ohdiff.errors import IntegrityError, OhdiffError
from ohdiff_format.index import PackRecord
from ohdiff_format.limits import CHUNK_SIZE_BYTES_MAX, ID_PREFIX_SIZE, ID_SIZE

from .encoding import BlockCompressor, DistantPlan, Encoded, EncodedObserver, Encoder, EncodingPlan
from .index import ChunkIndex
from .index_feed import IndexFeed
from .lost_bases import split_prefixes
from .open_block import OpenBlock
from .packing import Packer
from .packs import PackSet
from .repository import Repository

# 8 MiB of plain bytes a block, measured on a kernel source tree at zstd level 3: 1 MiB 206.6 MB, 2 MiB 202.0,
# 4 MiB 199.5, 8 MiB 197.9; on 118,956 tiny files 15.9, 15.4, 15.2, 15.1. See docs/design.md.
BLOCK_SIZE_BYTES: Final = 8 << 20
# Measured on 118,956 tiny files, level 3: 1 MiB 4.34 MB of metadata, 2 MiB 4.09, 4 MiB 3.98, 8 MiB 3.98 (3.81 MB of it
# are ids); on a source tree 4.35, 4.34, 4.34.
METADATA_BLOCK_SIZE_BYTES: Final = 4 << 20
# A block of nearly this size is closed at the end of a buffer, so that most blocks are one buffer and need no copy.
_FULL_BLOCK_SIZE_BYTES: Final = BLOCK_SIZE_BYTES - (BLOCK_SIZE_BYTES >> 3)
# Files of a few bytes must not outgrow what a footer may list.
_BLOCK_CHUNKS_MAX: Final = 65_536
# Plain bytes of a delta block. Measured at level 1 with a hash table of 2^17 on 5,265 changed source files: 512 KiB
# 1.30 MB, 256 KiB 1.27, 1 MiB 2.21, for which the table is too small; one for 1 MiB costs a third of the speed.
_DELTA_BLOCK_SIZE_BYTES: Final = 512 << 10
# Delta blocks that one worker encodes one after the other: their bases lie side by side, about as many as one block
# holds, so that workers seldom wait for each other to decode the same one.
_DELTA_RUN_SIZE_BYTES: Final = BLOCK_SIZE_BYTES
# What is known of a chunk until it is encoded takes as much memory as a tiny one itself.
_DELTA_RUN_CHUNKS_MAX: Final = 1024


@dataclass(slots=True)
class WriteCounts:
    """What a run added; sizes in bytes."""

    added_chunks: int = 0
    added_size: int = 0
    stored_size: int = 0


class BaseFinder(Protocol):
    """Knows for one file what the new chunks in it may be stored as a difference from; offsets are in the buffer."""

    def note_duplicate(self, prefix: bytes, start: int) -> None:
        """The repository has this chunk."""

    def candidates(self, start: int, end: int) -> Sequence[bytes]:
        """Id prefixes of chunks that a new chunk is likely to resemble."""


class DeltaPlanner(Protocol):
    """Plans delta blocks."""

    def plan(self, candidates: Sequence[bytes], *, is_metadata: bool) -> EncodingPlan:
        """How to encode a block, given what any of its chunks may resemble: 16 bytes of each id."""


class ChunkSink(Protocol):
    """Where chunks go: the repository, or nowhere on a dry run."""

    counts: WriteCounts

    def add_chunks(
        self,
        buffer: PooledBuffer,
        cuts: Sequence[int],
        ids: bytes,
        first: int,
        last: int,
        bases: BaseFinder | None = None,
    ) -> None: ...
    def add_planned(
        self,
        buffer: PooledBuffer,
        start: int,
        end: int,
        chunk_id: bytes,
        plan: EncodingPlan | None,
        distant: DistantPlan | None = None,
    ) -> bool: ...
    def end_buffer(self, buffer: PooledBuffer) -> None: ...
    def add_metadata(self, data: bytes, bases: Sequence[bytes] = ()) -> bytes: ...
    def finish(self) -> None: ...
    def interrupt(self) -> None: ...
    def abort(self) -> None: ...


class Deduplicator:
    """Decides which chunks are new: neither in the index nor seen earlier in this run."""

    def __init__(self, index: ChunkIndex) -> None:
        self._index = index
        self._pending: set[bytes] = set()
        # What the index said of the chunks that were asked for last, all of a buffer at once.
        self._ids = b""
        self._prefixes: list[bytes] = []
        self._known: Sequence[int] = b""

    def new_in(self, ids: bytes, first: int, last: int) -> tuple[Sequence[bytes], Sequence[int]]:
        """Prefixes and `new_flags` of the chunks `first` to `last` (exclusive) of those with these ids."""
        if ids is not self._ids:
            self._prefixes = [ids[i : i + ID_PREFIX_SIZE] for i in range(0, len(ids), ID_SIZE)]
            self._known, self._ids = self._look_up(self._prefixes), ids
        prefixes = self._prefixes[first:last]
        return prefixes, self._flags(prefixes, self._known[first:last])

    def new_flags(self, prefixes: Sequence[bytes]) -> Sequence[int]:
        """For each prefix, whether its chunk must be stored; it counts as seen from now on."""
        return self._flags(prefixes, self._look_up(prefixes))

    def settle(self, packs: Sequence[PackRecord]) -> None:
        """Forget chunks that the index holds by now."""
        self._ids = b""
        for pack in packs:
            for block in pack.blocks:
                self._pending.difference_update(split_prefixes(block.chunk_prefixes))

    def _look_up(self, prefixes: Sequence[bytes]) -> Sequence[int]:
        return self._index.contains(b"".join(prefixes)) if self._index.chunk_count else bytes(len(prefixes))

    def _flags(self, prefixes: Sequence[bytes], known: Sequence[int]) -> Sequence[int]:
        pending = self._pending
        flags = []
        for prefix, is_known in zip(prefixes, known, strict=True):
            is_new = not is_known and prefix not in pending
            if is_new:
                pending.add(prefix)
            flags.append(is_new)
        return flags


class _DeltaBlock:
    """A block that is being filled, and what its chunks may resemble."""

    def __init__(self, is_metadata: bool = False) -> None:
        self.block = OpenBlock(is_metadata)
        self.candidates: dict[bytes, None] = {}


class ChunkWriter:
    """Stores chunks in a repository; one caller thread.

    Parameters
    ----------
    executor : pool that compresses.
    level : zstd level, None for none.
    queue_depth : blocks in flight at most; each holds up to twice BLOCK_SIZE_BYTES.
    planner : plans delta blocks; without one everything is stored by itself.
    on_encoded : is shown what was stored.
    compressor : compresses blocks of data instead of the CPU.
    """

    def __init__(
        self,
        repository: Repository,
        index: ChunkIndex,
        executor: Executor,
        *,
        level: int | None,
        queue_depth: int,
        planner: DeltaPlanner | None = None,
        on_encoded: EncodedObserver | None = None,
        compressor: BlockCompressor | None = None,
    ) -> None:
        self._on_encoded = on_encoded
        self._compressor = compressor
        self._executor = executor
        self._level = level
        self._id_key = repository.chunk_id_key
        self._dedup = Deduplicator(index)
        self._data = OpenBlock()
        self._metadata = OpenBlock(is_metadata=True)
        self._planner = planner
        self._delta = _DeltaBlock()
        self._delta_run: list[OpenBlock] = []
        self._delta_runs_left = threading.Semaphore(queue_depth)
        self._metadata_delta = _DeltaBlock(is_metadata=True)
        self._encoders = threading.local()
        self._feed = IndexFeed(index, self._dedup.settle)
        self._packer = Packer(PackSet(repository, self._feed.add), queue_depth * BLOCK_SIZE_BYTES)
        self.counts = WriteCounts()

    def add_chunks(
        self,
        buffer: PooledBuffer,
        cuts: Sequence[int],
        ids: bytes,
        first: int,
        last: int,
        bases: BaseFinder | None = None,
    ) -> None:
        """Store chunks `first` to `last` (exclusive) of a buffer.

        Parameters
        ----------
        buffer : where the chunks lie; retained until all of them are encoded.
        cuts : exclusive end offset of every chunk; chunk 0 begins at 0.
        ids : 32 bytes for every chunk.
        bases : what knows which stored chunks these resemble, if anything does.
        """
        prefixes, flags = self._dedup.new_in(ids, first, last)
        start = cuts[first - 1] if first else 0
        if bases is not None:
            self._add_resembling(buffer, start, list(zip(prefixes, flags, cuts[first:last], strict=True)), bases)
            return
        run_start = start
        for prefix, is_new, end in zip(prefixes, flags, cuts[first:last], strict=True):
            if is_new:
                if self._is_full(end - run_start):
                    self._data.take(buffer, run_start, start)
                    self._submit_data()
                    run_start = start
                self._data.sizes.append(end - start)
                self._data.prefixes.append(prefix)
            else:
                self._data.take(buffer, run_start, start)
                run_start = end
            start = end
        self._data.take(buffer, run_start, start)

    def add_planned(
        self,
        buffer: PooledBuffer,
        start: int,
        end: int,
        chunk_id: bytes,
        plan: EncodingPlan | None,
        distant: DistantPlan | None = None,
    ) -> bool:
        """Store one chunk of a buffer as a block of its own; tells whether it is new, and the plan thus used.

        Parameters
        ----------
        distant : encodes the chunk where it lies, if it is all of the buffer; its bytes are asked for if that fails.
        """
        prefix = chunk_id[:ID_PREFIX_SIZE]
        is_new = bool(self._dedup.new_flags([prefix])[0])
        if is_new:
            block = OpenBlock(plan=plan, distant=distant)
            if distant is None:
                block.add(buffer, prefix, start, end)
            else:
                block.add_later(buffer, prefix, end - start)
            self._submit(block)
            self._feed.flush_if_many()
        return is_new

    def end_buffer(self, buffer: PooledBuffer) -> None:
        """No more chunks of this buffer will be added: releases it for its giver."""
        buffer.release()
        self._end_buffer_of_deltas(buffer)
        if self._data.size >= _FULL_BLOCK_SIZE_BYTES:
            self._submit_data()
        else:
            self._data.detach(buffer)

    def add_metadata(self, data: bytes, bases: Sequence[bytes] = ()) -> bytes:
        """Store one chunk of metadata; returns its id.

        Parameters
        ----------
        bases : ids of stored chunks of metadata that it resembles.
        """
        if len(data) > CHUNK_SIZE_BYTES_MAX:
            raise IntegrityError("a tree leaf is larger than a chunk may be")
        chunk_id = blake3(data, key=self._id_key).digest()
        prefix = chunk_id[:ID_PREFIX_SIZE]
        if self._dedup.new_flags([prefix])[0]:
            if bases and self._planner is not None:
                delta = self._metadata_delta = self._with_room(self._metadata_delta, len(data))
                delta.candidates.update(dict.fromkeys([base[:ID_PREFIX_SIZE] for base in bases]))
                delta.block.append(memoryview(data), prefix)
                return chunk_id
            self._metadata.append(memoryview(data), prefix)
            if self._metadata.size >= METADATA_BLOCK_SIZE_BYTES:
                block, self._metadata = self._metadata, OpenBlock(is_metadata=True)
                self._submit(block)
        return chunk_id

    def finish(self) -> None:
        """Store everything that is still open; all of it is durable and indexed when this returns."""
        self._submit_data()
        self._submit(self._metadata)
        for delta in (self._delta, self._metadata_delta):
            self._submit_delta(delta)
        self._submit_delta_run()
        self._packer.finish()
        self._feed.finish()
        self.counts.stored_size = self._packer.packs.stored_size

    def interrupt(self) -> None:
        """Stop in order: blocks that were handed on are stored and indexed, so that the next run need not redo them.

        An interrupt comes between any two instructions, so an open block may hold ids without their bytes: open
        blocks are dropped.
        """
        try:
            self._packer.finish()
            self._feed.flush()
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        """Stop at once; packs that were closed are indexed if that is possible."""
        self._packer.abort()
        # What made the caller give up is the error to be seen; it often makes this fail, too.
        with suppress(OhdiffError, OSError):
            self._feed.flush()

    def _add_resembling(
        self, buffer: PooledBuffer, start: int, chunks: Sequence[tuple[bytes, int, int]], bases: BaseFinder
    ) -> None:
        """Chunks of one file as (prefix, is new, end): those with candidates for a base go into delta blocks."""
        for prefix, is_new, end in chunks:
            if not is_new:
                bases.note_duplicate(prefix, start)
            elif candidates := bases.candidates(start, end):
                delta = self._delta = self._with_room(self._delta, end - start)
                delta.candidates.update(dict.fromkeys(candidates))
                delta.block.add(buffer, prefix, start, end)
            else:
                if self._is_full(end - start):
                    self._submit_data()
                self._data.add(buffer, prefix, start, end)
            start = end

    def _is_full(self, size: int) -> bool:
        """Whether the open block of data has no room for so many bytes, or for one more chunk."""
        return len(self._data.sizes) >= _BLOCK_CHUNKS_MAX or self._data.size + size > BLOCK_SIZE_BYTES

    def _submit_data(self) -> None:
        block, self._data = self._data, OpenBlock()
        self._submit(block)
        self._feed.flush_if_many()

    def _with_room(self, delta: _DeltaBlock, size: int) -> _DeltaBlock:
        """The delta block, or a new one if it has no room for so many bytes."""
        if delta.block.size + size <= _DELTA_BLOCK_SIZE_BYTES:
            return delta
        self._submit_delta(delta)
        return _DeltaBlock(delta.block.is_metadata)

    def _submit_delta(self, delta: _DeltaBlock) -> None:
        block, candidates = delta.block, list(delta.candidates)
        if self._planner is not None and candidates:
            block.plan = self._planner.plan(candidates, is_metadata=block.is_metadata)
        if not block.sizes:
            return
        run = self._delta_run
        run.append(block)
        is_large = sum(each.size for each in run) > _DELTA_RUN_SIZE_BYTES - _DELTA_BLOCK_SIZE_BYTES
        if is_large or sum(len(each.sizes) for each in run) > _DELTA_RUN_CHUNKS_MAX:
            self._submit_delta_run()

    def _end_buffer_of_deltas(self, buffer: PooledBuffer) -> None:
        """Copy what is taken from a buffer: a run is not encoded at once, and blocks of many parts are copied anyway.

        If that was much of it, the bases probably end about here, too.
        """
        size = 0
        for block in (*self._delta_run, self._delta.block):
            size += block.size_in(buffer)
            block.copy_out(buffer)
        # The memory of a buffer is not asked for in vain: it may have to be fetched from a device.
        if size and 2 * size >= len(buffer.data):
            self._submit_delta_run()

    def _submit_delta_run(self) -> None:
        run, self._delta_run = self._delta_run, []
        if not run:
            return
        futures = [Future[Encoded]() for _ in run]
        # Another one is gathered while so many are encoded: more would be memory and no gain.
        self._delta_runs_left.acquire()
        self._executor.submit(self._encode_run, run, futures)
        for block, future in zip(run, futures, strict=True):
            self._put(block, future)
        self._feed.flush_if_many()

    def _submit(self, block: OpenBlock) -> None:
        if block.sizes:
            self._put(block, self._executor.submit(self._encode, block))

    def _put(self, block: OpenBlock, future: Future[Encoded]) -> None:
        self.counts.added_chunks += len(block.sizes)
        self.counts.added_size += block.size
        self._packer.put(block, future)

    def _encode_run(self, run: Sequence[OpenBlock], futures: Sequence[Future[Encoded]]) -> None:
        """Runs in the pool; an error of one block is its own."""
        try:
            for block, future in zip(run, futures, strict=True):
                if not future.set_running_or_notify_cancel():
                    block.release()
                    continue
                try:
                    future.set_result(self._encode(block))
                except BaseException as error:  # noqa: BLE001 - raised by whoever asks for the result
                    future.set_exception(error)
        finally:
            self._delta_runs_left.release()

    def _encode(self, block: OpenBlock) -> Encoded:
        """Runs in the pool."""
        encoder = getattr(self._encoders, "encoder", None)
        if encoder is None:
            encoder = self._encoders.encoder = Encoder(self._level, self._on_encoded, self._compressor)
        try:
            return encoder.encode(block)
        finally:
            block.release()


class DrySink:
    """Counts what would be added, and stores nothing."""

    def __init__(self, repository: Repository, index: ChunkIndex) -> None:
        self._dedup = Deduplicator(index)
        self._id_key = repository.chunk_id_key
        self.counts = WriteCounts()

    def add_chunks(
        self,
        buffer: PooledBuffer,
        cuts: Sequence[int],
        ids: bytes,
        first: int,
        last: int,
        bases: BaseFinder | None = None,
    ) -> None:
        """Count the new ones among chunks `first` to `last` of a buffer."""
        _, flags = self._dedup.new_in(ids, first, last)
        start = cuts[first - 1] if first else 0
        for is_new, end in zip(flags, cuts[first:last], strict=True):
            if is_new:
                self.counts.added_chunks += 1
                self.counts.added_size += end - start
            start = end

    def add_planned(
        self,
        buffer: PooledBuffer,
        start: int,
        end: int,
        chunk_id: bytes,
        plan: EncodingPlan | None,
        distant: DistantPlan | None = None,
    ) -> bool:
        """Count it if it is new."""
        is_new = bool(self._dedup.new_flags([chunk_id[:ID_PREFIX_SIZE]])[0])
        if is_new:
            self.counts.added_chunks += 1
            self.counts.added_size += end - start
        return is_new

    def end_buffer(self, buffer: PooledBuffer) -> None:
        """Release it."""
        buffer.release()

    def add_metadata(self, data: bytes, bases: Sequence[bytes] = ()) -> bytes:
        """Count one chunk of metadata; returns the id that it would have."""
        chunk_id = blake3(data, key=self._id_key).digest()
        if self._dedup.new_flags([chunk_id[:ID_PREFIX_SIZE]])[0]:
            self.counts.added_chunks += 1
            self.counts.added_size += len(data)
        return chunk_id

    def finish(self) -> None:
        """Nothing was stored."""

    def interrupt(self) -> None:
        """Nothing was stored."""

    def abort(self) -> None:
        """Nothing was stored."""
