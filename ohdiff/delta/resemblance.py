"""Which stored chunk a new one resembles, by their features: a local cache that only hints (no section of SPEC).

It is bounded, rebuildable and has its own version: without it, or with a stale, torn or foreign one, less is saved and
nothing is lost. Whether a hinted chunk is stored, and whether a difference against it pays, is for the caller to see.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from ohdiff._kernels import ResemblanceTable

if TYPE_CHECKING:
    from typing_extensions import Buffer

# 96 MiB of disk when full, and of memory at most: with chunks of 32 KiB, the last 32 GiB of new data.
CHUNK_COUNT_MAX: Final = 1 << 20
# A smaller chunk has few samples, 32 at this size: what it resembles is chance, and what it saves is little.
CHUNK_SIZE_BYTES_MIN: Final = 4096
# Of 12, for bases of earlier snapshots. Stored bytes of new chunks in blocks of 8 MiB, MB, with differences from 1, 2,
# 3, 4, 6 equal features on: two releases of two Python packages 8.7, 9.2, 9.7, 10.3, 11.1 (15.3 without); a kernel's
# patch release 1.73, 1.75, 1.76, 1.80, 2.01 (34.2 without). Hints whose difference was not under 0.9 of the chunk's own
# plain size: with one equal feature 24 %, two 8 %, three and four 1 %, more none.
EQUAL_FEATURES_MIN: Final = 2
# For bases of the same snapshot, which a block's own window serves as well: the kernel's first snapshot takes 196.2 MB
# without differences, and from 2, 4, 6, 8, 10 equal features on 197.7, 193.9, 193.3, 193.4, 194.0.
EQUAL_FEATURES_MIN_WITHIN: Final = 6

_TABLE_NAME: Final = "resemblance"
_LOCK_NAME: Final = "resemblance.lock"


class ResemblanceCache:
    """Features of the latest stored chunks, and the first 16 bytes of their ids; open it with `open`.

    Any number of threads may call any method at once; the interpreter's lock is released meanwhile. Of several
    processes with the same folder the first may write, and the others read and keep what they remember to themselves.
    Features are those of `Engine.features`: uint32[chunks * 12], little-endian, in host memory, not kept.
    """

    def __init__(self, table: ResemblanceTable, lock: int | None) -> None:
        self._table = table
        self._lock = lock

    @classmethod
    def open(cls, folder: Path | None, tag: bytes, *, chunk_count_max: int = CHUNK_COUNT_MAX) -> Self:
        """The cache in this folder, which is made; in memory where there is none, or where it cannot be used.

        Parameters
        ----------
        folder : where its files are; None for memory alone.
        tag : 32 bytes that change with whatever gives features and ids another meaning: the repository and the
            chunking rule with its keyed words. A cache under another tag is begun anew.
        chunk_count_max : how many chunks are remembered, 96 bytes each; rounded down to a power of two, 128 to 2^24.

        Raises
        ------
        ValueError
            The tag or the bound is none.
        """
        if folder is not None:
            lock = _take_lock(folder)
            try:
                return cls(ResemblanceTable(folder / _TABLE_NAME, chunk_count_max, tag, lock is not None), lock)
            except BaseException as error:
                _release(lock)
                if not isinstance(error, OSError):
                    raise
        return cls(ResemblanceTable(None, chunk_count_max, tag), None)

    @property
    def is_written(self) -> bool:
        """Whether what is remembered here outlives this object."""
        return self._lock is not None

    @property
    def chunk_count(self) -> int:
        """Chunks that are remembered."""
        return self._table.chunk_count

    @property
    def resident_size_bytes(self) -> int:
        """Memory held; pages of the file count once they were read."""
        return self._table.resident_bytes

    def nearest(self, features: Buffer, *, equal_min: int = EQUAL_FEATURES_MIN) -> list[bytes | None]:
        """For each chunk the id prefix of the one that shares most features with it, the newest of several.

        Parameters
        ----------
        features : of the chunks in question; a chunk without samples (all 0) resembles nothing.
        equal_min : 1 to 12, fewer equal features are no resemblance.

        Raises
        ------
        ValueError
            Features are not of whole chunks, or the cache is closed.
        """
        prefixes, counts = self._table.find(features, equal_min)
        return [prefixes[row * 16 : row * 16 + 16] if equal else None for row, equal in enumerate(counts)]

    def nearest_counted(
        self, features: Buffer, *, equal_min: int = EQUAL_FEATURES_MIN
    ) -> list[tuple[bytes, int] | None]:
        """As `nearest`, with the number of equal features: how much effort the candidate is worth."""
        prefixes, counts = self._table.find(features, equal_min)
        return [(prefixes[row * 16 : row * 16 + 16], equal) if equal else None for row, equal in enumerate(counts)]

    def remember(self, features: Buffer, prefixes: Buffer) -> None:
        """Let chunks be found from now on; when the cache is full, the oldest ones are forgotten.

        Parameters
        ----------
        features : of the chunks, in order; those without samples are passed over.
        prefixes : uint8[chunks * 16], the first bytes of their ids. Only of chunks that may serve as a base: one whose
            chain of differences is as deep as is allowed would hide those that may.

        Raises
        ------
        ValueError
            Features and prefixes are not of the same whole chunks, or the cache is closed.
        """
        self._table.add(features, prefixes)

    def flush(self) -> None:
        """Write what is new, where this process may; a failure costs savings of later runs, and is passed over."""
        with contextlib.suppress(OSError):
            self._table.flush()

    def close(self) -> None:
        """Write what is new and release file, memory and lock. Closing twice is harmless."""
        try:
            with contextlib.suppress(ValueError):  # closed before
                self.flush()
            self._table.close()
        finally:
            _release(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _take_lock(folder: Path) -> int | None:
    """The right to write, for as long as the descriptor is open; None where another process has it, or none can."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(folder / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _release(lock: int | None) -> None:
    if lock is not None:
        os.close(lock)
