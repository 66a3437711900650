"""The payload of blocks of numbers: what is accepted, and what is refused before anything is allocated."""

from __future__ import annotations

import pytest
import zstandard

from ohdiff_format.errors import FormatError, UnknownFeatureError
from ohdiff_format.limits import BLOCK_SIZE_BYTES_MAX
from ohdiff_format.numbers import (
    PLANE_CONSTANT,
    PLANE_RAW,
    PLANE_ZSTD,
    NumberKind,
    decode_planes,
    encode_planes,
    parse_parameters,
)

TWO_BYTES = bytes((0, 2, 0, 0))


def frame(data: bytes, **options: object) -> bytes:
    return zstandard.ZstdCompressor(**options).compress(data)  # type: ignore[arg-type]


def test_planes_of_every_codec_stand_back_to_back() -> None:
    planes = [
        (PLANE_RAW, b"random"),
        (PLANE_ZSTD, frame(b"aaaaab")),
        (PLANE_CONSTANT, b"\x07"),
        (PLANE_CONSTANT, b"\x00"),
    ]
    decoded = decode_planes(bytes((0, 4, 0, 0)), encode_planes(planes), 24)
    assert decoded == b"randomaaaaab" + b"\x07" * 6 + bytes(6)


def test_a_payload_lies_in_bytes_as_the_spec_says() -> None:
    payload = encode_planes([(PLANE_RAW, b"abc"), (PLANE_CONSTANT, b"z")])
    assert payload == b"\x00\x03\x00\x00\x00abc" + b"\x02\x01\x00\x00\x00z"


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"", "ends before"),
        (encode_planes([(0, b"abc")]), "ends before"),
        (encode_planes([(0, b"abc")]) + b"\x00\x03\x00\x00", "ends before"),
        (encode_planes([(0, b"abc"), (0, b"abc")])[:-1], "beyond"),
        (b"\x00\xff\xff\xff\xffabc", "beyond"),
        (encode_planes([(0, b"abc")] * 3), "follow"),
        (encode_planes([(0, b"abc"), (0, b"abc")]) + b"x", "follow"),
        (encode_planes([(0, b"abcd"), (0, b"ab")]), "another size"),
        (encode_planes([(0, b""), (0, b"abc")]), "another size"),
        (encode_planes([(2, b""), (0, b"abc")]), "another size"),
        (encode_planes([(2, b"aa"), (0, b"abc")]), "another size"),
        (encode_planes([(1, b"abc"), (0, b"abc")]), "zstd"),
        (encode_planes([(1, frame(b"ab")), (0, b"abc")]), "declare"),
        (encode_planes([(1, frame(b"abc") + b"x"), (0, b"abc")]), "not decode"),
        (encode_planes([(1, frame(b"abcabcabc")[:-2]), (0, bytes(9))]), "declare"),
    ],
)
def test_a_payload_that_does_not_fit_is_refused(payload: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        decode_planes(TWO_BYTES, payload, 6)


def test_a_frame_that_is_cut_off_is_refused() -> None:
    cut = frame(bytes(range(200)) * 5)[:-3]
    with pytest.raises(FormatError, match="not decode"):
        decode_planes(TWO_BYTES, encode_planes([(PLANE_ZSTD, cut), (PLANE_RAW, bytes(1000))]), 2000)


@pytest.mark.parametrize("codec", [3, 4, 255])
def test_an_unknown_plane_codec_is_an_unknown_feature(codec: int) -> None:
    with pytest.raises(UnknownFeatureError, match=f"plane codec {codec}"):
        decode_planes(TWO_BYTES, encode_planes([(codec, b"abc"), (0, b"abc")]), 6)


def test_all_planes_are_checked_before_one_is_decoded() -> None:
    """A constant plane of 16 MiB must not be made when the plane after it is wrong."""
    payload = encode_planes([(PLANE_CONSTANT, b"a"), (PLANE_RAW, b"abc")])
    with pytest.raises(FormatError, match="another size"):
        decode_planes(TWO_BYTES, payload, BLOCK_SIZE_BYTES_MAX)


@pytest.mark.parametrize("size", [0, 5, BLOCK_SIZE_BYTES_MAX + 2])
def test_sizes_that_no_block_of_numbers_has_are_refused(size: int) -> None:
    with pytest.raises(FormatError):
        decode_planes(TWO_BYTES, encode_planes([(PLANE_CONSTANT, b"a")] * 2), size)


@pytest.mark.parametrize("parameters", [b"", b"\x00\x04\x00", b"\x00\x04\x00\x00\x00", b"\x00\x04\x05\x00"])
def test_unknown_parameters_are_an_unknown_feature(parameters: bytes) -> None:
    with pytest.raises(UnknownFeatureError):
        parse_parameters(parameters)


@pytest.mark.parametrize(
    "parameters", [b"\x00\x00\x00\x00", b"\x00\x03\x00\x00", b"\x01\x04\x01\x01", b"\x00\x02\x00\x01"]
)
def test_parameters_that_contradict_each_other_are_refused(parameters: bytes) -> None:
    with pytest.raises(FormatError):
        parse_parameters(parameters)


def test_parameters_say_what_they_hold() -> None:
    assert parse_parameters(b"\x02\x02\x04\x01") == (2, 2, 4, 1)
    assert parse_parameters(b"\x02\x02\x04\x01").needs_base
    assert not parse_parameters(b"\x00\x08\x00\x00").needs_base


def test_every_kind_has_a_width_that_the_format_knows() -> None:
    for kind in NumberKind:
        assert parse_parameters(bytes((0, kind.width, 0, 0))).width == kind.width
