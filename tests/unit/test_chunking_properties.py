"""Laws of cutting on generated data: chunks join to the input, sizes are bounded, splits and kernels do not matter."""

from __future__ import annotations

import random
from itertools import accumulate, pairwise

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ohdiff.chunking.cpu import CpuEngine, available_kernels
from ohdiff.chunking.rule import ChunkingRule

# A busy machine makes no law untrue.
untimed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

ID_KEY = bytes(32)
RULES = [
    ChunkingRule.from_key(bytes([1]) * 32, avg_size=4096, min_size=128, max_size=16384),
    ChunkingRule.from_key(bytes([2]) * 32, avg_size=4097, min_size=3000, max_size=5000),
    ChunkingRule.from_key(bytes([3]) * 32, avg_size=30000),
]
ENGINES = {rule: [CpuEngine(rule, ID_KEY, kernel) for kernel in available_kernels()] for rule in RULES}

# Data as a few runs, each repeating a short or long pattern: that is where kernels, blocks and lists have their edges.
runs = st.lists(st.tuples(st.binary(min_size=1, max_size=80), st.integers(0, 40_000)), max_size=6)
noise = st.tuples(st.integers(0, 2**32), st.integers(0, 300_000))
rules = st.sampled_from(RULES)


def made_of(repeated: list[tuple[bytes, int]], seed: int, noise_size: int) -> bytes:
    parts = [(pattern * (size // len(pattern) + 1))[:size] for pattern, size in repeated]
    parts.insert(len(parts) // 2, random.Random(seed).randbytes(noise_size))
    return b"".join(parts)


data_sets = st.builds(lambda repeated, extra: made_of(repeated, *extra), runs, noise)


def offsets(buffer: bytes) -> list[int]:
    return memoryview(buffer).cast("Q").tolist()


@untimed
@given(rules, data_sets)
def test_chunks_join_to_the_input_within_their_size_bounds(rule: ChunkingRule, data: bytes) -> None:
    cuts = offsets(ENGINES[rule][0].cut_stream(data, True))
    sizes = [end - start for start, end in pairwise([0, *cuts])]
    assert sum(sizes) == len(data)
    assert all(rule.min_size <= size <= rule.max_size for size in sizes[:-1])
    assert all(0 < size <= rule.max_size for size in sizes[-1:])


@untimed
@given(rules, data_sets)
def test_all_kernels_give_the_same(rule: ChunkingRule, data: bytes) -> None:
    best, *others = ENGINES[rule]
    cuts = best.cut_stream(data, True)
    for other in others:
        assert other.candidates(data) == best.candidates(data)
        assert other.cut_stream(data, True) == cuts
        assert other.features(data, cuts) == best.features(data, cuts)


@untimed
@given(rules, data_sets, st.lists(st.integers(1, 100_000), min_size=1, max_size=8), st.sampled_from([0, -1]))
def test_cuts_do_not_depend_on_the_sizes_of_reads(
    rule: ChunkingRule, data: bytes, read_sizes: list[int], kernel: int
) -> None:
    engine = ENGINES[rule][kernel]
    cuts: list[int] = []
    start = read_to = turn = 0
    while read_to < len(data):
        read_to = min(read_to + read_sizes[turn % len(read_sizes)], len(data))
        turn += 1
        cuts += [start + cut for cut in offsets(engine.cut_stream(data[start:read_to], read_to == len(data)))]
        start = cuts[-1] if cuts else 0
        assert read_to - start < rule.max_size
    assert cuts == offsets(engine.cut_stream(data, True))


@untimed
@given(rules, data_sets)
def test_a_file_cut_from_any_of_its_chunks_on_is_cut_alike(rule: ChunkingRule, data: bytes) -> None:
    engine = ENGINES[rule][0]
    cuts = offsets(engine.cut_stream(data, True))
    for number, start in enumerate(cuts):
        rest = offsets(engine.cut_stream(data[start:], True))
        assert [start + cut for cut in rest] == cuts[number + 1 :]


@untimed
@given(rules, st.lists(data_sets, max_size=5))
def test_files_in_one_batch_are_cut_as_if_alone(rule: ChunkingRule, files: list[bytes]) -> None:
    engine = ENGINES[rule][0]
    ends = list(accumulate(map(len, files)))
    cuts, counts = engine.cut_segments(b"".join(files), ends)
    alone = [offsets(engine.cut_stream(file, True)) for file in files]
    starts = [0, *ends]
    assert offsets(cuts) == [start + cut for start, each in zip(starts, alone, strict=False) for cut in each]
    assert memoryview(counts).cast("I").tolist() == [len(each) for each in alone]


@untimed
@given(rules, data_sets, st.binary(min_size=1, max_size=100))
def test_an_insertion_changes_cuts_only_until_they_meet_again(rule: ChunkingRule, data: bytes, extra: bytes) -> None:
    """Cuts behind a common cut are common: what dedup rests on."""
    engine = ENGINES[rule][0]
    before = offsets(engine.cut_stream(data, True))
    after = [cut - len(extra) for cut in offsets(engine.cut_stream(extra + data, True))]
    assert not data or before[-1] == after[-1] == len(data)
    first = min(set(before) & set(after), default=1)
    assert [cut for cut in before if cut >= first] == [cut for cut in after if cut >= first]
