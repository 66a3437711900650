"""What changed in files of tensors: exact counts and norms, by the kernel and through whole files."""

from __future__ import annotations

import array
import errno
import math
import random
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.container_files import MemorySource, npy_file, safetensors_with_header, torch_file, zip_file
from support.sources import write, write_sparse
from support.vault import Told, Vault, engine_of

from ohdiff._kernels import count_changes
from ohdiff.chunking.containers.pieces import PIECE_ELEMENTS
from ohdiff.filesystem import DirectoryHandle
from ohdiff.operations.chunk_source import ChunkSource
from ohdiff.operations.container_reading import OpenFile
from ohdiff.operations.diff import Change, diff
from ohdiff.operations.diff_content import content_change
from ohdiff.operations.diff_sides import SnapshotDirectory, open_folder
from ohdiff.operations.diff_tensors import TensorsCompared, TensorSide, compare_tensors
from ohdiff.operations.source_rules import KeepAll
from ohdiff_format.tree import EMPTY_CONTENT, Content

FORMATS = {"f64": "d", "f32": "f", "f16": "e"}


def decoded(kind: str, data: bytes) -> list[float]:
    if kind == "bf16":
        return [struct.unpack("<f", b"\0\0" + data[at : at + 2])[0] for at in range(0, len(data), 2)]
    return [value for (value,) in struct.iter_unpack("<" + FORMATS[kind], data)]


def expected(kind: str, width: int, before: bytes, after: bytes) -> tuple[int, int, float, float]:
    olds, news = decoded(kind, before), decoded(kind, after)
    changed = sum(before[at : at + width] != after[at : at + width] for at in range(0, len(before), width))
    pairs = [(x, y) for x, y in zip(olds, news, strict=True) if math.isfinite(x) and math.isfinite(y)]
    return changed, len(olds) - len(pairs), sum((y - x) ** 2 for x, y in pairs), sum(x * x for x, _ in pairs)


def assert_alike(found: Sequence[float], wanted: Sequence[float]) -> None:
    assert found[:2] == wanted[:2]
    assert found[2:] == pytest.approx(wanted[2:], rel=1e-9, abs=0)


# The kernel


@pytest.mark.parametrize(("kind", "width"), [("f32", 4), ("f16", 2), ("bf16", 2)])
@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 1023, 1024, 1025, 5000])
def test_counts_and_sums_of_any_bits_are_those_of_plain_arithmetic(kind: str, width: int, count: int) -> None:
    dice = random.Random(count)
    before, after = dice.randbytes(count * width), bytearray(dice.randbytes(count * width))
    after[: len(before) // 2] = before[: len(before) // 2]
    assert_alike(count_changes(before, after, kind), expected(kind, width, before, after))


@given(st.lists(st.tuples(st.floats(-1e100, 1e100), st.floats(-1e100, 1e100)), max_size=50))
def test_doubles_are_compared_exactly(pairs: list[tuple[float, float]]) -> None:
    before, after = (struct.pack(f"<{len(side)}d", *side) for side in ([x for x, _ in pairs], [y for _, y in pairs]))
    found = count_changes(before, after, "f64")
    assert found[:2] == expected("f64", 8, before, after)[:2]
    assert found[2:] == pytest.approx(expected("f64", 8, before, after)[2:], rel=1e-9, abs=1e-300)


def test_every_half_and_bfloat_has_its_value() -> None:
    words = struct.pack("<65536H", *range(65536))
    for kind in ("f16", "bf16"):
        for start in range(0, len(words), 2 * 64):
            part = words[start : start + 128]
            assert_alike(count_changes(part, bytes(128), kind), expected(kind, 2, part, bytes(128)))


def test_infinities_and_nans_are_counted_and_in_no_sum() -> None:
    before = struct.pack("<4f", 1, math.inf, math.nan, 2)
    after = struct.pack("<4f", 3, 1, math.nan, -math.inf)
    assert count_changes(before, after, "f32") == (3, 3, 4.0, 1.0)


def test_minus_zero_is_another_element_without_a_difference() -> None:
    assert count_changes(struct.pack("<2f", 0, 1), struct.pack("<2f", -0.0, 1), "f32") == (1, 0, 0.0, 1.0)


# The largest and the smallest number, one, and what is not finite, as the OCP and IEEE texts list them.
@pytest.mark.parametrize(
    ("kind", "values", "special"),
    [
        ("f8_e4m3", {0x7E: 448.0, 0x01: 2.0**-9, 0x38: 1.0, 0x88: -(2.0**-6)}, [0x7F, 0xFF]),
        ("f8_e5m2", {0x7B: 57344.0, 0x01: 2.0**-16, 0x3C: 1.0, 0xBC: -1.0}, [0x7C, 0x7D, 0x7F, 0xFC]),
        ("f8_e4m3fnuz", {0x7F: 240.0, 0x01: 2.0**-10, 0x40: 1.0, 0xC0: -1.0}, [0x80]),
        ("f8_e5m2fnuz", {0x7F: 57344.0, 0x01: 2.0**-17, 0x40: 1.0, 0xC0: -1.0}, [0x80]),
        ("f8_e8m0", {0xFE: 2.0**127, 0x00: 2.0**-127, 0x7F: 1.0}, [0xFF]),
    ],
)
def test_kinds_of_eight_bits_have_their_values(kind: str, values: dict[int, float], special: list[int]) -> None:
    for bits, value in values.items():
        assert count_changes(bytes([bits]), bytes([bits]), kind) == (0, 0, 0.0, value * value)
    found = count_changes(bytes(special), bytes(special), kind)
    assert found == (0, len(special), 0.0, 0.0)
    every = bytes(range(256))
    assert count_changes(every, every, kind)[1] == {"f8_e4m3": 2, "f8_e5m2": 8}.get(kind, 1)


@pytest.mark.parametrize(("kind", "width"), [("i64", 8), ("i32", 4), ("i16", 2), ("i8", 1)])
def test_integers_are_counted(kind: str, width: int) -> None:
    before = random.Random(1).randbytes(width * 1000)
    after = bytearray(before)
    for row in (0, 499, 999):
        after[row * width + width - 1] ^= 0x80
    assert count_changes(before, after, kind) == (3, 0, 0.0, 0.0)


def test_buffers_need_not_be_aligned() -> None:
    data = random.Random(1).randbytes(4001)
    view = memoryview(data)[1:]
    assert_alike(count_changes(view, bytes(4000), "f32"), expected("f32", 4, bytes(view), bytes(4000)))


@pytest.mark.parametrize(
    ("before", "after", "kind"), [(b"1234", b"12345678", "f32"), (b"123", b"123", "f16"), (b"", b"", "f12")]
)
def test_what_does_not_fit_is_refused(before: bytes, after: bytes, kind: str) -> None:
    with pytest.raises(ValueError, match=r"must be|no such kind"):
        count_changes(before, after, kind)


# Files


def floats(values: Sequence[float]) -> bytes:
    return array.array("f", values).tobytes()


def model(tensors: dict[str, tuple[str, list[int], bytes]]) -> bytes:
    """A safetensors file of (dtype, shape, bytes)."""
    header, data = {}, b""
    for name, (dtype, shape, part) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    return safetensors_with_header(header, data)


def compare(before: bytes, after: bytes) -> TensorsCompared | None:
    return compare_tensors(
        TensorSide(MemorySource(before), Content(bytes(32), (len(before),))),
        TensorSide(MemorySource(after), Content(b"\1" * 32, (len(after),))),
    )


def test_tensors_are_named_with_what_became_of_them() -> None:
    before = {
        "same": ("F32", [2], floats([1, 2])),
        "moved": ("F32", [4], floats([3, 4, 0, 0])),
        "cast": ("F32", [1], floats([1])),
        "gone": ("F32", [1], floats([1])),
        "ids": ("I64", [4], struct.pack("<4q", 1, 2, 3, 4)),
        "mask": ("BOOL", [4], b"\1\0\1\0"),
    }
    after = {
        "fresh": ("F32", [1], floats([1])),
        "mask": ("BOOL", [4], b"\1\1\1\0"),
        "ids": ("I64", [4], struct.pack("<4q", 1, 2, 3, 5)),
        "cast": ("BF16", [1], b"\x80\x3f"),
        "moved": ("F32", [4], floats([3, 4, 0, 0.5])),
        "same": ("F32", [2], floats([1, 2])),
    }
    found = compare(model(before), model(after))
    assert found is not None
    assert (found.format, found.count) == ("safetensors", 6)
    assert [(change.kind, change.name) for change in found.changes] == [
        ("added", "fresh"),
        ("modified", "mask"),
        ("modified", "ids"),
        ("type", "cast"),
        ("modified", "moved"),
        ("removed", "gone"),
    ]
    movements = {change.name: change.movement for change in found.changes if change.movement is not None}
    moved, ids, mask = movements["moved"], movements["ids"], movements["mask"]
    assert (moved.changed, moved.count, moved.relative) == (1, 4, pytest.approx(0.1))
    assert (ids.changed, ids.count, ids.relative, ids.is_numeric) == (1, 4, 0.25, True)
    assert (mask.changed, mask.count, mask.is_numeric) == (1, 4, False)


def test_another_shape_is_another_type() -> None:
    found = compare(model({"w": ("F32", [2, 3], bytes(24))}), model({"w": ("F32", [3, 2], bytes(24))}))
    assert found is not None
    assert [change.kind for change in found.changes] == ["type"]


def test_from_zero_and_not_finite_have_no_relative_change() -> None:
    before = {"zero": ("F32", [2], floats([0, 0])), "nan": ("F32", [2], floats([math.nan, 1]))}
    after = {"zero": ("F32", [2], floats([0, 1])), "nan": ("F32", [2], floats([0, 2]))}
    found = compare(model(before), model(after))
    assert found is not None
    zero, nan = (change.movement for change in found.changes)
    assert zero is not None
    assert nan is not None
    assert (zero.changed, zero.relative) == (1, None)
    assert (nan.changed, nan.not_finite, nan.relative) == (2, 1, 1.0)


@pytest.mark.parametrize("count", [PIECE_ELEMENTS - 1, PIECE_ELEMENTS + 1, 2 * PIECE_ELEMENTS + 5])
def test_large_tensors_are_compared_piece_by_piece(count: int) -> None:
    before = array.array("f", [1.0]) * count
    after = array.array("f", before)
    after[0] = after[-1] = 3.0
    sources = [MemorySource(model({"w": ("F32", [count], part.tobytes())})) for part in (before, after)]
    ids = (bytes(32), b"\1" * 32)
    sides = [TensorSide(source, Content(chunk, (source.size,))) for source, chunk in zip(sources, ids, strict=True)]
    found = compare_tensors(*sides)
    assert found is not None
    (change,) = found.changes
    assert max(size for source in sources for _, size in source.reads) <= 4 * PIECE_ELEMENTS
    assert change.movement is not None
    assert (change.movement.changed, change.movement.count) == (2, count)
    assert change.movement.relative == pytest.approx(math.sqrt(8 / count))


def test_other_containers_are_compared_as_well() -> None:
    arrays = [npy_file("<f4", (2,), floats(values)) for values in ([1, 2], [1, 4])]
    npz = [zip_file({"w.npy": data, "b.npy": arrays[0]}) for data in arrays]
    torch = torch_file({"w": ("FloatStorage", (30_000,))})
    place = torch.index(b"archive/data/0") + 400
    changed = bytearray(torch)
    changed[place] ^= 1
    for before, after, name in ((*arrays, "array"), (*npz, "w"), (torch, bytes(changed), "w")):
        found = compare(before, after)
        assert found is not None
        assert [(change.kind, change.name) for change in found.changes] == [("modified", name)]


def test_files_that_are_no_containers_are_not_compared() -> None:
    whole = model({"w": ("F32", [1], bytes(4))})
    assert compare(whole, b"not a model at all") is None
    assert compare(b"", whole) is None


class Counted:
    """Chunks of a file by their ids, and which were read."""

    def __init__(self, data: bytes, size: int) -> None:
        parts = [data[start : start + size] for start in range(0, len(data), size)]
        self.parts = {part.ljust(32, b".")[-32:]: part for part in parts}
        self.chunks = Content(b"".join(part.ljust(32, b".")[-32:] for part in parts), tuple(map(len, parts)))
        self.read: list[bytes] = []

    def side(self) -> TensorSide:
        def read(chunk_id: bytes) -> memoryview:
            self.read.append(chunk_id)
            return memoryview(self.parts[chunk_id])

        return TensorSide(ChunkSource(self.chunks, read), self.chunks)


def test_tensors_in_the_same_chunks_are_not_read() -> None:
    noise = random.Random(1).randbytes(4 * 5000)
    other = floats(range(5000))
    before, after = (
        Counted(model({"a": ("I32", [5000], noise), "b": ("F32", [5000], part)}), 1000)
        for part in (other, other[:-4] + floats([7]))
    )
    found = compare_tensors(before.side(), after.side())
    assert found is not None
    assert [change.name for change in found.changes] == ["b"]
    of_first = set(before.chunks.chunk_ids()[1:19])
    assert not of_first & {*before.read, *after.read}


def test_equal_tensors_at_other_places_are_read_and_found_equal() -> None:
    noise = random.Random(1).randbytes(4 * 5000)
    before = Counted(model({"a": ("I32", [5000], noise)}), 1000)
    after = Counted(model({"longer name of a tensor": ("I32", [1], b"1234"), "a": ("I32", [5000], noise)}), 1000)
    found = compare_tensors(before.side(), after.side())
    assert found is not None
    assert [(change.kind, change.name) for change in found.changes] == [("added", "longer name of a tensor")]
    assert before.read


@given(st.binary(max_size=300), st.integers(1, 40), st.integers(0, 320), st.integers(0, 320))
def test_chunks_read_as_the_file(data: bytes, chunk_size: int, offset: int, size: int) -> None:
    parts = [data[start : start + chunk_size] for start in range(0, len(data), chunk_size)]
    chunks = Content(
        b"".join(number.to_bytes(32, "big") for number in range(len(parts))), tuple(len(part) for part in parts)
    )
    source = ChunkSource(chunks, lambda chunk_id: memoryview(parts[int.from_bytes(chunk_id, "big")]))
    assert source.size == len(data)
    assert source.read(offset, size) == data[offset : offset + size]


def test_a_file_that_becomes_shorter_is_an_error() -> None:
    whole = model({"w": ("F32", [4], bytes(16))})
    shorter = MemorySource(whole)

    def cut(offset: int, size: int) -> bytes:
        return whole[offset : min(offset + size, len(whole) - 1)]

    shorter.read = cut  # type: ignore[method-assign]
    with pytest.raises(OSError, match="became shorter"):
        compare_tensors(
            TensorSide(MemorySource(whole), Content(bytes(32), (len(whole),))), TensorSide(shorter, EMPTY_CONTENT)
        )


# Through a diff


@pytest.fixture
def changed_model(vault: Vault, source: Path) -> Iterator[tuple[Change, Told]]:
    """A model that differs between a snapshot and the folder as it is now."""
    write(source / "m.safetensors", model({"w": ("F32", [3], floats([1, 2, 2]))}))
    stored = vault.store(source)
    write(source / "m.safetensors", model({"w": ("F32", [3], floats([1, 2, 5]))}))
    told = Told()
    with vault.tree() as tree:
        left = SnapshotDirectory(tree, tree.directory(stored.root, bytes(source))[0], b"")
        handle = DirectoryHandle.open_root(source)
        right = open_folder(handle, b"", engine_of(vault.open()), KeepAll(), told)
        (change,) = diff(left, right).changes
        yield change, told


def test_a_changed_file_has_its_tensors(changed_model: tuple[Change, Told]) -> None:
    change, told = changed_model
    tensors = content_change(change).tensors
    assert tensors is not None
    assert [(each.name, each.movement and each.movement.relative) for each in tensors.changes] == [("w", 1.0)]
    assert told.errors == []


def test_a_file_that_vanished_has_ranges_and_is_told(changed_model: tuple[Change, Told], source: Path) -> None:
    change, told = changed_model
    (source / "m.safetensors").unlink()
    found = content_change(change)
    assert found.tensors is None
    assert found.ranges
    assert {error.item for error in told.errors} == {"/m.safetensors"}


def test_a_file_that_cannot_be_read_any_more_has_ranges_and_is_told(
    changed_model: tuple[Change, Told], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: OpenFile, offset: int, size: int) -> bytes:
        raise OSError(errno.EIO, "input or output error")

    monkeypatch.setattr(OpenFile, "read", fail)
    change, told = changed_model
    found = content_change(change)
    assert found.tensors is None
    assert found.ranges
    assert [error.message for error in told.errors] == ["/m.safetensors: input or output error"]


def test_a_file_with_holes_has_ranges_only(vault: Vault, source: Path) -> None:
    roots = []
    for last in (1.0, 2.0):
        data = model({"w": ("F32", [1 << 20], bytes((4 << 20) - 4) + floats([last]))})
        write_sparse(source / "m.safetensors", len(data), {0: data[:4096], len(data) - 4096: data[-4096:]})
        roots.append(vault.store(source, parent=None).root)
    with vault.tree() as tree:
        left, right = (SnapshotDirectory(tree, tree.directory(root, bytes(source))[0], b"") for root in roots)
        (change,) = diff(left, right).changes
        found = content_change(change)
    assert found.tensors is None
    assert found.ranges
