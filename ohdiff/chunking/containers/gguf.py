"""GGUF (versions 2 and 3, little-endian): metadata, a table of tensors, then their bytes, each aligned.

The metadata may be tens of megabytes of vocabulary; it is read through a window and skipped, never kept.
"""

from __future__ import annotations

from typing import Final

from ohdiff_format.numbers import NumberKind

from .tensors import (
    NAME_LENGTH_MAX,
    TENSORS_MAX,
    ByteSource,
    Container,
    MalformedError,
    Tensor,
    elements_of,
    judged,
    read_exactly,
)

MAGIC: Final = b"GGUF"

# Larger than what is parsed whole elsewhere: vocabularies of 260,000 words with their merges reach 16 MB.
_HEADER_SIZE_BYTES_MAX: Final = 32 << 20
_WINDOW_SIZE_BYTES: Final = 256 << 10
_RANK_MAX: Final = 8
_ALIGNMENT_DEFAULT: Final = 32
_ALIGNMENT_MAX: Final = 1 << 16
_ALIGNMENT_KEY: Final = b"general.alignment"
_ARRAY_DEPTH_MAX: Final = 4
_UINT32: Final = 4
_STRING: Final = 8
_ARRAY: Final = 9
_VALUE_SIZES: Final = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}

# ggml's type numbers: name, elements of a block, bytes of a block, kind. A file with any other type is left as bytes,
# since the size of its tensors is unknown.
_TYPES: Final[dict[int, tuple[str, int, int, NumberKind | None]]] = {
    0: ("F32", 1, 4, NumberKind.F32),
    1: ("F16", 1, 2, NumberKind.F16),
    2: ("Q4_0", 32, 18, None),
    3: ("Q4_1", 32, 20, None),
    6: ("Q5_0", 32, 22, None),
    7: ("Q5_1", 32, 24, None),
    8: ("Q8_0", 32, 34, None),
    10: ("Q2_K", 256, 84, None),
    11: ("Q3_K", 256, 110, None),
    12: ("Q4_K", 256, 144, None),
    13: ("Q5_K", 256, 176, None),
    14: ("Q6_K", 256, 210, None),
    15: ("Q8_K", 256, 292, None),
    16: ("IQ2_XXS", 256, 66, None),
    17: ("IQ2_XS", 256, 74, None),
    18: ("IQ3_XXS", 256, 98, None),
    19: ("IQ1_S", 256, 50, None),
    20: ("IQ4_NL", 32, 18, None),
    21: ("IQ3_S", 256, 110, None),
    22: ("IQ2_S", 256, 82, None),
    23: ("IQ4_XS", 256, 136, None),
    24: ("I8", 1, 1, NumberKind.I8),
    25: ("I16", 1, 2, NumberKind.I16),
    26: ("I32", 1, 4, NumberKind.I32),
    27: ("I64", 1, 8, NumberKind.I64),
    28: ("F64", 1, 8, NumberKind.F64),
    29: ("IQ1_M", 256, 56, None),
    30: ("BF16", 1, 2, NumberKind.BF16),
    34: ("TQ1_0", 256, 54, None),
    35: ("TQ2_0", 256, 66, None),
    39: ("MXFP4", 32, 17, None),
    40: ("NVFP4", 64, 36, None),
    41: ("Q1_0", 128, 18, None),
}


class _Cursor:
    """Reads the header from front to back through one window."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._limit = min(source.size, _HEADER_SIZE_BYTES_MAX)
        self._window = b""
        self._window_start = 0
        self.position = 0

    def take(self, size: int) -> bytes:
        """The next bytes, at most a window of them."""
        at = self.position - self._window_start
        if at + size > len(self._window):
            self._window = read_exactly(
                self._source, self.position, max(size, min(_WINDOW_SIZE_BYTES, self._limit - self.position))
            )
            self._window_start, at = self.position, 0
        self.skip(size)
        return self._window[at : at + size]

    def skip(self, size: int) -> None:
        if size > self._limit - self.position:
            raise MalformedError
        self.position += size

    def u32(self) -> int:
        return int.from_bytes(self.take(4), "little")

    def u64(self) -> int:
        return int.from_bytes(self.take(8), "little")

    def string(self) -> bytes:
        """A short string, as names are."""
        size = self.u64()
        if size > NAME_LENGTH_MAX:
            raise MalformedError
        return self.take(size)


def read_gguf(source: ByteSource) -> Container:
    """The tensors of the table.

    Raises
    ------
    MalformedError
        It is not GGUF of a known version and known types, or lies.
    """
    cursor = _Cursor(source)
    if cursor.take(4) != MAGIC or cursor.u32() not in (2, 3):
        raise MalformedError
    tensor_count, value_count = cursor.u64(), cursor.u64()
    if not 0 < tensor_count <= TENSORS_MAX:
        raise MalformedError
    alignment = _read_alignment(cursor, value_count)
    claims = [_read_tensor(cursor, alignment) for _ in range(tensor_count)]
    data_start = -(-cursor.position // alignment) * alignment
    moved = [Tensor(t.name, t.kind, t.dtype, t.shape, t.start + data_start, t.end + data_start) for t in claims]
    return judged("gguf", moved, source.size)


def _read_alignment(cursor: _Cursor, value_count: int) -> int:
    """The alignment, after all of the metadata is passed."""
    alignment = _ALIGNMENT_DEFAULT
    for _ in range(value_count):
        key, value_type = cursor.string(), cursor.u32()
        if key == _ALIGNMENT_KEY:
            if value_type != _UINT32:
                raise MalformedError
            alignment = cursor.u32()
        else:
            _skip_value(cursor, value_type, 0)
    if not 0 < alignment <= _ALIGNMENT_MAX or alignment & (alignment - 1):
        raise MalformedError
    return alignment


def _skip_value(cursor: _Cursor, value_type: int, depth: int) -> None:
    if value_type in _VALUE_SIZES:
        cursor.skip(_VALUE_SIZES[value_type])
    elif value_type == _STRING:
        cursor.skip(cursor.u64())
    elif value_type == _ARRAY and depth < _ARRAY_DEPTH_MAX:
        item_type, count = cursor.u32(), cursor.u64()
        if item_type in _VALUE_SIZES:
            cursor.skip(_VALUE_SIZES[item_type] * count)
        else:
            # Each turn takes at least eight bytes of the bounded header, so that the count cannot run away.
            for _ in range(count):
                _skip_value(cursor, item_type, depth + 1)
    else:
        raise MalformedError


def _read_tensor(cursor: _Cursor, alignment: int) -> Tensor:
    """One row of the table, with its range counted from the start of the data."""
    name, rank = cursor.string(), cursor.u32()
    if rank > _RANK_MAX:
        raise MalformedError
    shape = tuple(cursor.u64() for _ in range(rank))
    type_number, offset = cursor.u32(), cursor.u64()
    if type_number not in _TYPES or offset % alignment:
        raise MalformedError
    dtype, block_elements, block_size, kind = _TYPES[type_number]
    blocks, rest = divmod(elements_of(shape), block_elements)
    if rest or (block_elements > 1 and (not shape or shape[0] % block_elements)):
        raise MalformedError
    return Tensor(name.decode("utf-8", "backslashreplace"), kind, dtype, shape, offset, offset + blocks * block_size)
