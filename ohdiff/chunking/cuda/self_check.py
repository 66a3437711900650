"""The proof, before a device is used, that it cuts, hashes and describes as the CPU does."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import accumulate
from typing import Final

from blake3 import blake3

from ohdiff.chunking.engine import Engine

_NOISE_SIZES: Final = (0, 1, 63, 64, 65, 1024, 1025, 65_537, 0, 300_007)
_RUN_SIZE: Final = 150_001
_PERIODS: Final = (2, 3, 7, 64, 4096)


def first_disagreement(device: Engine, cpu: Engine) -> str | None:
    """What two engines of one rule and key see differently on built-in vectors; None if nothing."""
    for name, data, ends in _vectors(device.rule.max_size):
        packed = array("Q", ends).tobytes()
        cuts, counts = cpu.cut_segments(data, packed)
        if device.cut_segments(data, packed) != (cuts, counts):
            return f"the cuts of {name}"
        if device.hash_chunks(data, cuts) != cpu.hash_chunks(data, cuts):
            return f"the chunk ids of {name}"
        if device.features(data, cuts) != cpu.features(data, cuts):
            return f"the features of {name}"
        if device.cut_stream(data, False) != cpu.cut_stream(data, False):
            return f"the cuts of {name} as a stream"
        single_pass = getattr(device, "cut_and_hash_segments", None)
        if single_pass is not None and single_pass(data, packed) != (cuts, counts, cpu.hash_chunks(data, cuts)):
            return f"cuts and ids of {name} in one pass"
    return None


def _vectors(max_size: int) -> Iterator[tuple[str, bytes, list[int]]]:
    """(name, bytes, ends of the files in them)."""
    noise = blake3(b"ohdiff self check").digest(length=sum(_NOISE_SIZES))
    yield "noise", noise, list(accumulate(_NOISE_SIZES))
    whole = blake3(b"ohdiff self check, one file").digest(length=min(3 * max_size, 4 << 20) + 12_345)
    yield "one large file", whole, [len(whole)]
    yield "a run of zeros", bytes(_RUN_SIZE), [_RUN_SIZE]
    periodic = [
        (blake3(b"%d" % period).digest(length=period) * (_RUN_SIZE // period + 1))[:_RUN_SIZE] for period in _PERIODS
    ]
    yield "periodic data", b"".join(periodic), list(accumulate(map(len, periodic)))
