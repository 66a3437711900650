"""On a device with the optional libraries: nvCOMP's frames, and files past the CPU; skipped where they are not."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import zstandard
from support.small_tensors import safetensors
from support.sources import random_bytes, text_bytes
from support.vault import Vault, engine_of

from ohdiff.chunking.compressor import COMPRESSING_THREADS, open_compressor
from ohdiff.chunking.cuda.compressor import DeviceCompressor
from ohdiff.chunking.cuda.device import CudaDevice
from ohdiff.chunking.cuda.direct import WINDOW_BYTES, DirectReader
from ohdiff.chunking.cuda.engine import CudaEngine
from ohdiff.chunking.engine import Accelerator
from ohdiff.errors import DeviceError
from ohdiff.operations.calibration import sample_blocks
from ohdiff.operations.tensors import snapshot_tensors
from ohdiff.operations.tensors_restore import restore_tensors
from ohdiff.repository.chunk_writer import BLOCK_SIZE_BYTES
from ohdiff_format.blocks import CODEC_ZSTD, decode_block

pytestmark = pytest.mark.gpu
MIB = 1 << 20


@pytest.fixture
def compressor(device: CudaDevice) -> DeviceCompressor:
    """A compressor with nvCOMP, which must work if it is installed."""
    pytest.importorskip("nvidia.libnvcomp")
    return open_compressor(Accelerator(), BLOCK_SIZE_BYTES)[0]


@pytest.fixture
def direct(device: CudaDevice, vault: Vault) -> DirectReader:
    """A reader past the CPU, if there is GPUDirect Storage."""
    repository = vault.open()
    try:
        return DirectReader(CudaEngine(engine_of(repository).rule, repository.chunk_id_key))
    except DeviceError as error:
        pytest.skip(error.message)


def test_frames_of_every_kind_of_data_are_plain_zstd(compressor: DeviceCompressor) -> None:
    blocks = [
        *sample_blocks(8),
        text_bytes(BLOCK_SIZE_BYTES),
        bytes(BLOCK_SIZE_BYTES),
        b"ab" * (BLOCK_SIZE_BYTES // 2),
        *(text_bytes(MIB + size, size) for size in (0, 1, 3, 65_535, 65_537, 1_000_003)),
        text_bytes(4 * MIB) + random_bytes(4 * MIB),
    ]
    with ThreadPoolExecutor(COMPRESSING_THREADS) as pool:
        frames = list(pool.map(compressor.compress, blocks))
    for plain, frame in zip(blocks, frames, strict=True):
        assert frame is not None
        assert len(frame) < len(plain)
        assert decode_block(CODEC_ZSTD, frame, len(plain)) == plain
        assert zstandard.ZstdDecompressor().decompress(frame) == plain
    assert compressor.is_on_device


def test_noise_is_left_to_the_cpu(compressor: DeviceCompressor) -> None:
    assert compressor.compress(random_bytes(BLOCK_SIZE_BYTES)) is None
    assert compressor.is_on_device


def test_a_snapshot_through_nvcomp_is_sound(compressor: DeviceCompressor, vault: Vault, source: Path) -> None:
    files = {source / f"file{number}": block for number, block in enumerate(sample_blocks(6))}
    for path, data in files.items():
        path.write_bytes(data)
    stored = vault.store(source, compressor=compressor, encoders=COMPRESSING_THREADS, queue_depth=COMPRESSING_THREADS)
    assert compressor.counts.blocks > 0
    assert compressor.is_on_device
    vault.assert_sound()
    for path, data in files.items():
        assert vault.data(stored, path) == data


def test_files_past_the_cpu_have_the_chunks_of_the_cpu(direct: DirectReader, vault: Vault, source: Path) -> None:
    sizes = (WINDOW_BYTES, WINDOW_BYTES + 1, 3 * WINDOW_BYTES + 12_345)
    for number, size in enumerate(sizes):
        (source / f"file{number}").write_bytes(random_bytes(size, number))
    tensors = safetensors({"w": ("F32", random_bytes(WINDOW_BYTES, 9)), "b": ("F32", bytes(100))})
    (source / "model.safetensors").write_bytes(tensors)
    stored = vault.store(source, engine=direct.engine, direct=direct)
    if direct.notes:
        pytest.skip(direct.reason)
    assert direct.read_bytes >= sum(sizes) + WINDOW_BYTES
    again = vault.snapshot(source, is_forced=True)
    assert again.snapshot.statistics.added_size < 2000
    assert vault.data(stored, source / "model.safetensors") == tensors
    for number, size in enumerate(sizes):
        assert vault.data(stored, source / f"file{number}") == random_bytes(size, number)
    vault.assert_sound()


@pytest.mark.parametrize("kind", ["float64", "float32", "float16", "int64", "int8"])
def test_tensors_encoded_on_the_device_are_restored(compressor: DeviceCompressor, vault: Vault, kind: str) -> None:
    cupy: Any = compressor.device.cupy
    values = (cupy.random.standard_normal(1_300_000) * 20).astype(kind)
    for _ in range(2):
        result = snapshot_tensors(vault.open(), {"w": values}, compress_on="device")
        assert "the CPU" not in result.compression.partition("each frame decoded by the CPU")[2]
        found = restore_tensors(vault.open(), is_plain=True)
        assert found["w"].tobytes() == values.tobytes()
        values = values + cupy.asarray(1).astype(kind)
    vault.assert_sound()
