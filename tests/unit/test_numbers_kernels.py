"""Number kernels: each gives the planes that SPEC section 6.5 says, spelled out here number by number."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

import pytest

from ohdiff._kernels import (
    available_numbers_kernels,
    join_numbers,
    join_numbers_into,
    split_numbers,
    split_numbers_into,
)

KERNELS = available_numbers_kernels()
NONE, XOR, FLOATS, INTEGERS, GROUPED = range(5)
TO_BF16, TO_F16 = 1, 2
# Around tiles of 4096 bytes, and what SIMD and strands leave over.
COUNTS = [0, 1, 2, 3, 5, 31, 64, 67, 511, 512, 513, 1024, 1025, 2048, 4095, 4096, 4097, 8200, 20_001]
F32_EDGES = [
    *(0, 1, 0x007FFFFF, 0x00800000, 0x3F800000, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FC00000, 0x7FFFFFFF),
    *(0x3F808000, 0x3F818000, 0x3F807FFF, 0x3F808001, 0x7F7F8000, 0x3F801000, 0x3F803000, 0x3F800FFF, 0x3F801001),
    *(0x33000000, 0x33000001, 0x32FFFFFF, 0x33800000, 0x33C00000, 0x337FFFFF, 0x387FE000, 0x387FF000, 0x387FFFFF),
    *(0x38800000, 0x38801000, 0x477FE000, 0x477FEFFF, 0x477FF000, 0x477FFFFF, 0x47800000, 0x32800000, 0x31800000),
]
with_kernel = pytest.mark.parametrize("kernel", KERNELS)
with_width = pytest.mark.parametrize("width", [1, 2, 4, 8])


def words_of(data: bytes, width: int) -> list[int]:
    return [int.from_bytes(data[i : i + width], "little") for i in range(0, len(data), width)]


def nearest_even(value: int, bits: int) -> int:
    quotient, rest = divmod(value, 1 << bits)
    return quotient + (2 * rest + (quotient & 1) > 1 << bits)


def bf16_of(bits: int) -> int:
    return 0x7FC0 if bits & 0x7FFFFFFF > 0x7F800000 else nearest_even(bits, 16)


def f16_of(bits: int) -> int:
    sign, size = bits >> 31 << 15, bits & 0x7FFFFFFF
    if size > 0x7F800000:
        return sign | 0x7E00
    try:
        return sign | struct.unpack("<H", struct.pack("<e", struct.unpack("<f", size.to_bytes(4, "little"))[0]))[0]
    except OverflowError:
        return sign | 0x7C00


def order(word: int, width: int) -> int:
    top = 1 << (8 * width - 1)
    return 2 * top - 1 - word if word & top else word + top


def zigzag(difference: int, width: int) -> int:
    modulus = 1 << 8 * width
    difference %= modulus
    return 2 * difference if 2 * difference < modulus else 2 * (modulus - difference) - 1


def coded(value: int, base: int, width: int, transform: int) -> int:
    if transform == XOR:
        return value ^ base
    if transform == INTEGERS:
        return zigzag(value - base, width)
    return zigzag(order(value, width) - order(base, width), width)


def expected_planes(data: bytes, width: int, transform: int, base: bytes = b"", cast: int = 0) -> bytes:
    codes = words_of(data, width)
    if transform != NONE:
        rounding: Callable[[int], int] = {0: int, TO_BF16: bf16_of, TO_F16: f16_of}[cast]
        bases = [rounding(word) for word in words_of(base, 4 if cast else width)]
        codes = [coded(value, word, width, transform) for value, word in zip(codes, bases, strict=True)]
        if transform == GROUPED:
            magnitude = {place: (2 * word % (1 << 8 * width)) >> (8 * width - 8) for place, word in enumerate(bases)}
            codes = [codes[place] for place in sorted(magnitude, key=magnitude.__getitem__)]
    return b"".join(bytes(code >> 8 * plane & 255 for code in codes) for plane in range(width))


def numbers(width: int, count: int, seed: int) -> bytes:
    """Random bits, with extreme bit patterns among them."""
    source = random.Random(seed)
    top = 1 << (8 * width - 1)
    edges = [0, 1, top, top - 1, top + 1, 2 * top - 1, top - (top >> 6), 2 * top - (top >> 6)]
    words = [source.choice(edges) if source.random() < 0.2 else source.getrandbits(8 * width) for _ in range(count)]
    return b"".join(word.to_bytes(width, "little") for word in words)


def near(data: bytes, width: int, seed: int) -> bytes:
    """Numbers that differ from those of `data` by little, or by much here and there."""
    source = random.Random(seed)
    steps = [source.randint(-300, 300) if source.random() < 0.9 else source.getrandbits(64) for _ in data[::width]]
    words = [(word + step) % (1 << 8 * width) for word, step in zip(words_of(data, width), steps, strict=True)]
    return b"".join(word.to_bytes(width, "little") for word in words)


def check(data: bytes, width: int, transform: int, base: bytes | None, cast: int, kernel: str) -> None:
    planes = split_numbers(data, width, transform, base, cast, kernel)
    assert planes == expected_planes(data, width, transform, base or b"", cast)
    assert join_numbers(planes, width, transform, base, cast, kernel) == data


@with_kernel
@with_width
@pytest.mark.parametrize("count", COUNTS)
def test_planes_without_a_base(kernel: str, width: int, count: int) -> None:
    check(numbers(width, count, count), width, NONE, None, 0, kernel)


@with_kernel
@with_width
@pytest.mark.parametrize("transform", [XOR, FLOATS, INTEGERS, GROUPED])
@pytest.mark.parametrize("count", COUNTS)
def test_planes_against_a_base(kernel: str, width: int, transform: int, count: int) -> None:
    base = numbers(width, count, count)
    check(near(base, width, count), width, transform, base, 0, kernel)
    check(numbers(width, count, count + 1), width, transform, base, 0, kernel)


@with_kernel
@pytest.mark.parametrize("cast", [TO_BF16, TO_F16])
@pytest.mark.parametrize("transform", [XOR, FLOATS, INTEGERS, GROUPED])
@pytest.mark.parametrize("count", COUNTS)
def test_planes_against_a_base_that_is_cast(kernel: str, cast: int, transform: int, count: int) -> None:
    check(numbers(2, count, count), 2, transform, numbers(4, count, count + 1), cast, kernel)


@with_kernel
@pytest.mark.parametrize("cast", [TO_BF16, TO_F16])
def test_casts_round_to_nearest_even_at_every_edge(kernel: str, cast: int) -> None:
    words = [word | sign for word in F32_EDGES for sign in (0, 1 << 31)]
    # Every exponent, with significands around ties of either format.
    tails = [0, 1, 0xFFF, 0x1000, 0x1001, 0x3000, 0x7FFF, 0x8000, 0x8001, 0x18000, 0x7FFFFF, 0x400000]
    words += [exponent << 23 | tail for exponent in range(512) for tail in tails]
    base = b"".join(word.to_bytes(4, "little") for word in words)
    planes = split_numbers(bytes(2 * len(words)), 2, XOR, base, cast, kernel)
    rounded = [low | high << 8 for low, high in zip(planes[: len(words)], planes[len(words) :], strict=True)]
    assert rounded == [(bf16_of if cast == TO_BF16 else f16_of)(word) for word in words]


@with_kernel
def test_a_copy_in_bf16_leaves_nothing_but_zeros(kernel: str) -> None:
    source = random.Random(3)
    master = struct.pack("<999f", *(source.gauss(0, 0.02) for _ in range(999)))
    copy = b"".join(bf16_of(word).to_bytes(2, "little") for word in words_of(master, 4))
    assert split_numbers(copy, 2, FLOATS, master, TO_BF16, kernel) == bytes(2 * 999)


@with_kernel
@with_width
@pytest.mark.parametrize("transform", [NONE, XOR, FLOATS, INTEGERS, GROUPED])
def test_buffers_may_begin_at_any_address(kernel: str, width: int, transform: int) -> None:
    data, base = numbers(width, 1001, 1), numbers(width, 1001, 2)
    expected = expected_planes(data, width, transform, base)
    for shift in (1, 3, 7):
        shifted = memoryview(bytes(shift) + data)[shift:]
        shifted_base = None if transform == NONE else memoryview(bytes(shift + 1) + base)[shift + 1 :]
        room = memoryview(bytearray(len(data) + shift))[shift:]
        split_numbers_into(shifted, room, width, transform, shifted_base, 0, kernel)
        assert room == expected
        back = memoryview(bytearray(len(data) + shift))[shift:]
        join_numbers_into(room, back, width, transform, shifted_base, 0, kernel)
        assert back == data


def test_the_best_kernel_is_the_default_and_the_portable_one_is_always_there() -> None:
    assert KERNELS[-1] == "scalar"
    assert split_numbers(b"abcdefgh", 4, NONE) == b"aebfcgdh"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((bytes(6), 3, NONE), "width"),
        ((bytes(6), 4, NONE), "whole elements"),
        ((bytes(8), 4, 5, bytes(8)), "transform"),
        ((bytes(8), 4, NONE, bytes(8)), "belongs"),
        ((bytes(8), 4, XOR), "belongs"),
        ((bytes(8), 4, XOR, bytes(4)), "as many"),
        ((bytes(8), 4, XOR, bytes(12)), "as many"),
        ((bytes(8), 2, XOR, bytes(8), TO_BF16), "as many"),
        ((bytes(8), 4, XOR, bytes(8), TO_BF16), "2 bytes"),
        ((bytes(8), 2, XOR, bytes(16), 3), "cast"),
        ((bytes(8), 2, NONE, None, 0, "x"), "cannot run here: x"),
    ],
)
def test_what_does_not_fit_is_refused(arguments: tuple[object, ...], message: str) -> None:
    for call in (split_numbers, join_numbers):
        with pytest.raises(ValueError, match=message):
            call(*arguments)  # type: ignore[operator]


def test_a_target_has_the_size_of_the_data_and_lies_elsewhere() -> None:
    data = bytearray(64)
    for call in (split_numbers_into, join_numbers_into):
        for size in (63, 65, 0):
            with pytest.raises(ValueError, match="as large"):
                call(data, bytearray(size), 4, NONE)
        with pytest.raises(ValueError, match="overlap"):
            call(memoryview(data)[:32], memoryview(data)[16:48], 4, NONE)
        with pytest.raises(ValueError, match="overlap"):
            call(bytes(32), memoryview(data)[:32], 4, XOR, memoryview(data)[31:63])
        with pytest.raises(BufferError):
            call(bytes(32), memoryview(bytes(32)), 4, NONE)
    data.extend(b"more")


@pytest.mark.parametrize("data", ["text", None, 7])
def test_what_is_no_buffer_is_a_type_error(data: object) -> None:
    with pytest.raises(TypeError):
        split_numbers(data, 4, NONE)  # type: ignore[arg-type]
