"""Chunks that stand on lost ones: an index object that is gone takes with it whatever was a difference from its chunks.

To a writer such chunks count as absent, so that the next snapshot stores them again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ohdiff_format.index import PackRecord
from ohdiff_format.limits import ID_PREFIX_SIZE

from .index_segment import BlockLocation, ChunkLocation, IndexSegment

Find = Callable[[Sequence[bytes]], Sequence[ChunkLocation | None]]


def bases_of(packs: Iterable[PackRecord]) -> list[bytes]:
    """The base chunks of all blocks of some packs, each once."""
    return list({base for pack in packs for block in pack.blocks for base in split_prefixes(block.base_prefixes)})


def unknown(prefixes: Sequence[bytes], find: Find) -> list[bytes]:
    """Those chunks that no index object names."""
    return [prefix for prefix, place in zip(prefixes, find(prefixes), strict=True) if place is None]


def find_broken(segments: Sequence[IndexSegment], find: Find) -> frozenset[bytes]:
    """The chunks of all blocks that stand, directly or not, on chunks that are in no segment, 16 bytes of each id.

    A chunk that lies in another block, too, which stands on nothing lost, is whole.
    """
    broken: set[bytes] = set()
    broken_blocks: set[tuple[bytes, int]] = set()
    deltas = [
        (block, number, row)
        for number, segment in enumerate(segments)
        for row, block in enumerate(segment.blocks())
        if block.base_prefixes
    ]
    for depth in sorted({block.depth for block, _, _ in deltas}):
        rows: list[set[int]] = [set() for _ in segments]
        for block, number, row in deltas:
            if block.depth == depth and _is_broken(block, broken, find):
                rows[number].add(row)
                broken_blocks.add((block.pack_id, block.number))
        found = [prefix for segment, some in zip(segments, rows, strict=True) for prefix in _chunks(segment, some)]
        broken.update(
            prefix
            for prefix, place in zip(found, find(found), strict=True)
            if place is None or (place.block.pack_id, place.block.number) in broken_blocks
        )
    return frozenset(broken)


def split_prefixes(prefixes: bytes) -> list[bytes]:
    """Prefixes that stand back to back, one by one."""
    return [prefixes[i : i + ID_PREFIX_SIZE] for i in range(0, len(prefixes), ID_PREFIX_SIZE)]


def _is_broken(block: BlockLocation, broken: set[bytes], find: Find) -> bool:
    bases = split_prefixes(block.base_prefixes)
    return not broken.isdisjoint(bases) or None in find(bases)


def _chunks(segment: IndexSegment, rows: set[int]) -> list[bytes]:
    return list(segment.prefixes_in(rows)) if rows else []
