"""Blocks that a device compresses, on a device that is none and with the real zstandard: batches, faults, snapshots."""

from __future__ import annotations

import contextlib
import io
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zstandard
from support import fake_cupy, fake_nvcomp
from support.fake_cupy import Machine
from support.fake_nvcomp import FakeNvcomp
from support.sources import random_bytes, text_bytes
from support.vault import Vault

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "golden"))

import frozen_repository

from ohdiff.chunking.compressor import CompressorChoice, select_compressor
from ohdiff.chunking.cuda import compressor as compressor_module
from ohdiff.chunking.cuda.compressor import DeviceCompressor
from ohdiff.chunking.cuda.device import CudaDevice
from ohdiff.chunking.cuda.nvcomp import Nvcomp
from ohdiff.chunking.cuda.placement import DeviceProfile, judge_compression
from ohdiff.chunking.engine import Accelerator
from ohdiff.errors import EXIT_DEVICE, DeviceError, UsageError
from ohdiff.operations.calibration import measure_compression, sample_blocks
from ohdiff.repository import chunk_writer
from ohdiff.repository.block_encoder import DEFAULT_LEVEL, BlockEncoder
from ohdiff.repository.encoding import Encoder
from ohdiff.repository.open_block import OpenBlock

KiB, MiB = 1 << 10, 1 << 20
BLOCK = 64 * KiB
PROFILE = DeviceProfile("Fake Device", "sm_90", 12080, 8, 1e9, 1e9, 1e9, 1e9, 1e9, 1e9, 20e9, 3e9, 1.05)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compressor_module, "BLOCK_BYTES_MIN", KiB)
    monkeypatch.setattr(compressor_module, "_CHECK_SIZES", (BLOCK, 20_003, 4097))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A stand-in for a device."""
    return fake_cupy.install(monkeypatch)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch, machine: Machine) -> FakeNvcomp:
    """A stand-in for the library."""
    return fake_nvcomp.install(monkeypatch, machine)


def opened(memory: int = 16 * MiB) -> DeviceCompressor:
    return DeviceCompressor(CudaDevice(), Nvcomp(), memory, BLOCK)


def block(number: int, size: int = BLOCK) -> bytes:
    return text_bytes(size, number)


def compress_all(compressor: DeviceCompressor, blocks: list[bytes], threads: int = 8) -> list[bytes | None]:
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(compressor.compress, blocks))


def test_frames_of_many_threads_are_those_of_their_blocks(library: FakeNvcomp) -> None:
    compressor = opened()
    blocks = [block(number, BLOCK - number) for number in range(50)]
    frames = compress_all(compressor, blocks)
    assert [zstandard.ZstdDecompressor().decompress(frame or b"") for frame in frames] == blocks
    assert compressor.counts.blocks == 50
    assert sum(library.batches[1:]) == 50
    assert compressor.notes == []


@pytest.mark.parametrize("seed", range(6))
def test_nothing_depends_on_how_late_the_device_is(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    machine = fake_cupy.install(monkeypatch, seed=seed, eagerness=(0.0, 0.5, 0.9)[seed % 3])
    fake_nvcomp.install(monkeypatch, machine)
    blocks = [block(number, 5000 + 3 * number) for number in range(40)]
    frames = compress_all(opened(), blocks)
    assert [zstandard.ZstdDecompressor().decompress(frame or b"") for frame in frames] == blocks


def test_what_waits_for_a_batch_goes_with_the_next_one(library: FakeNvcomp) -> None:
    compressor = opened()
    gate, arrived = threading.Event(), threading.Semaphore(0)
    turn = compressor.pace.turn

    def held(*arguments: Any, **options: Any) -> Any:
        arrived.release()
        assert gate.wait(60)
        return turn(*arguments, **options)

    compressor.pace = SimpleNamespace(turn=held, lose=lambda: None)  # type: ignore[assignment]
    with ThreadPoolExecutor(12) as pool:
        futures = [pool.submit(compressor.compress, block(number)) for number in range(12)]
        # Both lanes are taken, and nobody has begun.
        for _ in range(2):
            assert arrived.acquire(timeout=60)
        while len(compressor._waiting) < 12:
            pass
        gate.set()
        assert all(future.result() for future in futures)
    assert sorted(library.batches[1:]) == [4, 8]


@pytest.mark.parametrize("size", [KiB - 1, BLOCK + 1])
def test_blocks_that_are_not_worth_it_or_too_large_are_left_to_the_cpu(library: FakeNvcomp, size: int) -> None:
    assert opened().compress(bytes(size)) is None
    assert len(library.batches) == 1


def test_bytes_in_which_nothing_repeats_are_left_to_the_cpu_and_said(library: FakeNvcomp) -> None:
    compressor = opened()
    assert compressor.compress(random_bytes(BLOCK)) is None
    assert compressor.is_on_device
    assert compressor.notes == ["the CPU compressed 1 blocks that the device made no smaller"]


def test_a_block_that_the_library_refuses_takes_no_other_with_it(
    monkeypatch: pytest.MonkeyPatch, machine: Machine
) -> None:
    fake_nvcomp.install(monkeypatch, machine, refusing_batches=frozenset([1]))
    compressor = opened()
    assert compressor.compress(block(1)) is None
    assert compressor.compress(block(2)) is not None
    assert compressor.counts.refused == 1


def test_a_device_that_fails_is_left_alone_for_the_rest_of_the_run(
    monkeypatch: pytest.MonkeyPatch, machine: Machine
) -> None:
    fake_nvcomp.install(monkeypatch, machine, failing_batches=frozenset([2]))
    compressor = opened()
    assert compressor.compress(block(1)) is not None
    assert [compressor.compress(block(number)) for number in range(3)] == [None] * 3
    assert not compressor.is_on_device
    assert compressor.counts.after_fault == 3
    (note,) = compressor.notes
    assert "an illegal memory access; the CPU compressed the rest (3 blocks)" in note


def test_a_device_that_fails_below_many_threads_leaves_none_waiting(
    monkeypatch: pytest.MonkeyPatch, machine: Machine
) -> None:
    fake_nvcomp.install(monkeypatch, machine, failing_batches=frozenset([3]))
    compressor = opened()
    blocks = [block(number) for number in range(60)]
    frames = compress_all(compressor, blocks)
    for plain, frame in zip(blocks, frames, strict=True):
        assert frame is None or zstandard.ZstdDecompressor().decompress(frame) == plain
    assert None in frames
    assert compressor.counts.blocks + compressor.counts.after_fault == 60


def test_memory_stays_below_the_ceiling_and_batches_are_made_to_fit(machine: Machine, library: FakeNvcomp) -> None:
    for memory, blocks in ((16 * MiB, 8), (MiB, 4), (512 * KiB, 2), (200 * KiB, 1)):
        machine.memory_peak = 0
        compressor = opened(memory)
        assert compressor.batch_blocks == blocks
        assert compressor.compress(block(1)) is not None
        assert 0 < machine.memory_peak <= memory
        del compressor
    with pytest.raises(DeviceError, match="cannot compress: Out of memory"):
        opened(100 * KiB)


@pytest.mark.parametrize("number", range(5))
def test_an_allocation_that_fails_is_answered_by_smaller_batches_or_fewer_lanes(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    machine = fake_cupy.install(monkeypatch, failing_allocations=frozenset([number]))
    fake_nvcomp.install(monkeypatch, machine)
    blocks = [block(each) for each in range(20)]
    assert None not in compress_all(opened(), blocks)


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"version": 5100}, "nvCOMP is of version 5.1, and 6 is needed"),
        ({"bad_batches": frozenset([0])}, "a frame of the self-check does not decode to its block"),
        ({"has_trailer": True}, "a frame of the self-check does not decode"),
        ({"is_large": True}, "a frame of the self-check does not decode"),
        ({"failing_batches": frozenset([0])}, "cannot compress: cudaErrorIllegalAddress"),
    ],
)
def test_a_library_that_cannot_be_used_is_found_out_when_it_is_opened(
    monkeypatch: pytest.MonkeyPatch, machine: Machine, attributes: dict[str, Any], reason: str
) -> None:
    fake_nvcomp.install(monkeypatch, machine, **attributes)
    with pytest.raises(DeviceError) as caught:
        opened()
    assert reason in caught.value.message
    assert caught.value.exit_code == EXIT_DEVICE


def test_a_library_that_is_not_there_is_an_error_with_a_hint(monkeypatch: pytest.MonkeyPatch, machine: Machine) -> None:
    fake_nvcomp.remove(monkeypatch)
    with pytest.raises(DeviceError, match="nvCOMP is not installed") as caught:
        Nvcomp()
    assert "ohdiff[nvcomp12]" in caught.value.hint
    fake_nvcomp.provide(monkeypatch, lambda: None)
    with pytest.raises(DeviceError, match="nvCOMP cannot be loaded"):
        Nvcomp()


def test_a_pace_makes_batches_short_or_leaves_them_to_the_cpu(library: FakeNvcomp) -> None:
    compressor = opened()
    ended: list[bool] = []
    told: list[int] = []

    def pace(size: int) -> Any:
        turn = SimpleNamespace(size_bytes=size, submit=told.append, end=lambda is_ok: ended.append(is_ok))
        return SimpleNamespace(turn=lambda *_, **__: turn if size else None, lose=lambda: None)

    compressor.pace = pace(2 * BLOCK)
    assert None not in compress_all(compressor, [block(number) for number in range(20)])
    assert max(library.batches[1:]) <= 2
    assert sum(told) == 20 * BLOCK
    assert all(ended)
    compressor.pace = pace(0)
    assert compressor.compress(block(1)) is None
    assert compressor.notes == ["the CPU compressed 1 blocks while others needed the device"]
    assert compressor.is_on_device


class TestEncoder:
    """Which blocks go to the device, and what the encoder does with what comes back."""

    @pytest.fixture
    def one(self) -> Callable[..., OpenBlock]:
        def make(data: bytes, chunks: int = 1, **options: Any) -> OpenBlock:
            made = OpenBlock(**options)
            size = len(data) // chunks
            for number in range(chunks):
                made.append(memoryview(data)[number * size : (number + 1) * size], bytes(16))
            return made

        return make

    def test_a_frame_is_decoded_and_compared_before_it_is_taken(
        self, monkeypatch: pytest.MonkeyPatch, machine: Machine, one: Callable[..., OpenBlock]
    ) -> None:
        fake_nvcomp.install(monkeypatch, machine, bad_batches=frozenset([2]))
        compressor = opened()
        encoder = Encoder(3, compressor=compressor)
        for number in range(4):
            encoded = encoder.encode(one(block(number)))
            assert zstandard.ZstdDecompressor().decompress(bytes(encoded.payload)) == block(number)
        assert compressor.counts.blocks == 2
        assert compressor.notes == [
            "a frame that Fake Device, nvCOMP 6.0 made does not decode to its block; "
            "the CPU compressed the rest (3 blocks)"
        ]

    def test_metadata_and_tiny_files_and_what_has_a_plan_are_the_cpus(
        self, library: FakeNvcomp, one: Callable[..., OpenBlock]
    ) -> None:
        encoder = Encoder(3, compressor=opened())
        plan = SimpleNamespace(encode=lambda plain: None, settle=lambda is_taken: None)
        for made in (one(block(1), is_metadata=True), one(block(1), 64), one(block(1), plan=plan)):
            encoder.encode(made)
        assert len(library.batches) == 1
        encoder.encode(one(block(1), 2))
        assert len(library.batches) == 2


def filled(folder: Path) -> dict[Path, bytes]:
    files = {f"text{number}": text_bytes(700_000 + number, 100 + number) for number in range(6)}
    files |= {"noise": random_bytes(900_000), "small": b"small", "empty": b""}
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return {folder / name: data for name, data in files.items()}


@pytest.mark.parametrize(
    ("fault", "note"),
    [
        ({}, ""),
        ({"bad_batches": frozenset(range(2, 99))}, "does not decode to its block"),
        ({"failing_batches": frozenset([2])}, "an illegal memory access"),
        ({"refusing_batches": frozenset(range(2, 9))}, "made no smaller"),
    ],
)
def test_a_snapshot_through_the_device_is_read_back_by_everyone(
    monkeypatch: pytest.MonkeyPatch,
    machine: Machine,
    local_vault: Vault,
    source: Path,
    tmp_path: Path,
    fault: dict[str, Any],
    note: str,
) -> None:
    monkeypatch.setattr(chunk_writer, "BLOCK_SIZE_BYTES", 256 * KiB)
    library = fake_nvcomp.install(monkeypatch, machine, **fault)
    compressor = DeviceCompressor(CudaDevice(), Nvcomp(), 64 * MiB, 256 * KiB)
    files = filled(source)
    stored = local_vault.store(source, compressor=compressor, encoders=8, queue_depth=8)
    assert len(library.batches) > 2
    assert note in "; ".join(compressor.notes)
    local_vault.assert_sound()
    for path, data in files.items():
        assert local_vault.data(stored, path) == data
    restored = read_by_the_independent_reader(local_vault, tmp_path)
    for path, data in files.items():
        assert (restored / path.relative_to("/")).read_bytes() == data


def read_by_the_independent_reader(vault: Vault, tmp_path: Path) -> Path:
    key, target = tmp_path / "key", tmp_path / "reader"
    assert vault.key is not None
    key.write_bytes(vault.key.secret)
    place = Path(vault.storage.location)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        frozen_repository.reader.main([str(place), "--key-file", str(key), "restore", "latest", str(target)])
    return target


def choose(name: str, profile: DeviceProfile | None = None, *, is_default_level: bool = True) -> CompressorChoice:
    return select_compressor(name, Accelerator(profile, 4), BLOCK, is_default_level=is_default_level)


def test_only_a_measured_gain_without_a_larger_size_takes_blocks_to_the_device(library: FakeNvcomp) -> None:
    assert choose("auto").compressor is None
    taken = choose("auto", PROFILE)
    assert taken.compressor is not None
    assert "compression on Fake Device, nvCOMP 6.0: measured faster: 20.0 GB/s on Fake Device, 3.0" in taken.reason
    assert not judge_compression(replace(PROFILE, compress_size=1.11)).pays
    assert not judge_compression(replace(PROFILE, compress_rate=3.5e9)).pays
    assert not judge_compression(replace(PROFILE, compress_rate=0.0)).pays
    assert "default level only" in choose("auto", PROFILE, is_default_level=False).reason
    other = choose("auto", replace(PROFILE, device="Other"))
    assert other.compressor is None
    assert "the profile is of another device" in other.reason


def test_a_demand_is_met_or_an_error(monkeypatch: pytest.MonkeyPatch, machine: Machine) -> None:
    library = fake_nvcomp.install(monkeypatch, machine)
    choice = choose("device", is_default_level=False)
    assert choice.compressor is not None
    assert "as demanded" in choice.reason
    # An engine beside it gets what is left of the quarter of what is free.
    assert choice.memory_left == (1 << 30) // 4 * 3 // 4
    assert choose("cpu").compressor is None
    with pytest.raises(UsageError, match="nothing compresses on the moon"):
        choose("the moon")
    library.version = 7000
    with pytest.raises(DeviceError, match="nvCOMP is of version 7"):
        choose("device")
    assert "no device can compress: nvCOMP is of version 7" in choose("auto", PROFILE).reason


def test_measuring_compares_speed_and_size_with_the_cpus(library: FakeNvcomp) -> None:
    profile = replace(PROFILE, compress_rate=0.0, cpu_compress_rate=0.0, compress_size=0.0, processors=2)
    blocks = [block(number) for number in range(6)]
    found = measure_compression(profile, opened(), blocks)
    assert found.compress_rate > 0
    assert found.cpu_compress_rate > 0
    frames = [zstandard.ZstdCompressor(level=1).compress(each) for each in blocks]
    simple = [BlockEncoder(DEFAULT_LEVEL).encode(each, 1)[1] for each in blocks]
    assert found.compress_size == sum(map(len, frames)) / sum(map(len, simple))


def test_what_is_measured_are_full_blocks_of_real_files() -> None:
    blocks = list(sample_blocks(3, MiB))
    assert [len(each) for each in blocks] == [MiB] * 3
    assert len(set(blocks)) == 3
    assert b"import " in blocks[0]


def test_the_real_library_is_called_as_it_wants_where_it_is_installed() -> None:
    pytest.importorskip("nvidia.libnvcomp")
    library = Nvcomp()
    assert library.version.startswith("6.")
    for size in (1, KiB, 8 * MiB):
        assert size < library.frame_size_max(size) <= size + 64 + size // 1000
