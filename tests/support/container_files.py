"""Builds files of tensors byte by byte: safetensors, torch's zip, npy, npz, gguf; and a source of bytes that counts."""

from __future__ import annotations

import io
import json
import math
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field

Arrays = Mapping[str, tuple[str, tuple[int, ...]]]

SAFETENSORS_WIDTHS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "I64": 8, "U8": 1, "BOOL": 1, "C64": 8}
TORCH_WIDTHS = {"DoubleStorage": 8, "FloatStorage": 4, "HalfStorage": 2, "BFloat16Storage": 2, "BoolStorage": 1}
GGUF_TYPES = {"F32": (0, 1, 4), "F16": (1, 1, 2), "Q8_0": (8, 32, 34), "Q4_K": (12, 256, 144), "BF16": (30, 1, 2)}


@dataclass
class MemorySource:
    """A file in memory that keeps the ranges that were read."""

    data: bytes
    reads: list[tuple[int, int]] = field(default_factory=list)

    @property
    def size(self) -> int:
        return len(self.data)

    def read(self, offset: int, size: int) -> bytes:
        assert offset >= 0
        assert size >= 0
        self.reads.append((offset, size))
        return self.data[offset : offset + size]


def filler(size: int, seed: int = 1) -> bytes:
    """Bytes that differ from one seed to the next."""
    return bytes((seed * 37 + at * 11) % 251 for at in range(min(size, 256))).ljust(size, bytes([seed % 256]))


def safetensors_with_header(header: object, data: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def safetensors_file(arrays: Arrays, notes: Mapping[str, str] | None = None) -> bytes:
    header: dict[str, object] = {} if notes is None else {"__metadata__": dict(notes)}
    data = b""
    for seed, (name, (dtype, shape)) in enumerate(arrays.items()):
        part = filler(math.prod(shape) * SAFETENSORS_WIDTHS[dtype], seed)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    return safetensors_with_header(header, data)


def npy_file(descr: str, shape: tuple[int, ...], data: bytes, version: int = 1, *, is_fortran: bool = False) -> bytes:
    """An array as numpy writes it: the header padded with spaces to a multiple of 64 bytes."""
    text = f"{{'descr': '{descr}', 'fortran_order': {is_fortran}, 'shape': {shape}, }}".encode()
    prefix = 10 if version == 1 else 12
    text = text.ljust(-(-(prefix + len(text) + 1) // 64) * 64 - prefix - 1) + b"\n"
    return b"\x93NUMPY" + struct.pack("<BBH" if version == 1 else "<BBI", version, 0, len(text)) + text + data


def zip_file(entries: Mapping[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return file.getvalue()


def with_zip64(archive: bytes) -> bytes:
    """The archive with the 64-bit end records that torch always writes."""
    body, end = archive[:-22], archive[-22:]
    count, _, size, offset = struct.unpack_from("<HHII", end, 8)
    record = struct.pack("<4sQHHIIQQQQ", b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, size, offset)
    return body + record + struct.pack("<4sIQI", b"PK\x06\x07", 0, len(body), 1) + end


def text_op(text: str) -> bytes:
    data = text.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def tuple_op(numbers: tuple[int, ...]) -> bytes:
    return b"(" + b"".join(b"J" + struct.pack("<i", number) for number in numbers) + b"t"


def storage_op(storage: str, key: str, count: int) -> bytes:
    fields = text_op("storage") + f"ctorch\n{storage}\n".encode() + text_op(key) + text_op("cpu")
    return b"(" + fields + b"J" + struct.pack("<i", count) + b"tQ"


def tensor_op(storage: str, key: str, shape: tuple[int, ...], *, count: int | None = None, offset: int = 0) -> bytes:
    """A contiguous tensor; `count` is the storage's length, if the tensor is not all of it."""
    stride = tuple(math.prod(shape[row + 1 :]) for row in range(len(shape)))
    place = storage_op(storage, key, math.prod(shape) if count is None else count) + tuple_op((offset,))[1:-1]
    rest = tuple_op(shape) + tuple_op(stride) + b"\x89" + b"ccollections\nOrderedDict\n)R"
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + place + rest + b"tR"


def dict_op(items: Mapping[str, bytes]) -> bytes:
    return b"}(" + b"".join(text_op(key) + value for key, value in items.items()) + b"u"


def torch_pickle(arrays: Arrays) -> bytes:
    tensors = {name: tensor_op(dtype, str(row), shape) for row, (name, (dtype, shape)) in enumerate(arrays.items())}
    return b"\x80\x02" + dict_op(tensors) + b"."


def torch_file(arrays: Arrays, pickled: bytes | None = None, byteorder: bytes = b"little") -> bytes:
    """torch.save of a dict; the pickle may be another one."""
    entries = {"archive/data.pkl": torch_pickle(arrays) if pickled is None else pickled, "archive/byteorder": byteorder}
    for row, (dtype, shape) in enumerate(arrays.values()):
        entries[f"archive/data/{row}"] = filler(math.prod(shape) * TORCH_WIDTHS[dtype], row)
    entries["archive/version"] = b"3\n"
    return with_zip64(zip_file(entries))


def gguf_string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def gguf_file(arrays: Arrays, values: Mapping[str, bytes] | None = None, *, alignment: int = 32) -> bytes:
    """GGUF version 3; `values` hold their type's number first."""
    values = {"general.alignment": struct.pack("<II", 4, alignment), **(values or {})}
    head = b"GGUF" + struct.pack("<IQQ", 3, len(arrays), len(values))
    head += b"".join(gguf_string(key) + value for key, value in values.items())
    data = b""
    for seed, (name, (dtype, shape)) in enumerate(arrays.items()):
        number, block_elements, block_size = GGUF_TYPES[dtype]
        data += bytes(-len(data) % alignment)
        head += gguf_string(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        head += struct.pack("<IQ", number, len(data))
        data += filler(math.prod(shape) // block_elements * block_size, seed)
    return head + bytes(-len(head) % alignment) + data
