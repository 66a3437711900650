"""Native delta frames: any decoder of zstd that has the base gets the plain bytes back, and near copies take little."""

from __future__ import annotations

import random
import threading

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sources import random_bytes, text_bytes

from ohdiff._kernels import encode_delta
from ohdiff.delta.frames import Base, compress

KiB = 1 << 10
UNBOUNDED = 1 << 40


def decoded(frame: bytes, base: bytes) -> bytes:
    prefix = zstandard.ZstdCompressionDict(base, dict_type=zstandard.DICT_TYPE_RAWCONTENT) if base else None
    return zstandard.ZstdDecompressor(dict_data=prefix).decompress(frame, allow_extra_data=False)


def assert_comes_back(plain: bytes, base: bytes) -> bytes:
    frame = encode_delta(plain, base, UNBOUNDED)
    assert frame is not None
    parameters = zstandard.get_frame_parameters(frame)
    assert (parameters.content_size, parameters.dict_id) == (len(plain), 0)
    assert decoded(frame, base) == plain
    return frame


@pytest.mark.parametrize("base_size", [0, 1, 7, 8, 9, 1_000, 300 * KiB])
@pytest.mark.parametrize(
    "size", [0, 1, 2, 7, 8, 9, 300, 128 * KiB - 1, 128 * KiB, 128 * KiB + 1, 128 * KiB + 9, 1 << 20]
)
def test_plain_bytes_and_bases_of_any_length_come_back(size: int, base_size: int) -> None:
    base = random_bytes(base_size, 1)
    for plain in (
        random_bytes(size, 1),
        random_bytes(size, 2),
        bytes(size),
        (base * (size // max(1, base_size) + 1))[:size],
    ):
        if len(plain) == size:
            assert_comes_back(plain, base)


@settings(deadline=None, max_examples=300)
@given(st.randoms(use_true_random=False), st.sampled_from([1, 3, 20, 500]), st.sampled_from([5, 60, 3_000, 150_000]))
def test_any_shuffle_of_parts_of_the_base_comes_back(dice: random.Random, parts: int, part_size: int) -> None:
    base = dice.choice([random_bytes, text_bytes])(dice.choice([100, 20_000, 400_000]), dice.randrange(5))
    plain = bytearray()
    for _ in range(dice.randint(1, parts)):
        start = dice.randrange(len(base))
        plain += base[start : start + dice.randint(1, part_size)]
        # Without new bytes in between, matches follow each other at once.
        plain += dice.randbytes(dice.choice([0, 0, 1, 2, 40]))
        if len(plain) > 1 << 20:
            break
    assert_comes_back(bytes(plain), base)


@settings(deadline=None, max_examples=100)
@given(st.randoms(use_true_random=False), st.integers(1, 400))
def test_overwritten_places_and_shifts_in_turn_come_back(dice: random.Random, edits: int) -> None:
    base = random_bytes(dice.choice([5_000, 600 * KiB]), 3)
    plain = bytearray(base)
    for _ in range(edits):
        at = dice.randrange(len(plain))
        if dice.random() < 0.5:
            plain[at : at + dice.randint(1, 9)] = dice.randbytes(dice.randint(1, 9))
        else:
            plain[at] ^= 1
    frame = assert_comes_back(bytes(plain), base)
    assert len(frame) < 40 + 25 * edits + len(plain) // 2_000


def test_a_block_of_many_short_matches_comes_back() -> None:
    base = random_bytes(64 * KiB, 4)
    places = [random.Random(5).randrange(len(base) - 8) for _ in range(60_000)]
    plain = b"".join([base[place : place + 8] for place in places])
    assert_comes_back(plain, base)


def test_pages_of_which_few_bytes_changed_take_little() -> None:
    base = bytearray(random_bytes(512 * KiB, 6))
    plain = bytearray(base)
    for page in range(0, len(plain), 4 * KiB):
        plain[page + 100 : page + 108] = random_bytes(8, page)
    frame = assert_comes_back(bytes(plain), bytes(base))
    # 8 bytes a page are new.
    assert len(frame) < 128 * (8 + 6)


def test_bytes_that_were_inserted_do_not_hide_what_follows() -> None:
    base = text_bytes(500_000, 7)
    plain = base[:1_000] + b"x" * 37 + base[1_000:250_000] + random_bytes(300, 8) + base[251_000:]
    assert len(assert_comes_back(plain, base)) < 600


def test_a_frame_that_would_be_too_large_is_none() -> None:
    base, plain = random_bytes(50_000, 1), random_bytes(50_000, 2)
    assert encode_delta(plain, base, 50_000) is None
    frame = encode_delta(base, base, 1_000)
    assert frame is not None
    assert encode_delta(base, base, len(frame)) == frame
    assert encode_delta(base, base, len(frame) - 1) is None
    assert encode_delta(b"", b"", 0) is None


def test_threads_do_not_disturb_each_other() -> None:
    base = text_bytes(300_000, 9)
    plains = [base[shift:] + random_bytes(50 * shift, shift) for shift in range(8)]
    alone = [encode_delta(plain, base, UNBOUNDED) for plain in plains]
    differing: list[int] = []

    def run(number: int) -> None:
        for _ in range(20):
            if encode_delta(plains[number], base, UNBOUNDED) != alone[number]:
                differing.append(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(plains))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert differing == []


def test_inputs_may_lie_anywhere_and_must_be_buffers() -> None:
    base = text_bytes(10_000, 1)
    view = memoryview(b"###" + base)[3:]
    assert encode_delta(view, bytearray(base), UNBOUNDED) == encode_delta(base, base, UNBOUNDED)
    with pytest.raises(TypeError):
        encode_delta("text", base, 1)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        encode_delta(base, base, -1)


def test_inputs_that_are_too_large_are_refused() -> None:
    with pytest.raises(ValueError, match="128 MiB"):
        encode_delta(b"", bytes((128 << 20) + 1), 1)


def test_new_text_is_left_to_the_compressor_that_looks_for_everything() -> None:
    base = text_bytes(400_000, 1)
    plain = base[:200_000] + text_bytes(100_000, 2) + base[200_000:]
    native = encode_delta(plain, base, UNBOUNDED)
    assert native is not None
    frame = compress(memoryview(plain), Base(bytes(16), base, 1))
    assert decoded(frame, base) == plain
    assert len(frame) < 0.6 * len(native)
    near = base[:1_000] + b"new" + base[1_000:]
    assert compress(memoryview(near), Base(bytes(16), base, 1)) == encode_delta(near, base, UNBOUNDED)
