"""Any change to a valid container gives another container whose every range lies in the file, or none; never an error.

Pieces tile every file, and matching finds a base for every numeric piece of a file in itself.
"""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.container_files import (
    MemorySource,
    gguf_file,
    gguf_string,
    npy_file,
    safetensors_file,
    torch_file,
    torch_pickle,
    zip_file,
)

from ohdiff.chunking.containers import TENSOR_SIZE_BYTES_MIN, Container, Tensor, read_container
from ohdiff.chunking.containers.matching import match_pieces, resemblance
from ohdiff.chunking.containers.pieces import PIECE_ELEMENTS, TAIL_ELEMENTS_MIN, cut_points
from ohdiff.chunking.containers.shards import missing_of_checkpoint
from ohdiff_format.numbers import NumberKind

TORCH_ARRAYS = {"w": ("FloatStorage", (3, 4)), "b": ("BFloat16Storage", (5,)), "m": ("BoolStorage", (7,))}
SAMPLES = {
    "safetensors": safetensors_file({"w": ("F32", (3, 4)), "b": ("BF16", (5,)), "e": ("U8", (0,))}, {"format": "pt"}),
    "torch": torch_file(TORCH_ARRAYS),
    "torch run": torch_file({"a": ("HalfStorage", (4,))}) + torch_file({"b": ("HalfStorage", (4,))}),
    "npy": npy_file("<f4", (3, 4), bytes(48)),
    "npz": zip_file({"a.npy": npy_file("<f4", (3, 4), bytes(48)), "b.npy": npy_file("<i8", (2,), bytes(16))}),
    "gguf": gguf_file(
        {"f": ("F32", (3, 4)), "q": ("Q8_0", (64,))}, {"words": struct.pack("<IIQ", 9, 8, 1) + gguf_string("a")}
    ),
}
PICKLE = torch_pickle(TORCH_ARRAYS)
by_sample = pytest.mark.parametrize("sample", list(SAMPLES))


def assert_sound(container: Container | None, data: bytes) -> None:
    """Ranges ascend without overlap inside the file, names differ, and pieces tile the file."""
    if container is None:
        return
    position = 0
    for tensor in container.tensors:
        assert position <= tensor.start <= tensor.end <= len(data)
        position = tensor.end
    assert len({tensor.name for tensor in container.tensors}) == len(container.tensors) > 0
    assert_tiled(container, len(data))


def assert_tiled(container: Container, size: int) -> None:
    pieces = cut_points(container, size)
    assert all(piece.start < piece.end for piece in pieces)
    assert [0, *(piece.end for piece in pieces)] == [*(piece.start for piece in pieces), size]
    for piece in pieces:
        assert (piece.kind is None) == (piece.tensor_row is None)
        if piece.tensor_row is not None and piece.kind is not None:
            tensor = container.tensors[piece.tensor_row]
            assert tensor.is_numeric
            assert piece.start == tensor.start + piece.element_start * piece.kind.width
            assert piece.end <= tensor.end
            assert piece.size % piece.kind.width == 0
            assert piece.size < (PIECE_ELEMENTS + TAIL_ELEMENTS_MIN) * piece.kind.width
    assert not any(left.tensor_row is None is right.tensor_row for left, right in pairwise(pieces)) or any(
        tensor.kind is None and tensor.size >= TENSOR_SIZE_BYTES_MIN for tensor in container.tensors
    )


@st.composite
def changed(draw: st.DrawFn, sample: bytes) -> bytes:
    """The sample with a few bytes set, numbers replaced by extreme ones, parts cut out, repeated or moved."""
    data = bytearray(sample)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        length = draw(st.integers(1, 12))
        change = draw(st.sampled_from(["flip", "number", "digits", "cut", "drop", "insert", "repeat"]))
        if change == "flip" and at < len(data):
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif change == "number":
            number = draw(st.sampled_from([0, 1, 0x7FFF, 0xFFFF, 2**31, 2**32 - 1, 2**63, 2**64 - 1]))
            part = number.to_bytes(8, "little")[: draw(st.sampled_from([2, 4, 8]))]
            data[at : at + len(part)] = part
        elif change == "digits":
            digit = next((place for place in range(at, len(data)) if 0x30 <= data[place] <= 0x39), at)
            data[digit : digit + 1] = draw(st.sampled_from([b"-1", b"0", b"99999999999", b"1e9", b"2"]))
        elif change == "cut":
            del data[at:]
        elif change == "drop":
            del data[at : at + length]
        elif change == "insert":
            data[at:at] = draw(st.binary(max_size=9))
        else:
            data[at:at] = data[at : at + length] * draw(st.integers(1, 30))
    return bytes(data)


@by_sample
def test_the_samples_are_containers(sample: str) -> None:
    container = read_container(MemorySource(SAMPLES[sample]))
    assert container is not None
    assert_sound(container, SAMPLES[sample])


@by_sample
@settings(max_examples=300)
@given(draw=st.data())
def test_a_changed_container_is_sound_or_none(sample: str, draw: st.DataObject) -> None:
    data = draw.draw(changed(SAMPLES[sample]))
    assert_sound(read_container(MemorySource(data)), data)


@settings(max_examples=500)
@given(draw=st.data())
def test_a_changed_pickle_costs_no_range(draw: st.DataObject) -> None:
    data = torch_file(TORCH_ARRAYS, draw.draw(changed(PICKLE)))
    container = read_container(MemorySource(data))
    assert container is not None
    assert [tensor.size for tensor in container.tensors] == [48, 10, 7]
    assert_sound(container, data)


@settings(max_examples=200)
@given(start=st.sampled_from([b"GGUF\3\0\0\0", b"PK\3\4", b"\x93NUMPY\1\0", b"\x20\0\0\0\0\0\0\0{"]), rest=st.binary())
@example(start=b"", rest=b"")
def test_random_bytes_after_the_first_are_sound_or_none(start: bytes, rest: bytes) -> None:
    assert_sound(read_container(MemorySource(start + rest)), start + rest)


@st.composite
def containers(draw: st.DrawFn) -> tuple[Container, int]:
    """Tensors of all sizes and kinds with gaps, and the size of their file."""
    tensors, position = [], draw(st.integers(0, 100))
    for row in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from([*NumberKind, None]))
        edge = draw(st.sampled_from([0, 32_768, 65_536, PIECE_ELEMENTS, PIECE_ELEMENTS + TAIL_ELEMENTS_MIN]))
        count = max(0, edge * draw(st.integers(0, 3)) + draw(st.integers(-2, 2)))
        end = position + count * (1 if kind is None else kind.width)
        tensors.append(Tensor(str(row), kind, "", (count,), position, end))
        position = end + draw(st.sampled_from([0, 1, 64]))
    return Container("safetensors", tuple(tensors)), position


@settings(max_examples=300)
@given(made=containers())
def test_pieces_tile_the_file_and_match_themselves(made: tuple[Container, int]) -> None:
    container, size = made
    assert_tiled(container, size)
    pieces = cut_points(container, size)
    rows = match_pieces(container, pieces, container, pieces)
    assert rows == [None if piece.tensor_row is None else row for row, piece in enumerate(pieces)]
    assert resemblance(container, container) == (1.0 if any(tensor.is_numeric for tensor in container.tensors) else 0.0)


@settings(max_examples=300)
@given(
    names=st.lists(
        st.one_of(
            st.binary(max_size=20),
            st.from_regex(rb"\A(model-)?[0-9]{1,6}-of-[0-9]{1,6}\.(pt|bin|safetensors)\Z"),
            st.sampled_from([b"model.safetensors.index.json", b"__0_0.distcp", b".metadata", b"a.pt.tmp"]),
        ),
        max_size=8,
    ),
    index=st.one_of(st.binary(), st.just(b'{"weight_map": {"a": "b.pt", "c": "\\ud800"}}')),
)
def test_any_names_and_any_index_are_judged(names: list[bytes], index: bytes) -> None:
    reasons = missing_of_checkpoint(names, lambda name: index)
    assert len(reasons) <= 4 * 9
