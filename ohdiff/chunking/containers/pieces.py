"""How a container is cut: large tensors of numbers into fixed pieces, everything else into ranges for the chunker.

A piece is one chunk and one block. Pieces count elements, not bytes, so that the pieces of a tensor line up with those
of its copy in another kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ohdiff_format.numbers import NumberKind

from .tensors import TENSOR_SIZE_BYTES_MIN, Container, Tensor

PIECE_ELEMENTS: Final = 524_288
# A shorter last piece is joined to the one before: with 8-byte elements that chunk has at most 4.5 MiB. In elements as
# well: a bound in bytes would cut the last pieces of an fp32 tensor and of its bf16 copy at different elements.
TAIL_ELEMENTS_MIN: Final = 65_536


@dataclass(frozen=True, slots=True)
class ContainerPiece:
    """A half-open byte range of a file.

    Parameters
    ----------
    start, end : bytes.
    tensor_row : row in the container's tensors, or None for a range that the content-defined chunker cuts further.
    element_start : the first element's number in its tensor, 0 without a tensor.
    kind : what the elements are; None exactly where tensor_row is None.
    """

    start: int
    end: int
    tensor_row: int | None
    element_start: int
    kind: NumberKind | None

    @property
    def size(self) -> int:
        """Bytes."""
        return self.end - self.start


def cut_points(container: Container, file_size: int) -> list[ContainerPiece]:
    """Pieces and ranges that cover [0, file_size) in order, none of them empty.

    Headers, gaps and small tensors are joined with their neighbours into one range. A large tensor without a number
    kind begins a new range, so that the chunks of equal tensors are equal wherever they lie.
    """
    pieces: list[ContainerPiece] = []
    position = 0
    for row, tensor in enumerate(container.tensors):
        if tensor.size < TENSOR_SIZE_BYTES_MIN:
            continue
        pieces.extend(_range(position, tensor.start))
        position = tensor.start
        if tensor.is_numeric:
            pieces.extend(_pieces_of(tensor, row))
            position = tensor.end
    pieces.extend(_range(position, file_size))
    return pieces


def _range(start: int, end: int) -> Iterator[ContainerPiece]:
    if end > start:
        yield ContainerPiece(start, end, None, 0, None)


def _pieces_of(tensor: Tensor, row: int) -> Iterator[ContainerPiece]:
    assert tensor.kind is not None
    width = tensor.kind.width
    count = tensor.size // width
    first = 0
    while first < count:
        last = first + PIECE_ELEMENTS
        if count - last < TAIL_ELEMENTS_MIN:
            last = count
        yield ContainerPiece(tensor.start + first * width, tensor.start + last * width, row, first, tensor.kind)
        first = last
