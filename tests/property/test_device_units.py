"""Laws of units on a device: however long they are, whenever they may start or not, the results are the same."""

from __future__ import annotations

import random
import sys
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import fake_cupy

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "contract"))

import engine_oracle as oracle
from engine_contract import ID_KEY, SMALL, packed

from ohdiff.chunking.cpu import CpuEngine
from ohdiff.chunking.cuda.batches import ChunkBatches, FileBatches
from ohdiff.chunking.cuda.engine import CudaEngine, CudaOptions
from ohdiff.chunking.device_memory import DeviceMemory
from ohdiff.chunking.engine import cut_and_hash_segments, cut_and_hash_stream

DATA = oracle.random_bytes("units", 1_200_000)


class Chance:
    """Lets units start, or not, by chance, and gives them sizes by chance."""

    def __init__(self, seed: int, refusals: float) -> None:
        self.chance = random.Random(seed)
        self.refusals = refusals
        self.in_flight = 0

    def wait(self, *, is_movable: bool) -> bool:
        return not is_movable or self.chance.random() >= self.refusals

    def turn(self, kind: str, size_max: int, *, may_wait: bool, is_movable: bool) -> Chance | None:
        if (not may_wait and self.chance.random() < 0.5) or (is_movable and self.chance.random() < self.refusals):
            return None
        self.in_flight += 1
        assert self.in_flight <= 2
        return self

    @property
    def size_bytes(self) -> int:
        return int(2 ** self.chance.uniform(0, 21))

    def submit(self, size_bytes: int) -> None:
        assert size_bytes >= 0

    def end(self, *, is_ok: bool = True) -> None:
        assert is_ok
        self.in_flight -= 1

    def lose(self) -> None:
        raise AssertionError("nothing failed")


@settings(max_examples=60)
@given(
    st.integers(0, 1 << 30),
    st.sampled_from([0.0, 0.0, 0.02, 0.3]),
    st.integers(1, 3),
    st.lists(st.integers(0, 400_000), max_size=12),
    st.booleans(),
)
def test_cuts_and_ids_do_not_depend_on_units(
    seed: int, refusals: float, lanes: int, sizes: list[int], is_last: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        machine = fake_cupy.install(patch, seed=seed)
        engine, cpu = CudaEngine(SMALL, ID_KEY, CudaOptions(batch_bytes=400_000, lanes=lanes)), CpuEngine(SMALL, ID_KEY)
        engine.pace = pace = Chance(seed, refusals)
        ends = [end for end in accumulate(sizes) if end <= len(DATA)]
        data = DATA[: ends[-1] if ends else seed % len(DATA)]
        assert cut_and_hash_segments(engine, data, packed(ends)) == cut_and_hash_segments(cpu, data, packed(ends))
        assert cut_and_hash_stream(engine, data, is_last) == cut_and_hash_stream(cpu, data, is_last)
        cuts = cpu.cut_stream(data, True)
        assert engine.hash_chunks(data, cuts) == cpu.hash_chunks(data, cuts)
        assert engine.features(data, packed(ends)) == cpu.features(data, packed(ends))
        if data:
            array = fake_cupy.on_device(machine, data, (len(data),), "|u1")
            memory = DeviceMemory(array.memory.ptr, len(data), 0, array)
            assert engine.cut_resident(memory) == cut_and_hash_stream(cpu, data, True)
        assert engine.is_on_device
        assert pace.in_flight == 0
        assert bool(engine.counts.moved_calls) <= bool(refusals)


sizes_of_batches = st.lists(st.integers(1, 5000), min_size=1, max_size=5)


@given(st.lists(st.integers(0, 9000), max_size=30), sizes_of_batches, st.integers(1, 9), st.booleans())
def test_batches_of_files_are_all_of_them_in_order(
    sizes: list[int], limits: list[int], files_max: int, is_open: bool
) -> None:
    ends = list(accumulate(sizes))
    batches, at, file, counted = FileBatches(ends, files_max, is_open=is_open), 0, 0, 0
    number = 0
    while not batches.is_done:
        limit = limits[number % len(limits)]
        batch = batches.next(limit)
        assert batch is not None
        assert (batch.start, batch.first_file) == (at, file)
        assert batch.size <= limit
        assert len(batch.ends) <= files_max
        at, number = batch.end, number + 1
        is_part = batch.ends[-1] != ends[file + len(batch.ends) - 1]
        assert is_part <= (batch.is_open and len(batch.ends) == 1 and batch.size == limit)
        file += len(batch.ends) - is_part
        counted += len(batch.ends) - is_part
    assert batches.next(10) is None
    assert (at, counted) == (ends[-1] if ends else 0, len(ends))


@given(st.lists(st.integers(0, 9000), max_size=30), sizes_of_batches, st.integers(1, 9))
def test_batches_of_chunks_are_all_of_them_in_order(sizes: list[int], limits: list[int], chunks_max: int) -> None:
    ends = list(accumulate(sizes))
    batches = ChunkBatches(ends, 5000, chunks_max)
    taken, number = [], 0
    while (batch := batches.next(limits[number % len(limits)])) is not None:
        assert 0 < batch.size <= 5000
        assert len(batch.ends) == 1 or batch.size <= limits[number % len(limits)]
        taken.append(batch)
        number += 1
    assert batches.is_done
    assert [end for batch in batches.made for end in batch.ends] == ends
    assert all(len(batch.ends) <= chunks_max for batch in batches.made)
    assert taken == [batch for batch in batches.made if batches.is_fitting(batch)]
    assert [batch.start for batch in batches.made] == [0, *(batch.end for batch in batches.made)][: len(batches.made)]
