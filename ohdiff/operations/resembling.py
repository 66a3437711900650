"""Bases by resemblance: for new chunks that stand in no known place, what the local cache of features hints at."""

from __future__ import annotations

import threading
from array import array
from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from typing import Final, Self

from blake3 import blake3

from ohdiff.buffers import PooledBuffer
from ohdiff.chunking.engine import Engine
from ohdiff.delta.resemblance import CHUNK_SIZE_BYTES_MIN, ResemblanceCache
from ohdiff.repository.repository import Repository
from ohdiff_format.limits import ID_PREFIX_SIZE

_FOLDER: Final = "resemblance"
# 24 MiB of disk, and of memory: with chunks of 32 KiB, the last 8 GiB of new data.
_CHUNK_COUNT_MAX: Final = 1 << 18


class Resembling:
    """Knows the features of stored chunks; any thread may call any method.

    Parameters
    ----------
    depth_max : chunks of blocks of this depth are no bases, and are not remembered.
    """

    def __init__(self, cache: ResemblanceCache, engine: Engine, depth_max: int) -> None:
        self._cache = cache
        self._engine = engine
        self._depth_max = depth_max
        self._is_empty = cache.chunk_count == 0
        # Until the end of the run: what is in no index yet cannot be a base.
        self._stored: deque[tuple[bytes, bytes]] = deque()
        self._stored_count = 0
        self._lock = threading.Lock()

    @classmethod
    def open(cls, repository: Repository, engine: Engine, depth_max: int) -> Self | None:
        """The cache of a repository; None where there is no folder for it."""
        if repository.cache_folder is None:
            return None
        tag = blake3(repository.config.id + engine.rule.words).digest()
        folder = repository.cache_folder / _FOLDER
        return cls(ResemblanceCache.open(folder, tag, chunk_count_max=_CHUNK_COUNT_MAX), engine, depth_max)

    @property
    def is_empty(self) -> bool:
        """Whether nothing can be found."""
        return self._is_empty

    def candidates(self, chunk: memoryview) -> Sequence[bytes]:
        """The stored chunk that shares most features with a new one, if any does: 16 bytes of its id."""
        if len(chunk) < CHUNK_SIZE_BYTES_MIN:
            return ()
        found = self._cache.nearest(self._engine.features(chunk, array("Q", [len(chunk)])))[0]
        return () if found is None else (found,)

    def remember(self, plain: memoryview, sizes: Sequence[int], prefixes: Sequence[bytes], depth: int) -> None:
        """A block has been encoded; those of its chunks that are large enough may be bases of later ones.

        Parameters
        ----------
        plain : the bytes of the chunks, back to back.
        depth : of the block.
        """
        if depth >= self._depth_max or len(plain) < CHUNK_SIZE_BYTES_MIN * len(sizes):
            return
        features = self._engine.features(plain, array("Q", accumulate(sizes)))
        size = len(features) // len(sizes)
        large = [row for row, chunk_size in enumerate(sizes) if chunk_size >= CHUNK_SIZE_BYTES_MIN]
        if len(large) < len(sizes):
            features = b"".join([features[row * size : (row + 1) * size] for row in large])
        with self._lock:
            self._stored.append((features, b"".join([prefixes[row] for row in large])))
            self._stored_count += len(large)
            while self._stored_count > _CHUNK_COUNT_MAX:
                self._stored_count -= len(self._stored.popleft()[1]) // ID_PREFIX_SIZE

    def close(self) -> None:
        """Keep what was remembered for later runs."""
        with self._lock:
            for features, prefixes in self._stored:
                self._cache.remember(features, prefixes)
            self._stored.clear()
        self._cache.close()


class BufferBases:
    """Finds bases for the new chunks of a buffer of files without an earlier version."""

    def __init__(self, resembling: Resembling, buffer: PooledBuffer) -> None:
        self._resembling = resembling
        self._buffer = buffer

    def note_duplicate(self, prefix: bytes, start: int) -> None:
        """See `BaseFinder`."""

    def candidates(self, start: int, end: int) -> Sequence[bytes]:
        """See `BaseFinder`."""
        with self._buffer.view(start, end) as chunk:
            return self._resembling.candidates(chunk)
