"""Packs: blocks of chunks, then a sealed footer that says where they lie (SPEC section 6).

header | sealed block 0 | sealed block 1 | ... | padding | sealed footer | sealed trailer

The trailer holds the footer's sealed length, so that a pack is readable from its end. Lengths of blocks and chunks
stand only in the footer and the index, both sealed; padding hides their sum (Padme).
"""

from __future__ import annotations

import struct
from typing import Annotated, Final

import msgspec

from .blocks import CODEC_DELTA, CODEC_NUMBERS, CODEC_RAW, CODEC_ZSTD
from .envelope import pack_plain, unpack_plain
from .errors import FormatError, UnknownFeatureError
from .limits import (
    BASES_PER_BLOCK_MAX,
    BLOCK_SIZE_BYTES_MAX,
    BLOCKS_PER_PACK_MAX,
    CHUNK_SIZE_BYTES_MAX,
    CHUNKS_PER_BLOCK_MAX,
    DEPTH_MAX,
    ID_PREFIX_SIZE,
    PACK_SIZE_BYTES_MAX,
    TAG_SIZE,
)
from .numbers import parse_parameters

NUMBER_FOOTER: Final = 2**64 - 1
NUMBER_TRAILER: Final = 2**64 - 2
_TRAILER: Final = struct.Struct("<Q")
TRAILER_SIZE: Final = _TRAILER.size + TAG_SIZE


def depth_of(parameters: bytes) -> int:
    """How many blocks stand one upon the other, out of a block's parameters: 0 for one without any."""
    return parameters[0] if parameters else 0


Size = Annotated[int, msgspec.Meta(ge=0, le=PACK_SIZE_BYTES_MAX)]
ChunkSize = Annotated[int, msgspec.Meta(ge=0, le=CHUNK_SIZE_BYTES_MAX)]


class BlockRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One block: sealed length, codec, its chunks' lengths in order, and what a delta stands on.

    `chunk_prefixes` holds the first 16 bytes of each chunk id in an index, and nothing in a footer: a chunk's id
    follows from its bytes, so that the index can be made again by decoding the packs, and on trees of tiny files an
    id costs more than the metadata of its file. Full ids stand in the trees, and every read is checked against them.
    `base_prefixes` holds 16 bytes for each base chunk, in both.
    """

    sealed_size: Size
    codec: Annotated[int, msgspec.Meta(ge=0, le=255)]
    chunk_sizes: Annotated[list[ChunkSize], msgspec.Meta(max_length=CHUNKS_PER_BLOCK_MAX)]
    chunk_prefixes: bytes = b""
    base_prefixes: bytes = b""
    parameters: bytes = b""

    @property
    def plain_size(self) -> int:
        """Bytes of all its chunks together."""
        return sum(self.chunk_sizes)

    @property
    def depth(self) -> int:
        """How many blocks stand one upon the other: 0 for a block without bases."""
        return depth_of(self.parameters)


BlockTable = Annotated[list[BlockRecord], msgspec.Meta(max_length=BLOCKS_PER_PACK_MAX)]


class Footer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The table of one pack; blocks lie back to back from the end of the header."""

    is_metadata: bool
    blocks: BlockTable


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Footer).decode


def check_block(block: BlockRecord, prefix_size: int) -> None:
    """Raise unless the record is known, consistent with itself, and has `prefix_size` bytes of each chunk's id."""
    if len(block.chunk_sizes) > CHUNKS_PER_BLOCK_MAX:
        raise FormatError("a block has too many chunks")
    if len(block.chunk_prefixes) != len(block.chunk_sizes) * prefix_size:
        raise FormatError("a block does not have one id for each chunk")
    if block.sealed_size < TAG_SIZE or block.plain_size > BLOCK_SIZE_BYTES_MAX:
        raise FormatError("a block's size is out of bounds")
    check_bases(block.codec, block.base_prefixes, block.parameters)
    if block.codec == CODEC_NUMBERS and len(block.chunk_sizes) != 1:
        raise FormatError("a block of numbers has one chunk")


def check_bases(codec: int, base_prefixes: bytes, parameters: bytes) -> None:
    """Raise unless a codec can have these bases and parameters."""
    count, rest = divmod(len(base_prefixes), ID_PREFIX_SIZE)
    if rest or count > BASES_PER_BLOCK_MAX:
        raise FormatError("a block's bases are malformed")
    if codec in (CODEC_RAW, CODEC_ZSTD) and not base_prefixes and not parameters:
        return
    if codec == CODEC_DELTA and len(parameters) == 1:
        has_bases = count >= 1
    elif codec == CODEC_NUMBERS:
        numbers = parse_parameters(parameters)
        if count != numbers.needs_base:
            raise FormatError("a block of numbers does not have the bases that its codec needs")
        has_bases = numbers.needs_base
    else:
        raise UnknownFeatureError(f"block codec {codec}")
    if not has_bases <= parameters[0] <= DEPTH_MAX * has_bases:
        raise FormatError("a block's depth is out of bounds")
    if codec == CODEC_DELTA and not has_bases:
        raise FormatError("a delta has at least one base chunk")


def check_table(blocks: list[BlockRecord], prefix_size: int) -> None:
    """Raise unless the blocks of one pack are few enough and each record is sound."""
    if len(blocks) > BLOCKS_PER_PACK_MAX:
        raise FormatError("a pack has too many blocks")
    for block in blocks:
        check_block(block, prefix_size)


def encode_footer(footer: Footer) -> bytes:
    """The footer's plain bytes, to be sealed under NUMBER_FOOTER; FormatError if no reader would accept it."""
    check_table(footer.blocks, 0)
    return pack_plain(_encode(footer))


def decode_footer(plain: bytes) -> Footer:
    """Parse and check a footer."""
    try:
        footer = _decode(unpack_plain(plain))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"not a footer: {error}") from error
    check_table(footer.blocks, 0)
    return footer


def encode_trailer(footer_sealed_size: int) -> bytes:
    """The trailer's plain bytes, to be sealed under NUMBER_TRAILER."""
    return _TRAILER.pack(footer_sealed_size)


def decode_trailer(plain: bytes, pack_size: int) -> int:
    """The footer's sealed length, checked against the pack's size."""
    if len(plain) != _TRAILER.size:
        raise FormatError("a trailer has 8 bytes")
    (size,) = _TRAILER.unpack(plain)
    if not TAG_SIZE <= size <= pack_size - TRAILER_SIZE:
        raise FormatError("the footer does not fit into the pack")
    return int(size)


def padded_size(size: int) -> int:
    """The Padme size for an object of `size` bytes: leaks O(log log size) bits, costs at most 12 %.

    Source: Nikitin et al., "Reducing Metadata Leakage from Encrypted Files", PETS 2019, section 4.
    """
    if size < 2:
        return size
    exponent = size.bit_length() - 1
    mask = (1 << (exponent - exponent.bit_length())) - 1
    return (size + mask) & ~mask
