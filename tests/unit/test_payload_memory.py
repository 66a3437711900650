"""Payloads wait for the packer: each must take the memory of its length, and no more."""

from __future__ import annotations

import ctypes
import sys

import pytest
from support.sources import random_bytes

from ohdiff.delta.frames import Base, compress
from ohdiff.repository.block_encoder import BlockEncoder


def allocated(data: object) -> int:
    """Bytes that the C library holds for an object that it allocated itself."""
    usable = getattr(ctypes.CDLL(None), "malloc_usable_size", None) if sys.platform == "linux" else None
    if usable is None:
        pytest.skip("the C library does not tell")
    usable.argtypes, usable.restype = [ctypes.c_void_p], ctypes.c_size_t
    return int(usable(id(data)))


def test_a_compressed_block_keeps_no_room_for_a_worse_one() -> None:
    _, payload = BlockEncoder(3).encode(b"text" * 400_000 + random_bytes(5_000, 1), 1)
    assert len(payload) < 6_000
    assert allocated(payload) < 8_000


def test_a_delta_keeps_no_room_for_a_worse_one() -> None:
    base = random_bytes(400_000, 1)
    changed = b"".join(base[start : start + 2_000] + random_bytes(200, start) for start in range(0, 400_000, 2_000))
    payload = compress(memoryview(changed), Base(bytes(16), base, 1))
    assert len(payload) < 60_000
    assert allocated(payload) < 64_000
