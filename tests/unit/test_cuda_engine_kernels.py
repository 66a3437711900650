"""The CUDA engine with the kernels as they are written, which a shim runs on the CPU: the two fit together."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any

import pytest
from shim.building import LIBRARY, build_all
from support import fake_cupy

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "contract"))

import engine_oracle as oracle
from engine_contract import ID_KEY, LARGEST, SMALL, USUAL, EngineContract, MakeEngine, packed, samples

from ohdiff.chunking.cuda.engine import CudaEngine, CudaOptions
from ohdiff.chunking.cuda.self_check import first_disagreement
from ohdiff.chunking.device_memory import DeviceMemory
from ohdiff.chunking.engine import cut_and_hash_segments, cut_and_hash_stream


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The kernels in the geometry that the engine compiles them for."""
    folder = tmp_path_factory.mktemp("kernels")
    build_all(folder)
    return ctypes.CDLL(str(folder / LIBRARY))


@pytest.fixture(params=[0, 11], ids=["in order", "out of order"])
def machine(request: pytest.FixtureRequest, shim: Any, monkeypatch: pytest.MonkeyPatch) -> fake_cupy.Machine:
    """A device that takes its threads in some order."""
    return fake_cupy.install(monkeypatch, shim=shim, seed=request.param)


def test_the_self_check_finds_nothing(machine: fake_cupy.Machine) -> None:
    engine = CudaEngine(USUAL, ID_KEY)
    assert first_disagreement(engine, engine.cpu) is None
    assert engine.is_on_device
    assert set(machine.launches) >= {"ohdiff_select_cuts", "ohdiff_hash_trees", "ohdiff_find_features"}


@pytest.mark.parametrize("kind", ["noise", "zeros", "noise around a flood", "loose flood 3", "strict flood 64"])
def test_files_of_every_length_are_cut_and_hashed_in_small_batches(machine: fake_cupy.Machine, kind: str) -> None:
    engine = CudaEngine(SMALL, ID_KEY, CudaOptions(batch_bytes=SMALL.max_size))
    data = samples()[kind]
    ends = packed([0, 1, 63, 64, 5000, 5000, 40_003, LARGEST])
    assert cut_and_hash_segments(engine, data, ends) == cut_and_hash_segments(engine.cpu, data, ends)
    for is_last in (True, False):
        assert cut_and_hash_stream(engine, data, is_last) == cut_and_hash_stream(engine.cpu, data, is_last)
    assert engine.candidates(data[:50_000]) == engine.cpu.candidates(data[:50_000])
    assert engine.features(data, ends) == engine.cpu.features(data, ends)
    assert engine.is_on_device


def test_data_on_the_device_is_cut_and_hashed_there(machine: fake_cupy.Machine) -> None:
    engine = CudaEngine(SMALL, ID_KEY)
    data = oracle.random_bytes("resident kernels", 200_001)
    lying = fake_cupy.on_device(machine, data, (len(data),), "|u1")
    memory = DeviceMemory(lying.memory.ptr + 1, len(data) - 1, 0, lying)
    assert engine.cut_resident(memory) == cut_and_hash_stream(engine.cpu, data[1:], True)
    assert engine.hash_resident(memory, [5, 200_000]) == engine.cpu.hash_chunks(data[1:], packed([5, 200_000]))


class TestEngineContract(EngineContract):
    """The suite that every engine passes, with batches smaller than most files."""

    @pytest.fixture
    def make(self, machine: fake_cupy.Machine) -> MakeEngine:
        return lambda rule: CudaEngine(rule, ID_KEY, CudaOptions(batch_bytes=rule.max_size))
