"""Decoding blocks of every codec: bytes by the format's own code, numbers joined by the native kernels."""

from __future__ import annotations

from typing import Protocol

from ohdiff._kernels import join_numbers
from ohdiff.breaks import computing
from ohdiff_format.blocks import CODEC_NUMBERS, decode_block
from ohdiff_format.envelope import Buffer
from ohdiff_format.errors import FormatError
from ohdiff_format.numbers import decode_planes, parse_parameters


class BlockShape(Protocol):
    """What must be known of a block to decode it."""

    @property
    def codec(self) -> int: ...
    @property
    def plain_size(self) -> int: ...
    @property
    def parameters(self) -> bytes: ...


def decode(block: BlockShape, payload: Buffer, base: Buffer) -> Buffer:
    """The plain bytes of a block.

    Parameters
    ----------
    base : its base chunks back to back, empty if it has none.

    Raises
    ------
    FormatError
        The payload does not give `plain_size` bytes, or the base does not fit.
    """
    with computing:
        if block.codec != CODEC_NUMBERS:
            return decode_block(block.codec, payload, block.plain_size, base)
        return _decode_numbers(block, payload, base)


def _decode_numbers(block: BlockShape, payload: Buffer, base: Buffer) -> Buffer:
    shape = parse_parameters(block.parameters)
    planes = decode_planes(block.parameters, payload, block.plain_size)
    try:
        return join_numbers(planes, shape.width, shape.transform, base if shape.needs_base else None, shape.cast)
    except ValueError as error:
        raise FormatError(f"numbers do not fit their base: {error}") from error
