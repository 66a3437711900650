"""safetensors: what the header says, and every lie that makes the file plain bytes."""

from __future__ import annotations

import json
import struct

import pytest
from support.container_files import MemorySource, safetensors_file, safetensors_with_header

from ohdiff.chunking.containers import Container, Tensor, read_container
from ohdiff_format.numbers import NumberKind


def read(data: bytes) -> Container | None:
    return read_container(MemorySource(data))


def entry(start: int, end: int, shape: list[int], dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def test_tensors_have_their_names_kinds_shapes_and_ranges() -> None:
    arrays = {"w": ("F32", (3, 4)), "b": ("BF16", (5,)), "mask": ("BOOL", (7,)), "scalar": ("I64", ())}
    data = safetensors_file(arrays, {"format": "pt"})
    start = 8 + struct.unpack_from("<Q", data)[0]
    assert read(data) == Container(
        "safetensors",
        (
            Tensor("w", NumberKind.F32, "F32", (3, 4), start, start + 48),
            Tensor("b", NumberKind.BF16, "BF16", (5,), start + 48, start + 58),
            Tensor("mask", None, "BOOL", (7,), start + 58, start + 65),
            Tensor("scalar", NumberKind.I64, "I64", (), start + 65, start + 73),
        ),
    )


def test_tensors_come_by_place_whatever_the_order_of_the_header() -> None:
    container = read(safetensors_with_header({"late": entry(4, 8, [1]), "early": entry(0, 4, [1])}, bytes(8)))
    assert container is not None
    assert [tensor.name for tensor in container.tensors] == ["early", "late"]


def test_the_tensors_themselves_are_not_read() -> None:
    source = MemorySource(safetensors_file({"w": ("F32", (100_000,))}))
    assert read_container(source) is not None
    assert max(offset + size for offset, size in source.reads) < 200


@pytest.mark.parametrize(
    ("dtype", "kind", "width"),
    [("F8_E5M2", NumberKind.F8, 1), ("U16", NumberKind.I16, 2), ("U64", NumberKind.I64, 8), ("C64", None, 8)],
)
def test_each_dtype_has_its_kind(dtype: str, kind: NumberKind | None, width: int) -> None:
    container = read(safetensors_with_header({"x": entry(0, 6 * width, [2, 3], dtype)}, bytes(6 * width)))
    assert container is not None
    assert container.tensors[0].kind is kind


def test_half_bytes_are_counted() -> None:
    assert read(safetensors_with_header({"x": entry(0, 3, [6], "F4")}, bytes(3))) is not None
    assert read(safetensors_with_header({"x": entry(0, 3, [7], "F4")}, bytes(3))) is None


def test_an_unknown_dtype_keeps_its_range_without_a_kind() -> None:
    container = read(safetensors_with_header({"x": entry(0, 5, [3], "F99")}, bytes(5)))
    assert container is not None
    assert (container.tensors[0].kind, container.tensors[0].size) == (None, 5)


@pytest.mark.parametrize(
    "header",
    [
        {"a": entry(0, 4, [1]), "b": entry(0, 8, [2])},
        {"a": entry(0, 4, [1])},
        {"a": entry(4, 8, [1])},
        {"a": entry(0, 12, [3])},
        {"a": entry(0, 8, [3])},
        {"a": entry(8, 0, [2])},
        {"a": entry(-8, 0, [2])},
        {"a": entry(0, 8, [-1, -2])},
        {"a": entry(0, 8, [2**62, 2**62])},
        {"a": entry(0, 8, [2**70])},
        {"a": entry(0, 8, [1] * 65 + [2])},
        {"a": {"dtype": "F32", "shape": [2]}},
        {"a": {"dtype": "F32", "shape": 2, "data_offsets": [0, 8]}},
        {"a": {"dtype": 32, "shape": [2], "data_offsets": [0, 8]}},
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4, 8]}},
        {"a": {"dtype": "F32", "shape": [2.5], "data_offsets": [0, 8]}},
        {"a" * 5000: entry(0, 8, [2])},
        {"__metadata__": {"a": "b"}},
        {},
        [],
        b'{"a":' * 100_000,
        b"{" + b"[" * 100_000,
        b'{"a\xff": {}}',
        b'{"\\ud800": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}',
        b"{" + json.dumps({"a": entry(0, 8, [2])}).encode(),
    ],
    ids=lambda header: str(header)[:70],
)
def test_a_lie_or_a_malformation_is_no_container(header: object) -> None:
    assert read(safetensors_with_header({"a": entry(0, 8, [2])}, bytes(8))) is not None
    assert read(safetensors_with_header(header, bytes(8))) is None


def test_one_name_for_two_ranges_is_no_container() -> None:
    twice = b'{"a": %s, "a": %s}' % tuple(json.dumps(entry(at, at + 4, [1])).encode() for at in (0, 4))
    assert read(safetensors_with_header(twice, bytes(8))) is None


@pytest.mark.parametrize("length", [0, 1, 2**63, 2**64 - 1, 200 << 20])
def test_a_header_length_beyond_the_file_or_the_bound_is_refused_unread(length: int) -> None:
    source = MemorySource(struct.pack("<Q", length) + b"{}" * 100)
    assert read_container(source) is None
    assert sum(size for _, size in source.reads) <= 16


def test_every_truncation_is_no_container() -> None:
    data = safetensors_file({"w": ("F32", (3, 4)), "b": ("BF16", (5,))})
    assert all(read(data[:size]) is None for size in range(len(data)))
    assert read(data + b"x") is None
