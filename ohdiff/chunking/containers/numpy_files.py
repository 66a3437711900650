"""npy (versions 1 to 3), and npz: a zip of npy files, of which those stored without compression are seen.

numpy evaluates the header as a Python literal; here one pattern matches what numpy writes for arrays of plain numbers.
Everything else (records, objects, which are pickles) is bytes.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import Final

from ohdiff_format.numbers import NumberKind

from .tensors import ByteSource, Container, MalformedError, Tensor, elements_of, judged, read_exactly
from .zip_directory import Entry

MAGIC: Final = b"\x93NUMPY"

# numpy's own bound on headers that it reads without being told that they are trusted.
_HEADER_SIZE_BYTES_MAX: Final = 10_000
_HEADER: Final = re.compile(
    rb"\{'descr': '([<>|=][a-zA-Z]\d{0,9}(?:\[[0-9a-zA-Z]{1,9}\])?)', 'fortran_order': (?:True|False), "
    rb"'shape': \(((?:\d{1,19}L?(?:, ?|(?=\))))*)\),? ?\} *\n?",
)
_DTYPE: Final = re.compile(r"([<>|=])([a-zA-Z])(\d*)")
_CODES: Final = {"b": 1, "i": 1, "u": 1, "f": 1, "c": 1, "m": 1, "M": 1, "S": 1, "V": 1, "U": 4}
_KINDS: Final = {
    "f8": NumberKind.F64,
    "f4": NumberKind.F32,
    "f2": NumberKind.F16,
    "i8": NumberKind.I64,
    "i4": NumberKind.I32,
    "i2": NumberKind.I16,
    "i1": NumberKind.I8,
    "u8": NumberKind.I64,
    "u4": NumberKind.I32,
    "u2": NumberKind.I16,
    "u1": NumberKind.I8,
}


def read_npy(source: ByteSource) -> Container:
    """The one array of an npy file, under the name "array".

    Raises
    ------
    MalformedError
        It is not one whole array of plain elements.
    """
    return judged("npy", [_array(source, 0, source.size, "array")], source.size)


def read_npz(source: ByteSource, entries: list[Entry]) -> Container:
    """The arrays among the stored entries of a zip archive.

    Raises
    ------
    MalformedError
        No entry is an array.
    """
    return judged("npz", _arrays(source, entries), source.size)


def _arrays(source: ByteSource, entries: list[Entry]) -> Iterator[Tensor]:
    for entry in entries:
        if entry.name.endswith(".npy"):
            try:
                yield _array(source, entry.start, entry.end, entry.name.removesuffix(".npy"))
            except MalformedError:
                continue


def _array(source: ByteSource, start: int, end: int, name: str) -> Tensor:
    first = read_exactly(source, start, min(12, end - start))
    if len(first) < 12 or not first.startswith(MAGIC) or first[6] not in (1, 2, 3):
        raise MalformedError
    header_start = start + (10 if first[6] == 1 else 12)
    (size,) = struct.unpack_from("<H" if first[6] == 1 else "<I", first, 8)
    if not 0 < size <= min(_HEADER_SIZE_BYTES_MAX, end - header_start):
        raise MalformedError
    match = _HEADER.fullmatch(read_exactly(source, header_start, size))
    if match is None:
        raise MalformedError
    dtype = match[1].decode("ascii")
    shape = tuple(int(number) for number in re.findall(rb"\d+", match[2]))
    data_start = header_start + size
    if data_start + elements_of(shape) * _width(dtype) != end:
        raise MalformedError
    return Tensor(name, _kind(dtype), dtype, shape, data_start, end)


def _width(dtype: str) -> int:
    match = _DTYPE.match(dtype)
    if match is None or match[2] not in _CODES or not match[3]:
        raise MalformedError
    return _CODES[match[2]] * int(match[3])


def _kind(dtype: str) -> NumberKind | None:
    """None for big endian: the planes of a kind are those of its little-endian bytes."""
    return _KINDS.get(dtype[1:]) if dtype[0] in "<|" else None
