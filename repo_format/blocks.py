"""Block codecs: how the plain bytes of a block become stored bytes (SPEC sections 6.2 and 6.4).

Blocks of numbers are decoded to their planes in numbers.py; joining planes is left to whoever has a fast way.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import zstandard

from .envelope import Buffer, check_frame, decompress_frame
from .errors import FormatError, UnknownFeatureError
from .limits import BASE_SIZE_BYTES_MAX, BLOCK_SIZE_BYTES_MAX

CODEC_RAW: Final = 0
CODEC_ZSTD: Final = 1
CODEC_DELTA: Final = 2
CODEC_NUMBERS: Final = 3


def decode_block(codec: int, payload: Buffer, plain_size: int, base: Buffer = b"") -> Buffer:
    """The plain bytes of a block of bytes; FormatError unless they are exactly `plain_size` long.

    Parameters
    ----------
    base : the bytes of all base chunks, back to back; empty for a block that needs none.
    """
    if plain_size > BLOCK_SIZE_BYTES_MAX:
        raise FormatError("a block is larger than its limit")
    if codec == CODEC_ZSTD:
        return decompress_frame(payload, plain_size)
    if codec == CODEC_DELTA:
        return decompress_frame(payload, plain_size, as_prefix(base))
    if codec != CODEC_RAW:
        raise UnknownFeatureError(f"block codec {codec}")
    if len(payload) != plain_size:
        raise FormatError("a raw block is not as long as its chunks")
    return payload


def decode_block_into(
    codec: int, payload: Buffer, target: memoryview, prefix: zstandard.ZstdCompressionDict | None = None
) -> None:
    """Decode a block of bytes into memory of exactly its plain size; FormatError unless it fills it."""
    if codec not in (CODEC_ZSTD, CODEC_DELTA):
        target[:] = decode_block(codec, payload, len(target))
        return
    check_frame(payload, len(target))
    try:
        reader = zstandard.ZstdDecompressor(dict_data=prefix).stream_reader(payload)
        size = reader.readinto(target)
    except zstandard.ZstdError as error:
        raise FormatError(f"a zstd frame does not decode: {error}") from error
    if size != len(target):
        raise FormatError("a zstd frame gave another size than declared")


def decode_block_pieces(
    decompressor: zstandard.ZstdDecompressor, payload: Buffer, plain_size: int, room: memoryview
) -> Iterator[memoryview]:
    """The plain bytes of a block of zstd, piece by piece: all in `room`, each valid until the next is asked for.

    FormatError unless they are exactly `plain_size` long.

    Parameters
    ----------
    decompressor : of the calling thread; for a delta, with its base as prefix.
    """
    check_frame(payload, plain_size)
    reader = decompressor.stream_reader(payload)
    left = plain_size
    try:
        while size := reader.readinto(room):
            left -= size
            yield room[:size]
    except zstandard.ZstdError as error:
        raise FormatError(f"a zstd frame does not decode: {error}") from error
    if left:
        raise FormatError("a zstd frame gave another size than declared")


def as_prefix(base: Buffer) -> zstandard.ZstdCompressionDict | None:
    """What a frame's matches may reach back into: the base as raw content; None without a base."""
    if len(base) > BASE_SIZE_BYTES_MAX:
        raise FormatError("the bases of a block are larger than their limit")
    return zstandard.ZstdCompressionDict(base, dict_type=zstandard.DICT_TYPE_RAWCONTENT) if base else None
