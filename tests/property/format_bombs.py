"""Feeds decoders bytes that claim far more than they hold; run by test_format_fuzz in a process of its own.

The address space is capped a little above what the process has, so that an allocation by claim is a MemoryError,
which no decoder may raise. Prints how many bombs were refused.
"""

from __future__ import annotations

import resource
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import zstandard
from format_decoders import DECODERS, REFUSALS, Decoder

from ohdiff_format.envelope import pack_plain, unpack_plain
from ohdiff_format.limits import CHUNK_SIZE_BYTES_MAX, OBJECT_PLAIN_SIZE_BYTES_MAX

MIB = 1 << 20
# What one body or block may take by the limits, twice over: the plain bytes, and the objects made of them.
HEADROOM = 160 * MIB
HUGE = 2**32 - 1
ZEROS_256_MIB = zstandard.ZstdCompressor(level=1).compress(bytes(256 * MIB))


def bombs() -> Iterator[tuple[str, bytes]]:
    """(decoder, bytes); none of them is over a few MiB long."""
    yield from frames()
    for name in (
        "footer",
        "index",
        "snapshot",
        "leaf",
        "content list",
        "reader: leaf",
        "reader: footer",
        "reader: body",
    ):
        for value in claims():
            yield name, value
        for value in deep(plain_sample(name)):
            yield name, value
    yield from crowds()
    for name in ("config", "key", "reader: config"):
        yield name, b"[" * 65_000
        yield name, b'{"format":' * 6_000
        yield name, b'{"version":' + b"9" * 60_000
    yield "config", bytes(MIB)
    yield "key", b" " * MIB
    yield "trailer", struct.pack("<Q", 2**64 - 1)


def frames() -> Iterator[tuple[str, bytes]]:
    """Compressed bodies and blocks that are not what they say."""
    whole = ZEROS_256_MIB
    unsized = zstandard.ZstdCompressor(level=1, write_content_size=False).compress(bytes(256 * MIB))
    liar = bytearray(whole)
    # Magic, descriptor, window, then the content size in 4 bytes.
    assert liar[4] >> 6 == 2
    liar[6:10] = struct.pack("<I", 1000)
    # A window of 2 GiB for 1000 bytes, in one run-length block that lacks its byte.
    wide = b"\x28\xb5\x2f\xfd" + bytes([0x80, 31 - 10 << 3]) + struct.pack("<I", 1000) + b"\x43\x1f\x00"
    skippable = struct.pack("<II", 0x184D2A50, 1000) + bytes(1000)
    for frame, size in (
        (whole, 256 * MIB),
        (whole, 1000),
        (unsized, 1000),
        (bytes(liar), 1000),
        (wide, 1000),
        (skippable, 1000),
    ):
        yield "body", struct.pack("<BI", 1, size) + frame
        yield "reader: body", struct.pack("<BI", 1, size) + frame
        yield "block", b"\x01" + struct.pack("<I", size) + frame
    yield "body", struct.pack("<BI", 0, HUGE)
    yield "body", struct.pack("<BI", 1, OBJECT_PLAIN_SIZE_BYTES_MAX + 1) + whole
    yield "block", b"\x00" + struct.pack("<I", HUGE)


def claims() -> Iterator[bytes]:
    """MessagePack that announces four billion of each thing, at the top and inside."""
    for code in (0xC6, 0xC9, 0xDB, 0xDD, 0xDF):
        claim = bytes([code]) + struct.pack(">I", HUGE)
        for front in (
            b"",
            b"\x91",
            b"\x95\x00",
            b"\x92\xc2\x91\x93\x10\x00",
            b"\xdc\x00\x15",
            b"\xdc\x00\x15\x90",
            b"\x81\xa5paths",
        ):
            yield front + claim


def deep(sample: bytes) -> Iterator[bytes]:
    """Nesting without end: alone, and as a later field of a sound value."""
    for code in (b"\x91", b"\x81\x00"):
        nested = code * 200_000 + b"\xc0"
        yield nested
        if sample.startswith((b"\xdc", b"\xde")):
            yield sample[:1] + (int.from_bytes(sample[1:3], "big") + 1).to_bytes(2, "big") + sample[3:] + nested
        elif 0x90 <= sample[0] < 0x9F:
            yield bytes([sample[0] + 1]) + sample[1:] + nested
        else:
            assert 0x80 <= sample[0] <= 0x8F
            yield b"\xde" + (sample[0] - 0x7F).to_bytes(2, "big") + sample[1:] + b"\xa5later" + nested


def crowds() -> Iterator[tuple[str, bytes]]:
    """Well-formed lists of so many small things that their objects would take gigabytes."""

    def many(item: bytes, size: int) -> bytes:
        return b"\xdd" + struct.pack(">I", size // len(item)) + item * (size // len(item))

    body, chunk = OBJECT_PLAIN_SIZE_BYTES_MAX - 100, CHUNK_SIZE_BYTES_MAX - 100
    yield "footer", b"\x92\xc3" + many(b"\x93\x10\x00\x90", body)
    yield "footer", b"\x92\xc3\x91\x93\x10\x00" + many(b"\x00", body)
    yield "index", b"\x91" + many(b"\x95\xc4\x00\x00\x00\xc2\x90", body)
    yield "leaf", b"\xdc\x00\x15" + many(b"\xc4\x00", chunk)
    yield "leaf", b"\xdc\x00\x15\x90" + many(b"\x00", chunk)
    leaf = msgspec.msgpack.decode(plain_sample("leaf"), strict=False)
    leaf[15] = 2**62
    yield "leaf", msgspec.msgpack.encode(leaf)


def plain_sample(name: str) -> bytes:
    """A sound value for a decoder, as MessagePack."""
    decoder = next(decoder for decoder in DECODERS if decoder.name == name)
    sample = decoder.samples[0]
    return unpack_plain(sample) if decoder.wrap is pack_plain else sample


def refused(decoder: Decoder, data: bytes) -> bool:
    """Whether the decoder refuses, as it should."""
    try:
        decoder.decode(data)
    except REFUSALS:
        return True
    return False


def cap_address_space() -> None:
    """Allow HEADROOM over what is in use."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + HEADROOM
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def main() -> None:
    """Refuse everything, or end with what was not refused."""
    by_name = {decoder.name: decoder for decoder in DECODERS}
    prepared = []
    for name, data in bombs():
        decoder = by_name[name]
        is_body = decoder.wrap is pack_plain and name not in ("body", "reader: body")
        prepared.append((decoder, pack_plain(data) if is_body else data))
    cap_address_space()
    accepted = [(decoder.name, data[:40]) for decoder, data in prepared if not refused(decoder, data)]
    sys.stdout.write(f"{len(prepared)} bombs, accepted {accepted}\n")
    sys.exit(1 if accepted else 0)


if __name__ == "__main__":
    main()
