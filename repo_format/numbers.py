"""Kinds of numbers, and the payload of blocks of numbers: one plane for each byte of an element (SPEC section 6.5)."""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from .envelope import Buffer, check_frame, decompress_frame
from .errors import FormatError, UnknownFeatureError
from .limits import BLOCK_SIZE_BYTES_MAX

TRANSFORM_NONE: Final = 0
TRANSFORM_XOR: Final = 1
TRANSFORM_FLOAT_DIFFERENCE: Final = 2
TRANSFORM_INTEGER_DIFFERENCE: Final = 3
TRANSFORM_GROUPED_FLOAT_DIFFERENCE: Final = 4
CAST_NONE: Final = 0
CAST_F32_TO_BF16: Final = 1
CAST_F32_TO_F16: Final = 2
PLANE_RAW: Final = 0
PLANE_ZSTD: Final = 1
PLANE_CONSTANT: Final = 2
_WIDTHS: Final = (1, 2, 4, 8)
_PLANE_PREFIX: Final = struct.Struct("<BI")


class NumberKind(enum.Enum):
    """What the elements of a block are: (bytes of one element, whether it is a float with its sign in the top bit)."""

    F64 = ("f64", 8, True)
    F32 = ("f32", 4, True)
    F16 = ("f16", 2, True)
    BF16 = ("bf16", 2, True)
    F8 = ("f8", 1, True)
    I64 = ("i64", 8, False)
    I32 = ("i32", 4, False)
    I16 = ("i16", 2, False)
    I8 = ("i8", 1, False)

    def __init__(self, label: str, width: int, is_float: bool) -> None:
        self.label = label
        self.width = width
        self.is_float = is_float


class Parameters(NamedTuple):
    """What the parameters of a block of numbers say; `depth` is 0 for a block without a base."""

    depth: int
    width: int
    transform: int
    cast: int

    @property
    def needs_base(self) -> bool:
        """Whether the block is a difference from a base chunk."""
        return self.transform != TRANSFORM_NONE


def parse_parameters(parameters: bytes) -> Parameters:
    """Parse and check the parameters of a block of numbers; its depth is judged with its bases."""
    if len(parameters) != len(Parameters._fields):
        raise UnknownFeatureError("a block of numbers with other parameters")
    parsed = Parameters(*parameters)
    if parsed.width not in _WIDTHS:
        raise FormatError("a number has 1, 2, 4 or 8 bytes")
    if parsed.transform > TRANSFORM_GROUPED_FLOAT_DIFFERENCE or parsed.cast > CAST_F32_TO_F16:
        raise UnknownFeatureError("a transform of numbers")
    if parsed.cast != CAST_NONE and (parsed.width != 2 or not parsed.needs_base):
        raise FormatError("a cast gives two bytes, and needs a base")
    return parsed


def encode_planes(planes: Iterable[tuple[int, Buffer]]) -> bytes:
    """The payload of planes that are encoded already: (plane codec, its bytes), from the lowest byte's plane on."""
    parts: list[Buffer] = []
    for codec, data in planes:
        parts += (_PLANE_PREFIX.pack(codec, len(data)), data)
    return b"".join(parts)


def decode_planes(parameters: bytes, payload: Buffer, plain_size: int) -> bytes:
    """All planes of a block of numbers, back to back: `plain_size` bytes; joining them is left to the caller.

    Raises
    ------
    FormatError
        The payload is not that of `plain_size` bytes of whole numbers.
    """
    width = parse_parameters(parameters).width
    if plain_size > BLOCK_SIZE_BYTES_MAX:
        raise FormatError("a block is larger than its limit")
    if plain_size == 0 or plain_size % width:
        raise FormatError("a block of numbers does not hold whole numbers")
    plane_size = plain_size // width
    planes = []
    for codec, data in _split_payload(memoryview(payload), width):
        _check_plane(codec, data, plane_size)
        planes.append((codec, data))
    # All are checked before any is decoded; joined, since memory to decode them into would be cleared first.
    return b"".join([_decode_plane(codec, data, plane_size) for codec, data in planes])


def _split_payload(payload: memoryview, width: int) -> Iterator[tuple[int, memoryview]]:
    """The plane codec and the bytes of each plane."""
    at = 0
    for _ in range(width):
        if len(payload) - at < _PLANE_PREFIX.size:
            raise FormatError("a block of numbers ends before its last plane")
        codec, size = _PLANE_PREFIX.unpack_from(payload, at)
        at += _PLANE_PREFIX.size
        if size > len(payload) - at:
            raise FormatError("a plane reaches beyond its block")
        yield codec, payload[at : at + size]
        at += size
    if at != len(payload):
        raise FormatError("bytes follow the last plane")


def _check_plane(codec: int, data: memoryview, plane_size: int) -> None:
    """Raise unless a plane can be decoded to `plane_size` bytes, as far as that shows beforehand."""
    if codec == PLANE_ZSTD:
        check_frame(data, plane_size)
    elif codec not in (PLANE_RAW, PLANE_CONSTANT):
        raise UnknownFeatureError(f"plane codec {codec}")
    elif len(data) != (plane_size if codec == PLANE_RAW else 1):
        raise FormatError("a plane has another size than its block says")


def _decode_plane(codec: int, data: memoryview, plane_size: int) -> Buffer:
    """The `plane_size` bytes of a checked plane."""
    if codec == PLANE_RAW:
        return data
    if codec == PLANE_CONSTANT:
        return bytes(data) * plane_size
    return decompress_frame(data, plane_size)
