"""Feeds the decoders of deltas and numbers what claims far more than it holds; run by test_delta_bombs.

In a process of its own, whose address space is capped, as for the bombs of format_bombs.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator

import msgspec
import zstandard
from format_bombs import HUGE, MIB, ZEROS_256_MIB, cap_address_space, refused
from format_decoders import DECODERS

from ohdiff_format.envelope import pack_plain
from ohdiff_format.limits import BASES_PER_BLOCK_MAX

PARAMETERS = bytes((0, 1, 0, 0))


def frames() -> Iterator[bytes]:
    """Frames that are not what they say, to be taken for 1000 bytes."""
    liar = bytearray(ZEROS_256_MIB)
    liar[6:10] = struct.pack("<I", 1000)
    yield ZEROS_256_MIB
    yield bytes(liar)
    yield zstandard.ZstdCompressor(level=1, write_content_size=False).compress(bytes(64 * MIB))
    # A window of 2 GiB for 1000 bytes, in one run-length block that lacks its byte.
    yield b"\x28\xb5\x2f\xfd" + bytes([0x80, 31 - 10 << 3]) + struct.pack("<I", 1000) + b"\x43\x1f\x00"
    yield zstandard.ZstdCompressor().compress(bytes(1000)) + b"more"
    yield b""


def deltas() -> Iterator[bytes]:
    """Plain length, base's length, base, payload."""
    for frame in frames():
        for base in (b"", b"base" * 100):
            yield struct.pack("<II", 1000, len(base)) + base + frame
    for size in (33 * MIB, HUGE):
        yield struct.pack("<II", size, 0) + ZEROS_256_MIB


def numbers() -> Iterator[bytes]:
    """Parameters, plain length, base's length, base, payload."""
    for frame in frames():
        yield PARAMETERS + struct.pack("<II", 1000, 0) + struct.pack("<BI", 1, len(frame)) + frame
    for size in (0, 33 * MIB, HUGE):
        yield PARAMETERS + struct.pack("<II", size, 0) + struct.pack("<BI", 2, 1) + b"\0"
    for width in (1, 2, 4, 8):
        shape = bytes((0, width, 0, 0)) + struct.pack("<II", 32 * MIB, 0)
        for claim in (HUGE, 32 * MIB // width):
            for codec in (0, 1, 2, 3):
                yield shape + struct.pack("<BI", codec, claim) * width
    yield bytes((0, 3, 0, 0)) + struct.pack("<II", 3, 0) + struct.pack("<BI", 0, 1) * 3


def footers() -> Iterator[bytes]:
    """Records of blocks that stand on too much, or on nothing; as MessagePack."""
    for codec, bases, parameters in (
        (2, bytes(16 * (BASES_PER_BLOCK_MAX + 1)), b"\1"),
        (2, bytes(17), b"\1"),
        (2, b"", b"\0"),
        (2, b"", b"\1"),
        (2, bytes(16), b"\0"),
        (2, bytes(16), b"\5"),
        (2, bytes(16), b"\1\1"),
        (3, bytes(16), bytes((1, 1, 0, 0))),
        (3, b"", bytes((1, 1, 1, 0))),
        (3, bytes(32), bytes((1, 1, 1, 0))),
        (3, bytes(16), bytes((5, 1, 1, 0))),
        (1, bytes(16), b"\1"),
        (0, b"", b"\0"),
        (4, b"", b""),
    ):
        yield footer_of([100, codec, [1000], b"", bases, parameters])
    yield footer_of([100, 3, [500, 500], b"", b"", PARAMETERS])


def odd_footers() -> Iterator[bytes]:
    """Records of numbers that are transformed or cast as none are."""
    for parameters in ((1, 1, 5, 0), (1, 2, 1, 3), (1, 4, 1, 1), (1, 3, 1, 0)):
        yield footer_of([100, 3, [1000], b"", bytes(16), bytes(parameters)])


def footer_of(record: list[object]) -> bytes:
    """The footer of a pack of one block, as MessagePack."""
    return msgspec.msgpack.encode([False, [record]])


def bombs() -> Iterator[tuple[str, bytes]]:
    """(decoder, bytes)."""
    for name in ("delta", "reader: delta"):
        yield from ((name, data) for data in deltas())
    # What is decoded into memory of the caller is what was just encoded: it need not notice bytes that follow.
    yield from (("delta into memory", data) for data in deltas() if not data.endswith(b"more"))
    for name in ("planes", "numbers", "reader: numbers"):
        yield from ((name, data) for data in numbers())
    for transform in (1, 2, 3, 4):
        for base_size in (0, 999, 1001, 4000):
            head = bytes((1, 1, transform, 0)) + struct.pack("<II", 1000, base_size) + bytes(base_size)
            for name in ("numbers", "reader: numbers"):
                yield name, head + struct.pack("<BI", 2, 1) + b"\0"
    for name in ("footer", "reader: footer"):
        yield from ((name, pack_plain(data)) for data in footers())
    # The reader judges these when it decodes the block.
    yield from (("footer", pack_plain(data)) for data in odd_footers())


def main() -> None:
    """Refuse everything, or end with what was not refused."""
    by_name = {decoder.name: decoder for decoder in DECODERS}
    prepared = [(by_name[name], data) for name, data in bombs()]
    cap_address_space()
    accepted = [(decoder.name, data[:40]) for decoder, data in prepared if not refused(decoder, data)]
    sys.stdout.write(f"{len(prepared)} bombs, accepted {accepted}\n")
    sys.exit(1 if accepted else 0)


if __name__ == "__main__":
    main()
