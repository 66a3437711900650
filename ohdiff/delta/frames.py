"""Delta blocks: zstd frames whose matches reach back into base chunks (SPEC section 6.4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import zstandard

from ohdiff._kernels import encode_delta
from ohdiff.buffers import trimmed
from ohdiff_format.blocks import as_prefix

# New bytes that resemble their base are long matches: more effort than level 1 finds nothing. Measured on 561 MB of a
# database, 2 % of its rows changed, blocks of 512 KiB: level 1 with a hash table of 2^17 1.31 MB, level 3 1.35 MB at
# 0.7 times the speed. A table of 2^16 gives 2.5 times the size on source files; 2^18 wins 3 % at 2/3 of the speed.
_LEVEL: Final = 1
_HASH_LOG: Final = 17
# Covers the base and the block.
_WINDOW_LOG: Final = 22
# A native frame of at most this share is taken: it is made at 6 times the speed, and leaves what is new uncompressed.
# Stored bytes of two updates, MB: a database 1.09 -> 1.56, no frame above; source files 1.82 -> 2.14 with one frame in
# five above, 2.30 with 1/50 and one in eight, 1.96 with 1/100 and every second one.
_NATIVE_SHARE: Final = 1 / 64
# How many blocks may turn out worthless before only one in so many is tried.
_CREDIT_MAX: Final = 16
_RARELY: Final = 8


@dataclass(frozen=True, slots=True)
class Base:
    """What a delta stands on: base chunks (16 bytes of each id), their bytes, and the depth of who stands on them."""

    prefixes: bytes
    data: bytes
    depth: int


class Budget:
    """Bounds the time that is spent on bases that turn out worthless; a race on its counts does no harm."""

    def __init__(self) -> None:
        self._credit = _CREDIT_MAX
        self._skipped = 0

    def allows(self) -> bool:
        """Whether to try once more."""
        if self._credit > 0:
            return True
        self._skipped += 1
        return self._skipped % _RARELY == 0

    def settle(self, *, is_taken: bool) -> None:
        """What became of a try."""
        self._credit = min(_CREDIT_MAX, self._credit + 2) if is_taken else max(0, self._credit - 1)


def compress(plain: memoryview, base: Base) -> bytes:
    """One frame of `plain` with the base as prefix."""
    frame = encode_delta(plain, base.data, int(_NATIVE_SHARE * len(plain)))
    return _compress_thoroughly(plain, base) if frame is None else frame


def _compress_thoroughly(plain: memoryview, base: Base) -> bytes:
    parameters = zstandard.ZstdCompressionParameters.from_level(
        _LEVEL, window_log=_WINDOW_LOG, hash_log=_HASH_LOG, source_size=len(plain), dict_size=len(base.data)
    )
    compressor = zstandard.ZstdCompressor(compression_params=parameters, dict_data=as_prefix(base.data))
    return trimmed(compressor.compress(plain))
