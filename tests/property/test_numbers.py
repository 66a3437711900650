"""Blocks of numbers: splitting is undone by joining, by any kernel; decoders refuse or decode, and nothing else."""

from __future__ import annotations

import contextlib

from format_decoders import reader
from hypothesis import given
from hypothesis import strategies as st

from ohdiff._kernels import available_numbers_kernels, join_numbers, split_numbers
from ohdiff.delta.numbers import NumbersEncoder
from ohdiff_format.errors import FormatError
from ohdiff_format.numbers import NumberKind, decode_planes, encode_planes, parse_parameters

KERNELS = available_numbers_kernels()
Case = tuple[bytes, int, int, bytes | None, int]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Arguments of `split_numbers` that fit together: data, width, transform, base, cast."""
    width = draw(st.sampled_from([1, 2, 4, 8]))
    transform = draw(st.integers(0, 4))
    cast = draw(st.integers(0, 2)) if width == 2 and transform else 0
    count = draw(st.integers(0, 300))
    # Bytes repeated and mixed: hypothesis draws few bytes well, and these are to fill vectors.
    data = (draw(st.binary(min_size=1, max_size=80)) * (width * count))[: width * count]
    base_size = count * (4 if cast else width)
    base = (draw(st.binary(min_size=1, max_size=90)) * base_size)[:base_size] if transform else None
    return data, width, transform, base, cast


@given(case=cases(), one=st.sampled_from(KERNELS), other=st.sampled_from(KERNELS))
def test_what_one_kernel_splits_another_joins(case: Case, one: str, other: str) -> None:
    data, *arguments = case
    planes = split_numbers(data, *arguments, one)
    assert planes == split_numbers(data, *arguments, other)
    assert join_numbers(planes, *arguments, other) == data


@given(case=cases())
def test_every_run_of_bytes_is_the_planes_of_some_numbers(case: Case) -> None:
    planes, *arguments = case
    assert split_numbers(join_numbers(planes, *arguments), *arguments) == planes


@given(case=cases(), depth=st.integers(1, 4))
def test_the_independent_reader_joins_what_the_kernels_split(case: Case, depth: int) -> None:
    data, width, transform, base, cast = case
    if not data:
        return
    planes = split_numbers(*case)
    size = len(data) // width
    payload = encode_planes((0, planes[plane * size : (plane + 1) * size]) for plane in range(width))
    parameters = bytes((depth if transform else 0, width, transform, cast))
    assert decode_planes(parameters, payload, len(data)) == planes
    assert reader.decode_numbers(parameters, payload, len(data), base or b"") == data


@given(
    kind=st.sampled_from(NumberKind),
    base_kind=st.sampled_from(NumberKind) | st.none(),
    seed=st.binary(min_size=1, max_size=60),
    base_seed=st.binary(min_size=1, max_size=60),
    count=st.integers(0, 400),
)
def test_what_is_encoded_decodes_and_is_smaller(
    kind: NumberKind, base_kind: NumberKind | None, seed: bytes, base_seed: bytes, count: int
) -> None:
    plain = (seed * (count * kind.width))[: count * kind.width]
    base_size = count * (base_kind or kind).width
    base = (base_seed * base_size)[:base_size]
    encoded = NumbersEncoder(3).encode(plain, kind, base, base_kind, 2)
    if encoded is None:
        return
    assert len(encoded.payload) < len(plain)
    shape = parse_parameters(encoded.parameters)
    planes = decode_planes(encoded.parameters, encoded.payload, len(plain))
    used = base if shape.needs_base else None
    assert join_numbers(planes, shape.width, shape.transform, used, shape.cast) == plain
    assert reader.decode_numbers(encoded.parameters, encoded.payload, len(plain), used or b"") == plain


@given(parameters=st.binary(max_size=6), payload=st.binary(max_size=80), size=st.integers(0, 1 << 26))
def test_random_bytes_are_refused_or_decoded(parameters: bytes, payload: bytes, size: int) -> None:
    with contextlib.suppress(FormatError):
        assert len(decode_planes(parameters, payload, size)) == size


@given(
    width=st.sampled_from([1, 2, 4, 8]),
    planes=st.lists(st.tuples(st.integers(0, 3), st.binary(max_size=12)), max_size=9),
    size=st.integers(0, 64),
    tail=st.binary(max_size=2),
)
def test_planes_of_any_kind_are_refused_or_decoded_alike(
    width: int, planes: list[tuple[int, bytes]], size: int, tail: bytes
) -> None:
    parameters, payload = bytes((0, width, 0, 0)), encode_planes(planes) + tail
    try:
        decoded = bytes(decode_planes(parameters, payload, size))
    except FormatError:
        decoded = None
    try:
        read = reader.decode_numbers(parameters, payload, size, b"")
    except reader.ReaderError:
        read = None
    assert read == (None if decoded is None else join_numbers(decoded, width, 0))
