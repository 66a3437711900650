"""On a device: the whole engine contract, the self-check, tensors that lie on it, ceilings, and both commands."""

from __future__ import annotations

import ctypes
import io
import shutil
import subprocess
import sys
import threading
from array import array
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.small_tensors import weights
from support.vault import Vault

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "contract"))

import engine_oracle as oracle
from engine_contract import ID_KEY, SMALL, USUAL, EngineContract, MakeEngine, packed, samples

from ohdiff import clock
from ohdiff.chunking.cpu import CpuEngine
from ohdiff.chunking.cuda.device import CudaDevice
from ohdiff.chunking.cuda.engine import CudaEngine, CudaOptions
from ohdiff.chunking.cuda.self_check import first_disagreement
from ohdiff.chunking.device_memory import DeviceMemory
from ohdiff.chunking.engine import cut_and_hash_segments, cut_and_hash_stream
from ohdiff.operations.calibration import measure_profile
from ohdiff.operations.device_pacing import DeviceManners, paced_device
from ohdiff.operations.tensors import snapshot_tensors
from ohdiff.operations.tensors_restore import restore_tensors
from ohdiff.scheduling.core import SECOND, JobClass
from ohdiff.scheduling.decision_log import DecisionLog, replay
from ohdiff.scheduling.hint.device_hint import DeviceHint

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("device")]


class TestEngineContract(EngineContract):
    """The suite that every engine passes: with batches that hold everything, and with the smallest that there are."""

    @pytest.fixture(params=["large", "small", "one lane"])
    def make(self, request: pytest.FixtureRequest, device: CudaDevice) -> MakeEngine:
        kinds: dict[str, MakeEngine] = {
            "large": lambda rule: CudaEngine(rule, ID_KEY),
            "small": lambda rule: CudaEngine(rule, ID_KEY, CudaOptions(batch_bytes=rule.max_size)),
            "one lane": lambda rule: CudaEngine(rule, ID_KEY, CudaOptions(batch_bytes=rule.max_size, lanes=1)),
        }
        return on_device(kinds[request.param])


def on_device(make: MakeEngine) -> MakeEngine:
    """Engines that may not fall back to the CPU unnoticed."""
    made: list[CudaEngine] = []

    def checked(rule: Any) -> Any:
        assert all(engine.is_on_device for engine in made)
        engine = make(rule)
        assert isinstance(engine, CudaEngine)
        made.append(engine)
        return engine

    return checked


@pytest.fixture
def engine() -> CudaEngine:
    """An engine with the usual rule."""
    return CudaEngine(USUAL, ID_KEY)


def test_the_self_check_finds_nothing(engine: CudaEngine) -> None:
    for rule in (SMALL, USUAL):
        made = CudaEngine(rule, ID_KEY)
        assert first_disagreement(made, made.cpu) is None
        assert made.is_on_device


def test_large_data_is_cut_and_hashed_as_on_the_cpu(engine: CudaEngine) -> None:
    data = oracle.random_bytes("gpu", 300_000_001)
    assert cut_and_hash_stream(engine, data, True) == cut_and_hash_stream(engine.cpu, data, True)
    ends = packed([*range(0, 100_000_000, 9973), 100_000_000, len(data)])
    assert cut_and_hash_segments(engine, data, ends) == cut_and_hash_segments(engine.cpu, data, ends)
    assert engine.is_on_device


def test_every_kind_of_data_in_one_pass(engine: CudaEngine) -> None:
    small = CudaEngine(SMALL, ID_KEY, CudaOptions(batch_bytes=SMALL.max_size))
    for kind, data in samples().items():
        ends = packed([0, 1, 5000, 5000, 77_777, len(data)])
        assert cut_and_hash_segments(small, data, ends) == cut_and_hash_segments(small.cpu, data, ends), kind
    assert small.is_on_device


def test_many_threads_share_the_device() -> None:
    engine, cpu = CudaEngine(SMALL, ID_KEY, CudaOptions(batch_bytes=1 << 20)), CpuEngine(SMALL, ID_KEY)
    data = [oracle.random_bytes(f"thread {number}", 3_000_000 + number) for number in range(32)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda each: engine.cut_and_hash_stream(each, True), data))
    assert found == [cut_and_hash_stream(cpu, each, True) for each in data]
    assert engine.is_on_device


@pytest.mark.parametrize("ceiling", [8 << 20, 64 << 20])
def test_a_low_ceiling_of_memory_is_kept(device: CudaDevice, ceiling: int) -> None:
    data = oracle.random_bytes("ceiling", 50_000_000)
    engine = CudaEngine(USUAL, ID_KEY, CudaOptions(memory_max_bytes=ceiling))
    assert engine.cut_and_hash_stream(data, True) == cut_and_hash_stream(engine.cpu, data, True)
    assert engine.device_memory_taken <= ceiling
    assert engine.is_on_device


def test_no_memory_at_all_is_the_cpus_work(device: CudaDevice) -> None:
    data = oracle.random_bytes("none", 1_000_000)
    engine = CudaEngine(USUAL, ID_KEY, CudaOptions(memory_max_bytes=1 << 20))
    assert engine.cut_and_hash_stream(data, True) == cut_and_hash_stream(engine.cpu, data, True)
    assert engine.counts.cpu_calls == 1
    assert "out of memory" in engine.notes[-1]


def test_data_on_the_device_is_cut_and_hashed_there(engine: CudaEngine) -> None:
    cupy: Any = engine.device.cupy
    data = oracle.random_bytes("resident", 600_000_001)
    lying = cupy.frombuffer(data, dtype="uint8")
    for skip in (0, 1, 15):
        memory = DeviceMemory(int(lying.data.ptr) + skip, len(data) - skip, None, lying)
        part = memoryview(data)[skip:]
        assert engine.cut_resident(memory) == cut_and_hash_stream(engine.cpu, part, True)
        ends = [*range(4_000_000, len(part), 4_000_000), len(part)]
        assert engine.hash_resident(memory, ends) == engine.cpu.hash_chunks(part, packed(ends))


def test_pinned_memory_is_read_where_it_lies(engine: CudaEngine) -> None:
    data = oracle.random_bytes("pinned", 100_000_000)
    pinned: Any = engine.device.cupy.cuda.alloc_pinned_memory(len(data))
    view = memoryview((ctypes.c_ubyte * len(data)).from_address(pinned.ptr)).cast("B")
    view[:] = data
    assert engine.device.is_pinned(pinned.ptr)
    assert engine.cut_and_hash_stream(view, True) == cut_and_hash_stream(engine.cpu, data, True)
    assert engine.is_on_device


@pytest.mark.parametrize("kind", ["float32", "float16", "int64", "bool"])
def test_tensors_on_the_device_are_snapshotted_and_restored_there(device: CudaDevice, vault: Vault, kind: str) -> None:
    cupy: Any = device.cupy
    tensors = {
        "large": (cupy.random.rand(1000, 1200) * 100).astype(kind),
        "columns": (cupy.random.rand(300, 700) * 100).astype(kind).T,
        "small": cupy.arange(7).astype(kind),
    }
    first = snapshot_tensors(vault.open(), tensors)
    assert "engine cuda: the data lies there" in first.engine
    found = restore_tensors(vault.open(), device="cuda")
    for name, tensor in tensors.items():
        assert (found[name] == tensor).all()
        assert found[name].dtype == tensor.dtype
        assert found[name].shape == tensor.shape
    again = snapshot_tensors(vault.open(), tensors)
    assert again.snapshot.statistics.added_size < 2000
    assert again.copied_size < 1000
    tensors["large"][500, 3] = 1 - tensors["large"][500, 3]
    third = snapshot_tensors(vault.open(), tensors)
    assert 0 < third.copied_size < 5 << 20
    vault.assert_sound()


def test_tensors_here_and_there_make_the_same_file(device: CudaDevice, vault: Vault) -> None:
    cupy: Any = device.cupy
    values = weights(200_000, 3)
    here = snapshot_tensors(vault.open(), {"w": values})
    there = snapshot_tensors(vault.open(), {"w": cupy.asarray(array("f", values))})
    path = b"/tensors.safetensors"
    assert here.stored is not None
    assert there.stored is not None
    assert vault.entry(here.stored, path).content == vault.entry(there.stored, path).content


def test_dlpack_from_torch_is_hashed_on_the_device(device: CudaDevice, vault: Vault) -> None:
    torch: Any = pytest.importorskip("torch")
    given = {
        "bf16": torch.rand(1000, 1000, device="cuda").to(torch.bfloat16),
        "grad": torch.rand(9, requires_grad=True),
    }
    snapshot_tensors(vault.open(), given)
    found = restore_tensors(vault.open(), is_plain=True)
    assert (found["bf16"].dtype, found["bf16"].shape) == ("bfloat16", (1000, 1000))
    assert found["bf16"].tobytes() == given["bf16"].cpu().view(torch.uint8).numpy().tobytes()


def test_measuring_gives_a_profile_of_this_device(engine: CudaEngine) -> None:
    profile = measure_profile(engine, 2, 64 << 20)
    assert profile.device == engine.device.description.name
    assert profile.resident_rate > profile.pageable_rate


@pytest.mark.parametrize("job_class", list(JobClass))
def test_units_are_as_long_as_is_granted_and_the_results_the_same(
    engine: CudaEngine, tmp_path: Path, job_class: JobClass
) -> None:
    data = oracle.random_bytes("paced", 200_000_001)
    expected = cut_and_hash_stream(engine.cpu, data, True)
    cupy: Any = engine.device.cupy
    lying = cupy.frombuffer(data, dtype="uint8")
    memory = DeviceMemory(int(lying.data.ptr), len(data), None, lying)
    log = io.BytesIO()
    manners = DeviceManners(
        job_class, folder=tmp_path / "runtime", open_log=lambda _, made: DecisionLog(log.write, made, "cuda")
    )
    with paced_device(engine, manners) as governor:
        assert governor is not None
        for _ in range(3):
            assert engine.cut_resident(memory) == expected
            assert engine.cut_and_hash_stream(data, True) == expected
    assert governor.counts.units > (20 if job_class is JobClass.SCAVENGE else 3)
    assert governor.counts.failed == 0
    assert engine.is_on_device
    assert replay(log.getvalue().splitlines(keepends=True)).difference is None


def test_a_job_that_says_it_is_busy_has_the_device_and_gets_it_soon(engine: CudaEngine, tmp_path: Path) -> None:
    cupy: Any = engine.device.cupy
    lying = cupy.zeros(1 << 28, dtype="uint8")
    memory = DeviceMemory(int(lying.data.ptr), lying.nbytes, None, lying)
    hint = DeviceHint(engine.device.description.shared_name, folder=str(tmp_path / "runtime"))
    done = threading.Event()

    def work() -> None:
        while not done.is_set():
            engine.cut_resident(memory)

    with paced_device(engine, DeviceManners(JobClass.SCAVENGE, folder=tmp_path / "runtime")) as governor:
        assert governor is not None
        worker = threading.Thread(target=work)
        worker.start()
        until = clock.monotonic_ns() + 30 * SECOND
        while governor.counts.units < 100 and clock.monotonic_ns() < until:
            threading.Event().wait(0.01)
        with hint.busy():
            threading.Event().wait(0.2)
            before = governor.counts.units
            threading.Event().wait(0.5)
            assert governor.counts.units <= before + 1
            done.set()
        worker.join(60)
        assert not worker.is_alive()
    hint.close()


def test_memory_is_given_back_and_taken_again(engine: CudaEngine) -> None:
    data = oracle.random_bytes("memory", 100_000_000)
    expected = cut_and_hash_stream(engine.cpu, data, True)
    assert engine.cut_and_hash_stream(data, True) == expected
    held = engine.pools.held_bytes()
    engine.pools.trim(held // 4)
    assert engine.pools.held_bytes() <= held // 4
    assert engine.cut_and_hash_stream(data, True) == expected
    engine.pools.park()
    assert engine.pools.held_bytes() == 0
    assert engine.cut_and_hash_stream(data, True) == expected
    assert engine.is_on_device


def test_the_name_of_the_device_is_the_one_that_nvidia_smi_shows(device: CudaDevice) -> None:
    if shutil.which("nvidia-smi") is None:
        pytest.skip("no nvidia-smi here")
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    assert device.description.shared_name in listed


def test_streams_have_the_lowest_priority_that_there_is(engine: CudaEngine) -> None:
    with engine.device.bound():
        stream = engine.device.new_stream()
        lowest = engine.device.cupy.cuda.Stream(non_blocking=True, priority=1 << 20)
        assert stream.priority == lowest.priority >= engine.device.cupy.cuda.Stream(non_blocking=True).priority


def test_a_snapshot_by_the_device_is_that_of_the_cpu(vault: Vault, source: Path) -> None:
    for number, size in enumerate((0, 1, 70_000, 30_000_000)):
        (source / f"file{number}").write_bytes(oracle.random_bytes(f"file {number}", size))
    repository = vault.open()
    rule = vault_rule(repository)
    engine = CudaEngine(rule, repository.chunk_id_key)
    vault.store(source, engine=engine)
    result = vault.snapshot(source, is_forced=True)
    assert result.snapshot.statistics.added_size < 2000
    assert engine.is_on_device
    vault.assert_sound()


def vault_rule(repository: Any) -> Any:
    from support.vault import engine_of

    return engine_of(repository).rule
