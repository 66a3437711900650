"""Storing chunks: dedup against the index, gather new ones into blocks, compress, verify, pack, index.

Three parties: the caller's thread looks up ids and gathers blocks; workers of a shared pool compress each block,
decode it again and compare; one packer thread seals and writes blocks in order. Bounded queues between them keep
memory bounded.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Protocol

import xxhash
from blake3 import blake3

from ohdiff.buffers import PooledBuffer
from ohdiff.errors import IntegrityError, OhdiffError
from ohdiff_format.blocks import CODEC_RAW, decode_block_into
from ohdiff_format.envelope import Buffer
from ohdiff_format.index import PackRecord
from ohdiff_format.limits import CHUNK_SIZE_BYTES_MAX, ID_PREFIX_SIZE, ID_SIZE
from ohdiff_format.pack import BlockRecord

from .block_encoder import BlockEncoder
from .index import ChunkIndex
from .packs import PackSet
from .repository import Repository

# 8 MiB of plain bytes a block, measured on a kernel source tree at zstd level 3: 1 MiB 206.6 MB, 2 MiB 202.0,
# 4 MiB 199.5, 8 MiB 197.9; on 118,956 tiny files 15.9, 15.4, 15.2, 15.1. See docs/measurements.md.
BLOCK_SIZE_BYTES: Final = 8 << 20
METADATA_BLOCK_SIZE_BYTES: Final = 1 << 20
# A block of nearly this size is closed at the end of a buffer, so that most blocks are one buffer and need no copy.
_FULL_BLOCK_SIZE_BYTES: Final = BLOCK_SIZE_BYTES - (BLOCK_SIZE_BYTES >> 3)
# Files of a few bytes must not outgrow what a footer may list.
_BLOCK_CHUNKS_MAX: Final = 65_536
_CHUNKS_PER_INDEX: Final = 250_000
_PACKS_PER_INDEX: Final = 64


@dataclass(frozen=True, slots=True)
class Encoded:
    """A compressed block that was decoded and compared."""

    codec: int
    payload: Buffer
    plain_size: int


@dataclass(slots=True)
class _OpenBlock:
    is_metadata: bool
    parts: list[memoryview] = field(default_factory=list)
    buffers: list[PooledBuffer] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    prefixes: list[bytes] = field(default_factory=list)
    size: int = 0

    def sole_buffer(self) -> bytearray | None:
        """The buffer that all parts lie in, if nobody but this block uses it."""
        if len(self.buffers) == 1 and self.buffers[0].users == 1:
            return self.buffers[0].data
        return None


@dataclass(slots=True)
class WriteCounts:
    """What a run added; sizes in bytes."""

    added_chunks: int = 0
    added_size: int = 0
    stored_size: int = 0


class ChunkSink(Protocol):
    """Where chunks go: the repository, or nowhere on a dry run."""

    counts: WriteCounts

    def add_chunks(self, buffer: PooledBuffer, cuts: Sequence[int], ids: bytes, first: int, last: int) -> None: ...
    def end_buffer(self, buffer: PooledBuffer) -> None: ...
    def add_metadata(self, data: bytes) -> bytes: ...
    def finish(self) -> None: ...
    def interrupt(self) -> None: ...
    def abort(self) -> None: ...


class Deduplicator:
    """Decides which chunks are new: neither in the index nor seen earlier in this run."""

    def __init__(self, index: ChunkIndex) -> None:
        self._index = index
        self._pending: set[bytes] = set()

    def new_flags(self, prefixes: Sequence[bytes]) -> Sequence[int]:
        """For each prefix, whether its chunk must be stored; it counts as seen from now on."""
        known = self._index.contains(b"".join(prefixes)) if self._index.chunk_count else bytes(len(prefixes))
        pending = self._pending
        flags = []
        for prefix, is_known in zip(prefixes, known, strict=True):
            is_new = not is_known and prefix not in pending
            if is_new:
                pending.add(prefix)
            flags.append(is_new)
        return flags

    def settle(self, packs: Sequence[PackRecord]) -> None:
        """Forget chunks that the index holds by now."""
        for pack in packs:
            for block in pack.blocks:
                self._pending.difference_update(split_prefixes(block.chunk_prefixes))


def split_prefixes(prefixes: bytes) -> list[bytes]:
    """Prefixes that stand back to back, one by one."""
    return [prefixes[i : i + ID_PREFIX_SIZE] for i in range(0, len(prefixes), ID_PREFIX_SIZE)]


class ChunkWriter:
    """Stores chunks in a repository; one caller thread.

    Parameters
    ----------
    executor : pool that compresses.
    level : zstd level, None for none.
    queue_depth : blocks in flight at most; each holds up to twice BLOCK_SIZE_BYTES.
    """

    def __init__(
        self, repository: Repository, index: ChunkIndex, executor: Executor, *, level: int | None, queue_depth: int
    ) -> None:
        self._index = index
        self._executor = executor
        self._level = level
        self._id_key = repository.chunk_id_key
        self._dedup = Deduplicator(index)
        self._data = _OpenBlock(is_metadata=False)
        self._metadata = _OpenBlock(is_metadata=True)
        self._workspaces = threading.local()
        self._packer = _Packer(PackSet(repository, self._on_pack), queue_depth)
        self._closed: list[PackRecord] = []
        self._closed_lock = threading.Lock()
        self.counts = WriteCounts()

    def add_chunks(self, buffer: PooledBuffer, cuts: Sequence[int], ids: bytes, first: int, last: int) -> None:
        """Store chunks `first` to `last` (exclusive) of a buffer.

        Parameters
        ----------
        buffer : where the chunks lie; retained until all of them are encoded.
        cuts : exclusive end offset of every chunk; chunk 0 begins at 0.
        ids : 32 bytes for every chunk.
        """
        prefixes = [ids[i : i + ID_PREFIX_SIZE] for i in range(first * ID_SIZE, last * ID_SIZE, ID_SIZE)]
        start = cuts[first - 1] if first else 0
        run_start = start
        for prefix, is_new, end in zip(prefixes, self._dedup.new_flags(prefixes), cuts[first:last], strict=True):
            if is_new:
                is_full = len(self._data.sizes) >= _BLOCK_CHUNKS_MAX
                if is_full or self._data.size + end - run_start > BLOCK_SIZE_BYTES:
                    self._take_run(buffer, run_start, start)
                    self._submit_data()
                    run_start = start
                self._data.sizes.append(end - start)
                self._data.prefixes.append(prefix)
            else:
                self._take_run(buffer, run_start, start)
                run_start = end
            start = end
        self._take_run(buffer, run_start, start)

    def end_buffer(self, buffer: PooledBuffer) -> None:
        """No more chunks of this buffer will be added: releases it for its giver."""
        buffer.release()
        if self._data.size >= _FULL_BLOCK_SIZE_BYTES:
            self._submit_data()

    def add_metadata(self, data: bytes) -> bytes:
        """Store one chunk of metadata; returns its id."""
        if len(data) > CHUNK_SIZE_BYTES_MAX:
            raise IntegrityError("a tree leaf is larger than a chunk may be")
        chunk_id = blake3(data, key=self._id_key).digest()
        prefix = chunk_id[:ID_PREFIX_SIZE]
        if self._dedup.new_flags([prefix])[0]:
            block = self._metadata
            block.parts.append(memoryview(data))
            block.sizes.append(len(data))
            block.prefixes.append(prefix)
            block.size += len(data)
            if block.size >= METADATA_BLOCK_SIZE_BYTES:
                self._metadata = self._submit(block)
        return chunk_id

    def finish(self) -> None:
        """Store everything that is still open; all of it is durable and indexed when this returns."""
        self._submit_data()
        self._metadata = self._submit(self._metadata)
        self._packer.finish()
        self._flush_index(at_least=1)
        self.counts.stored_size = self._packer.packs.stored_size

    def interrupt(self) -> None:
        """Stop in order: blocks that were handed on are stored and indexed, so that the next run need not redo them.

        An interrupt comes between any two instructions, so an open block may hold ids without their bytes: open
        blocks are dropped.
        """
        self._data = _OpenBlock(is_metadata=False)
        self._metadata = _OpenBlock(is_metadata=True)
        try:
            self._packer.finish()
            self._flush_index(at_least=1)
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        """Stop at once; packs that were closed are indexed if that is possible."""
        self._packer.abort()
        # What made the caller give up is the error to be seen; it often makes this fail, too.
        with suppress(OhdiffError, OSError):
            self._flush_index(at_least=1)

    def _take_run(self, buffer: PooledBuffer, start: int, end: int) -> None:
        if end > start:
            if not self._data.buffers or self._data.buffers[-1] is not buffer:
                buffer.retain()
                self._data.buffers.append(buffer)
            self._data.parts.append(memoryview(buffer.data)[start:end])
            self._data.size += end - start

    def _submit_data(self) -> None:
        self._data = self._submit(self._data)
        self._flush_index(at_least=_CHUNKS_PER_INDEX)

    def _submit(self, block: _OpenBlock) -> _OpenBlock:
        if block.sizes:
            self.counts.added_chunks += len(block.sizes)
            self.counts.added_size += block.size
            future = self._executor.submit(self._encode, block)
            self._packer.put(block, future)
        return _OpenBlock(block.is_metadata)

    def _encode(self, block: _OpenBlock) -> Encoded:
        """Compress a block, decode it again and compare; runs in the pool."""
        workspace = getattr(self._workspaces, "workspace", None)
        if workspace is None:
            workspace = self._workspaces.workspace = _Workspace(self._level)
        try:
            return workspace.encode(block)
        finally:
            block.parts.clear()
            for buffer in block.buffers:
                buffer.release()

    def _on_pack(self, record: PackRecord) -> None:
        with self._closed_lock:
            self._closed.append(record)

    def _flush_index(self, at_least: int) -> None:
        with self._closed_lock:
            chunk_count = sum(len(block.chunk_sizes) for pack in self._closed for block in pack.blocks)
            if chunk_count < at_least and not (chunk_count and len(self._closed) >= _PACKS_PER_INDEX):
                return
            packs, self._closed = self._closed, []
        self._index.add(packs)
        self._dedup.settle(packs)


class _Workspace:
    """What one encoding thread uses again and again: contexts, and room to gather and to decode a block."""

    def __init__(self, level: int | None) -> None:
        self._encoder = BlockEncoder(level)
        self._gathered = bytearray()
        self._decoded = bytearray()

    def encode(self, block: _OpenBlock) -> Encoded:
        """Compress a block; IntegrityError unless decoding gives its bytes back."""
        plain = block.parts[0] if len(block.parts) == 1 else self._gather(block)
        codec, payload = self._encoder.encode(plain, len(block.sizes))
        if codec == CODEC_RAW:
            return Encoded(codec, bytes(plain), len(plain))
        if len(self._decoded) < len(plain):
            self._decoded = bytearray(len(plain))
        with memoryview(self._decoded)[: len(plain)] as decoded:
            decode_block_into(codec, payload, decoded)
            # Equal 128-bit hashes, at 20 GB/s without the interpreter's lock; memoryviews compare at 1 GB/s with it.
            is_same = xxhash.xxh3_128_digest(decoded) == xxhash.xxh3_128_digest(plain)
        if not is_same:
            raise IntegrityError("a block did not survive compression", hint="check this machine's memory")
        return Encoded(codec, payload, len(plain))

    def _gather(self, block: _OpenBlock) -> memoryview:
        """The parts back to back: moved together where they lie if nobody else uses their buffer, else copied."""
        target = block.sole_buffer()
        if target is None:
            if len(self._gathered) < block.size:
                self._gathered = bytearray(max(block.size, BLOCK_SIZE_BYTES))
            target = self._gathered
        plain = memoryview(target)[: block.size]
        start = 0
        for part in block.parts:
            plain[start : start + len(part)] = part
            start += len(part)
        return plain


class _Packer:
    """The thread that seals and writes encoded blocks in the order in which they were put."""

    def __init__(self, packs: PackSet, depth: int) -> None:
        self.packs = packs
        self._queue: queue.Queue[tuple[_OpenBlock, Future[Encoded]] | None] = queue.Queue(depth)
        self._error: BaseException | None = None
        self._is_aborted = False
        self._thread = threading.Thread(target=self._run, name="packer", daemon=True)
        self._thread.start()

    def put(self, block: _OpenBlock, future: Future[Encoded]) -> None:
        """Hand over a block; waits while too many are in flight."""
        self._raise_error()
        self._queue.put((block, future))

    def finish(self) -> None:
        """Wait until everything is written and closed."""
        self._stop()
        self._raise_error()
        self.packs.finish()

    def abort(self) -> None:
        """Drop what is not written yet."""
        self._is_aborted = True
        self._stop()
        self.packs.abort()

    def _stop(self) -> None:
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            block, future = item
            if self._error is not None or self._is_aborted:
                future.cancel()
                continue
            try:
                encoded = future.result()
                record = BlockRecord(0, encoded.codec, block.sizes, b"".join(block.prefixes))
                self.packs.append(record, encoded.payload, block.is_metadata)
            except BaseException as error:  # noqa: BLE001 - carried to the caller's thread, which raises it
                self._error = error


class DrySink:
    """Counts what would be added, and stores nothing."""

    def __init__(self, repository: Repository, index: ChunkIndex) -> None:
        self._dedup = Deduplicator(index)
        self._id_key = repository.chunk_id_key
        self.counts = WriteCounts()

    def add_chunks(self, buffer: PooledBuffer, cuts: Sequence[int], ids: bytes, first: int, last: int) -> None:
        """Count the new ones among chunks `first` to `last` of a buffer."""
        prefixes = [ids[i : i + ID_PREFIX_SIZE] for i in range(first * ID_SIZE, last * ID_SIZE, ID_SIZE)]
        start = cuts[first - 1] if first else 0
        for is_new, end in zip(self._dedup.new_flags(prefixes), cuts[first:last], strict=True):
            if is_new:
                self.counts.added_chunks += 1
                self.counts.added_size += end - start
            start = end

    def end_buffer(self, buffer: PooledBuffer) -> None:
        """Release it."""
        buffer.release()

    def add_metadata(self, data: bytes) -> bytes:
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
