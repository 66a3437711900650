"""Blocks of numbers: the transform and the compression of planes that give the fewest bytes (SPEC section 6.5).

What a piece may be a difference from is for the caller to find; here a choice is made by compressing a sample of the
piece each way. Decoding needs no choice and no state: ohdiff_format.numbers gives planes, and the kernels join them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import zstandard

from ohdiff._kernels import split_numbers_into
from ohdiff_format.numbers import (
    CAST_F32_TO_BF16,
    CAST_F32_TO_F16,
    CAST_NONE,
    PLANE_CONSTANT,
    PLANE_RAW,
    PLANE_ZSTD,
    TRANSFORM_FLOAT_DIFFERENCE,
    TRANSFORM_GROUPED_FLOAT_DIFFERENCE,
    TRANSFORM_INTEGER_DIFFERENCE,
    TRANSFORM_NONE,
    TRANSFORM_XOR,
    NumberKind,
    encode_planes,
)

if TYPE_CHECKING:
    from ohdiff_format.envelope import Buffer

# A sample is this many runs of elements, spread over the piece: a sixteenth of a piece of 524,288.
_SAMPLE_RUNS: Final = 4
_SAMPLE_RUN_COUNT: Final = 8192
# A plane that compresses less is stored as it is, which costs nothing to read.
_PLANE_SHARE_MAX: Final = 0.98
_CASTS: Final = {
    (NumberKind.F32, NumberKind.BF16): CAST_F32_TO_BF16,
    (NumberKind.F32, NumberKind.F16): CAST_F32_TO_F16,
}


@dataclass(frozen=True, slots=True)
class EncodedNumbers:
    """A piece as the codec for numbers stores it.

    Attributes
    ----------
    parameters : of the block: depth, width, transform and cast; the transform is 0 exactly if the base is not used.
    """

    parameters: bytes
    payload: bytes
    uses_base: bool


@dataclass(frozen=True, slots=True)
class _Form:
    """One way to make planes of elements; `base` is None for the transform that has none."""

    width: int
    transform: int = TRANSFORM_NONE
    cast: int = CAST_NONE
    base: Buffer | None = None


class NumbersEncoder:
    """Encodes pieces of numbers with contexts of its own; not to be shared between threads.

    Parameters
    ----------
    level : zstd level of what plain compression would be, and of planes that hold more than rare bytes.
    """

    def __init__(self, level: int) -> None:
        self._plain_compressor = zstandard.ZstdCompressor(level=level)
        self._entropy_compressor = _entropy_compressor(window_log=17)
        # Blocks that change with the groups: 1.8 % less of the third plane of f32 weights, and 14 no better than 15.
        self._group_compressor = _entropy_compressor(window_log=15)
        # Smaller blocks still, so that a sample has about as many as a piece has, each with codes of its own.
        self._sample_compressor = _entropy_compressor(window_log=13)
        self._planes = bytearray()

    def encode(
        self, plain: Buffer, kind: NumberKind, base: Buffer | None, base_kind: NumberKind | None, depth: int
    ) -> EncodedNumbers | None:
        """Encode a piece, or give None where plain compression, or none, is as good.

        Parameters
        ----------
        plain : whole elements of `kind`, at least one; otherwise None is given.
        base : as many elements of `base_kind` that these resemble; one that does not fit is not used.
        depth : of the block, if the base is used.
        """
        if len(plain) == 0 or len(plain) % kind.width:
            return None
        choice = self._choose(plain, kind, base, base_kind)
        if choice is None:
            return None
        form, compressors = choice
        planes = zip(self._split(plain, form), compressors, strict=True)
        payload = encode_planes(_encode_plane(plane, compressor) for plane, compressor in planes)
        if len(payload) >= len(plain):
            return None
        uses_base = form.transform != TRANSFORM_NONE
        parameters = bytes((depth if uses_base else 0, form.width, form.transform, form.cast))
        return EncodedNumbers(parameters, payload, uses_base)

    def _choose(
        self, plain: Buffer, kind: NumberKind, base: Buffer | None, base_kind: NumberKind | None
    ) -> tuple[_Form, list[zstandard.ZstdCompressor]] | None:
        """The best form by a sample, and the compressor of each of its planes; None if plain compression wins."""
        count = len(plain) // kind.width
        sample = _sampled(plain, kind.width, count)
        best = _Form(kind.width)
        cast = _cast_of(kind, base, base_kind, count)
        if base is not None and cast is not None:
            best = self._best_form(sample, kind, _sampled(base, len(base) // count, count), cast)
        compressors, size = self._choose_compressors(sample, best)
        if size >= len(self._plain_compressor.compress(sample)):
            return None
        return replace(best, base=base), compressors

    def _best_form(self, sample: Buffer, kind: NumberKind, base: Buffer, cast: int) -> _Form:
        """The form that takes the fewest bytes on a sample and the same elements of the base."""
        best = _Form(kind.width)
        best_size = self._size(sample, best, kind)
        for transform in _transforms(kind):
            if transform == TRANSFORM_GROUPED_FLOAT_DIFFERENCE and best.transform != TRANSFORM_FLOAT_DIFFERENCE:
                continue
            form = _Form(kind.width, transform, cast, base)
            size = self._size(sample, form, kind)
            if size < best_size:
                best, best_size = form, size
        return best

    def _split(self, plain: Buffer, form: _Form) -> list[memoryview]:
        """The planes of `plain`, from that of the lowest byte on, until the next call."""
        if len(self._planes) < len(plain):
            self._planes = bytearray(len(plain))
        planes = memoryview(self._planes)[: len(plain)]
        base = None if form.transform == TRANSFORM_NONE else form.base
        split_numbers_into(plain, planes, form.width, form.transform, base, form.cast)
        size = len(planes) // form.width
        return [planes[number * size : (number + 1) * size] for number in range(form.width)]

    def _size(self, sample: Buffer, form: _Form, kind: NumberKind) -> int:
        """About how many bytes a sample takes; floats seldom repeat, so only the entropy of their bytes is asked."""
        compressor = self._sample_compressor if kind.is_float else self._plain_compressor
        return sum(min(len(plane), len(compressor.compress(plane))) for plane in self._split(sample, form))

    def _choose_compressors(self, sample: Buffer, form: _Form) -> tuple[list[zstandard.ZstdCompressor], int]:
        """For each plane of a sample the compressor that takes fewer bytes, and how many they are together."""
        is_grouped = form.transform == TRANSFORM_GROUPED_FLOAT_DIFFERENCE
        entropy_compressor = self._group_compressor if is_grouped else self._entropy_compressor
        chosen, total = [], 0
        for plane in self._split(sample, form):
            entropy_size = len(self._sample_compressor.compress(plane))
            match_size = len(self._plain_compressor.compress(plane))
            chosen.append(self._plain_compressor if match_size < entropy_size else entropy_compressor)
            total += min(len(plane), entropy_size, match_size)
        return chosen, total


def _entropy_compressor(window_log: int) -> zstandard.ZstdCompressor:
    """A compressor that takes long runs as matches, and leaves everything else to the codes of single bytes.

    Most planes are noise of some entropy. What matches zstd finds there cost more than the bytes they stand for: top
    bytes of f32 weights take 0.340 of their size so, 0.368 at level 1 and 0.419 at level 3, at 2 to 4 times the speed.
    The table of 64 places and matches of at least 7 bytes are the least that zstd has. A window is a block's limit.
    """
    parameters = zstandard.ZstdCompressionParameters(
        window_log=window_log,
        hash_log=6,
        chain_log=6,
        search_log=1,
        min_match=7,
        target_length=0,
        strategy=zstandard.STRATEGY_FAST,
    )
    return zstandard.ZstdCompressor(compression_params=parameters)


def simple_forms(kind: NumberKind, base_kind: NumberKind | None) -> tuple[tuple[int, ...], int]:
    """The transforms that do without grouping, and the cast of a base that has as many elements."""
    cast = CAST_NONE if base_kind is kind or base_kind is None else _CASTS.get((base_kind, kind))
    if base_kind is None or cast is None:
        return (TRANSFORM_NONE,), CAST_NONE
    simple = [transform for transform in _transforms(kind) if transform != TRANSFORM_GROUPED_FLOAT_DIFFERENCE]
    return (TRANSFORM_NONE, *simple), cast


def _transforms(kind: NumberKind) -> tuple[int, ...]:
    """Those that need a base, in the order of their trial."""
    if kind.is_float:
        return TRANSFORM_XOR, TRANSFORM_FLOAT_DIFFERENCE, TRANSFORM_GROUPED_FLOAT_DIFFERENCE
    return TRANSFORM_XOR, TRANSFORM_INTEGER_DIFFERENCE


def _cast_of(kind: NumberKind, base: Buffer | None, base_kind: NumberKind | None, count: int) -> int | None:
    """The cast that makes a base one of `kind`; None if the base does not fit."""
    if base is None or base_kind is None or len(base) != count * base_kind.width:
        return None
    return CAST_NONE if base_kind is kind else _CASTS.get((base_kind, kind))


def _sampled(data: Buffer, width: int, count: int) -> Buffer:
    """Some runs of elements, back to back, the same of a piece and of its base; small pieces as they are."""
    if count <= _SAMPLE_RUNS * _SAMPLE_RUN_COUNT:
        return data
    return b"".join(_runs(memoryview(data), width, count))


def _runs(data: memoryview, width: int, count: int) -> Iterator[memoryview]:
    for number in range(_SAMPLE_RUNS):
        first = (count - _SAMPLE_RUN_COUNT) * number // (_SAMPLE_RUNS - 1)
        yield data[first * width : (first + _SAMPLE_RUN_COUNT) * width]


def _encode_plane(plane: memoryview, compressor: zstandard.ZstdCompressor) -> tuple[int, Buffer]:
    """The plane codec and the bytes of a plane."""
    if _is_constant(plane):
        return PLANE_CONSTANT, plane[:1]
    frame = compressor.compress(plane)
    return (PLANE_ZSTD, frame) if len(frame) < _PLANE_SHARE_MAX * len(plane) else (PLANE_RAW, plane)


def _is_constant(plane: memoryview) -> bool:
    """Whether all bytes are the same; a glance at three of them settles it for most planes."""
    if not plane[0] == plane[len(plane) // 2] == plane[-1]:
        return False
    return bytes(plane) == bytes(plane[:1]) * len(plane)
