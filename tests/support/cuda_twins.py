"""The CUDA kernels' twins on the CPU, by kernels/cuda/README.md: same parameters, same buffers, same results.

They read and write checked memory only, and insist on the geometry that the README asks for. The chaining values of
BLAKE3 are scratch that nothing but the next kernel reads, so the twins keep whole ids there.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from blake3 import blake3

from ohdiff import _kernels

THREADS, PLACE_THREADS, TILE, SLOTS, LEAF, WARPS = 128, 256, 65_536, 128, 1024, 4


@dataclass
class Launch:
    """One launch; `machine` is the memory."""

    machine: Any
    name: str
    blocks: int
    threads: int
    args: tuple[int, ...]
    is_wrong: bool = False

    def words(self, address: int, count: int) -> list[int]:
        """Numbers of 32 bits."""
        assert address % 4 == 0, f"{self.name}: a buffer is not aligned"
        return array("I", self.machine.read(address, 4 * count)).tolist()

    def write(self, address: int, words: list[int]) -> None:
        """The same, written; a kernel that is to be wrong gets the last one wrong."""
        if self.is_wrong and words:
            words = [*words[:-1], words[-1] ^ 1]
        self.machine.write(address, array("I", words).tobytes())

    def check_geometry(self, blocks: int, threads: int) -> None:
        """Exactly these threads, and exactly these blocks."""
        assert (self.blocks, self.threads) == (blocks, threads), f"{self.name}: wrong geometry"


def tiles_of(size: int) -> int:
    return -(-size // TILE)


def chunker_of(terms: list[int], sizes: tuple[int, int, int], strict: int, loose: int) -> _kernels.Chunker:
    """The CPU's chunker for T[b] as a kernel gets it."""
    words = [*terms[:16], *(terms[16 * high] ^ terms[0] for high in range(16))]
    kernel = _kernels.available_kernels()[0]
    return _kernels.Chunker(struct.pack("<32I", *words), *sizes, strict, loose, kernel)


def candidates_by_tile(launch: Launch, data: int, size: int, terms: int, threshold: int) -> list[list[int]]:
    """(offset, hash) pairs, flat, of each tile."""
    chunker = chunker_of(launch.words(terms, 256), (128, 4096, 16384), 1, threshold)
    positions, hashes = chunker.candidates(launch.machine.read(data, size))
    tiles: list[list[int]] = [[] for _ in range(tiles_of(size))]
    for position, found in zip(array("Q", positions), array("I", hashes), strict=True):
        tiles[position // TILE] += (position, found)
    return tiles


def find_candidates(launch: Launch) -> None:
    data, size, terms, threshold, slots, counts = launch.args
    launch.check_geometry(tiles_of(size), THREADS)
    found = candidates_by_tile(launch, data, size, terms, threshold)
    launch.machine.check(slots, 8 * SLOTS * len(found))
    for tile, pairs in enumerate(found):
        launch.machine.write(slots + 8 * SLOTS * tile, array("I", pairs[: 2 * SLOTS]).tobytes())
    launch.write(counts, [len(pairs) // 2 for pairs in found])


def place_tiles(launch: Launch) -> None:
    counts, tiles, capacity, first, unlisted, unlisted_count = launch.args
    launch.check_geometry(1, PLACE_THREADS)
    numbers = launch.words(counts, tiles)
    room = capacity - sum(number for number in numbers if number <= SLOTS)
    assert room >= 0, "the list is too small"
    listed, missing = [], []
    for tile, number in enumerate(numbers):
        if number > SLOTS and (number > room or missing):
            missing.append(tile)
            listed.append(0)
            continue
        room -= number if number > SLOTS else 0
        listed.append(number)
    launch.write(first, list(accumulate(listed, initial=0)))
    launch.machine.write(unlisted, array("I", missing).tobytes())
    launch.machine.write(unlisted_count, array("I", [len(missing)]).tobytes())


def list_candidates(launch: Launch) -> None:
    data, size, terms, threshold, slots, counts, first, listed = launch.args
    launch.check_geometry(tiles_of(size), THREADS)
    places = launch.words(first, tiles_of(size) + 1)
    numbers = launch.words(counts, tiles_of(size))
    flooded = None
    for tile, (start, end) in enumerate(pairwise(places)):
        if end == start:
            continue
        if numbers[tile] <= SLOTS:
            pairs = launch.words(slots + 8 * SLOTS * tile, 2 * numbers[tile])
        else:
            flooded = flooded or candidates_by_tile(launch, data, size, terms, threshold)
            pairs = flooded[tile]
        launch.machine.write(listed + 8 * start, array("I", pairs).tobytes())


def select_cuts(launch: Launch) -> None:
    data, terms, segment_ends, segments, is_open, *rest = launch.args
    minimum, average, maximum, strict, loose, first, listed, unlisted, unlisted_count, found, cut_counts = rest
    launch.check_geometry(-(-segments // WARPS), THREADS)
    ends = launch.words(segment_ends, segments)
    chunker = chunker_of(launch.words(terms, 256), (minimum, average, maximum), strict, loose)
    octets = launch.machine.read(data, ends[-1])
    (missing,) = launch.words(unlisted_count, 1)
    launch.words(unlisted, missing)
    places = launch.words(first, tiles_of(ends[-1]) + 1)
    positions = launch.words(listed, 2 * places[-1])[::2]
    assert positions == sorted(positions), "the list does not ascend"
    numbers = []
    for row, (start, end) in enumerate(pairwise([0, *ends])):
        is_last = not (is_open and row == segments - 1)
        cuts = [start + cut for cut in array("Q", chunker.cut_stream(octets[start:end], is_last))]
        launch.machine.write(found + 4 * (start // minimum + row), array("I", cuts).tobytes())
        numbers.append(len(cuts))
    launch.write(cut_counts, numbers)


def place_cuts(launch: Launch) -> None:
    cut_counts, segments, cut_first = launch.args
    launch.check_geometry(1, PLACE_THREADS)
    launch.write(cut_first, list(accumulate(launch.words(cut_counts, segments), initial=0)))


def gather_cuts(launch: Launch) -> None:
    segment_ends, segments, minimum, found, cut_first, bounds = launch.args
    launch.check_geometry(-(-segments // WARPS), THREADS)
    starts = [0, *launch.words(segment_ends, segments)]
    gathered = [0]
    for row, (before, after) in enumerate(pairwise(launch.words(cut_first, segments + 1))):
        gathered += launch.words(found + 4 * (starts[row] // minimum + row), after - before)
    launch.write(bounds, gathered)


def place_leaves(launch: Launch) -> None:
    bounds, chunk_count, leaf_first = launch.args
    launch.check_geometry(1, PLACE_THREADS)
    (count,) = launch.words(chunk_count, 1)
    ends = launch.words(bounds, count + 1)
    leaves = [max(1, -(-(end - start) // LEAF)) for start, end in pairwise(ends)]
    launch.write(leaf_first, list(accumulate(leaves, initial=0)))


def hash_leaves(launch: Launch) -> None:
    data, size, bounds, chunk_count, leaf_first, key, nodes = launch.args
    (count,) = launch.words(chunk_count, 1)
    places = launch.words(leaf_first, count + 1)
    assert launch.blocks * THREADS >= places[-1], "too few blocks for the leaves"
    launch.check_geometry(launch.blocks, THREADS)
    launch.machine.check(nodes, 32 * places[-1])
    octets, secret = launch.machine.read(data, size), launch.machine.read(key, 32)
    for leaf, (start, end) in zip(places, pairwise(launch.words(bounds, count + 1)), strict=False):
        digest = blake3(octets[start:end], key=secret).digest()
        launch.write(nodes + 32 * leaf, array("I", digest).tolist())


def hash_trees(launch: Launch) -> None:
    chunk_count, leaf_first, _, nodes, ids = launch.args
    (count,) = launch.words(chunk_count, 1)
    assert launch.blocks >= count, "too few blocks for the chunks"
    launch.check_geometry(launch.blocks, THREADS)
    found = [word for leaf in launch.words(leaf_first, count) for word in launch.words(nodes + 32 * leaf, 8)]
    launch.write(ids, found)


def find_features(launch: Launch) -> None:
    data, size, terms, starts, ends, features = launch.args
    chunks = launch.blocks
    launch.check_geometry(chunks, THREADS)
    chunker = chunker_of(launch.words(terms, 256), (128, 4096, 16384), 1, 1 << 20)
    octets = launch.machine.read(data, size)
    ranges = zip(launch.words(starts, chunks), launch.words(ends, chunks), strict=True)
    found = [chunker.features(octets[start:end], [end - start]) for start, end in ranges]
    launch.write(features, array("I", b"".join(found)).tolist())


def split_numbers(launch: Launch) -> None:
    """One job: addresses of elements, planes and base, the count, and transform | cast << 32."""
    width = int(launch.name[-1])
    source, target, base, count, codes = array("Q", launch.machine.read(launch.args[0], 40))
    transform, cast = codes & 0xFFFFFFFF, codes >> 32
    launch.check_geometry(-(-count // (4 * THREADS)), THREADS)
    base_width = 4 if cast else width
    stood_on = launch.machine.read(base, count * base_width) if transform else None
    data = launch.machine.read(source, count * width)
    planes = bytearray(_kernels.split_numbers(data, width, transform, stood_on, cast))
    if launch.is_wrong:
        planes[-1] ^= 1
    launch.machine.write(target, bytes(planes))


TWINS: dict[str, Callable[[Launch], None]] = {
    "ohdiff_find_candidates": find_candidates,
    "ohdiff_place_tiles": place_tiles,
    "ohdiff_list_candidates": list_candidates,
    "ohdiff_select_cuts": select_cuts,
    "ohdiff_place_cuts": place_cuts,
    "ohdiff_gather_cuts": gather_cuts,
    "ohdiff_place_leaves": place_leaves,
    "ohdiff_hash_leaves": hash_leaves,
    "ohdiff_hash_trees": hash_trees,
    "ohdiff_find_features": find_features,
    **{f"ohdiff_split_numbers_{width}": split_numbers for width in (1, 2, 4, 8)},
}
