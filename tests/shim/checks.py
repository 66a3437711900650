"""What the kernels owe: the same as the CPU, to the byte. Each check raises AssertionError where they differ."""

from __future__ import annotations

from itertools import accumulate

from ohdiff._kernels import join_numbers, split_numbers

from .device import ShimDevice
from .pipeline import (
    NumbersJob,
    Rule,
    cut,
    expected_ids,
    find_candidates,
    find_features,
    hash_chunks,
    run_numbers,
)
from .samples import KEY, TINY, beginning_before, chunks_around_a_sample, flood, mixed, random_bytes, uneven_ends

# Leaves of a KiB, blocks of 64 bytes, trees of up to 17 leaves: each with neighbours on both sides.
CHUNK_SIZES = [0, 1, 63, 64, 65, 127, 128, 129, 1023, 1024, 1025, 2047, 2048, 2049, 3072, 3073, 5000, 7169, 17_000]


def check_candidates(device: ShimDevice, rule: Rule, data: bytes, shift: int = 0) -> None:
    """With room for everything, the list is what the CPU finds."""
    found = find_candidates(device, rule, data, list_capacity=len(data), shift=shift)
    positions, hashes = rule.chunker().candidates(data)
    expected = list(zip(memoryview(positions).cast("Q").tolist(), memoryview(hashes).cast("I").tolist(), strict=True))
    assert found.listed() == expected
    assert found.unlisted_count.words() == [0]


def check_scarce_room(device: ShimDevice, rule: Rule, data: bytes, list_capacity: int | None = None) -> None:
    """With little room, whole flooded tiles from some tile on are missing from the list, and are named."""
    found = find_candidates(device, rule, data, list_capacity=list_capacity)
    positions = memoryview(rule.chunker().candidates(data)[0]).cast("Q").tolist()
    tile, slots = device.geometry.tile, device.geometry.slots
    missing = set(found.unlisted.words(found.unlisted_count.words()[0]))
    assert [offset for offset, _ in found.listed()] == [at for at in positions if at // tile not in missing]
    counts = [0] * (len(data) // tile + 1)
    for at in positions:
        counts[at // tile] += 1
    flooded = [number for number, count in enumerate(counts) if count > slots]
    assert sorted(missing) == flooded[len(flooded) - len(missing) :]
    room = max(list_capacity or 0, slots * -(-len(data) // tile))
    taken = sum(count for number, count in enumerate(counts) if number not in missing)
    assert taken <= room
    assert not missing or taken + counts[min(missing)] > room


def check_cuts(
    device: ShimDevice,
    rule: Rule,
    data: bytes,
    ends: list[int],
    *,
    list_capacity: int | None = None,
    shift: int = 0,
    last_is_open: bool = False,
) -> None:
    """Every file is cut as if it were alone, an open one as a stream."""
    candidates = find_candidates(device, rule, data, list_capacity=list_capacity, shift=shift)
    cuts = cut(device, rule, candidates, ends, last_is_open=last_is_open)
    chunker = rule.chunker()
    closed = ends[:-1] if last_is_open else ends
    expected_ends, expected_counts = (memoryview(part) for part in chunker.cut_segments(data, closed))
    expected = expected_ends.cast("Q").tolist()
    counts = expected_counts.cast("I").tolist()
    if last_is_open:
        start = closed[-1] if closed else 0
        stream = memoryview(chunker.cut_stream(data[start:], False)).cast("Q").tolist()
        expected += [start + end for end in stream]
        counts.append(len(stream))
    assert cuts.ends == expected
    assert cuts.counts == counts
    assert cuts.bounds.words(1) == [0]


def check_ids(device: ShimDevice, data: bytes, ends: list[int], **options: int) -> None:
    assert hash_chunks(device, data, ends, KEY, **options) == expected_ids(data, ends, KEY)


def check_features(device: ShimDevice, rule: Rule, data: bytes, ends: list[int], shift: int = 0) -> None:
    """Of all chunks, and of every third alone."""
    expected = memoryview(rule.chunker().features(data, ends)).cast("I").tolist()
    starts = [0, *ends[:-1]]
    assert find_features(device, rule, data, starts, ends, shift=shift) == expected
    chosen = [word for first in range(0, len(expected), 36) for word in expected[first : first + 12]]
    assert find_features(device, rule, data, starts[::3], ends[::3], shift=shift) == chosen


def check_numbers(device: ShimDevice, width: int, jobs: list[NumbersJob], *, blocks: int = 2, shift: int = 0) -> None:
    """Planes are the CPU's, and lead back to the elements."""
    planes = run_numbers(device, "split", width, jobs, blocks=blocks, shift=shift)
    assert planes == [split_numbers(job.data, width, job.transform, job.base, job.cast) for job in jobs]
    back = [NumbersJob(plane, job.transform, job.base, job.cast) for plane, job in zip(planes, jobs, strict=True)]
    elements = run_numbers(device, "join", width, back, blocks=blocks, shift=shift)
    assert elements == [job.data for job in jobs]
    assert elements == [join_numbers(job.data, width, job.transform, job.base, job.cast) for job in back]


def check_all_briefly(device: ShimDevice) -> None:
    """Every kernel, on little data that has all of their borders: for mutants and sanitizers."""
    check_batches_briefly(device)
    chunk_ends = list(accumulate(CHUNK_SIZES))
    noise = random_bytes("chunks", chunk_ends[-1])
    check_ids(device, noise, chunk_ends, shift=1)
    check_features(device, TINY, noise, chunk_ends, shift=5)
    check_features(device, TINY, *chunks_around_a_sample())
    for width in (1, 2, 4, 8):
        job = NumbersJob(noise[: 301 * width], 2, noise[-301 * width :])
        check_numbers(device, width, [job, NumbersJob(b"")], shift=width)
        check_numbers(device, width, [job])


def check_batches_briefly(device: ShimDevice) -> None:
    """From bytes to cuts."""
    data = mixed(3 * device.geometry.tile + 4099)
    check_candidates(device, TINY, data, shift=3)
    check_candidates(device, TINY, beginning_before(63, TINY.threshold_loose))
    check_scarce_room(device, TINY, data)
    check_scarce_room(device, TINY, random_bytes("tiles", 20 * device.geometry.tile))
    check_cuts(device, TINY, data, uneven_ends(len(data)), list_capacity=len(data) // 12)
    check_cuts(device, TINY, data[:9001], [9001], last_is_open=True)
    check_cuts(device, TINY, data[:3001], [*range(0, 3001, 7), 3001])
    check_cuts(device, TINY, flood(6000), [0, 6000], shift=1)
    first_possible = beginning_before(TINY.min_size - 1, TINY.threshold_strict)
    check_cuts(device, TINY, first_possible, [len(first_possible)])
    check_cuts(device, TINY, bytes(TINY.max_size), [TINY.max_size], last_is_open=True)
