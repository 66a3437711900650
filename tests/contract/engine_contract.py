"""The laws that every engine must keep, as one suite; an engine's test module says how to make one.

A law is a method of `EngineContract` that takes a `MakeEngine`. What an engine gives is compared with the slow oracle
of engine_oracle.py on every kind of data, and on sizes around every edge that a kernel may have.
"""

from __future__ import annotations

import mmap
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise

import engine_oracle as oracle
import pytest
from blake3 import blake3

from ohdiff.chunking.engine import Engine
from ohdiff.chunking.rule import ChunkingRule

MakeEngine = Callable[[ChunkingRule], Engine]

ID_KEY = bytes(range(32))
CHUNKER_KEY = bytes(range(32, 64))
# The smallest sizes that there are, so that little data has many chunks; odd ones; and sizes as people use them.
SMALL = ChunkingRule.from_key(CHUNKER_KEY, avg_size=4096, min_size=128, max_size=16384)
ODD = ChunkingRule.from_key(CHUNKER_KEY, avg_size=4999, min_size=1001, max_size=9001)
USUAL = ChunkingRule.from_key(CHUNKER_KEY, avg_size=65536)

# Blocks of NEON, AVX2 and AVX-512 scans; a scan starts at the first position that can end a chunk.
BLOCKS = (32832, 65792, 132096)
FIRST = SMALL.min_size - 1
LARGEST = FIRST + BLOCKS[-1] + 1100
EDGES = sorted(
    {
        *(0, 1, 62, 63, 64, 65, 127, 128, 129, 130, 191, 192, 193, LARGEST),
        *(
            size + step
            for size in (SMALL.avg_size, SMALL.max_size, SMALL.min_size + SMALL.max_size)
            for step in (-1, 0, 1)
        ),
        *(FIRST + size + step for size in (1023, 1024, 2047, 2048, 4096) for step in (-1, 0, 1)),
        *(FIRST + block + step for block in BLOCKS for step in (-1, 0, 1, 1024)),
    }
)


@cache
def samples() -> dict[str, bytes]:
    """Data of every kind, each of LARGEST bytes."""
    words, loose, strict = SMALL.words, SMALL.threshold_loose, SMALL.threshold_strict
    periods = (1, 2, 3, 4, 7, 64, 4096)
    patterns = {f"period {period}": oracle.random_bytes(f"period {period}", period) for period in periods}
    patterns |= {f"loose flood {period}": oracle.flooding_pattern(period, words, loose) for period in (2, 3, 4, 7, 64)}
    patterns["strict flood 64"] = oracle.flooding_pattern(64, words, strict)
    noise = oracle.random_bytes("noise", LARGEST)
    flood = oracle.periodic(patterns["loose flood 3"], LARGEST // 3)
    return {
        "noise": noise,
        "text": oracle.text_like("text", LARGEST),
        "zeros": bytes(LARGEST),
        "noise around a flood": noise[: LARGEST // 3] + flood + noise[: LARGEST - LARGEST // 3 - len(flood)],
        **{name: oracle.periodic(pattern, LARGEST) for name, pattern in patterns.items()},
    }


@cache
def sample_hashes(kind: str) -> list[int]:
    return oracle.hashes(samples()[kind], SMALL.words)


@cache
def expected_candidates(kind: str) -> tuple[list[int], list[int]]:
    return oracle.candidates_of(sample_hashes(kind), SMALL)


@cache
def expected_cuts(kind: str, size: int, rule: ChunkingRule) -> list[int]:
    return oracle.cuts_of(sample_hashes(kind)[:size], rule)


@cache
def usual_sample() -> tuple[bytes, list[int]]:
    """Data, and where USUAL cuts it."""
    data = oracle.random_bytes("usual", 3 * USUAL.max_size) + bytes(2 * USUAL.max_size)
    return data, oracle.cuts_of(oracle.hashes(data, USUAL.words), USUAL)


KINDS = tuple(samples())
FLOODS = tuple(kind for kind in KINDS if "flood" in kind)


def offsets(buffer: bytes) -> list[int]:
    return memoryview(buffer).cast("Q").tolist()


def integers(buffer: bytes) -> list[int]:
    return memoryview(buffer).cast("I").tolist()


def packed(ends: list[int]) -> bytes:
    return array("Q", ends).tobytes()


def cut_alone(engine: Engine, data: bytes) -> list[int]:
    cuts, counts = engine.cut_segments(data, packed([len(data)]))
    assert integers(counts) == [len(offsets(cuts))]
    return offsets(cuts)


def cut_in_pieces(engine: Engine, data: bytes, sizes: Iterator[int]) -> list[int]:
    """Cuts of a file that is read in pieces of these sizes."""
    cuts: list[int] = []
    start = read_to = 0
    while read_to < len(data) or not cuts:
        read_to = min(read_to + next(sizes), len(data))
        is_last = read_to == len(data)
        found = offsets(engine.cut_stream(data[start:read_to], is_last))
        cuts += [start + cut for cut in found]
        start = cuts[-1] if cuts else 0
        if is_last:
            break
        assert read_to - start < engine.rule.max_size
    return cuts


class EngineContract:
    """Each method is a law; it fails on an engine that breaks it."""

    def test_an_engine_says_what_it_is(self, make: MakeEngine) -> None:
        engine = make(SMALL)
        assert engine.name
        assert engine.kernel
        assert engine.rule == SMALL

    def test_candidates_are_those_of_the_definition(self, make: MakeEngine) -> None:
        engine = make(SMALL)
        for kind in KINDS:
            positions, found = expected_candidates(kind)
            for size in EDGES:
                count = bisect_left(positions, size)
                given_positions, given_hashes = engine.candidates(samples()[kind][:size])
                assert offsets(given_positions) == positions[:count], (kind, size)
                assert integers(given_hashes) == found[:count], (kind, size)

    @pytest.mark.parametrize("rule", [SMALL, ODD], ids=["small", "odd"])
    def test_cuts_are_those_of_the_definition(self, make: MakeEngine, rule: ChunkingRule) -> None:
        engine = make(rule)
        for kind in KINDS:
            for size in EDGES:
                data = samples()[kind][:size]
                assert cut_alone(engine, data) == expected_cuts(kind, size, rule), (kind, size)

    def test_cuts_at_the_usual_sizes_are_those_of_the_definition(self, make: MakeEngine) -> None:
        data, cuts = usual_sample()
        assert cut_alone(make(USUAL), data) == cuts

    def test_a_run_of_one_byte_is_cut_at_the_maximum_only(self, make: MakeEngine) -> None:
        size = 5 * SMALL.max_size + 1
        for byte in range(256):
            cuts = cut_alone(make(SMALL), bytes([byte]) * size)
            assert cuts == [*range(SMALL.max_size, size, SMALL.max_size), size]

    @pytest.mark.parametrize("kind", FLOODS)
    def test_data_that_floods_candidates_is_cut_like_any_other(self, make: MakeEngine, kind: str) -> None:
        assert len(expected_candidates(kind)[0]) > LARGEST // 250
        assert cut_alone(make(SMALL), samples()[kind]) == expected_cuts(kind, LARGEST, SMALL)

    def test_files_in_one_call_are_cut_as_if_alone(self, make: MakeEngine) -> None:
        engine = make(SMALL)
        files = [samples()[kind][:size] for kind in ("noise", "text", "loose flood 7", "zeros") for size in EDGES]
        ends = [0]
        for file in files:
            ends.append(ends[-1] + len(file))
        expected = [[start + cut for cut in cut_alone(engine, file)] for start, file in zip(ends, files, strict=False)]
        cuts, counts = engine.cut_segments(b"".join(files), packed(ends[1:]))
        assert offsets(cuts) == [cut for each in expected for cut in each]
        assert integers(counts) == [len(each) for each in expected]

    def test_an_empty_file_has_no_chunk(self, make: MakeEngine) -> None:
        engine = make(SMALL)
        assert engine.cut_segments(b"", b"") == (b"", b"")
        cuts, counts = engine.cut_segments(b"abc", packed([0, 0, 3, 3]))
        assert (offsets(cuts), integers(counts)) == ([3], [0, 0, 1, 0])
        assert engine.cut_stream(b"", True) == engine.cut_stream(b"", False) == b""

    def test_bytes_beyond_the_last_end_do_not_matter(self, make: MakeEngine) -> None:
        engine = make(SMALL)
        noise = samples()["noise"]
        for size in (0, 100, 50_000):
            alone = engine.cut_segments(noise[:size], packed([size]))
            assert engine.cut_segments(noise, packed([size])) == alone

    def test_ends_may_be_given_as_integers(self, make: MakeEngine) -> None:
        engine = make(SMALL)
        noise = samples()["noise"]
        ends = [1000, 1000, 70_000]
        assert engine.cut_segments(noise, ends) == engine.cut_segments(noise, packed(ends))

    @pytest.mark.parametrize("piece", [1000, 4096, 20_000, 65_536, 140_000])
    def test_cuts_do_not_depend_on_how_a_file_is_read(self, make: MakeEngine, piece: int) -> None:
        engine = make(SMALL)
        for kind in ("noise", "zeros", *FLOODS):
            data = samples()[kind]
            assert cut_in_pieces(engine, data, iter(lambda: piece, None)) == cut_alone(engine, data), kind

    def test_a_stream_is_cut_as_soon_as_a_maximum_is_there(self, make: MakeEngine) -> None:
        engine = make(SMALL)
        for kind in KINDS:
            data = samples()[kind][: SMALL.max_size]
            assert len(offsets(engine.cut_stream(data, False))) >= 1, kind

    def test_a_stream_keeps_back_what_more_bytes_could_still_change(self, make: MakeEngine) -> None:
        engine = make(SMALL)
        assert engine.cut_stream(bytes(SMALL.max_size - 1), False) == b""
        assert offsets(engine.cut_stream(bytes(SMALL.max_size - 1), True)) == [SMALL.max_size - 1]

    def test_ids_are_keyed_blake3_of_the_chunks(self, make: MakeEngine) -> None:
        engine = make(SMALL)
        noise = samples()["noise"]
        for ends in ([], [len(noise)], [1], [0, 0, 5, 1029, 2053, 10_000, 80_000]):
            chunks = [noise[start:end] for start, end in pairwise([0, *ends])]
            expected = b"".join(blake3(chunk, key=ID_KEY).digest() for chunk in chunks)
            assert engine.hash_chunks(noise, packed(ends)) == expected

    def test_features_are_those_of_the_definition(self, make: MakeEngine) -> None:
        engine = make(SMALL)
        for kind in ("noise", "text", "zeros", "period 4096", "loose flood 64"):
            data = samples()[kind]
            ends = [0, 10, 73, 136, *range(1223, 60_000, 1087), 100_000, LARGEST]
            given = integers(engine.features(data, packed(ends)))
            chunks = [data[start:end] for start, end in pairwise([0, *ends])]
            assert given == [value for chunk in chunks for value in oracle.features_of(chunk, SMALL.words)], kind

    def test_any_contiguous_buffer_will_do_and_is_left_as_it_was(self, make: MakeEngine) -> None:
        engine = make(SMALL)
        data = samples()["noise"][:65_536]
        ends = packed([30_000, 65_536])
        with mmap.mmap(-1, len(data)) as mapped:
            mapped[:] = data
            words = array("Q", data)
            for buffer in (bytearray(data), memoryview(data), memoryview(b"x" + data)[1:], mapped, words):
                assert engine.cut_segments(buffer, bytearray(ends)) == engine.cut_segments(data, ends)
                assert engine.cut_stream(buffer, True) == engine.cut_stream(data, True)
                assert engine.hash_chunks(buffer, memoryview(ends)) == engine.hash_chunks(data, ends)
                assert engine.features(buffer, array("Q", ends)) == engine.features(data, ends)
                assert engine.candidates(buffer) == engine.candidates(data)
                assert bytes(buffer) == data

    def test_offsets_that_make_no_sense_are_refused(self, make: MakeEngine) -> None:
        engine = make(SMALL)
        for call in (engine.cut_segments, engine.hash_chunks, engine.features):
            for ends in ([101], [50, 40], [101, 100], [2**64 - 1]):
                with pytest.raises(ValueError, match=r"ascend|beyond"):
                    call(bytes(100), packed(ends))

    def test_threads_may_share_an_engine(self, make: MakeEngine) -> None:
        engine = make(SMALL)
        parts = [samples()[kind][:60_000] for kind in KINDS] * 4

        def work(data: bytes) -> tuple[bytes, bytes, bytes]:
            cuts = engine.cut_stream(data, True)
            return cuts, engine.hash_chunks(data, cuts), engine.features(data, cuts)

        expected = [work(data) for data in parts]
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(work, parts)) == expected


def laws_of(suite: type[EngineContract]) -> list[tuple[str, dict[str, object]]]:
    """Every law with each set of its parameters."""
    laws: list[tuple[str, dict[str, object]]] = []
    for name, law in vars(suite).items():
        if not name.startswith("test_"):
            continue
        marks = [mark for mark in getattr(law, "pytestmark", []) if mark.name == "parametrize"]
        laws += [(name, {mark.args[0]: value}) for mark in marks for value in mark.args[1]] or [(name, {})]
    return laws
