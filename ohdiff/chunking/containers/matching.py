"""Which piece of an earlier container holds the same elements: by the tensors' names, or by their order.

The base of a tensor has its shape, and its kind or, for the 16-bit floats, F32: a copy in 16 bits is its fp32 master
rounded. Pure functions; whether a base really helps is decided by what it saves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from ohdiff_format.numbers import NumberKind

from .pieces import ContainerPiece
from .tensors import Container, Tensor

# What wrappers and savers put before a model's own names; a name is compared without them too.
_WRAPPERS: Final = {"module", "model", "state_dict", "model_state_dict", "_orig_mod", "_forward_module", "net"}
_FROM_F32: Final = {NumberKind.BF16, NumberKind.F16}


def match_pieces(
    new: Container, new_pieces: Sequence[ContainerPiece], base: Container, base_pieces: Sequence[ContainerPiece]
) -> list[int | None]:
    """For each of `new_pieces`, the row in `base_pieces` of its base, or None.

    A base has as many elements as its piece. What is not numeric has no base here.
    """
    pairs = match_tensors(new, base)
    places = {(piece.tensor_row, piece.element_start): row for row, piece in enumerate(base_pieces)}
    return [_base_of(piece, pairs, places, base_pieces) for piece in new_pieces]


def match_tensors(new: Container, base: Container) -> dict[int, int]:
    """Rows of numeric tensors in `new` with the row of the base of each.

    By equal name first, then by equal name without wrappers' prefixes. Tensors that are left are paired by order, if
    the numeric tensors of both containers have the same shapes and kinds all along.
    """
    pairs = _by_name(new, base, lambda name: name)
    left = [row for row in _numeric_rows(new) if row not in pairs]
    if left:
        for pairing in (_by_name(new, base, _unwrapped), _by_order(new, base)):
            pairs.update((row, pairing[row]) for row in left if row in pairing and row not in pairs)
    return pairs


def resemblance(new: Container, base: Container) -> float:
    """The share of the numeric bytes of `new` that have a base in `base`: 0.0 to 1.0."""
    numeric = sum(new.tensors[row].size for row in _numeric_rows(new))
    found = sum(new.tensors[row].size for row in match_tensors(new, base))
    return found / numeric if numeric else 0.0


def can_be_base(new: NumberKind, base: NumberKind) -> bool:
    """Whether numbers of one kind can be predicted from another."""
    return new is base or (base is NumberKind.F32 and new in _FROM_F32)


def _base_of(
    piece: ContainerPiece,
    pairs: dict[int, int],
    places: dict[tuple[int | None, int], int],
    base_pieces: Sequence[ContainerPiece],
) -> int | None:
    if piece.tensor_row is None or piece.tensor_row not in pairs:
        return None
    row = places.get((pairs[piece.tensor_row], piece.element_start))
    return row if row is not None and _element_count(base_pieces[row]) == _element_count(piece) else None


def _element_count(piece: ContainerPiece) -> int:
    return 0 if piece.kind is None else piece.size // piece.kind.width


def _numeric_rows(container: Container) -> list[int]:
    return [row for row, tensor in enumerate(container.tensors) if tensor.is_numeric]


def _fits(new: Tensor, base: Tensor) -> bool:
    return (
        new.shape == base.shape
        and new.kind is not None
        and base.kind is not None
        and can_be_base(new.kind, base.kind)
        and base.is_numeric
    )


def _by_name(new: Container, base: Container, key: Callable[[str], str]) -> dict[int, int]:
    """Pairs of fitting tensors whose keys are equal; a key that two tensors of the base share counts for none."""
    rows: dict[str, int | None] = {}
    for row in _numeric_rows(base):
        name = key(base.tensors[row].name)
        rows[name] = None if name in rows else row
    pairs = {}
    for row in _numeric_rows(new):
        base_row = rows.get(key(new.tensors[row].name))
        if base_row is not None and _fits(new.tensors[row], base.tensors[base_row]):
            pairs[row] = base_row
    return pairs


def _by_order(new: Container, base: Container) -> dict[int, int]:
    new_rows, base_rows = _numeric_rows(new), _numeric_rows(base)
    if len(new_rows) != len(base_rows):
        return {}
    pairs = dict(zip(new_rows, base_rows, strict=True))
    return pairs if all(_fits(new.tensors[row], base.tensors[other]) for row, other in pairs.items()) else {}


def _unwrapped(name: str) -> str:
    """The name from its first part that is no wrapper."""
    first, _, rest = name.partition(".")
    while rest and first in _WRAPPERS:
        name = rest
        first, _, rest = name.partition(".")
    return name
