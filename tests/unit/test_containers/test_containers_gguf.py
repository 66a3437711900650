"""GGUF: metadata of every type is passed over, sizes of quantised tensors are right, lies make the file plain bytes."""

from __future__ import annotations

import struct
from collections.abc import Mapping

import pytest
from support.container_files import MemorySource, filler, gguf_file, gguf_string

from ohdiff.chunking.containers import Container, read_container
from ohdiff_format.numbers import NumberKind

ARRAYS = {"f": ("F32", (3, 4)), "q": ("Q8_0", (64, 2)), "k": ("Q4_K", (512,)), "h": ("F16", (5,)), "b": ("BF16", (2,))}
STRINGS = struct.pack("<IIQ", 9, 8, 3) + gguf_string("a") + gguf_string("") + gguf_string("long" * 100_000)


def read(data: bytes) -> Container | None:
    return read_container(MemorySource(data))


@pytest.mark.parametrize("alignment", [1, 32, 4096])
def test_tensors_of_every_type_have_their_ranges(alignment: int) -> None:
    data = gguf_file(ARRAYS, alignment=alignment)
    container = read(data)
    assert container is not None
    assert [(tensor.name, tensor.kind, tensor.dtype, tensor.size) for tensor in container.tensors] == [
        ("f", NumberKind.F32, "F32", 48),
        ("q", None, "Q8_0", 136),
        ("k", None, "Q4_K", 288),
        ("h", NumberKind.F16, "F16", 10),
        ("b", NumberKind.BF16, "BF16", 4),
    ]
    for seed, tensor in enumerate(container.tensors):
        assert tensor.start % alignment == 0
        assert data[tensor.start : tensor.end] == filler(tensor.size, seed)


def test_metadata_of_every_type_is_passed_over() -> None:
    values = {f"v{number}": struct.pack("<I", number) + bytes(size) for number, size in SIZES.items()}
    values["text"] = struct.pack("<I", 8) + gguf_string("word " * 200_000)
    values["numbers"] = struct.pack("<IIQ", 9, 5, 1000) + bytes(4000)
    values["strings"] = STRINGS
    values["nested"] = struct.pack("<IIQ", 9, 9, 2) + 2 * STRINGS[4:]
    assert read(gguf_file(ARRAYS, values)) is not None


SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


@pytest.mark.parametrize(
    "values",
    [
        {"v": struct.pack("<I", 13)},
        {"v": struct.pack("<IIQ", 9, 8, 1 << 60)},
        {"v": struct.pack("<IIQ", 9, 0, 1 << 60)},
        {"v": struct.pack("<IIQ", 9, 77, 1 << 60)},
        {"v": struct.pack("<IQ", 8, 1 << 63)},
        {"v": struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 10},
        {"k" * 5000: struct.pack("<IB", 0, 0)},
        {"general.alignment": struct.pack("<II", 4, 0)},
        {"general.alignment": struct.pack("<II", 4, 48)},
        {"general.alignment": struct.pack("<II", 4, 1 << 31)},
        {"general.alignment": struct.pack("<IQ", 10, 32)},
    ],
    ids=lambda values: repr(values)[:70],
)
def test_metadata_that_lies_is_no_container(values: Mapping[str, bytes]) -> None:
    assert read(gguf_file(ARRAYS, values)) is None


def table(*rows: tuple[str, tuple[int, ...], int, int], version: int = 3, count: int | None = None) -> bytes:
    """A file of 4096 bytes with these rows of (name, shape, type, offset); its data begins at 1024."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(rows) if count is None else count, 1)
    head += gguf_string("general.alignment") + struct.pack("<II", 4, 1024)
    for name, shape, number, offset in rows:
        head += gguf_string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, number, offset)
    return head.ljust(4096, b"\0")


@pytest.mark.parametrize(
    "data",
    [
        table(),
        table(("a", (9,), 0, 0), version=1),
        table(("a", (9,), 0, 0), version=4),
        table(("a", (9,), 0, 0), count=2),
        table(("a", (9,), 0, 0), count=1 << 50),
        table(("a", (9,), 0, 0), ("a", (9,), 0, 1024)),
        table(("a", (900,), 0, 0), ("b", (9,), 0, 1024)),
        table(("a", (900,), 0, 0)),
        table(("a", (9,), 0, 1)),
        table(("a", (9,), 0, 4096)),
        table(("a", (9,), 0, 1 << 63)),
        table(("a", (9,), 99, 0)),
        table(("a", (9,), 8, 0)),
        table(("a", (8, 4), 8, 0)),
        table(("a", (), 8, 0)),
        table(("a", (1 << 63, 1 << 63), 0, 0)),
        table(("a", (1,) * 9, 0, 0)),
        table(("a" * 5000, (9,), 0, 0)),
        b"GGUF\0\0\0\3" + bytes(1000),
    ],
)
def test_a_table_that_lies_is_no_container(data: bytes) -> None:
    assert read(table(("a", (9,), 0, 0), version=2)) is not None
    assert read(data) is None


def test_every_truncation_is_no_container() -> None:
    data = gguf_file(ARRAYS, {"strings": struct.pack("<IIQ", 9, 8, 1) + gguf_string("abc")})
    assert read(data) is not None
    assert all(read(data[:size]) is None for size in range(len(data)))
