"""The kernels in the order of a batch, as kernels/cuda/README.md gives it: bytes in, lists of integers out."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from blake3 import blake3

from ohdiff._kernels import Chunker, available_kernels

from .device import Memory, ShimDevice, room_for, uploaded, words_in

LEAF_SIZE = 1024
FEATURES = 12


@dataclass(frozen=True, slots=True)
class Rule:
    """The values of a rule, as kernels take them."""

    words: bytes
    min_size: int
    avg_size: int
    max_size: int
    threshold_strict: int
    threshold_loose: int

    def chunker(self) -> Chunker:
        """The CPU twin."""
        return Chunker(
            words=self.words,
            min_size=self.min_size,
            avg_size=self.avg_size,
            max_size=self.max_size,
            threshold_strict=self.threshold_strict,
            threshold_loose=self.threshold_loose,
            kernel=available_kernels()[-1],
        )

    def terms(self) -> list[int]:
        words = memoryview(self.words).cast("I")
        return [words[byte & 15] ^ words[16 + (byte >> 4)] for byte in range(256)]


@dataclass(frozen=True, slots=True)
class Candidates:
    """What the candidate kernels leave on the device."""

    data: Memory
    terms: Memory
    first: Memory
    list: Memory
    unlisted: Memory
    unlisted_count: Memory

    def listed(self) -> list[tuple[int, int]]:
        words = self.list.words(2 * self.first.words()[-1])
        return list(zip(words[0::2], words[1::2], strict=True))


def ceil_divided(value: int, by: int) -> int:
    return -(-value // by)


def find_candidates(
    device: ShimDevice, rule: Rule, data: bytes, *, list_capacity: int | None = None, shift: int = 0
) -> Candidates:
    """`list_capacity`: None for the least that is allowed."""
    geometry = device.geometry
    size = len(data)
    tiles = ceil_divided(size, geometry.tile)
    capacity = max(list_capacity or 0, tiles * geometry.slots)
    on_device, terms = uploaded(data, shift), words_in(rule.terms())
    slots, counts = room_for(2 * tiles * geometry.slots), room_for(tiles)
    found = Candidates(
        *(on_device, terms, room_for(tiles + 1), room_for(2 * capacity), room_for(tiles), room_for(1)),
    )
    loose = rule.threshold_loose
    device.launch("ohdiff_find_candidates", tiles, on_device, size, terms, loose, slots, counts)
    device.launch(
        *("ohdiff_place_tiles", 1, counts, tiles, capacity),
        *(found.first, found.unlisted, found.unlisted_count),
    )
    device.launch(
        *("ohdiff_list_candidates", tiles, on_device, size, terms, loose),
        *(slots, counts, found.first, found.list),
    )
    return found


@dataclass(frozen=True, slots=True)
class Cuts:
    """Cuts of a batch, on the device and off it."""

    bounds: Memory
    chunk_count: Memory
    ends: list[int]
    counts: list[int]


def cut(
    device: ShimDevice, rule: Rule, candidates: Candidates, segment_ends: list[int], *, last_is_open: bool = False
) -> Cuts:
    segments = len(segment_ends)
    chunks_max = segment_ends[-1] // rule.min_size + segments
    ends, found, counts = words_in(segment_ends), room_for(chunks_max), room_for(segments)
    grid = ceil_divided(segments, device.geometry.warps)
    device.launch(
        *("ohdiff_select_cuts", grid, candidates.data, candidates.terms, ends, segments, int(last_is_open)),
        *(rule.min_size, rule.avg_size, rule.max_size, rule.threshold_strict, rule.threshold_loose),
        *(candidates.first, candidates.list, candidates.unlisted, candidates.unlisted_count, found, counts),
    )
    cut_first, bounds = room_for(segments + 1), room_for(chunks_max + 1)
    device.launch("ohdiff_place_cuts", 1, counts, segments, cut_first)
    device.launch("ohdiff_gather_cuts", grid, ends, segments, rule.min_size, found, cut_first, bounds)
    chunks = cut_first.words()[-1]
    return Cuts(bounds, words_in([chunks]), bounds.words(chunks + 1)[1:], counts.words())


def hash_chunks(
    device: ShimDevice,
    data: bytes,
    ends: list[int],
    key: bytes,
    *,
    shift: int = 0,
    chunks_too_many: int = 0,
    leaves_too_many: int = 0,
) -> list[bytes]:
    """`chunks_too_many`, `leaves_too_many`: by how much grids and rooms are larger than need be."""
    chunks = len(ends)
    chunks_max = chunks + chunks_too_many
    leaves_max = ends[-1] // LEAF_SIZE + chunks + leaves_too_many
    bounds, count = words_in([0, *ends]), words_in([chunks])
    leaf_first, nodes, ids = room_for(chunks_max + 1), room_for(8 * leaves_max), room_for(8 * chunks_max)
    on_device, key_words = uploaded(data, shift), uploaded(key)
    grid = ceil_divided(leaves_max, device.geometry.threads)
    device.launch("ohdiff_place_leaves", 1, bounds, count, leaf_first)
    device.launch("ohdiff_hash_leaves", grid, on_device, len(data), bounds, count, leaf_first, key_words, nodes)
    device.launch("ohdiff_hash_trees", chunks_max, count, leaf_first, key_words, nodes, ids)
    return [ids.read()[32 * i : 32 * i + 32] for i in range(chunks)]


def expected_ids(data: bytes, ends: list[int], key: bytes) -> list[bytes]:
    return [blake3(data[start:end], key=key).digest() for start, end in pairwise([0, *ends])]


def find_features(
    device: ShimDevice, rule: Rule, data: bytes, starts: list[int], ends: list[int], *, shift: int = 0
) -> list[int]:
    features = room_for(FEATURES * len(ends))
    device.launch(
        *("ohdiff_find_features", len(ends), uploaded(data, shift), len(data), words_in(rule.terms())),
        *(words_in(starts), words_in(ends), features),
    )
    return features.words()


@dataclass(frozen=True, slots=True)
class NumbersJob:
    """Elements to be split or planes to be joined, and their base."""

    data: bytes
    transform: int = 0
    base: bytes | None = None
    cast: int = 0


def run_numbers(
    device: ShimDevice, direction: str, width: int, jobs: list[NumbersJob], *, blocks: int = 2, shift: int = 0
) -> list[bytes]:
    """`direction`: "split" or "join"."""
    sources = [uploaded(job.data, shift) for job in jobs]
    targets = [Memory(len(job.data), shift=shift) for job in jobs]
    bases = [None if job.base is None else uploaded(job.base, shift) for job in jobs]
    table = b""
    for job, source, target, base in zip(jobs, sources, targets, bases, strict=True):
        addresses = (source.address, target.address, base.address if base else 0)
        table += b"".join(
            value.to_bytes(8, "little")
            for value in (*addresses, len(job.data) // width, job.transform | job.cast << 32)
        )
    device.launch(f"ohdiff_{direction}_numbers_{width}", (blocks, len(jobs)), uploaded(table))
    return [target.read() for target in targets]
