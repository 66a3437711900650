"""The encoder of numbers: it picks what gives few bytes, and nothing where plain compression is as good."""

from __future__ import annotations

import random
import struct
from array import array

import pytest
import zstandard

from ohdiff._kernels import join_numbers
from ohdiff.delta.numbers import EncodedNumbers, NumbersEncoder
from ohdiff_format.numbers import (
    CAST_F32_TO_BF16,
    CAST_F32_TO_F16,
    TRANSFORM_FLOAT_DIFFERENCE,
    TRANSFORM_GROUPED_FLOAT_DIFFERENCE,
    TRANSFORM_INTEGER_DIFFERENCE,
    TRANSFORM_NONE,
    TRANSFORM_XOR,
    NumberKind,
    decode_planes,
    parse_parameters,
)

F32, BF16, F16, F64, I64, I32 = (
    NumberKind.F32,
    NumberKind.BF16,
    NumberKind.F16,
    NumberKind.F64,
    NumberKind.I64,
    NumberKind.I32,
)
COUNT = 50_000


def gaussians(count: int, seed: int, scale: float = 0.02) -> list[float]:
    source = random.Random(seed)
    return [source.gauss(0, scale) for _ in range(count)]


def moved(values: list[float], by: float, seed: int) -> list[float]:
    source = random.Random(seed)
    return [value + source.gauss(0, by) for value in values]


def f32(values: list[float]) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def bf16(data: bytes) -> bytes:
    """Rounded half up, which is to even wherever there is no tie."""
    words = array("I", data)
    return array("H", [word + 0x8000 >> 16 for word in words]).tobytes()


def f16(values: list[float]) -> bytes:
    return struct.pack(f"<{len(values)}e", *values)


def encode(
    plain: bytes, kind: NumberKind, base: bytes | None = None, base_kind: NumberKind | None = None, depth: int = 1
) -> EncodedNumbers | None:
    """Encode, and hold what every result must hold."""
    encoded = NumbersEncoder(3).encode(plain, kind, base, base_kind, depth)
    if encoded is not None:
        shape = parse_parameters(encoded.parameters)
        assert len(encoded.payload) < len(plain)
        assert shape.width == kind.width
        assert shape.needs_base is encoded.uses_base
        assert shape.depth == (depth if encoded.uses_base else 0)
        planes = decode_planes(encoded.parameters, encoded.payload, len(plain))
        used = base if shape.needs_base else None
        assert join_numbers(planes, shape.width, shape.transform, used, shape.cast) == plain
    return encoded


def chosen(encoded: EncodedNumbers | None) -> int:
    assert encoded is not None
    return parse_parameters(encoded.parameters).transform


WEIGHTS = gaussians(COUNT, 1)


def test_weights_alone_are_split_into_planes_and_beat_plain_compression() -> None:
    plain = f32(WEIGHTS)
    encoded = encode(plain, F32)
    assert chosen(encoded) == TRANSFORM_NONE
    assert encoded is not None
    assert len(encoded.payload) < 0.93 * len(zstandard.ZstdCompressor(level=3).compress(plain))


def test_weights_of_the_next_step_are_a_grouped_difference() -> None:
    base = f32(WEIGHTS)
    plain = f32(moved(WEIGHTS, 1e-4, 2))
    alone, encoded = encode(plain, F32), encode(plain, F32, base, F32)
    assert chosen(encoded) == TRANSFORM_GROUPED_FLOAT_DIFFERENCE
    assert encoded is not None
    assert alone is not None
    assert len(encoded.payload) < 0.75 * len(alone.payload)


def test_a_difference_is_not_grouped_where_that_gains_nothing() -> None:
    base = array("I", [0x3F000000 + random.Random(4).getrandbits(20) for _ in range(COUNT)])
    source = random.Random(5)
    plain = array("I", [word + source.randint(-90, 90) for word in base])
    assert chosen(encode(plain.tobytes(), F32, base.tobytes(), F32)) == TRANSFORM_FLOAT_DIFFERENCE


@pytest.mark.parametrize(("kind", "cast"), [(BF16, CAST_F32_TO_BF16), (F16, CAST_F32_TO_F16)])
def test_a_narrow_copy_of_the_master_leaves_next_to_nothing(kind: NumberKind, cast: int) -> None:
    master = f32(WEIGHTS)
    encoded = encode(bf16(master) if kind is BF16 else f16(WEIGHTS), kind, master, F32, 2)
    assert encoded is not None
    assert parse_parameters(encoded.parameters).cast == cast
    assert encoded.uses_base
    assert len(encoded.payload) < 100


def test_bits_that_changed_here_and_there_are_an_xor() -> None:
    base = random.Random(6).randbytes(8 * COUNT)
    source = random.Random(7)
    plain = bytearray(base)
    for place in range(0, COUNT, 10):
        plain[8 * place + 7] ^= 0x80
        plain[8 * place + 3] ^= 1 << source.randrange(8)
    assert chosen(encode(bytes(plain), F64, base, F64)) == TRANSFORM_XOR


def test_integers_are_differences_of_integers() -> None:
    source = random.Random(8)
    base = array("q", [source.randint(-(10**15), 10**15) for _ in range(COUNT)])
    plain = array("q", [number + source.randint(-200, 200) for number in base])
    assert chosen(encode(plain.tobytes(), I64, base.tobytes(), I64)) == TRANSFORM_INTEGER_DIFFERENCE


def test_a_base_that_says_nothing_is_not_used() -> None:
    encoded = encode(f32(WEIGHTS), F32, f32(gaussians(COUNT, 9, 1e10)), F32)
    assert chosen(encoded) == TRANSFORM_NONE
    assert encoded is not None
    assert not encoded.uses_base


@pytest.mark.parametrize(
    ("base", "base_kind"),
    [
        (f32(WEIGHTS[1:]), F32),
        (f32(WEIGHTS) + b"more", F32),
        (f32(WEIGHTS), I32),
        (f32(WEIGHTS), F64),
        (f32(WEIGHTS), BF16),
        (f32(WEIGHTS), None),
        (b"", F32),
    ],
)
def test_a_base_that_does_not_fit_is_not_used(base: bytes, base_kind: NumberKind | None) -> None:
    assert chosen(encode(f32(WEIGHTS), F32, base, base_kind)) == TRANSFORM_NONE


def test_noise_is_not_encoded() -> None:
    noise = random.Random(10).randbytes(8 * COUNT)
    for kind in NumberKind:
        assert encode(noise, kind) is None
    assert encode(noise, F32, random.Random(11).randbytes(8 * COUNT), F32) is None


def test_text_that_is_called_numbers_is_left_to_plain_compression() -> None:
    text = b"".join(b"line %d of a text that repeats itself a lot, " % number for number in range(9000))
    for kind in (F32, I32):
        assert encode(text[: len(text) // 8 * 8], kind) is None


def test_the_same_numbers_again_cost_a_few_bytes() -> None:
    plain = f32(WEIGHTS)
    encoded = encode(plain, F32, plain, F32)
    assert encoded is not None
    assert encoded.payload == b"\x02\x01\x00\x00\x00\x00" * 4


def test_planes_of_repeating_integers_are_matched() -> None:
    plain = array("q", [number * 3 + 10**12 for number in range(COUNT)]).tobytes()
    encoded = encode(plain, I64)
    assert encoded is not None
    assert len(encoded.payload) < len(plain) // 20


@pytest.mark.parametrize("plain", [b"", b"abc", bytes(4 * COUNT + 1)])
def test_what_is_no_row_of_whole_numbers_is_left_alone(plain: bytes) -> None:
    assert NumbersEncoder(3).encode(plain, F32, None, None, 1) is None


def test_an_encoder_can_be_used_again_for_pieces_of_any_size() -> None:
    encoder = NumbersEncoder(3)
    for count in (COUNT, 100, 7000, COUNT - 1):
        plain = f32(WEIGHTS[:count])
        encoded = encoder.encode(plain, F32, None, None, 1)
        assert encoded is not None
        assert join_numbers(decode_planes(encoded.parameters, encoded.payload, len(plain)), 4, 0) == plain


def test_views_into_larger_buffers_are_encoded_in_place() -> None:
    plain, base = f32(moved(WEIGHTS, 1e-4, 2)), f32(WEIGHTS)
    shifted, shifted_base = memoryview(b"x" + plain)[1:], memoryview(b"xyz" + base)[3:]
    one, other = NumbersEncoder(3), NumbersEncoder(3)
    assert one.encode(shifted, F32, shifted_base, F32, 1) == other.encode(plain, F32, base, F32, 1)
