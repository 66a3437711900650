"""Small safetensors files of real numbers, and limits so low that they are cut into many pieces."""

from __future__ import annotations

import json
import random
import struct
from array import array
from collections.abc import Mapping

import pytest

from ohdiff.chunking import containers
from ohdiff.chunking.containers import pieces, tensors
from ohdiff.operations import file_reading

PIECE_ELEMENTS = 1024


def lower_limits(patch: pytest.MonkeyPatch) -> None:
    """Tensors of 512 bytes are cut into pieces of 1024 elements."""
    for module in (containers, pieces, tensors):
        patch.setattr(module, "TENSOR_SIZE_BYTES_MIN", 512)
    patch.setattr(pieces, "PIECE_ELEMENTS", PIECE_ELEMENTS)
    patch.setattr(pieces, "TAIL_ELEMENTS_MIN", 128)
    patch.setattr(file_reading, "_CONTAINER_SIZE_BYTES_MIN", 512)


def safetensors(arrays: Mapping[str, tuple[str, bytes]]) -> bytes:
    """A file of flat tensors: name -> (dtype, bytes)."""
    sizes = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "I64": 8, "BOOL": 1, "U8": 1}
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, (dtype, part) in arrays.items():
        offsets = [len(data), len(data) + len(part)]
        header[name] = {"dtype": dtype, "shape": [len(part) // sizes[dtype]], "data_offsets": offsets}
        data += part
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def weights(count: int, seed: int) -> array[float]:
    """f32 weights as a model has them."""
    dice = random.Random(seed)
    return array("f", [dice.gauss(0, 0.02) for _ in range(count)])


def stepped(values: array[float], seed: int) -> array[float]:
    """The weights after a step of training: each a little different."""
    dice = random.Random(seed)
    return array("f", [value * (1 + dice.gauss(0, 1e-4)) for value in values])


def bf16(values: array[float]) -> bytes:
    """Rounded to 16 bits, to nearest, ties to even."""
    words = array("I", values.tobytes())
    return array("H", [word + 0x7FFF + (word >> 16 & 1) >> 16 for word in words]).tobytes()
