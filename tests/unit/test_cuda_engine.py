"""The CUDA engine on a device that is none: the whole engine contract, and everything that can go wrong on the way."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support import fake_cupy
from support.fake_cupy import Machine

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "contract"))

import engine_oracle as oracle
from engine_contract import ID_KEY, SMALL, USUAL, EngineContract, MakeEngine, packed, samples

from ohdiff.chunking.cpu import CpuEngine
from ohdiff.chunking.cuda.engine import CudaEngine, CudaOptions
from ohdiff.chunking.device_memory import DeviceMemory
from ohdiff.chunking.engine import Accelerator, cut_and_hash_segments, cut_and_hash_stream, select_engine
from ohdiff.errors import EXIT_DEVICE, DeviceError

SMALL_BATCH = CudaOptions(batch_bytes=SMALL.max_size)
"""Batches of 16 KiB: most files are longer."""


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A stand-in for a device."""
    return fake_cupy.install(monkeypatch)


class TestEngineContract(EngineContract):
    """The suite that every engine passes: with batches that hold everything, and with the smallest that there are."""

    @pytest.fixture(params=["large", "small", "one lane"])
    def make(self, request: pytest.FixtureRequest, machine: Machine) -> MakeEngine:
        return {
            "large": lambda rule: CudaEngine(rule, ID_KEY),
            "small": lambda rule: CudaEngine(rule, ID_KEY, CudaOptions(batch_bytes=rule.max_size)),
            "one lane": lambda rule: CudaEngine(rule, ID_KEY, CudaOptions(batch_bytes=rule.max_size, lanes=1)),
        }[request.param]


def test_cutting_and_hashing_in_one_pass_gives_the_same(machine: Machine) -> None:
    cpu = CpuEngine(SMALL, ID_KEY)
    for options in (CudaOptions(), SMALL_BATCH):
        engine = CudaEngine(SMALL, ID_KEY, options)
        for kind, data in samples().items():
            ends = packed([0, 1, 5000, 5000, 77_777, len(data)])
            assert cut_and_hash_segments(engine, data, ends) == cut_and_hash_segments(cpu, data, ends), kind
            for is_last in (True, False):
                assert cut_and_hash_stream(engine, data, is_last) == cut_and_hash_stream(cpu, data, is_last), kind


def test_a_file_longer_than_many_batches_carries_its_open_chunk_over(machine: Machine) -> None:
    data = oracle.random_bytes("long", 40 * SMALL.max_size + 1)
    cpu = CpuEngine(SMALL, ID_KEY)
    for lanes in (1, 2, 3):
        for step in (0, 1, 4097):
            engine = CudaEngine(SMALL, ID_KEY, CudaOptions(batch_bytes=SMALL.max_size + step, lanes=lanes))
            assert engine.cut_and_hash_stream(data, True) == cut_and_hash_stream(cpu, data, True)
    assert machine.launches.count("ohdiff_select_cuts") > 3 * 3 * 30


@pytest.mark.parametrize("seed", range(9))
def test_nothing_depends_on_how_late_the_device_is(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    fake_cupy.install(monkeypatch, seed=seed, eagerness=(0.0, 0.9, 0.5)[seed % 3])
    engine, cpu = CudaEngine(SMALL, ID_KEY, SMALL_BATCH), CpuEngine(SMALL, ID_KEY)
    data = [oracle.random_bytes(f"late {number}", 9 * SMALL.max_size + number) for number in range(8)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda each: engine.cut_and_hash_stream(each, True), data))
    assert found == [cut_and_hash_stream(cpu, each, True) for each in data]
    assert engine.is_on_device


def test_the_data_goes_up_once_when_it_is_cut_and_hashed_together(machine: Machine) -> None:
    engine = CudaEngine(USUAL, ID_KEY)
    data = oracle.random_bytes("once", 1 << 20)
    before = machine.copied_up
    engine.cut_and_hash_stream(data, True)
    assert len(data) <= machine.copied_up - before < len(data) + 100
    # 4 bytes of offset and 32 of id a chunk come down, and two counts.
    assert machine.copied_down < 100 * 40


def test_features_of_single_chunks_are_not_worth_a_trip_to_the_device(machine: Machine) -> None:
    engine = choose("cuda").engine
    data = oracle.random_bytes("few", 2 << 20)
    before = machine.launches.count("ohdiff_find_features")
    for size in (100, 100_000, (1 << 20) - 1):
        assert engine.features(data[:size], packed([size])) == CpuEngine(USUAL, ID_KEY).features(data, packed([size]))
    assert machine.launches.count("ohdiff_find_features") == before
    engine.features(data, packed([len(data)]))
    assert machine.launches.count("ohdiff_find_features") == before + 1


def test_memory_stays_below_the_ceiling_and_a_quarter_of_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    data = oracle.random_bytes("ceiling", 1 << 20)
    machine = fake_cupy.install(monkeypatch, memory_total=400 << 20)
    CudaEngine(USUAL, ID_KEY).cut_and_hash_stream(data, True)
    assert 0 < machine.memory_peak <= 100 << 20
    machine = fake_cupy.install(monkeypatch)
    engine = CudaEngine(USUAL, ID_KEY, CudaOptions(memory_max_bytes=20 << 20))
    assert engine.cut_and_hash_stream(data, True) == cut_and_hash_stream(CpuEngine(USUAL, ID_KEY), data, True)
    assert engine.is_on_device
    assert 0 < engine.device_memory_taken <= machine.memory_peak <= 20 << 20


@pytest.mark.parametrize("number", range(1, 6))
def test_an_allocation_that_fails_makes_batches_smaller(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    fake_cupy.install(monkeypatch, failing_allocations=frozenset([number]))
    engine = CudaEngine(SMALL, ID_KEY, CudaOptions(batch_bytes=1 << 20))
    data = oracle.random_bytes("oom", 3 << 20)
    expected = cut_and_hash_stream(CpuEngine(SMALL, ID_KEY), data, True)
    for _ in range(3):
        assert engine.cut_and_hash_stream(data, True) == expected
    assert engine.is_on_device
    assert engine.candidates(data) == engine.cpu.candidates(data)
    assert engine.counts.cpu_calls == 0
    # The second allocation is that of a second lane, without which it goes on.
    assert engine.pools.shrunk == (0 if number == 2 else 1)


def test_batches_shrink_until_they_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cupy.install(monkeypatch, allocation_size_max=4 << 20)
    engine = CudaEngine(SMALL, ID_KEY, CudaOptions(batch_bytes=8 << 20))
    data = oracle.random_bytes("shrink", 1 << 20)
    assert engine.cut_stream(data, True) == CpuEngine(SMALL, ID_KEY).cut_stream(data, True)
    assert engine.is_on_device
    assert engine.pools.shrunk >= 2
    assert "made smaller" in engine.notes[0]


def test_without_any_memory_the_cpu_does_it_all_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cupy.install(monkeypatch, allocation_size_max=10_000)
    engine = CudaEngine(SMALL, ID_KEY)
    cpu = CpuEngine(SMALL, ID_KEY)
    data = oracle.random_bytes("no memory", 100_000)
    assert engine.cut_and_hash_stream(data, True) == cut_and_hash_stream(cpu, data, True)
    assert engine.features(data, packed([50_000])) == cpu.features(data, packed([50_000]))
    assert engine.counts.cpu_calls == 2
    assert "out of memory" in engine.notes[-1]
    assert "the CPU did the rest (2 calls)" in engine.notes[-1]


@pytest.mark.parametrize("number", [0, 1, 5, 9, 17, 40])
def test_a_launch_that_fails_is_finished_by_the_cpu(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    fake_cupy.install(monkeypatch, failing_launches=frozenset([number]))
    engine, cpu = CudaEngine(SMALL, ID_KEY, SMALL_BATCH), CpuEngine(SMALL, ID_KEY)
    data = oracle.random_bytes("launch", 5 * SMALL.max_size + 99)
    ends = packed([100, 60_000, len(data)])
    assert engine.cut_segments(data, ends) == cpu.cut_segments(data, ends)
    assert engine.hash_chunks(data, ends) == cpu.hash_chunks(data, ends)
    assert engine.candidates(data) == cpu.candidates(data)
    assert not engine.is_on_device
    assert "LAUNCH_FAILED" in engine.notes[-1]


def test_a_device_that_dies_is_left_alone_from_then_on(machine: Machine) -> None:
    engine, cpu = CudaEngine(SMALL, ID_KEY), CpuEngine(SMALL, ID_KEY)
    data = oracle.random_bytes("dies", 100_000)
    engine.cut_stream(data, True)
    machine.is_dead = True
    for _ in range(2):
        assert engine.cut_stream(data, True) == cpu.cut_stream(data, True)
    launches = len(machine.launches)
    machine.is_dead = False
    assert engine.cut_stream(data, True) == cpu.cut_stream(data, True)
    assert len(machine.launches) == launches
    assert engine.counts.cpu_calls == 3


def resident(machine: Machine, data: bytes) -> DeviceMemory:
    array_on_device = fake_cupy.on_device(machine, data, (len(data),), "|u1")
    return DeviceMemory(array_on_device.memory.ptr, len(data), 0, array_on_device)


def test_what_lies_on_the_device_is_cut_and_hashed_there(machine: Machine) -> None:
    engine, cpu = CudaEngine(SMALL, ID_KEY, SMALL_BATCH), CpuEngine(SMALL, ID_KEY)
    data = oracle.random_bytes("resident", 700_001)
    memory = resident(machine, data)
    before = machine.copied_up
    assert engine.cut_resident(memory) == cut_and_hash_stream(cpu, data, True)
    ends = [1000, 400_000, 700_001]
    assert engine.hash_resident(memory, ends) == cpu.hash_chunks(data, packed(ends))
    assert machine.copied_up - before < 1000
    down = bytearray(500)
    engine.device.fetch_memory(memory.part(100, 600), memoryview(down))
    assert down == data[100:600]


def test_a_device_that_fails_with_the_data_on_it_is_an_error(machine: Machine) -> None:
    engine = CudaEngine(SMALL, ID_KEY)
    memory = resident(machine, bytes(100_000))
    machine.is_dead = True
    with pytest.raises(DeviceError, match="failed while data was hashed"):
        engine.hash_resident(memory, [100_000])
    with pytest.raises(DeviceError, match="cannot be hashed"):
        engine.hash_resident(memory, [100_000])
    with pytest.raises(DeviceError, match="cannot be copied"):
        engine.device.fetch_memory(memory, memoryview(bytearray(100_000)))


def test_memory_of_another_device_is_refused(machine: Machine) -> None:
    memory = resident(machine, bytes(1000))
    with pytest.raises(DeviceError, match="lies on CUDA device 3"):
        CudaEngine(SMALL, ID_KEY).hash_resident(DeviceMemory(memory.pointer, 1000, 3, memory.owner), [1000])


@pytest.mark.parametrize("size", [1, 2**20 + 1])
def test_pinned_memory_is_read_where_it_lies(machine: Machine, size: int) -> None:
    data = oracle.random_bytes("pinned", size)
    buffer = bytearray(data)
    engine = CudaEngine(USUAL, ID_KEY)
    with fake_cupy_pinned(machine, buffer):
        assert engine.cut_and_hash_stream(buffer, True) == cut_and_hash_stream(CpuEngine(USUAL, ID_KEY), data, True)


def fake_cupy_pinned(machine: Machine, buffer: bytearray):  # type: ignore[no-untyped-def]
    from contextlib import contextmanager

    from ohdiff.chunking.cuda.host_memory import address_of

    @contextmanager
    def pinned():  # type: ignore[no-untyped-def]
        with address_of(buffer) as (address, size):
            machine.note_pinned(address, size)
            yield

    return pinned()


def choose(name: str, accelerator: Accelerator | None = None, kernel: str = "auto"):  # type: ignore[no-untyped-def]
    return select_engine(name, kernel, USUAL, ID_KEY, accelerator)


def test_a_demanded_engine_is_checked_and_says_on_what_it_runs(machine: Machine) -> None:
    choice = choose("cuda")
    assert choice.engine.name == "cuda"
    assert "as demanded" in choice.reason
    assert "Fake Device, sm_90, checked against the CPU" in choice.reason
    assert choose("cuda", kernel="sm_90").engine.kernel == "sm_90"
    with pytest.raises(DeviceError, match="kernel avx2 is not the device's"):
        choose("cuda", kernel="avx2")


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"driver_version": 0}, "there is no NVIDIA driver"),
        ({"driver_version": 11040}, "too old: it is for CUDA 11.4, and CuPy was built for CUDA 12.4"),
        ({"device_count": 0}, "shows no CUDA device"),
        ({"is_dead": True}, "the context is gone"),
        ({"compile_log": "candidates.cu(12): error: no such thing"}, r"does not compile for sm_90:\n.*no such thing"),
        ({"wrong_kernel": "ohdiff_gather_cuts"}, "the cuts of noise are not what the CPU finds"),
        ({"wrong_kernel": "ohdiff_hash_trees"}, "the chunk ids of noise are not"),
        ({"wrong_kernel": "ohdiff_find_features"}, "the features of noise are not"),
        ({"failing_launches": frozenset([3])}, "LAUNCH_FAILED"),
        ({"allocation_size_max": 5000}, "out of memory"),
    ],
)
def test_a_demand_that_cannot_be_met_is_exit_40_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, attributes: dict[str, object], reason: str
) -> None:
    fake_cupy.install(monkeypatch, **attributes)
    with pytest.raises(DeviceError, match=reason) as raised:
        choose("cuda")
    assert raised.value.exit_code == EXIT_DEVICE


def test_without_cupy_a_demand_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(DeviceError, match="CuPy is not installed") as raised:
        choose("cuda")
    assert "pip install" in raised.value.hint
