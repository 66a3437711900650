"""safetensors: eight bytes of length, a JSON header of tensors, then their bytes without holes.

Like the reference implementation it refuses a file whose tensors do not fill the data section exactly. An element type
that is unknown here keeps its range and gets no number kind.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from ohdiff_format.numbers import NumberKind

from .tensors import HEADER_SIZE_BYTES_MAX, ByteSource, Container, MalformedError, Tensor, elements_of, judged
from .tensors import read_exactly as read

_LENGTH: Final = struct.Struct("<Q")
_KINDS: Final = {
    "F64": NumberKind.F64,
    "F32": NumberKind.F32,
    "F16": NumberKind.F16,
    "BF16": NumberKind.BF16,
    "F8_E4M3": NumberKind.F8,
    "F8_E5M2": NumberKind.F8,
    "F8_E8M0": NumberKind.F8,
    "F8_E4M3FNUZ": NumberKind.F8,
    "F8_E5M2FNUZ": NumberKind.F8,
    "I64": NumberKind.I64,
    "U64": NumberKind.I64,
    "I32": NumberKind.I32,
    "U32": NumberKind.I32,
    "I16": NumberKind.I16,
    "U16": NumberKind.I16,
    "I8": NumberKind.I8,
    "U8": NumberKind.I8,
}
_BITS_WITHOUT_KIND: Final = {"BOOL": 8, "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}


class _Entry(msgspec.Struct, frozen=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


_HEADER: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ENTRY: Final = msgspec.json.Decoder(_Entry)


def may_start(first: bytes, file_size: int) -> bool:
    """Whether a file with these first nine bytes can be one: the format has no magic number."""
    if len(first) < 9:
        return False
    (length,) = _LENGTH.unpack_from(first)
    return 2 <= length <= min(HEADER_SIZE_BYTES_MAX, file_size - _LENGTH.size) and first[8:9] == b"{"


def read_safetensors(source: ByteSource) -> Container:
    """The tensors that the header names.

    Raises
    ------
    MalformedError
        It is not a safetensors file, or lies.
    """
    (length,) = _LENGTH.unpack(read(source, 0, _LENGTH.size))
    header = read(source, _LENGTH.size, length)
    data_start = _LENGTH.size + length
    try:
        raw = _HEADER.decode(header)
        claims = [_tensor(name, _ENTRY.decode(entry), data_start) for name, entry in raw.items() if not _is_note(name)]
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise MalformedError from error
    container = judged("safetensors", claims, source.size)
    if sum(tensor.size for tensor in container.tensors) != source.size - data_start:
        raise MalformedError
    return container


def _is_note(name: str) -> bool:
    return name == "__metadata__"


def _tensor(name: str, entry: _Entry, data_start: int) -> Tensor:
    start, end = entry.data_offsets
    if start < 0 or end < start:
        raise MalformedError
    kind, count = _KINDS.get(entry.dtype), elements_of(entry.shape)
    bits = _BITS_WITHOUT_KIND.get(entry.dtype) if kind is None else 8 * kind.width
    if bits is not None and count * bits != 8 * (end - start):
        raise MalformedError
    return Tensor(name, kind, entry.dtype, entry.shape, data_start + start, data_start + end)
