"""Large files that a device reads past the CPU, on a device that is none, from real files: always the same result."""

from __future__ import annotations

import gc
import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import fake_cupy, fake_kvikio
from support.fake_cupy import Machine
from support.fake_kvikio import Storage
from support.small_tensors import bf16, lower_limits, safetensors, stepped, weights
from support.sources import random_bytes, write, write_sparse
from support.vault import Vault, chunker, engine_of

from ohdiff.buffers import BufferPool
from ohdiff.chunking.cuda import direct as direct_module
from ohdiff.chunking.cuda.direct import DirectReader, check_storage
from ohdiff.chunking.cuda.engine import CudaEngine, CudaOptions
from ohdiff.errors import DeviceError, SourceError
from ohdiff.operations import file_reading
from ohdiff.operations.direct_reading import open_direct
from ohdiff.operations.fetched_buffer import FetchedBuffer
from ohdiff.operations.snapshot import SnapshotResult
from ohdiff.storage import MemoryStorage
from ohdiff_format.tree import MARK_CHANGED_WHILE_READ

KiB = 1 << 10
WINDOW = 128 * KiB
SIZE = 7 * WINDOW + 12_345
DATA = random_bytes(SIZE, 1)


@pytest.fixture(autouse=True)
def _small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_module, "WINDOW_BYTES", WINDOW)
    monkeypatch.setattr(file_reading, "LARGE_FILE_SIZE_BYTES", 100 * KiB)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A stand-in for a device."""
    return fake_cupy.install(monkeypatch)


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch, machine: Machine) -> Storage:
    """A stand-in for GPUDirect Storage."""
    return fake_kvikio.install(monkeypatch, machine)


@pytest.fixture
def vault(tmp_path: Path) -> Vault:
    """A repository with chunks of 4 KiB on average, so that a window has many."""
    return Vault(MemoryStorage("test"), tmp_path / "cache").create(chunker(4 * KiB))


def engine_for(vault: Vault, **options: Any) -> CudaEngine:
    repository = vault.open()
    return CudaEngine(engine_of(repository).rule, repository.chunk_id_key, CudaOptions(**options))


def snapshot(vault: Vault, source: Path, engine: CudaEngine, **options: Any) -> tuple[SnapshotResult, DirectReader]:
    reader = DirectReader(engine)
    return vault.snapshot(source, engine=engine, direct=reader, is_forced=True, **options), reader


def assert_same_as_by_the_cpu(vault: Vault, source: Path, result: SnapshotResult) -> None:
    """A snapshot of the same files by the CPU has the same chunks, and every byte is there."""
    assert result.stored is not None
    vault.assert_sound()
    again = vault.snapshot(source, is_forced=True)
    assert again.stored is not None
    # Folders above may have changed meanwhile.
    assert again.snapshot.statistics.added_size < 2 * KiB
    for path in source.iterdir():
        assert vault.entry(again.stored, path).content == vault.entry(result.stored, path).content
        if path.name != "sparse":
            assert vault.data(result.stored, path) == path.read_bytes()


def test_a_large_file_comes_to_the_device_by_itself(vault: Vault, source: Path, storage: Storage) -> None:
    write(source / "large", DATA)
    write(source / "small", b"small")
    result, reader = snapshot(vault, source, engine_for(vault))
    assert storage.reads == [(start, min(WINDOW, SIZE - start)) for start in range(0, SIZE, WINDOW)]
    assert reader.read_bytes == SIZE
    assert reader.notes == []
    assert "0.0 GB were read past the CPU" in reader.reason
    assert_same_as_by_the_cpu(vault, source, result)


def test_what_the_repository_knows_is_not_copied_down(
    vault: Vault, source: Path, storage: Storage, machine: Machine
) -> None:
    large = write(source / "large", DATA)
    first, _ = snapshot(vault, source, engine_for(vault))
    engine = engine_for(vault)
    before = machine.copied_down
    snapshot(vault, source, engine)
    # Cuts and ids, 36 bytes a chunk of 4 KiB.
    assert machine.copied_down - before < SIZE // 50
    changed = bytearray(DATA)
    changed[SIZE // 2] ^= 1
    large.write_bytes(changed)
    before = machine.copied_down
    result, _ = snapshot(vault, source, engine, parent=first.stored)
    assert 0 < result.snapshot.statistics.added_size - 200 < 40 * KiB
    assert machine.copied_down - before < SIZE // 50 + 40 * KiB
    assert_same_as_by_the_cpu(vault, source, result)


@pytest.mark.parametrize("size", [WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW + 4096])
@pytest.mark.parametrize("seed", range(3))
def test_files_of_any_length_have_the_cuts_of_the_cpu(
    vault: Vault, source: Path, monkeypatch: pytest.MonkeyPatch, size: int, seed: int
) -> None:
    storage = fake_kvikio.install(monkeypatch, fake_cupy.install(monkeypatch, seed=seed, eagerness=0.9 * seed / 2))
    write(source / "file", random_bytes(size, seed))
    write(source / "zeros", bytes(size))
    result, _ = snapshot(vault, source, engine_for(vault))
    assert bool(storage.reads) == (size >= WINDOW)
    assert_same_as_by_the_cpu(vault, source, result)


def test_files_with_holes_are_read_by_the_cpu(vault: Vault, source: Path, storage: Storage) -> None:
    write_sparse(source / "sparse", 4 * WINDOW, {WINDOW: b"data" * 5000})
    result, _ = snapshot(vault, source, engine_for(vault))
    assert storage.reads == []
    assert_same_as_by_the_cpu(vault, source, result)


@pytest.mark.parametrize(
    "attributes", [{}, {"failing_reads": frozenset([1])}, {"short_reads": frozenset([1])}, {"is_reached": False}]
)
def test_pieces_of_tensors_come_to_the_device_by_themselves(
    vault: Vault, source: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch, attributes: dict[str, Any]
) -> None:
    lower_limits(monkeypatch)
    monkeypatch.setattr(file_reading, "BATCH_SIZE_BYTES", 64 * KiB)
    storage = fake_kvikio.install(monkeypatch, machine, **attributes)
    values = weights(100_000, 1)
    small = ("F32", bytes(400))
    data = safetensors({"a": ("F32", values.tobytes()), "b": small, "c": ("BF16", bf16(values)), "d": small})
    write(source / "model.safetensors", data)
    result, reader = snapshot(vault, source, engine_for(vault))
    assert bool(storage.reads) == (attributes.get("is_reached", True))
    if not attributes:
        assert len(data) - 16 * KiB < reader.read_bytes < len(data) + len(storage.reads) * 4096
        assert reader.notes == []
    assert_same_as_by_the_cpu(vault, source, result)
    before = machine.copied_down
    again, _ = snapshot(vault, source, engine_for(vault))
    assert again.snapshot.statistics.added_size < 2 * KiB
    assert machine.copied_down - before < len(data) // 10
    stepped_values = stepped(values, 2)
    write(source / "model.safetensors", safetensors({"a": ("F32", stepped_values.tobytes()), "b": small}))
    changed, _ = snapshot(vault, source, engine_for(vault))
    assert_same_as_by_the_cpu(vault, source, changed)


@pytest.mark.parametrize(
    ("attributes", "note"),
    [
        ({"failing_reads": frozenset([0])}, "GPUDirect Storage failed: cuFile error: input/output error"),
        ({"failing_reads": frozenset([4])}, "GPUDirect Storage failed"),
        ({"short_reads": frozenset([0])}, ""),
        ({"short_reads": frozenset([5])}, ""),
        ({"is_reached": False}, "1 large files lie where GPUDirect Storage does not reach"),
    ],
)
def test_whatever_the_storage_does_the_cpu_goes_on_from_the_last_cut(
    vault: Vault, source: Path, monkeypatch: pytest.MonkeyPatch, machine: Machine, attributes: dict[str, Any], note: str
) -> None:
    fake_kvikio.install(monkeypatch, machine, **attributes)
    write(source / "large", DATA)
    result, reader = snapshot(vault, source, engine_for(vault))
    assert note in "; ".join(reader.notes)
    assert reader.read_bytes < SIZE
    assert result.errors == []
    assert_same_as_by_the_cpu(vault, source, result)


def test_a_device_that_fails_with_files_on_it_has_them_read_again(
    vault: Vault, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for launch in (3, 20, 47, 70):
        machine = fake_cupy.install(monkeypatch)
        fake_kvikio.install(monkeypatch, machine)
        engine = engine_for(vault)
        machine.failing_launches = frozenset([len(machine.launches) + launch])
        path = write(source / f"large{launch}", random_bytes(SIZE, launch))
        result, reader = snapshot(vault, source, engine)
        assert not engine.is_on_device
        assert reader.read_bytes < 5 * SIZE
        assert_same_as_by_the_cpu(vault, source, result)
        path.unlink()


def test_bytes_that_change_on_the_device_are_read_from_the_file_again(
    vault: Vault, source: Path, storage: Storage, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(source / "large", DATA)
    engine = engine_for(vault)
    fetch = engine.device.fetch_memory

    def fetch_wrongly(memory: Any, target: memoryview) -> None:
        fetch(memory, target)
        target[0] ^= 1

    monkeypatch.setattr(engine.device, "fetch_memory", fetch_wrongly)
    result, reader = snapshot(vault, source, engine)
    assert reader.notes == ["bytes on the device are not what was hashed there; the CPU read what was left"]
    assert not engine.is_on_device
    assert_same_as_by_the_cpu(vault, source, result)


def test_a_file_that_is_gone_from_the_device_and_has_changed_commits_nothing(
    vault: Vault, source: Path, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = write(source / "large", DATA)
    engine = engine_for(vault)

    def fail(memory: Any, target: memoryview) -> None:
        large.write_bytes(bytes(SIZE))
        raise DeviceError("it fell off the bus")

    monkeypatch.setattr(engine.device, "fetch_memory", fail)
    with pytest.raises(SourceError, match="nothing was committed"):
        snapshot(vault, source, engine)
    assert vault.snapshots() == []


@pytest.mark.parametrize(
    "change",
    [
        lambda path: os.truncate(path, SIZE // 2),
        lambda path: os.truncate(path, SIZE + 50_000),
        lambda path: path.write_bytes(DATA[::-1]),
    ],
    ids=["shrinks", "grows", "is overwritten"],
)
def test_a_file_that_changes_while_it_is_read_is_marked_and_kept_as_it_was_read(
    vault: Vault, source: Path, storage: Storage, change: Callable[[Path], None]
) -> None:
    large = write(source / "large", DATA)
    storage.before_read = lambda number: change(large) if number == 5 else None
    result, _ = snapshot(vault, source, engine_for(vault))
    assert result.stored is not None
    (error,) = result.errors
    assert "changed while it was read" in error.message
    entry = vault.entry(result.stored, large)
    assert entry.listing.marks[entry.row] & MARK_CHANGED_WHILE_READ
    read, now = vault.data(result.stored, large), large.read_bytes()
    # What had come to the device is kept as far as it was cut; the CPU finds what there is then.
    kept = next((place for place in range(len(read)) if read[place] != DATA[place]), len(read))
    assert kept > 4 * WINDOW
    assert read[kept:] == now[kept : min(SIZE, len(now))]
    vault.assert_sound()


def test_too_little_device_memory_leaves_the_rest_to_the_cpu(
    vault: Vault, source: Path, storage: Storage, machine: Machine
) -> None:
    write(source / "large", DATA)
    engine = engine_for(vault)
    machine.allocation_size_max = WINDOW - 1
    result, reader = snapshot(vault, source, engine)
    assert reader.notes == ["the CPU read 1 large files to their end for want of device memory"]
    assert_same_as_by_the_cpu(vault, source, result)


def test_neither_files_nor_memory_are_held_afterwards(
    vault: Vault, source: Path, storage: Storage, machine: Machine
) -> None:
    for number in range(3):
        write(source / f"large{number}", random_bytes(SIZE, number))
    engine = engine_for(vault)
    snapshot(vault, source, engine)
    used = machine.memory_used
    snapshot(vault, source, engine)
    gc.collect()
    assert storage.open_files == 0
    assert machine.memory_used == used
    # Windows of a file that are on the device at a time, beside the engine's lanes.
    assert machine.memory_peak - used < 8 * 2 * WINDOW


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"has_gds": False}, "the kernel has no nvidia-fs"),
        ({"allows_compat": True}, "cuFile may read through the CPU without saying so"),
    ],
)
def test_a_compatibility_mode_does_not_pass_for_the_real_thing(
    vault: Vault, monkeypatch: pytest.MonkeyPatch, machine: Machine, attributes: dict[str, Any], reason: str
) -> None:
    fake_kvikio.install(monkeypatch, machine, **attributes)
    with pytest.raises(DeviceError, match=reason):
        check_storage()
    assert open_direct(engine_for(vault)) is None


def test_only_an_engine_on_a_device_reads_directly(vault: Vault, storage: Storage) -> None:
    assert open_direct(engine_of(vault.open())) is None
    assert open_direct(engine_for(vault)) is not None


def test_a_buffer_fetches_every_chunk_once_and_none_in_vain() -> None:
    asked: list[tuple[int, int]] = []

    def fetch(first: int, last: int, target: memoryview) -> None:
        asked.append((first, last))
        target[:] = bytes(range(10 * first, 10 * last))

    pool = BufferPool(64, 1)
    buffer = FetchedBuffer(pool, [10, 20, 30, 40, 50], fetch)
    assert bytes(buffer.view(12, 18)) == bytes(range(12, 18))
    assert bytes(buffer.view(20, 30)) == bytes(range(20, 30))
    assert bytes(buffer.view(0, 50)) == bytes(range(50))
    assert asked == [(1, 2), (2, 3), (0, 1), (3, 5)]
    room = buffer.data
    buffer.release()
    assert pool.take(64).data is room
    FetchedBuffer(pool, [10], fetch).release()


def test_the_real_library_says_that_there_is_no_such_storage_where_there_is_no_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What of it runs without a device: the driver's properties, and a file that only its compatibility mode opens."""
    kvikio = pytest.importorskip("kvikio")
    if Path("/proc/driver/nvidia-fs").exists():
        pytest.skip("there is GPUDirect Storage")
    with pytest.raises(DeviceError, match="the kernel has no nvidia-fs"):
        check_storage()
    defaults = importlib.import_module("kvikio.defaults")
    # Else cuFile leaves a log where the tests run.
    monkeypatch.setenv("CUFILE_LOGFILE_PATH", str(tmp_path / "cufile.log"))
    path = write(tmp_path / "file", b"data")
    with defaults.set("compat_mode", kvikio.CompatMode.OFF), pytest.raises(RuntimeError):
        kvikio.CuFile(str(path), "r")
    with path.open("rb") as opened, defaults.set("compat_mode", kvikio.CompatMode.ON):
        file = kvikio.CuFile(f"/proc/self/fd/{opened.fileno()}", "r")
        assert os.pread(file.fileno(), 4, 0) == b"data"
        file.close()
