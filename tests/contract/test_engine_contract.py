"""The engine contract on every engine and kernel, and on engines with one planted fault each, which it must catch."""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

import engine_oracle as oracle
import pytest
from blake3 import blake3
from engine_contract import ID_KEY, SMALL, EngineContract, MakeEngine, integers, laws_of, offsets, packed

from ohdiff.chunking.cpu import CpuEngine, available_kernels
from ohdiff.chunking.rule import ChunkingRule

if TYPE_CHECKING:
    from typing_extensions import Buffer


class TestEngineContract(EngineContract):
    """The suite itself, on what we ship and this machine can run."""

    @pytest.fixture(params=available_kernels())
    def make(self, request: pytest.FixtureRequest) -> MakeEngine:
        return lambda rule: CpuEngine(rule, ID_KEY, request.param)


def test_the_oracles_recurrence_is_the_sum_over_a_window() -> None:
    data = oracle.random_bytes("sum", 1000)
    found = oracle.hashes(data, SMALL.words)
    for at in (63, 64, 65, 127, 500, 999):
        assert found[at] == oracle.window_hash(data[at - 63 : at + 1], SMALL.words)


def ends_in(given: Buffer | Sequence[int]) -> list[int]:
    return list(given) if isinstance(given, list) else offsets(bytes(memoryview(given)))  # type: ignore[arg-type]


class Nameless(CpuEngine):
    name = ""


class LosesACandidate(CpuEngine):
    def candidates(self, data: Buffer) -> tuple[bytes, bytes]:
        positions, hashes = super().candidates(data)
        return positions[:-8], hashes[:-4]


class JudgesIncompleteWindows(CpuEngine):
    def candidates(self, data: Buffer) -> tuple[bytes, bytes]:
        head = memoryview(data)[:63]
        early = [at for at, found in enumerate(oracle.hashes(bytes(head), self.rule.words)) if found < 1 << 28]
        positions, hashes = super().candidates(data)
        return packed(early) + positions, bytes(4 * len(early)) + hashes


class CutsByAnotherMinimum(CpuEngine):
    def __init__(self, rule: ChunkingRule, id_key: bytes) -> None:
        other = ChunkingRule(
            rule.words, rule.min_size + 200, rule.avg_size, rule.max_size, rule.threshold_strict, rule.threshold_loose
        )
        super().__init__(other, id_key)
        self.rule = rule


class StrictUpToTheMaximum(CpuEngine):
    def __init__(self, rule: ChunkingRule, id_key: bytes) -> None:
        other = ChunkingRule(
            rule.words, rule.min_size, rule.avg_size, rule.max_size, rule.threshold_strict, rule.threshold_strict
        )
        super().__init__(other, id_key)
        self.rule = rule


class CutsRunsAtTheAverage(CpuEngine):
    def cut_segments(self, data: Buffer, segment_ends: Buffer | Sequence[int]) -> tuple[bytes, bytes]:
        if len(set(bytes(data))) == 1:
            size = memoryview(data).nbytes
            cuts = [*range(self.rule.avg_size, size, self.rule.avg_size), size]
            return packed(cuts), array("I", [len(cuts)]).tobytes()
        return super().cut_segments(data, segment_ends)


class CapsItsLists(CpuEngine):
    def cut_segments(self, data: Buffer, segment_ends: Buffer | Sequence[int]) -> tuple[bytes, bytes]:
        if len(super().candidates(data)[1]) // 4 > memoryview(data).nbytes // 300:
            size = memoryview(data).nbytes
            cuts = [*range(self.rule.max_size, size, self.rule.max_size), size]
            return packed(cuts), array("I", [len(cuts)]).tobytes()
        return super().cut_segments(data, segment_ends)


class CutsFilesAsOneStream(CpuEngine):
    def cut_segments(self, data: Buffer, segment_ends: Buffer | Sequence[int]) -> tuple[bytes, bytes]:
        ends = ends_in(segment_ends)
        cuts = offsets(super().cut_stream(memoryview(data)[: ends[-1] if ends else 0], True))
        cuts = sorted({*cuts, *ends} - {0})
        starts = [0, *ends]
        counts = [sum(start < cut <= end for cut in cuts) for start, end in zip(starts, ends, strict=False)]
        return packed(cuts), array("I", counts).tobytes()


class ChunkForAnEmptyFile(CpuEngine):
    def cut_segments(self, data: Buffer, segment_ends: Buffer | Sequence[int]) -> tuple[bytes, bytes]:
        cuts, counts = super().cut_segments(data, segment_ends)
        if 0 not in integers(counts):
            return cuts, counts
        return packed(sorted([*offsets(cuts), 0])), array("I", [max(1, count) for count in integers(counts)]).tobytes()


class CutsToTheEndOfTheBuffer(CpuEngine):
    def cut_segments(self, data: Buffer, segment_ends: Buffer | Sequence[int]) -> tuple[bytes, bytes]:
        ends = ends_in(segment_ends)
        if ends and ends[-1] <= memoryview(data).nbytes:
            ends = [*ends[:-1], memoryview(data).nbytes]
        return super().cut_segments(data, ends)


class BuffersOfEndsOnly(CpuEngine):
    def cut_segments(self, data: Buffer, segment_ends: Buffer | Sequence[int]) -> tuple[bytes, bytes]:
        return super().cut_segments(data, memoryview(segment_ends))  # type: ignore[arg-type]


class EveryPieceIsTheLast(CpuEngine):
    def cut_stream(self, data: Buffer, is_last: bool) -> bytes:
        return super().cut_stream(data, is_last or memoryview(data).nbytes > 0)


class WaitsForTheEnd(CpuEngine):
    def cut_stream(self, data: Buffer, is_last: bool) -> bytes:
        return super().cut_stream(data, True) if is_last else b""


class HashesWithoutAKey(CpuEngine):
    def hash_chunks(self, data: Buffer, cuts: Buffer) -> bytes:
        ends = offsets(bytes(memoryview(cuts)))
        view = memoryview(data).cast("B")
        starts = [0, *ends]
        return b"".join(blake3(view[start:end]).digest() for start, end in zip(starts, ends, strict=False))


class SamplesAcrossChunks(CpuEngine):
    def features(self, data: Buffer, cuts: Buffer) -> bytes:
        ends = offsets(bytes(memoryview(cuts)))
        view = memoryview(data).cast("B")
        starts = [max(0, start - 63) for start in [0, *ends]]
        pairs = zip(starts, ends, strict=False)
        return b"".join(super(SamplesAcrossChunks, self).features(view[a:b], packed([b - a])) for a, b in pairs)


class BytesOnly(CpuEngine):
    def cut_stream(self, data: Buffer, is_last: bool) -> bytes:
        if not isinstance(data, bytes):
            raise TypeError("bytes, please")
        return super().cut_stream(data, is_last)


class WritesIntoTheData(CpuEngine):
    def candidates(self, data: Buffer) -> tuple[bytes, bytes]:
        found = super().candidates(data)
        if isinstance(data, bytearray):
            data[-1] ^= 1
        return found


class ClampsOffsets(CpuEngine):
    def features(self, data: Buffer, cuts: Buffer) -> bytes:
        ends = sorted(min(end, memoryview(data).nbytes) for end in offsets(bytes(memoryview(cuts))))
        return super().features(data, packed(ends))


class KeepsStateBetweenCalls(CpuEngine):
    last_cuts = b""

    def cut_stream(self, data: Buffer, is_last: bool) -> bytes:
        self.last_cuts = super().cut_stream(data, is_last)
        time.sleep(0.001)
        return self.last_cuts


FAULTS: list[tuple[type[CpuEngine], str]] = [
    (Nameless, "test_an_engine_says_what_it_is"),
    (LosesACandidate, "test_candidates_are_those_of_the_definition"),
    (JudgesIncompleteWindows, "test_candidates_are_those_of_the_definition"),
    (CutsByAnotherMinimum, "test_cuts_are_those_of_the_definition"),
    (StrictUpToTheMaximum, "test_cuts_are_those_of_the_definition"),
    (StrictUpToTheMaximum, "test_cuts_at_the_usual_sizes_are_those_of_the_definition"),
    (CutsRunsAtTheAverage, "test_a_run_of_one_byte_is_cut_at_the_maximum_only"),
    (CapsItsLists, "test_data_that_floods_candidates_is_cut_like_any_other"),
    (CutsFilesAsOneStream, "test_files_in_one_call_are_cut_as_if_alone"),
    (ChunkForAnEmptyFile, "test_an_empty_file_has_no_chunk"),
    (CutsToTheEndOfTheBuffer, "test_bytes_beyond_the_last_end_do_not_matter"),
    (BuffersOfEndsOnly, "test_ends_may_be_given_as_integers"),
    (EveryPieceIsTheLast, "test_cuts_do_not_depend_on_how_a_file_is_read"),
    (WaitsForTheEnd, "test_a_stream_is_cut_as_soon_as_a_maximum_is_there"),
    (EveryPieceIsTheLast, "test_a_stream_keeps_back_what_more_bytes_could_still_change"),
    (HashesWithoutAKey, "test_ids_are_keyed_blake3_of_the_chunks"),
    (SamplesAcrossChunks, "test_features_are_those_of_the_definition"),
    (BytesOnly, "test_any_contiguous_buffer_will_do_and_is_left_as_it_was"),
    (WritesIntoTheData, "test_any_contiguous_buffer_will_do_and_is_left_as_it_was"),
    (ClampsOffsets, "test_offsets_that_make_no_sense_are_refused"),
    (KeepsStateBetweenCalls, "test_threads_may_share_an_engine"),
]


def holds(law: str, make: MakeEngine) -> bool:
    """Whether a law holds, with each set of its parameters."""
    for found, arguments in laws_of(EngineContract):
        if found != law:
            continue
        try:
            getattr(EngineContract(), law)(make, **arguments)
        except (Exception, pytest.fail.Exception):  # noqa: BLE001 -- any failure is the finding
            return False
    return True


@pytest.mark.parametrize(("kind", "law"), FAULTS)
def test_the_suite_catches_a_planted_fault(kind: type[CpuEngine], law: str) -> None:
    assert holds(law, lambda rule: CpuEngine(rule, ID_KEY))
    assert not holds(law, lambda rule: kind(rule, ID_KEY))


def test_every_law_is_broken_by_a_planted_fault() -> None:
    assert {law for law, _ in laws_of(EngineContract)} == {law for _, law in FAULTS}
