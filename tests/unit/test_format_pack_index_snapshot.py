"""Footers, trailers, padding, index objects and snapshots: round trips and every check."""

from __future__ import annotations

import struct

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ohdiff_format import index as format_index
from ohdiff_format import pack as format_pack
from ohdiff_format import snapshot as format_snapshot
from ohdiff_format.envelope import pack_plain, unpack_plain
from ohdiff_format.errors import FormatError, UnknownFeatureError
from ohdiff_format.index import Index, PackRecord
from ohdiff_format.limits import (
    BASES_PER_BLOCK_MAX,
    BLOCK_SIZE_BYTES_MAX,
    BLOCKS_PER_PACK_MAX,
    CHUNK_SIZE_BYTES_MAX,
    CHUNKS_PER_BLOCK_MAX,
    PACK_SIZE_BYTES_MAX,
    PACKS_PER_INDEX_MAX,
)
from ohdiff_format.pack import BlockRecord, Footer
from ohdiff_format.snapshot import Snapshot, Statistics

MIB = 1 << 20


def packed(value: object) -> bytes:
    """An object's plain body that holds any value."""
    return pack_plain(msgspec.msgpack.encode(value))


def opened(plain: bytes) -> list:
    """The value in an object's plain body."""
    return msgspec.msgpack.decode(unpack_plain(plain), strict=False)


@pytest.mark.parametrize(
    "footer",
    [
        Footer(False, []),
        Footer(True, [BlockRecord(16, 0, [])]),
        Footer(
            False, [BlockRecord(MIB, 1, [1, 2, 3]), BlockRecord(PACK_SIZE_BYTES_MAX, 0, [CHUNK_SIZE_BYTES_MAX] * 2)]
        ),
    ],
)
def test_a_footer_comes_back(footer: Footer) -> None:
    assert format_pack.decode_footer(format_pack.encode_footer(footer)) == footer


@pytest.mark.parametrize(
    ("row", "error", "message"),
    [
        ([15, 0, []], FormatError, "size is out of bounds"),
        ([PACK_SIZE_BYTES_MAX + 1, 0, []], FormatError, "not a footer"),
        ([-1, 0, []], FormatError, "not a footer"),
        ([16, 4, []], UnknownFeatureError, "block codec 4"),
        ([16, 2, [5]], UnknownFeatureError, "block codec 2"),
        ([16, 2, [5], b"", b"", b"\1"], FormatError, "depth is out of bounds"),
        ([16, 2, [5], b"", bytes(16), b"\0"], FormatError, "depth is out of bounds"),
        ([16, 2, [5], b"", bytes(16), b"\5"], FormatError, "depth is out of bounds"),
        ([16, 2, [5], b"", bytes(16), b"\1\0"], UnknownFeatureError, "block codec 2"),
        ([16, 2, [5], b"", bytes(17), b"\1"], FormatError, "bases are malformed"),
        ([16, 2, [5], b"", bytes(16 * (BASES_PER_BLOCK_MAX + 1)), b"\1"], FormatError, "bases are malformed"),
        ([16, 3, [4], b"", b"", b"\0\4\0"], UnknownFeatureError, "other parameters"),
        ([16, 3, [4], b"", b"", b"\0\3\0\0"], FormatError, "1, 2, 4 or 8"),
        ([16, 3, [4], b"", b"", b"\0\4\5\0"], UnknownFeatureError, "transform"),
        ([16, 3, [4], b"", bytes(16), b"\1\4\1\1"], FormatError, "two bytes"),
        ([16, 3, [4], b"", b"", b"\1\4\1\0"], FormatError, "bases that its codec needs"),
        ([16, 3, [4], b"", bytes(16), b"\1\4\0\0"], FormatError, "bases that its codec needs"),
        ([16, 3, [4], b"", bytes(16), b"\0\4\1\0"], FormatError, "depth is out of bounds"),
        ([16, 3, [4], b"", b"", b"\1\4\0\0"], FormatError, "depth is out of bounds"),
        ([16, 3, [4, 4], b"", b"", b"\0\4\0\0"], FormatError, "one chunk"),
        ([16, 256, []], FormatError, "not a footer"),
        ([16, 0, [CHUNK_SIZE_BYTES_MAX + 1]], FormatError, "not a footer"),
        ([16, 0, [-1]], FormatError, "not a footer"),
        ([16, 0, [CHUNK_SIZE_BYTES_MAX] * 2 + [1]], FormatError, "size is out of bounds"),
        ([16, 0, [5], bytes(16)], FormatError, "one id for each chunk"),
        ([16, 0, [5], b"", bytes(32)], UnknownFeatureError, "block codec"),
        ([16, 0, [5], b"", bytes(31)], FormatError, "bases are malformed"),
        ([16, 0, [5], b"", b"", b"x"], UnknownFeatureError, "block codec"),
        ([16, 0], FormatError, "not a footer"),
        ([16, 0, [1.5]], FormatError, "not a footer"),
    ],
)
def test_a_block_record_that_breaks_a_rule_is_refused(row: list, error: type[FormatError], message: str) -> None:
    assert CHUNK_SIZE_BYTES_MAX * 2 == BLOCK_SIZE_BYTES_MAX
    with pytest.raises(error, match=message):
        format_pack.decode_footer(packed([False, [row]]))


@pytest.mark.parametrize("value", [[], [False], [1, []], [False, 5], {"blocks": []}, None, [False, [[]]]])
def test_what_is_no_footer_is_refused(value: object) -> None:
    with pytest.raises(FormatError):
        format_pack.decode_footer(packed(value))


def test_a_footer_of_too_many_blocks_or_chunks_is_neither_written_nor_read() -> None:
    many = [BlockRecord(16, 0, [])] * (BLOCKS_PER_PACK_MAX + 1)
    crowded = [BlockRecord(16, 0, [0] * (CHUNKS_PER_BLOCK_MAX + 1))]
    for blocks in (many, crowded):
        with pytest.raises(FormatError, match="too many"):
            format_pack.encode_footer(Footer(False, blocks))
        with pytest.raises(FormatError, match="length"):
            format_pack.decode_footer(packed([False, blocks]))
    assert len(format_pack.decode_footer(format_pack.encode_footer(Footer(False, many[:-1]))).blocks) == len(many) - 1


def test_later_fields_are_ignored_and_deep_ones_refused() -> None:
    assert format_pack.decode_footer(packed([True, [[16, 0, [], b"", b"", b"", "later"]], {"more": 1}])) == Footer(
        True, [BlockRecord(16, 0, [])]
    )
    assert format_index.decode_index(packed([[], [], "later"])) == Index([])
    deep = b"\x91" * 100_000 + b"\xc0"
    for decode, start in (
        (format_pack.decode_footer, b"\x93\xc2\x90"),
        (format_index.decode_index, b"\x93\x90\x90"),
        (format_snapshot.decode_snapshot, b"\x81\xa5later"),
    ):
        with pytest.raises(FormatError):
            decode(pack_plain(start + deep))


@pytest.mark.parametrize("size", [16, 17, 1000, PACK_SIZE_BYTES_MAX])
def test_a_trailer_comes_back(size: int) -> None:
    plain = format_pack.encode_trailer(size)
    assert len(plain) == 8
    assert format_pack.decode_trailer(plain, size + format_pack.TRAILER_SIZE) == size
    with pytest.raises(FormatError, match="does not fit"):
        format_pack.decode_trailer(plain, size + format_pack.TRAILER_SIZE - 1)


@pytest.mark.parametrize("plain", [b"", bytes(7), bytes(9), struct.pack("<Q", 15), struct.pack("<Q", 2**64 - 1)])
def test_a_trailer_that_breaks_a_rule_is_refused(plain: bytes) -> None:
    with pytest.raises(FormatError):
        format_pack.decode_trailer(plain, 1000)


@settings(deadline=None)
@given(st.one_of(st.integers(0, 4096), st.integers(0, 2**50)))
def test_padding_costs_at_most_12_percent_and_leaves_few_lengths(size: int) -> None:
    padded = format_pack.padded_size(size)
    assert size <= padded <= size + size * 12 // 100 + 1
    assert format_pack.padded_size(padded) == padded
    if size >= 2:
        # Of a length of e + 1 bits only its highest bits, about log2 of e of them, are told.
        exponent = padded.bit_length() - 1
        assert padded % (1 << (exponent - exponent.bit_length())) == 0


@settings(deadline=None)
@given(st.integers(0, 2**40), st.integers(0, 2**40))
def test_padding_keeps_the_order_of_lengths(first: int, second: int) -> None:
    low, high = sorted((first, second))
    assert format_pack.padded_size(low) <= format_pack.padded_size(high)


PACK = PackRecord(
    bytes(range(32)), 1000, 56, False, [BlockRecord(100, 1, [7, 8], bytes(range(32))), BlockRecord(16, 0, [])]
)


@pytest.mark.parametrize(
    "index",
    [Index([]), Index([PACK]), Index([PACK, PACK], [bytes(32), bytes(range(32))]), Index([], [bytes(32)])],
)
def test_an_index_comes_back(index: Index) -> None:
    assert format_index.decode_index(format_index.encode_index(index)) == index


def test_an_index_without_its_last_field_is_read_as_superseding_nothing() -> None:
    assert format_index.decode_index(packed(opened(format_index.encode_index(Index([PACK])))[:1])) == Index([PACK])


@pytest.mark.parametrize(
    ("position", "value"),
    [
        (0, bytes(31)),
        (0, "text"),
        (1, 171),
        (1, PACK_SIZE_BYTES_MAX + 1),
        (1, -1),
        (2, 885),
        (2, -1),
        (3, 0),
        (4, [[100, 1, [7, 8], bytes(31)]]),
        (4, [[100, 1, [7, 8]]]),
        (4, [[100, 1, [7], bytes(32)]]),
        (4, [[15, 1, [], b""]]),
        (4, [[100, 9, [], b""]]),
        (4, [[945, 0, [], b""]]),
        (4, None),
    ],
)
def test_a_pack_record_that_breaks_a_rule_is_refused(position: int, value: object) -> None:
    (record,), _ = opened(format_index.encode_index(Index([PACK])))
    assert format_index.decode_index(packed([[record]])) == Index([PACK])
    record[position] = value
    with pytest.raises(FormatError):
        format_index.decode_index(packed([[record]]))


@pytest.mark.parametrize("supersedes", [[bytes(31)], [bytes(33)], ["text"], 5])
def test_superseded_names_have_32_bytes(supersedes: object) -> None:
    with pytest.raises(FormatError):
        format_index.decode_index(packed([[], supersedes]))


def test_an_index_of_too_many_packs_is_neither_written_nor_read() -> None:
    packs = [PackRecord(bytes(32), 16, 16, True, [])] * (PACKS_PER_INDEX_MAX + 1)
    with pytest.raises(FormatError, match="too many"):
        format_index.encode_index(Index(packs))
    with pytest.raises(FormatError, match="length"):
        format_index.decode_index(packed([packs]))


SNAPSHOT = Snapshot(5, bytes(64), [10, CHUNK_SIZE_BYTES_MAX], 0, [b"/a", b"/\xff"], "host", "user")


@pytest.mark.parametrize(
    "snapshot",
    [
        SNAPSHOT,
        Snapshot(-(2**63), b"", [], 0, [], "", ""),
        Snapshot(
            2**63 - 1, bytes(32), [2**40], 4, [b"/"], "h", "u", ["täg"], bytes(32), "p", {0: "root"}, {2**32 - 1: "x"},
            ["*.o"], Statistics(files=2**40, duration_ns=2**62),
        ),
    ],
)  # fmt: skip
def test_a_snapshot_comes_back(snapshot: Snapshot) -> None:
    assert format_snapshot.decode_snapshot(format_snapshot.encode_snapshot(snapshot)) == snapshot


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("time_ns", 2**63),
        ("time_ns", "now"),
        ("root_ids", bytes(63)),
        ("root_ids", bytes(32)),
        ("root_sizes", [10]),
        ("root_sizes", [10, -1]),
        ("root_sizes", [10, CHUNK_SIZE_BYTES_MAX + 1]),
        ("root_depth", -1),
        ("root_depth", 5),
        ("parent", bytes(31)),
        ("paths", ["text"]),
        ("paths", None),
        ("host", b"bytes"),
        ("tags", [1]),
        ("users", {"0": "root"}),
        ("statistics", []),
        ("statistics", {"files": "many"}),
    ],
)
def test_a_snapshot_that_breaks_a_rule_is_refused(name: str, value: object) -> None:
    fields = opened(format_snapshot.encode_snapshot(SNAPSHOT))
    assert format_snapshot.decode_snapshot(packed(fields)) == SNAPSHOT
    with pytest.raises(FormatError):
        format_snapshot.decode_snapshot(packed(fields | {name: value}))


@pytest.mark.parametrize("name", ["time_ns", "root_ids", "root_sizes", "root_depth", "paths", "host", "user"])
def test_a_snapshot_lacks_none_of_its_fields(name: str) -> None:
    fields = opened(format_snapshot.encode_snapshot(SNAPSHOT))
    del fields[name]
    with pytest.raises(FormatError, match=name):
        format_snapshot.decode_snapshot(packed(fields))


def test_a_snapshot_may_lack_what_came_later_and_have_what_is_not_known() -> None:
    fields = opened(format_snapshot.encode_snapshot(SNAPSHOT))
    required = {
        name: fields[name] for name in ("time_ns", "root_ids", "root_sizes", "root_depth", "paths", "host", "user")
    }
    assert format_snapshot.decode_snapshot(packed(required | {"mood": {"a": [1]}})) == SNAPSHOT


def test_text_that_is_not_utf8_is_refused() -> None:
    data = msgspec.msgpack.encode(SNAPSHOT).replace(b"host\xa4host", b"host\xa4h\xff\xfet")
    with pytest.raises(FormatError):
        format_snapshot.decode_snapshot(pack_plain(data))
