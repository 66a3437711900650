"""npy and npz: headers of plain arrays, and everything else as bytes."""

from __future__ import annotations

import struct
import zipfile

import pytest
from support.container_files import MemorySource, filler, npy_file, zip_file

from ohdiff.chunking.containers import Container, Tensor, read_container
from ohdiff_format.numbers import NumberKind


def read(data: bytes) -> Container | None:
    return read_container(MemorySource(data))


@pytest.mark.parametrize("version", [1, 2, 3])
def test_an_array_is_one_tensor(version: int) -> None:
    data = npy_file("<f4", (3, 4), filler(48), version)
    expected = Tensor("array", NumberKind.F32, "<f4", (3, 4), len(data) - 48, len(data))
    assert read(data) == Container("npy", (expected,))


@pytest.mark.parametrize(
    ("descr", "width", "kind"),
    [
        ("<f8", 8, NumberKind.F64),
        ("<f2", 2, NumberKind.F16),
        ("<i8", 8, NumberKind.I64),
        ("<u2", 2, NumberKind.I16),
        ("|i1", 1, NumberKind.I8),
        (">f4", 4, None),
        ("|b1", 1, None),
        ("<c16", 16, None),
        ("<U5", 20, None),
        ("|S3", 3, None),
        ("|V7", 7, None),
        ("<M8[ns]", 8, None),
    ],
)
def test_each_dtype_has_its_width_and_kind(descr: str, width: int, kind: NumberKind | None) -> None:
    container = read(npy_file(descr, (6,), bytes(6 * width)))
    assert container is not None
    assert container.tensors[0].kind is kind
    assert read(npy_file(descr, (6,), bytes(6 * width + 1))) is None


@pytest.mark.parametrize("shape", [(), (7,), (0,), (2, 0, 5), (1, 2, 3)])
def test_shapes_of_any_rank_are_read(shape: tuple[int, ...]) -> None:
    count = 1
    for length in shape:
        count *= length
    container = read(npy_file("<i4", shape, bytes(4 * count), is_fortran=len(shape) == 3))
    assert container is not None
    assert container.tensors[0].shape == shape


def with_header(text: bytes, size: int | None = None) -> bytes:
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text) if size is None else size) + text + bytes(48)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"{'descr': '|O', 'fortran_order': False, 'shape': (6,), }",
        b"{'descr': '|O8', 'fortran_order': False, 'shape': (6,), }",
        b"{'descr': [('a', '<f4'), ('b', '<f4')], 'fortran_order': False, 'shape': (6,), }",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (13,), }",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (-12,), }",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (3 * 4,), }",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (" + b"1, " * 100 + b"12), }",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (" + b"9" * 5000 + b",), }",
        b"{'descr': '<f4', 'fortran_order': exit(), 'shape': (12,), }",
        b"(" * 9000,
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (12,), }" + b" " * 10_000,
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (" + b"1" * 9000,
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (" + b"1, " * 3000,
    ],
    ids=lambda text: repr(text[:80]),
)
def test_any_other_header_is_no_container(text: bytes) -> None:
    assert read(with_header(b"{'descr': '<f4', 'fortran_order': False, 'shape': (12,), }")) is not None
    assert read(with_header(text)) is None


def test_other_versions_and_truncations_are_no_container() -> None:
    data = npy_file("<f4", (3, 4), filler(48))
    assert read(data[:6] + b"\x04" + data[7:]) is None
    assert all(read(data[:size]) is None for size in range(len(data)))
    assert read(with_header(b"{'descr': '<f4', 'fortran_order': False, 'shape': (12,), }", 60_000)) is None


def test_npz_holds_its_stored_arrays() -> None:
    first, second = npy_file("<f4", (3, 4), filler(48)), npy_file("<f8", (2,), filler(16, 2))
    data = zip_file({"first.npy": first, "note.txt": b"x" * 50, "second.npy": second, "object.npy": with_header(b"{}")})
    container = read(data)
    assert container is not None
    assert container.format == "npz"
    assert [(tensor.name, tensor.kind) for tensor in container.tensors] == [
        ("first", NumberKind.F32),
        ("second", NumberKind.F64),
    ]
    assert [data[tensor.start : tensor.end] for tensor in container.tensors] == [filler(48), filler(16, 2)]


def test_a_zip_without_stored_arrays_is_no_container() -> None:
    array = npy_file("<f4", (3, 4), filler(48))
    assert read(zip_file({"a.npy": array}, zipfile.ZIP_DEFLATED)) is None
    assert read(zip_file({"a.txt": array})) is None
    assert read(zip_file({})) is None
