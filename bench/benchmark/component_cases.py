"""What the component bench times: each case is one pass over some bytes by one component, on one thread.

Sizes follow the product: chunks of 64 KiB on average, zstd blocks of 8 MiB, sealed messages of 1 MiB.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import zstandard
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from benchmark.corpus import walk
from ohdiff.chunking.cpu import CpuEngine, available_kernels
from ohdiff.chunking.rule import ChunkingRule

CHUNK_SIZE = 64 << 10
BLOCK_SIZE = 8 << 20
MESSAGE_SIZE = 1 << 20
READ_SIZE = 1 << 20
ZSTD_LEVEL = 3
SEED = 1
KEY = bytes(range(32))


@dataclass(frozen=True, slots=True)
class Sample:
    """Named bytes to work on; `ends` are the exclusive ends of the files that they were."""

    name: str
    data: bytes
    ends: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """`run` passes over `size_bytes` of plain bytes once; `note` is what else there is to say."""

    component: str
    variant: str
    sample: str
    size_bytes: int
    run: Callable[[], object]
    note: str = ""


def random_sample(size: int) -> Sample:
    """Bytes without any pattern, the same in every run."""
    return Sample("random", random.Random(SEED).randbytes(size), (size,))


def read_sample(path: Path, size_max: int) -> Sample:
    """A file, or the files under a folder one after another, up to `size_max` bytes."""
    paths = [str(path)]
    if path.is_dir():
        paths = sorted(entry.path for entry in walk(path) if entry.is_file(follow_symlinks=False))
    data, ends = bytearray(), []
    for name in paths:
        with open(name, "rb") as file:
            data += file.read(size_max - len(data))
        ends.append(len(data))
        if len(data) >= size_max:
            break
    return Sample(path.name, bytes(data), tuple(ends))


def floor_cases(sample: Sample, folder: Path) -> Iterator[Case]:
    """What no component can be faster than: a copy in memory, and a read of a cached file under `folder`."""
    size = len(sample.data)
    target = memoryview(bytearray(size))  # a bytearray would copy twice
    path = folder / "sample"
    path.write_bytes(sample.data)
    buffer = bytearray(READ_SIZE)

    def copy() -> None:
        target[:] = sample.data

    def read() -> None:
        with open(path, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass

    yield Case("memory copy", "", sample.name, size, copy)
    yield Case("page-cache read", "1 MiB calls", sample.name, size, read)


def engine_cases(sample: Sample) -> Iterator[Case]:
    """Cutting and features by every kernel that runs here, and hashing, which all engines on the CPU share."""
    rule = ChunkingRule.from_key(KEY, avg_size=CHUNK_SIZE)
    size, ends = len(sample.data), array("Q", sample.ends)
    for kernel in available_kernels():
        engine = CpuEngine(rule, KEY, kernel)
        cuts, _ = engine.cut_segments(sample.data, ends)
        cut = partial(engine.cut_segments, sample.data, ends)
        features = partial(engine.features, sample.data, cuts)
        yield Case("scan", kernel, sample.name, size, cut, f"{len(ends):,} files, {len(cuts) // 8:,} chunks")
        yield Case("features", kernel, sample.name, size, features)
    mean = f"{8 * size // len(cuts):,} bytes each"
    even_cuts = array("Q", (*range(CHUNK_SIZE, size, CHUNK_SIZE), size))
    hash_even = partial(engine.hash_chunks, sample.data, even_cuts)
    hash_cut = partial(engine.hash_chunks, sample.data, cuts)
    yield Case("hash", "keyed BLAKE3, 64 KiB chunks", sample.name, size, hash_even)
    yield Case("hash", "keyed BLAKE3, chunks as cut", sample.name, size, hash_cut, mean)


def zstd_cases(sample: Sample) -> Iterator[Case]:
    blocks = pieces(sample.data, BLOCK_SIZE)
    compressor, decompressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL), zstandard.ZstdDecompressor()
    frames = [compressor.compress(block) for block in blocks]
    ratio = f"ratio {len(sample.data) / sum(map(len, frames)):.2f}"

    def compress() -> None:
        for block in blocks:
            compressor.compress(block)

    def decompress() -> None:
        for frame in frames:
            decompressor.decompress(frame)

    variant = f"zstd -{ZSTD_LEVEL}, 8 MiB blocks"
    yield Case("compress", variant, sample.name, len(sample.data), compress, ratio)
    yield Case("decompress", variant, sample.name, len(sample.data), decompress)


def cipher_cases(sample: Sample) -> Iterator[Case]:
    cipher, header = AESGCM(KEY), bytes(64)
    nonces = [number.to_bytes(12, "little") for number in range(-(-len(sample.data) // MESSAGE_SIZE))]
    plain = pieces(sample.data, MESSAGE_SIZE)
    sealed = [cipher.encrypt(nonce, message, header) for nonce, message in zip(nonces, plain, strict=True)]

    def encrypt() -> None:
        for nonce, message in zip(nonces, plain, strict=True):
            cipher.encrypt(nonce, message, header)

    def decrypt() -> None:
        for nonce, message in zip(nonces, sealed, strict=True):
            cipher.decrypt(nonce, message, header)

    yield Case("encrypt", "AES-256-GCM, 1 MiB messages", sample.name, len(sample.data), encrypt)
    yield Case("decrypt", "AES-256-GCM, 1 MiB messages", sample.name, len(sample.data), decrypt)


def pieces(data: bytes, size: int) -> list[memoryview]:
    view = memoryview(data)
    return [view[at : at + size] for at in range(0, len(data), size)]
