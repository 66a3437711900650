"""Block codecs: how the plain bytes of a block become stored bytes (SPEC section 6.2)."""

from __future__ import annotations

from typing import Final

import zstandard

from .envelope import Buffer, check_frame, decompress_frame
from .errors import FormatError, UnknownFeatureError
from .limits import BLOCK_SIZE_BYTES_MAX

CODEC_RAW: Final = 0
CODEC_ZSTD: Final = 1
KNOWN_CODECS: Final = frozenset({CODEC_RAW, CODEC_ZSTD})


class BlockEncoder:
    """Compresses blocks with one zstd context; not to be shared between threads.

    Parameters
    ----------
    level : zstd level, or None to store blocks as they are.
    """

    def __init__(self, level: int | None) -> None:
        self._compressor = None if level is None else zstandard.ZstdCompressor(level=level)

    def encode(self, plain: Buffer) -> tuple[int, Buffer]:
        """(codec, payload): never longer than `plain`."""
        if self._compressor is None:
            return CODEC_RAW, plain
        payload = self._compressor.compress(plain)
        return (CODEC_ZSTD, payload) if len(payload) < len(plain) else (CODEC_RAW, plain)


def decode_block(codec: int, payload: Buffer, plain_size: int) -> Buffer:
    """The plain bytes of a block; FormatError unless they are exactly `plain_size` long."""
    if plain_size > BLOCK_SIZE_BYTES_MAX:
        raise FormatError("a block is larger than its limit")
    if codec == CODEC_ZSTD:
        return decompress_frame(payload, plain_size)
    if codec != CODEC_RAW:
        raise UnknownFeatureError(f"block codec {codec}")
    if len(payload) != plain_size:
        raise FormatError("a raw block is not as long as its chunks")
    return payload


def decode_block_into(codec: int, payload: Buffer, target: memoryview) -> None:
    """Decode a block into memory of exactly its plain size; FormatError unless it fills it."""
    if codec != CODEC_ZSTD:
        target[:] = decode_block(codec, payload, len(target))
        return
    check_frame(payload, len(target))
    try:
        reader = zstandard.ZstdDecompressor().stream_reader(payload)
        size = reader.readinto(target)
    except zstandard.ZstdError as error:
        raise FormatError(f"a zstd frame does not decode: {error}") from error
    if size != len(target):
        raise FormatError("a zstd frame gave another size than declared")
