"""How blocks are compressed: the level asked for, or level 1 where a sample says that more effort finds nothing."""

from __future__ import annotations

from typing import Final

import zstandard

from ohdiff.buffers import trimmed
from ohdiff_format.blocks import CODEC_RAW, CODEC_ZSTD
from ohdiff_format.envelope import Buffer

DEFAULT_LEVEL: Final = 3
_WINDOW_LOG: Final = 22
_SAMPLE_SIZE_BYTES: Final = 16 << 10
_SAMPLES: Final = 4
# Blocks of chunks shorter than this are gathered tiny files, which have much in common; longer matches and more effort
# suit them. 118,956 files of 1.1 kB on average: level 3 14.7 MB, with matches from 6 bytes on 14.4; with them level 5
# 13.2 at 0.84 times the speed, level 6 12.6 at 0.7. Larger source files would lose 1 % by the matches.
_TINY_CHUNK_SIZE_BYTES: Final = 4 << 10
_TINY_MATCH_MIN: Final = 6
_TINY_LEVEL: Final = 6
# Weights of a training run: level 3 gives what level 1 gives (fp32 189.4 against 189.2 MB, bf16 119.6 both) at 0.6
# times the speed. Text and code lie below 0.5.
_DENSE_RATIO: Final = 0.72


class BlockEncoder:
    """Compresses blocks with its own zstd contexts; one for each thread.

    Parameters
    ----------
    level : zstd level, or None to store blocks as they are.
    """

    def __init__(self, level: int | None) -> None:
        self._level = level
        self._light = zstandard.ZstdCompressor(level=1)
        self._full = self._light if level is None else _compressor(level)
        self._tiny = _compressor(_TINY_LEVEL, min_match=_TINY_MATCH_MIN) if level == DEFAULT_LEVEL else self._full

    def encode(self, plain: Buffer, chunk_count: int) -> tuple[int, Buffer]:
        """(codec, payload) of a block of so many chunks; the payload is never longer than `plain`."""
        if self._level is None:
            return CODEC_RAW, plain
        payload = self._choose(plain, chunk_count).compress(plain)
        return (CODEC_ZSTD, trimmed(payload)) if len(payload) < len(plain) else (CODEC_RAW, plain)

    def is_tiny(self, plain: Buffer, chunk_count: int) -> bool:
        """Whether a block of so many chunks is gathered from tiny files, which take more effort."""
        return self._tiny is not self._full and len(plain) < chunk_count * _TINY_CHUNK_SIZE_BYTES

    def _choose(self, plain: Buffer, chunk_count: int) -> zstandard.ZstdCompressor:
        if self.is_tiny(plain, chunk_count):
            return self._tiny
        return self._light if self._is_dense(plain) else self._full

    def _is_dense(self, plain: Buffer) -> bool:
        if self._level == 1 or len(plain) < 4 * _SAMPLES * _SAMPLE_SIZE_BYTES:
            return False
        stride = len(plain) // _SAMPLES
        with memoryview(plain) as view:
            samples = [view[start : start + _SAMPLE_SIZE_BYTES] for start in range(0, _SAMPLES * stride, stride)]
            size = sum(len(self._light.compress(sample)) for sample in samples)
        return size > _DENSE_RATIO * _SAMPLES * _SAMPLE_SIZE_BYTES


def _compressor(level: int, **options: int) -> zstandard.ZstdCompressor:
    """A compressor with a window of half a block, 1 % smaller on a source tree than the level's own of 2 MiB."""
    if level > 0:
        options["window_log"] = _WINDOW_LOG
    parameters = zstandard.ZstdCompressionParameters.from_level(level, **options)
    return zstandard.ZstdCompressor(compression_params=parameters)
