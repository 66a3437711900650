"""Measuring what a device and the CPU are good for, on this machine and now: the profile that "auto" decides by."""

from __future__ import annotations

import ctypes
import sysconfig
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from typing import Final

from blake3 import blake3

from ohdiff import clock
from ohdiff.chunking.compressor import COMPRESSING_THREADS
from ohdiff.chunking.cuda.compressor import DeviceCompressor
from ohdiff.chunking.cuda.engine import CudaEngine
from ohdiff.chunking.cuda.host_memory import address_of
from ohdiff.chunking.cuda.placement import DeviceProfile
from ohdiff.chunking.device_memory import DeviceMemory
from ohdiff.chunking.engine import Engine, cut_and_hash_stream
from ohdiff.errors import DeviceError
from ohdiff.repository.block_encoder import DEFAULT_LEVEL, BlockEncoder
from ohdiff.repository.chunk_writer import BLOCK_SIZE_BYTES

SAMPLE_SIZE_BYTES: Final = 256 << 20
_ROUNDS: Final = 3
_BLOCKS: Final = 32


def measure_profile(engine: CudaEngine, processors: int, size: int = SAMPLE_SIZE_BYTES) -> DeviceProfile:
    """The rates of a device and of the CPU beside it: of each, the best of a few rounds.

    Parameters
    ----------
    engine : one that has passed its self-check.
    size : bytes of random data, which nothing can skip.

    Raises
    ------
    DeviceError
        The device failed meanwhile.
    """
    device, described = engine.device, engine.device.description
    data = blake3(b"ohdiff calibrate").digest(length=size)
    with device.bound():
        pinned = device.new_pinned(size)
        with address_of(data) as (address, _):
            ctypes.memmove(int(pinned.ptr), address, size)
        on_device = device.new_pool(size + (1 << 20)).malloc(size)
        stream = device.new_stream()

        def copy() -> None:
            device.copy_in(int(on_device.ptr), int(pinned.ptr), size, stream)
            stream.synchronize()

        copy_rate = _rate(copy, size)
    memory = DeviceMemory(int(on_device.ptr), size, described.ordinal, on_device)
    view = memoryview((ctypes.c_ubyte * size).from_address(int(pinned.ptr))).cast("B")
    profile = DeviceProfile(
        device=described.name,
        architecture=described.architecture,
        driver_version=described.driver_version,
        processors=processors,
        copy_rate=copy_rate,
        pageable_rate=_rate(lambda: engine.cut_and_hash_stream(data, True), size),
        pinned_rate=_rate(lambda: engine.cut_and_hash_stream(view, True), size),
        resident_rate=_rate(lambda: engine.cut_resident(memory), size),
        cpu_rate=_rate(lambda: cut_and_hash_stream(engine.cpu, data, True), size),
        cpu_rate_all=_rate_of_all(engine.cpu, data, processors),
    )
    if not engine.is_on_device:
        raise DeviceError(f"the device failed while it was measured: {engine.notes[-1]}", item="cuda")
    return profile


def measure_compression(
    profile: DeviceProfile, compressor: DeviceCompressor, blocks: Sequence[bytes] | None = None
) -> DeviceProfile:
    """The profile with what compression on the device is worth: by text and machine code, the interpreter's library.

    Raises
    ------
    DeviceError
        The device failed meanwhile.
    """
    blocks = list(sample_blocks(_BLOCKS)) if blocks is None else blocks
    size = sum(map(len, blocks))
    with ThreadPoolExecutor(COMPRESSING_THREADS) as pool:
        made = list(pool.map(compressor.compress, blocks))
        rate = _rate(lambda: list(pool.map(compressor.compress, blocks)), size)
    if not compressor.is_on_device:
        raise DeviceError(f"the device failed while it was measured: {compressor.notes[-1]}", item="nvcomp")
    encoders = threading.local()

    def compress(block: bytes) -> int:
        """The size that the CPU makes of a block of ordinary chunks; a thread keeps its encoder, as in a snapshot."""
        if not hasattr(encoders, "encoder"):
            encoders.encoder = BlockEncoder(DEFAULT_LEVEL)
        return len(encoders.encoder.encode(block, 1)[1])

    with ThreadPoolExecutor(profile.processors) as pool:
        simple = list(pool.map(compress, blocks))
        cpu_rate = _rate(lambda: list(pool.map(compress, blocks)), size)
    own = sum(len(block) if frame is None else len(frame) for block, frame in zip(blocks, made, strict=True))
    return replace(profile, compress_rate=rate, cpu_compress_rate=cpu_rate, compress_size=own / sum(simple))


def sample_blocks(count: int, size: int = BLOCK_SIZE_BYTES) -> Iterator[bytes]:
    """So many full blocks of files that every machine with this program has, again and again if they are few."""
    folder = Path(sysconfig.get_path("stdlib"))
    paths = sorted(path for suffix in ("py", "so") for path in folder.rglob(f"*.{suffix}") if path.is_file())
    filled = bytearray()
    for path in islice(cycle(paths), count * len(paths)):
        filled += path.read_bytes()
        while len(filled) >= size:
            yield bytes(filled[:size])
            count -= 1
            if not count:
                return
            del filled[:size]


def _rate_of_all(engine: Engine, data: bytes, processors: int) -> float:
    """Every processor cuts and hashes the data once."""
    with ThreadPoolExecutor(processors) as pool:

        def work() -> None:
            list(pool.map(lambda _: cut_and_hash_stream(engine, data, True), range(processors)))

        return _rate(work, len(data) * processors)


def _rate(work: Callable[[], object], size: int) -> float:
    """Bytes a second, the best of a few rounds; the first one warms up."""
    durations = []
    for _ in range(_ROUNDS):
        begun = clock.monotonic_ns()
        work()
        durations.append(clock.monotonic_ns() - begun)
    return size * 1e9 / max(1, min(durations))
