"""What the parsers of containers share: a source of bytes, tensors in byte ranges, and the judge of what a file claims.

A parser reports claims; `judged` alone decides whether they hold together. Everything here is bounded by constants,
since a container is a stranger's file.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from ohdiff_format.numbers import NumberKind

# A header is parsed whole, and small objects take up to thirty times their text. 100,000 tensors need about 12 MB.
HEADER_SIZE_BYTES_MAX: Final = 16 << 20
TENSORS_MAX: Final = 1_000_000
RANK_MAX: Final = 64
NAME_LENGTH_MAX: Final = 4096
# A tensor below this is bytes like any others: its own chunk and block would cost more than they save.
TENSOR_SIZE_BYTES_MIN: Final = 64 << 10


class MalformedError(Exception):
    """The file is not what its name or first bytes say; never leaves this package."""


class ByteSource(Protocol):
    """Bytes at offsets. `read` is short only at the end; it may raise OSError, which passes through every parser."""

    @property
    def size(self) -> int: ...

    def read(self, offset: int, size: int, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Tensor:
    """One array of a container.

    Parameters
    ----------
    name : unique in its container.
    kind : what its elements are, or None for what has no number kind (blocks of quantised values, bool, complex, big
        endian) and for what could not be told.
    dtype : the container's own word for the elements.
    shape : may be empty (a scalar); a storage that several tensors share has one dimension.
    start, end : half-open byte range in the file.
    """

    name: str
    kind: NumberKind | None
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def size(self) -> int:
        """Bytes."""
        return self.end - self.start

    @property
    def is_numeric(self) -> bool:
        """Whether it is cut into pieces of numbers."""
        return self.kind is not None and self.size >= TENSOR_SIZE_BYTES_MIN


@dataclass(frozen=True, slots=True)
class Container:
    """The tensors of a file by ascending `start`; they do not overlap, and every range lies inside the file.

    Parameters
    ----------
    format : "safetensors", "torch", "npy", "npz" or "gguf".
    tensors : at least one.
    """

    format: str
    tensors: tuple[Tensor, ...]


def judged(container_format: str, claims: Iterable[Tensor], file_size: int) -> Container:
    """The container of these claims.

    Raises
    ------
    MalformedError
        There is no tensor or too many, a range leaves the file or meets another, two names are equal, or a tensor
        with a number kind has another size than its shape says.
    """
    tensors = sorted(claims, key=lambda tensor: (tensor.start, tensor.end))
    if not 0 < len(tensors) <= TENSORS_MAX or len({tensor.name for tensor in tensors}) != len(tensors):
        raise MalformedError
    position = 0
    for tensor in tensors:
        if not position <= tensor.start <= tensor.end <= file_size or len(tensor.name) > NAME_LENGTH_MAX:
            raise MalformedError
        if tensor.kind is not None and elements_of(tensor.shape) * tensor.kind.width != tensor.size:
            raise MalformedError
        position = tensor.end
    return Container(container_format, tuple(tensors))


def elements_of(shape: tuple[int, ...]) -> int:
    """The product of the dimensions; the number of dimensions is checked first, so that it costs little to refuse."""
    if len(shape) > RANK_MAX or any(not 0 <= length < 1 << 63 for length in shape):
        raise MalformedError
    return math.prod(shape)


def read_exactly(source: ByteSource, offset: int, size: int) -> bytes:
    """Bytes of the file; a header never needs more than HEADER_SIZE_BYTES_MAX of them at once."""
    if not (0 <= offset <= source.size and 0 <= size <= min(HEADER_SIZE_BYTES_MAX, source.size - offset)):
        raise MalformedError
    data = source.read(offset, size)
    if len(data) != size:
        raise MalformedError
    return data
