"""Fixed pieces of large tensors, and one range for everything between them."""

from __future__ import annotations

import pytest

from ohdiff.chunking.containers import Container, Tensor
from ohdiff.chunking.containers.pieces import PIECE_ELEMENTS, TAIL_ELEMENTS_MIN, ContainerPiece, cut_points
from ohdiff_format.numbers import NumberKind

KIB = 1 << 10


def container(*tensors: tuple[int, int, NumberKind | None]) -> Container:
    """Tensors of (start, end, kind)."""
    made = []
    for row, (start, end, kind) in enumerate(tensors):
        shape = ((end - start) // kind.width,) if kind else ()
        made.append(Tensor(str(row), kind, "", shape, start, end))
    return Container("safetensors", tuple(made))


def ranges(pieces: list[ContainerPiece]) -> list[tuple[int, int, int | None]]:
    return [(piece.start, piece.end, piece.tensor_row) for piece in pieces]


def test_a_large_tensor_is_cut_into_pieces_of_equal_elements() -> None:
    size = (2 * PIECE_ELEMENTS + TAIL_ELEMENTS_MIN) * 4
    pieces = cut_points(container((100, 100 + size, NumberKind.F32)), 100 + size + 7)
    whole = PIECE_ELEMENTS * 4
    assert pieces == [
        ContainerPiece(0, 100, None, 0, None),
        ContainerPiece(100, 100 + whole, 0, 0, NumberKind.F32),
        ContainerPiece(100 + whole, 100 + 2 * whole, 0, PIECE_ELEMENTS, NumberKind.F32),
        ContainerPiece(100 + 2 * whole, 100 + size, 0, 2 * PIECE_ELEMENTS, NumberKind.F32),
        ContainerPiece(100 + size, 100 + size + 7, None, 0, None),
    ]


def test_a_short_last_piece_is_joined_to_the_one_before() -> None:
    size = (2 * PIECE_ELEMENTS + TAIL_ELEMENTS_MIN - 1) * 8
    pieces = cut_points(container((0, size, NumberKind.F64)), size)
    assert ranges(pieces) == [(0, PIECE_ELEMENTS * 8, 0), (PIECE_ELEMENTS * 8, size, 0)]
    assert max(piece.size for piece in pieces) <= 16 << 20


@pytest.mark.parametrize("count", [PIECE_ELEMENTS - 1, PIECE_ELEMENTS, PIECE_ELEMENTS + 1, 3 * PIECE_ELEMENTS + 70_000])
def test_every_kind_of_a_tensor_is_cut_at_the_same_elements(count: int) -> None:
    cuts = {
        tuple(piece.element_start for piece in cut_points(container((0, count * kind.width, kind)), count * kind.width))
        for kind in NumberKind
    }
    assert len(cuts) == 1


def test_small_tensors_gaps_and_headers_make_one_range() -> None:
    large = 64 * KIB
    pieces = cut_points(
        container(
            (50, 60, NumberKind.F16),
            (64, 64 + large - 2, NumberKind.F16),
            (100_000, 100_000 + large, NumberKind.F16),
            (200_000, 200_100, None),
            (200_100, 200_104, NumberKind.F32),
        ),
        300_000,
    )
    assert ranges(pieces) == [(0, 100_000, None), (100_000, 100_000 + large, 2), (100_000 + large, 300_000, None)]


def test_a_large_tensor_without_a_kind_begins_a_range() -> None:
    large = 64 * KIB
    pieces = cut_points(
        container((32, 32 + large, None), (32 + large, 32 + large + 8, None), (99_000, 170_000, None)), 180_000
    )
    assert ranges(pieces) == [(0, 32, None), (32, 99_000, None), (99_000, 180_000, None)]


def test_empty_tensors_and_a_tensor_that_is_all_of_the_file_make_no_empty_range() -> None:
    large = 64 * KIB
    pieces = cut_points(
        container((0, 0, NumberKind.F8), (0, large, NumberKind.F8), (large, large, NumberKind.F8)), large
    )
    assert ranges(pieces) == [(0, large, 1)]
