"""What a repository's blocks stand on: how long chains really are, and whether blocks know it."""

from __future__ import annotations

from collections.abc import Callable

from ohdiff.repository import objects
from ohdiff.repository.index import ChunkIndex
from ohdiff.repository.index_feed import split_prefixes
from ohdiff.repository.index_segment import BlockLocation
from ohdiff_format.blocks import CODEC_DELTA, CODEC_NUMBERS
from ohdiff_format.envelope import KIND_INDEX
from ohdiff_format.index import NUMBER_BODY, Index, PackRecord, decode_index, encode_index
from ohdiff_format.numbers import parse_parameters

from .vault import Vault, object_names

DEPTH_MAX = 2
CAST_DEPTH_MAX = 3


def blocks_of(vault: Vault) -> list[BlockLocation]:
    """Every block that the index names."""
    with vault.opened() as (_, index):
        return list(index.blocks())


def codecs_of(vault: Vault) -> set[int]:
    """The codecs of all blocks."""
    return {block.codec for block in blocks_of(vault)}


def assert_chains(vault: Vault) -> None:
    """No block is deeper than the policy, and each says more than what it stands on has below itself."""
    with vault.opened() as (_, index):
        depths: dict[bytes, int] = {}
        for block in index.blocks():
            assert (block.depth > 0) == (len(block.base_prefixes) > 0)
            assert block.depth == 0 or block.codec in (CODEC_DELTA, CODEC_NUMBERS)
            is_cast = block.codec == CODEC_NUMBERS and parse_parameters(block.parameters).cast
            assert block.depth <= (CAST_DEPTH_MAX if is_cast else DEPTH_MAX)
            for prefix in split_prefixes(block.base_prefixes):
                assert _depth(index, prefix, depths, block.is_metadata) < block.depth


def _depth(index: ChunkIndex, prefix: bytes, depths: dict[bytes, int], is_metadata: bool) -> int:
    """How many blocks stand one upon the other where a chunk lies, by following them."""
    known = depths.get(prefix)
    if known is not None:
        return known
    (place,) = index.find([prefix])
    assert place is not None, "a base chunk is in no index"
    assert place.block.is_metadata == is_metadata
    below = [_depth(index, base, depths, is_metadata) for base in split_prefixes(place.block.base_prefixes)]
    depths[prefix] = 1 + max(below) if below else 0
    return depths[prefix]


def rewritten_index(vault: Vault, change: Callable[[list[PackRecord]], list[PackRecord]]) -> None:
    """Replace all index objects by one of other records."""
    repository = vault.open()
    records: list[PackRecord] = []
    for name in object_names(vault.storage, ["index"]):
        object_id = bytes.fromhex(name.partition("/")[2])
        records += objects.read_object(repository, "index", KIND_INDEX, NUMBER_BODY, object_id, decode_index).packs
        vault.storage.delete(name)
    objects.write_object(repository, "index", KIND_INDEX, NUMBER_BODY, encode_index(Index(change(records))))
