"""The envelope: headers, seals and compressed bodies, for every cipher."""

from __future__ import annotations

import struct

import pytest
import zstandard
from support.sources import random_bytes, text_bytes

from ohdiff_format import envelope
from ohdiff_format.blocks import (
    CODEC_DELTA,
    CODEC_RAW,
    CODEC_ZSTD,
    as_prefix,
    decode_block,
    decode_block_into,
    decode_block_pieces,
)
from ohdiff_format.errors import AuthenticationError, FormatError, UnknownFeatureError
from ohdiff_format.limits import BASE_SIZE_BYTES_MAX, BLOCK_SIZE_BYTES_MAX, OBJECT_PLAIN_SIZE_BYTES_MAX

KINDS = (envelope.KIND_PACK, envelope.KIND_INDEX, envelope.KIND_SNAPSHOT)
WRAPPING_KEY = bytes(range(32))
DATA_KEY = bytes(range(32, 64))


@pytest.fixture(params=envelope.CIPHERS)
def encryption(request: pytest.FixtureRequest) -> str:
    return request.param


def new_sealer(encryption: str, kind: int = envelope.KIND_PACK, data_key: bytes = DATA_KEY) -> envelope.Sealer:
    """A sealer of a new object."""
    return envelope.new_sealer(kind, encryption, WRAPPING_KEY, data_key)


def open_sealer(header: bytes, encryption: str, kind: int = envelope.KIND_PACK) -> envelope.Sealer:
    """A sealer of a stored object."""
    return envelope.open_sealer(header, kind, encryption, WRAPPING_KEY)


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_sealed_opens_through_the_stored_header(encryption: str, kind: int) -> None:
    sealer = new_sealer(encryption, kind)
    reopened = open_sealer(sealer.header + b"the rest of the object", encryption, kind)
    assert reopened.header == sealer.header
    for number, plain in ((0, b""), (1, b"x"), (2**64 - 1, bytes(100_000))):
        sealed = sealer.seal(number, plain)
        assert len(sealed) == len(plain) + 16
        assert reopened.open(number, sealed) == plain
        assert reopened.open(number, memoryview(sealed)) == plain


def test_a_header_has_16_bytes_and_the_wrapped_key(encryption: str) -> None:
    header = new_sealer(encryption).header
    wrapped = 0 if encryption == "none" else 40
    assert len(header) == 16 + wrapped <= envelope.HEADER_SIZE_MAX
    cipher = envelope.CIPHERS[encryption]
    assert header[:16] == b"OHDIFF" + bytes([1, 1, min(cipher, 1), cipher, wrapped, 0, 0, 0, 0, 0])


def test_a_header_with_any_bit_flipped_is_refused(encryption: str) -> None:
    header = new_sealer(encryption).header
    for position in range(len(header)):
        for bit in range(8):
            damaged = bytearray(header)
            damaged[position] ^= 1 << bit
            with pytest.raises(FormatError):
                open_sealer(bytes(damaged), encryption)


def test_a_header_cut_off_anywhere_is_refused(encryption: str) -> None:
    header = new_sealer(encryption).header
    for size in range(len(header)):
        with pytest.raises(FormatError, match="shorter than its header"):
            open_sealer(header[:size], encryption)


@pytest.mark.parametrize(
    ("position", "value", "error", "message"),
    [
        (0, ord("o"), FormatError, "begin with OHDIFF"),
        (6, 2, UnknownFeatureError, "format version 2"),
        (7, 9, FormatError, "kind 9"),
        (7, envelope.KIND_SNAPSHOT, FormatError, "kind 3 where kind 1"),
        (8, 2, UnknownFeatureError, "wrapping scheme 2"),
        (9, 3, UnknownFeatureError, "cipher 3"),
        (10, 39, FormatError, "do not fit together"),
        (11, 1, FormatError, "do not fit together"),
        (12, 1, UnknownFeatureError, "reserved 1"),
    ],
)
def test_each_header_field_names_what_is_wrong(
    position: int, value: int, error: type[FormatError], message: str
) -> None:
    header = bytearray(new_sealer("aes-256-gcm").header)
    header[position] = value
    with pytest.raises(error, match=message):
        open_sealer(bytes(header), "aes-256-gcm")


def test_an_object_of_another_cipher_than_the_repository_is_refused(encryption: str) -> None:
    header = new_sealer(encryption).header
    for other in envelope.CIPHERS.keys() - {encryption}:
        with pytest.raises(AuthenticationError, match="in a repository of"):
            open_sealer(header, other)


def test_a_data_key_wrapped_under_another_key_does_not_open() -> None:
    header = new_sealer("aes-256-gcm").header
    for key in (bytes(32), b""):
        with pytest.raises(AuthenticationError):
            envelope.open_sealer(header, envelope.KIND_PACK, "aes-256-gcm", key)


def test_a_message_with_any_byte_changed_or_lost_does_not_open(encryption: str) -> None:
    sealer = new_sealer(encryption)
    sealed = sealer.seal(5, b"some plain text")
    for position in range(len(sealed)):
        damaged = bytearray(sealed)
        damaged[position] ^= 0x80
        with pytest.raises(AuthenticationError):
            sealer.open(5, bytes(damaged))
        with pytest.raises(AuthenticationError):
            sealer.open(5, sealed[:position])


def test_a_message_moved_to_another_number_does_not_open(encryption: str) -> None:
    sealer = new_sealer(encryption)
    sealed = sealer.seal(5, b"plain")
    for number in (0, 4, 6, 2**64 - 1):
        with pytest.raises(AuthenticationError):
            sealer.open(number, sealed)


def test_a_message_moved_to_an_object_of_another_kind_does_not_open(encryption: str) -> None:
    sealed = new_sealer(encryption, envelope.KIND_INDEX).seal(0, b"plain")
    with pytest.raises(AuthenticationError):
        new_sealer(encryption, envelope.KIND_SNAPSHOT).open(0, sealed)


@pytest.mark.parametrize("encryption", ["aes-256-gcm", "chacha20-poly1305"])
def test_a_message_moved_to_another_object_does_not_open(encryption: str) -> None:
    sealed = new_sealer(encryption).seal(0, b"plain")
    with pytest.raises(AuthenticationError):
        new_sealer(encryption, data_key=bytes(32)).open(0, sealed)


def test_a_seal_cannot_be_opened_under_the_same_key_with_another_header() -> None:
    sealer = new_sealer("aes-256-gcm")
    sealed = sealer.seal(0, b"plain")
    twin = new_sealer("aes-256-gcm", envelope.KIND_INDEX)
    assert twin.header != sealer.header
    with pytest.raises(AuthenticationError):
        twin.open(0, sealed)


@pytest.mark.parametrize("plain", [b"", b"x", b"compressible " * 1000, bytes(range(256)) * 2])
def test_bodies_come_back_and_are_compressed_where_that_helps(plain: bytes) -> None:
    packed = envelope.pack_plain(plain)
    assert envelope.unpack_plain(packed) == plain
    assert len(packed) <= len(plain) + 5
    assert struct.unpack_from("<BI", packed) == (int(len(packed) < len(plain) + 5), len(plain))


def test_a_body_over_its_limit_is_neither_packed_nor_unpacked() -> None:
    with pytest.raises(FormatError, match="larger than its limit"):
        envelope.pack_plain(bytes(OBJECT_PLAIN_SIZE_BYTES_MAX + 1))
    with pytest.raises(FormatError, match="larger than its limit"):
        envelope.unpack_plain(struct.pack("<BI", 0, OBJECT_PLAIN_SIZE_BYTES_MAX + 1))


FRAME = zstandard.ZstdCompressor(level=3).compress(bytes(1000))
UNSIZED = zstandard.ZstdCompressor(level=3, write_content_size=False).compress(bytes(1000))
WITH_DICTIONARY = zstandard.ZstdCompressor(
    dict_data=zstandard.train_dictionary(1024, [b"%d" % (n * n) * 9 for n in range(3000)])
).compress(bytes(1000))


@pytest.mark.parametrize(
    ("frame", "size"),
    [
        (FRAME, 999),
        (FRAME, 1001),
        (FRAME[:-1], 1000),
        (FRAME + b"x", 1000),
        (FRAME + FRAME, 1000),
        (FRAME + FRAME, 2000),
        (UNSIZED, 1000),
        (WITH_DICTIONARY, 1000),
        (b"", 0),
        (b"\x28\xb5\x2f\xfd", 0),
        (b"no frame at all", 15),
        (struct.pack("<II", 0x184D2A50, 5) + b"12345", 5),
    ],
)
def test_a_frame_that_is_not_exactly_one_of_the_expected_size_is_refused(frame: bytes, size: int) -> None:
    with pytest.raises(FormatError):
        envelope.decompress_frame(frame, size)
    with pytest.raises(FormatError):
        envelope.unpack_plain(struct.pack("<BI", 1, size) + frame)
    with pytest.raises(FormatError):
        decode_block(CODEC_ZSTD, frame, size)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"", FormatError),
        (b"\x00\x00\x00\x00", FormatError),
        (struct.pack("<BI", 0, 3) + b"ab", FormatError),
        (struct.pack("<BI", 0, 1) + b"ab", FormatError),
        (struct.pack("<BI", 2, 2) + b"ab", UnknownFeatureError),
    ],
)
def test_a_body_that_lies_about_itself_is_refused(body: bytes, error: type[FormatError]) -> None:
    with pytest.raises(error):
        envelope.unpack_plain(body)


@pytest.mark.parametrize("plain", [b"x", b"text " * 5000, bytes(range(256))])
def test_blocks_come_back(plain: bytes) -> None:
    frame = zstandard.ZstdCompressor().compress(plain)
    assert decode_block(CODEC_ZSTD, frame, len(plain)) == plain
    assert decode_block(CODEC_RAW, plain, len(plain)) == plain
    target = bytearray(len(plain))
    decode_block_into(CODEC_ZSTD, frame, memoryview(target))
    assert target == plain


def test_a_delta_comes_back_with_its_base_only() -> None:
    base, plain = random_bytes(50_000, 1), random_bytes(50_000, 1)[:40_000] + b"new" + random_bytes(10_000, 2)
    prefix = as_prefix(base)
    frame = zstandard.ZstdCompressor(dict_data=prefix).compress(plain)
    assert len(frame) < 11_000
    assert decode_block(CODEC_DELTA, frame, len(plain), base) == plain
    target = bytearray(len(plain))
    decode_block_into(CODEC_DELTA, frame, memoryview(target), prefix)
    assert target == plain
    for wrong in (b"", base[:-1], random_bytes(50_000, 3)):
        try:
            assert decode_block(CODEC_DELTA, frame, len(plain), wrong) != plain
        except FormatError:
            continue


def in_pieces(frame: bytes, size: int, base: bytes = b"", room_size: int = 4096) -> bytes:
    decompressor = zstandard.ZstdDecompressor(dict_data=as_prefix(base))
    return b"".join(map(bytes, decode_block_pieces(decompressor, frame, size, memoryview(bytearray(room_size)))))


@pytest.mark.parametrize("room_size", [1000, 4096, 100_000])
def test_a_block_comes_back_in_pieces(room_size: int) -> None:
    base, plain = random_bytes(50_000, 1), random_bytes(50_000, 1)[:40_000] + random_bytes(10_000, 2)
    assert in_pieces(zstandard.ZstdCompressor().compress(plain), len(plain), b"", room_size) == plain
    frame = zstandard.ZstdCompressor(dict_data=as_prefix(base)).compress(plain)
    assert in_pieces(frame, len(plain), base, room_size) == plain


@pytest.mark.parametrize("size", [0, 9_999, 10_001])
def test_pieces_of_another_size_than_expected_are_refused(size: int) -> None:
    with pytest.raises(FormatError):
        in_pieces(zstandard.ZstdCompressor().compress(bytes(10_000)), size)


def test_pieces_of_a_damaged_or_cut_frame_are_refused_or_differ() -> None:
    plain = text_bytes(20_000, 1)
    frame = zstandard.ZstdCompressor().compress(plain)
    for broken in (frame[:-5], frame[:100], b"", bytes([*frame[:50], frame[50] ^ 1, *frame[51:]])):
        try:
            assert in_pieces(broken, len(plain)) != plain
        except FormatError:
            continue


@pytest.mark.parametrize("damage", [b"more", b""])
def test_a_delta_that_breaks_a_rule_is_refused(damage: bytes) -> None:
    base, plain = random_bytes(50_000, 1), random_bytes(50_000, 1)
    frame = zstandard.ZstdCompressor(dict_data=as_prefix(base)).compress(plain)
    with pytest.raises(FormatError):
        decode_block(CODEC_DELTA, frame + damage if damage else frame[:-1], len(plain), base)
    with pytest.raises(FormatError, match="expected size"):
        decode_block(CODEC_DELTA, frame, len(plain) - 1, base)
    with pytest.raises(FormatError, match="larger than their limit"):
        decode_block(CODEC_DELTA, frame, len(plain), bytes(BASE_SIZE_BYTES_MAX + 1))


def test_a_block_of_an_unknown_codec_or_size_is_refused() -> None:
    with pytest.raises(UnknownFeatureError, match="block codec 4"):
        decode_block(4, b"abc", 3)
    with pytest.raises(FormatError, match="not as long as its chunks"):
        decode_block(CODEC_RAW, b"abc", 4)
    with pytest.raises(FormatError, match="larger than its limit"):
        decode_block(CODEC_RAW, b"abc", BLOCK_SIZE_BYTES_MAX + 1)
