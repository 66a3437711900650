"""Bases by name, by name without wrappers, and by order; only where the elements are the same ones."""

from __future__ import annotations

import math

from ohdiff.chunking.containers import Container, Tensor
from ohdiff.chunking.containers.matching import match_pieces, match_tensors, resemblance
from ohdiff.chunking.containers.pieces import PIECE_ELEMENTS, cut_points
from ohdiff_format.numbers import NumberKind

F32, F16, BF16, F64, I32 = NumberKind.F32, NumberKind.F16, NumberKind.BF16, NumberKind.F64, NumberKind.I32
BIG = (3, 20_000)


def container(*tensors: tuple[str, NumberKind | None, tuple[int, ...]]) -> Container:
    made, position = [], 128
    for name, kind, shape in tensors:
        end = position + math.prod(shape) * (kind.width if kind else 1)
        made.append(Tensor(name, kind, "", shape, position, end))
        position = end + 64
    return Container("torch", tuple(made))


def end_of(some: Container) -> int:
    return some.tensors[-1].end


def test_a_tensor_finds_its_name_wherever_it_lies() -> None:
    new = container(("b", F32, BIG), ("a", F32, BIG))
    base = container(("a", F32, BIG), ("other", I32, BIG), ("b", F32, BIG))
    assert match_tensors(new, base) == {0: 2, 1: 0}
    assert resemblance(new, base) == 1.0


def test_another_shape_or_kind_is_no_base() -> None:
    new = container(("a", F32, BIG), ("b", F32, BIG), ("c", F32, BIG))
    base = container(("a", F32, (20_000, 3)), ("b", I32, BIG), ("c", BF16, BIG), ("d", F32, BIG))
    assert match_tensors(new, base) == {}
    assert resemblance(new, base) == 0.0


def test_sixteen_bit_floats_find_their_master() -> None:
    new = container(("a", BF16, BIG), ("b", F16, BIG), ("c", F64, BIG))
    base = container(("a", F32, BIG), ("b", F32, BIG), ("c", F32, BIG))
    assert match_tensors(new, base) == {0: 0, 1: 1}
    assert resemblance(new, base) == 4 / 12


def test_small_tensors_and_those_without_a_kind_have_no_base() -> None:
    some = container(("small", F32, (10,)), ("opaque", None, (100_000,)))
    assert match_tensors(some, some) == {}
    assert resemblance(some, some) == 0.0
    half = container(("x", BF16, (40_000,)))
    assert match_tensors(half, container(("x", F32, (40_000,)))) == {0: 0}


def test_names_are_compared_without_wrappers_where_that_is_unambiguous() -> None:
    new = container(("h.0.weight", BF16, BIG), ("model.h.1.weight", F32, BIG))
    base = container(
        ("module.model.h.0.weight", F32, BIG), ("h.1.weight", F32, BIG), ("optimizer.h.1.weight", F32, BIG)
    )
    assert match_tensors(new, base) == {0: 0, 1: 1}
    twice = container(("module.h.0.weight", F32, BIG), ("model.h.0.weight", F32, BIG), ("x", F32, BIG))
    assert match_tensors(new, twice) == {}


def test_equal_sequences_match_by_order_where_names_do_not() -> None:
    new = container(("data/5", F32, BIG), ("kept", F32, (70_000,)), ("data/9", BF16, BIG))
    base = container(("data/1", F32, BIG), ("tiny", F32, (1,)), ("kept", F32, (70_000,)), ("data/2", F32, BIG))
    assert match_tensors(new, base) == {0: 0, 1: 2, 2: 3}
    assert match_tensors(new, container(("data/1", F32, BIG), ("data/2", F32, (70_000,)))) == {}


def test_pieces_find_the_piece_of_the_same_elements() -> None:
    shape = (2 * PIECE_ELEMENTS + 100_000,)
    new = container(("first", I32, BIG), ("w", BF16, shape))
    base = container(("w", F32, shape), ("last", F64, BIG))
    new_pieces, base_pieces = cut_points(new, end_of(new)), cut_points(base, end_of(base) + 9)
    rows = match_pieces(new, new_pieces, base, base_pieces)
    assert [row is not None for row in rows] == [piece.tensor_row == 1 for piece in new_pieces]
    for piece, row in zip(new_pieces, rows, strict=True):
        if row is not None:
            found = base_pieces[row]
            assert (found.tensor_row, found.element_start) == (0, piece.element_start)
            assert found.size == 2 * piece.size


def test_a_base_that_was_cut_otherwise_is_not_taken() -> None:
    some = container(("w", F32, (PIECE_ELEMENTS,)))
    pieces = cut_points(some, end_of(some))
    first, second = pieces[0], pieces[1]
    longer = type(second)(second.start, second.end + 4, second.tensor_row, second.element_start, second.kind)
    assert match_pieces(some, pieces, some, pieces) == [None, 1]
    assert match_pieces(some, pieces, some, [first, longer]) == [None, None]
    assert match_pieces(some, pieces, some, [first]) == [None, None]
