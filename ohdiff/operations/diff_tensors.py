"""What changed in a file of tensors: which were added, removed, made something else, and how far the others moved.

Tensors are paired by name. Those that lie in the same chunks on both sides are not read; the rest is read piece by
piece, so that memory does not grow with their size.
"""

from __future__ import annotations

import errno
import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, Literal

from ohdiff._kernels import count_changes
from ohdiff.chunking.containers import TENSOR_SIZE_BYTES_MIN, ByteSource, Tensor, may_be_container, read_container
from ohdiff.chunking.containers.pieces import PIECE_ELEMENTS
from ohdiff_format.numbers import NumberKind
from ohdiff_format.tree import Content

TensorChangeKind = Literal["added", "removed", "modified", "type"]
# By the part of a dtype that says how its 8 bits are shared out; others are compared as bytes.
_EIGHT_BITS: Final = {
    "e4m3": "f8_e4m3",
    "e4m3fn": "f8_e4m3",
    "e5m2": "f8_e5m2",
    "e4m3fnuz": "f8_e4m3fnuz",
    "e5m2fnuz": "f8_e5m2fnuz",
    "e8m0": "f8_e8m0",
    "e8m0fnu": "f8_e8m0",
}


@dataclass(frozen=True, slots=True)
class Movement:
    """How far the elements of a tensor moved.

    Attributes
    ----------
    changed, count : elements whose bytes differ, and all; of a tensor that is no array of numbers they count bytes.
    is_numeric : whether they count elements.
    has_norm : whether they are floats.
    relative : for floats the norm of the difference over that of the old tensor, None if that is zero or overflows; for
        everything else the share that changed.
    not_finite : elements that are an infinity or no number on either side, which no norm has.
    """

    changed: int
    count: int
    is_numeric: bool
    has_norm: bool
    relative: float | None
    not_finite: int


@dataclass(frozen=True, slots=True)
class TensorChange:
    """One tensor that differs; `type` means another kind of element or another shape."""

    kind: TensorChangeKind
    name: str
    before: Tensor | None
    after: Tensor | None
    movement: Movement | None = None


@dataclass(frozen=True, slots=True)
class TensorsCompared:
    """The tensors that differ, in the order of the new file, removed ones last; `count` is how many that file has."""

    format: str
    count: int
    changes: list[TensorChange]


@dataclass(frozen=True, slots=True)
class TensorSide:
    """One version of a file, to be read at any offset, and its chunks, which tell what need not be read."""

    source: ByteSource
    chunks: Content


def may_have_tensors(name: bytes) -> bool:
    """Whether a file is worth opening for `compare_tensors`; a small one, too, since here it costs nothing."""
    return may_be_container(name, TENSOR_SIZE_BYTES_MIN + 1)


def compare_tensors(before: TensorSide, after: TensorSide) -> TensorsCompared | None:
    """The tensors that differ between two versions of a file; None if one of them is no container that is known.

    Raises
    ------
    OSError
        As the sources raise it, and when a file became shorter while it was read.
    """
    containers = [read_container(side.source) for side in (before, after)]
    old, new = containers
    if old is None or new is None:
        return None
    olds = {tensor.name: tensor for tensor in old.tensors}
    places = (_Places(before.chunks), _Places(after.chunks))
    changes = []
    for tensor in new.tensors:
        earlier = olds.pop(tensor.name, None)
        change = TensorChange("added", tensor.name, None, tensor)
        if earlier is not None and not _is_alike(earlier, tensor):
            change = TensorChange("type", tensor.name, earlier, tensor)
        elif earlier is not None:
            if places[0].of(earlier) == places[1].of(tensor):
                continue
            movement = _movement(before.source, after.source, earlier, tensor)
            if not movement.changed:
                continue
            change = TensorChange("modified", tensor.name, earlier, tensor, movement)
        changes.append(change)
    changes += [TensorChange("removed", tensor.name, tensor, None) for tensor in olds.values()]
    return TensorsCompared(new.format, len(new.tensors), changes)


class _Places:
    """Which chunks cover a tensor, and where in the first of them it begins."""

    def __init__(self, chunks: Content) -> None:
        self._ids = chunks.chunk_ids()
        self._ends = list(accumulate(chunks.sizes))

    def of(self, tensor: Tensor) -> tuple[int, Sequence[bytes]]:
        """Equal only for tensors of equal bytes; an empty one is in no chunk."""
        if not tensor.size:
            return 0, []
        first = bisect_right(self._ends, tensor.start)
        last = bisect_right(self._ends, tensor.end - 1)
        return tensor.start - (self._ends[first - 1] if first else 0), self._ids[first : last + 1]


def _is_alike(before: Tensor, after: Tensor) -> bool:
    return (before.dtype, before.shape, before.size) == (after.dtype, after.shape, after.size)


def _movement(before: ByteSource, after: ByteSource, old: Tensor, new: Tensor) -> Movement:
    kind = _element_kind(new)
    changed = not_finite = 0
    differences: list[float] = []
    squares: list[float] = []
    width = 1 if new.kind is None else new.kind.width
    for start, size in _windows(new.size, PIECE_ELEMENTS * width):
        counts = count_changes(_read(before, old.start + start, size), _read(after, new.start + start, size), kind)
        changed += counts[0]
        not_finite += counts[1]
        differences.append(counts[2])
        squares.append(counts[3])
    count = new.size // width
    is_float = new.kind is not None and new.kind.is_float and kind != "i8"
    relative = _ratio(differences, squares) if is_float else changed / count if count else 0.0
    return Movement(changed, count, new.kind is not None, is_float, relative, not_finite)


def _ratio(differences: list[float], squares: list[float]) -> float | None:
    """Of the norms whose squares are the sums of these."""
    square = sum(squares)
    ratio = math.sqrt(sum(differences) / square) if 0 < square < math.inf else math.inf
    return ratio if math.isfinite(ratio) else None


def _element_kind(tensor: Tensor) -> str:
    """The name that the kernel has for the elements; what has no kind is bytes."""
    if tensor.kind is None:
        return "i8"
    if tensor.kind is NumberKind.F8:
        return _EIGHT_BITS.get(tensor.dtype.lower().partition("_")[2], "i8")
    return tensor.kind.label


def _windows(size: int, size_max: int) -> Iterator[tuple[int, int]]:
    for start in range(0, size, size_max):
        yield start, min(size_max, size - start)


def _read(source: ByteSource, offset: int, size: int) -> bytes:
    data = source.read(offset, size)
    if len(data) != size:
        raise OSError(errno.EIO, "the file became shorter while it was read")
    return data
