"""Index objects: for each of some packs, its block records; one sealed message (SPEC section 7)."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from .envelope import pack_plain, unpack_plain
from .errors import FormatError
from .limits import ID_PREFIX_SIZE, ID_SIZE, PACKS_PER_INDEX_MAX
from .pack import BlockTable, Size, check_table

NUMBER_BODY: Final = 0


class PackRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One pack: its id (BLAKE3 of its bytes), size, and blocks in order from the end of its header."""

    pack_id: bytes
    size: Size
    header_size: Size
    is_metadata: bool
    blocks: BlockTable


class Index(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Some packs; `supersedes` names index objects whose contents this one holds in full."""

    packs: Annotated[list[PackRecord], msgspec.Meta(max_length=PACKS_PER_INDEX_MAX)]
    supersedes: list[bytes] = []


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Index).decode


def encode_index(index: Index) -> bytes:
    """The plain bytes of an index object, to be sealed under NUMBER_BODY; FormatError if no reader would accept it."""
    _check(index)
    return pack_plain(_encode(index))


def decode_index(plain: bytes) -> Index:
    """Parse and check an index object."""
    try:
        index = _decode(unpack_plain(plain))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"not an index: {error}") from error
    _check(index)
    return index


def _check(index: Index) -> None:
    if len(index.packs) > PACKS_PER_INDEX_MAX:
        raise FormatError("an index has too many packs")
    for pack in index.packs:
        _check_pack(pack)
    if any(len(name) != ID_SIZE for name in index.supersedes):
        raise FormatError("an index id has 32 bytes")


def _check_pack(pack: PackRecord) -> None:
    if len(pack.pack_id) != ID_SIZE:
        raise FormatError("a pack id has 32 bytes")
    check_table(pack.blocks, ID_PREFIX_SIZE)
    if pack.header_size + sum(block.sealed_size for block in pack.blocks) > pack.size:
        raise FormatError("blocks reach beyond their pack")
