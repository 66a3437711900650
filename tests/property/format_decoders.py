"""Every decoder of the format with bytes that it accepts: what the fuzzers, of hypothesis and of atheris, feed.

The reader's own decoders are here as well; they may raise its DamageError in place of FormatError.
"""

from __future__ import annotations

import base64
import importlib
import json
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import zstandard
from blake3 import blake3

import ohdiff_format
from ohdiff.repository import block_decoder
from ohdiff_format import config, envelope, index, keys, numbers, pack, snapshot, tree
from ohdiff_format.blocks import (
    CODEC_DELTA,
    CODEC_NUMBERS,
    as_prefix,
    decode_block,
    decode_block_into,
    decode_block_pieces,
)
from ohdiff_format.errors import FormatError
from ohdiff_format.limits import ID_PREFIX_SIZE

GOLDEN = Path(__file__).parent.parent / "golden" / "format"


# The reader is a file to be run, in no package.
sys.path.insert(0, str(Path(ohdiff_format.__file__).parent / "reader"))
reader = importlib.import_module("ohdiff_reader")
REFUSALS = (FormatError, reader.ReaderError)


@dataclass(frozen=True)
class Decoder:
    """A decoder, what it accepts, and how its input wraps MessagePack, if it does."""

    name: str
    decode: Callable[[bytes], object]
    samples: list[bytes]
    wrap: Callable[[bytes], bytes] | None = None

    def accepts(self, data: bytes) -> bool:
        """Whether it decodes; any error but a refusal is a bug and comes through."""
        try:
            self.decode(data)
        except REFUSALS:
            return False
        return True


class _Samples:
    """What the golden repositories hold, layer by layer."""

    def __init__(self) -> None:
        self.configs: list[bytes] = []
        self.keys: list[bytes] = []
        self.sealed: dict[tuple[str, int], list[bytes]] = {}
        self.bodies: dict[str, list[bytes]] = {"index": [], "snapshots": [], "footer": []}
        self.blocks: list[tuple[int, bytes, int]] = []
        self.records: list[tuple[pack.BlockRecord, bytes, bool]] = []
        self.deltas: list[bytes] = []
        self.numbers: list[bytes] = []
        self.parameters: list[bytes] = []
        self.leaves: list[bytes] = []
        self.lists: list[bytes] = []
        self.trailers: list[bytes] = []
        self.wrapping_key = self.id_key = b""
        for repository in (*envelope.CIPHERS, "deltas"):
            frozen = json.loads((GOLDEN / f"{repository}.json").read_text())
            master_key = bytes.fromhex(frozen["master_key"])
            self.wrapping_key = keys.derive_key(master_key, keys.CONTEXT_WRAPPING)
            self.id_key = keys.derive_key(master_key, keys.CONTEXT_CHUNK_ID)
            for name, text in frozen["objects"].items():
                self._add(frozen["encryption"], name.partition("/")[0], base64.b64decode(text))
        self._add_deltas()

    def _add(self, encryption: str, folder: str, data: bytes) -> None:
        if folder == "config":
            self.configs.append(data)
        elif folder == "keys":
            self.keys.append(data)
        elif folder == "packs":
            self._add_pack(encryption, data)
        else:
            kind = envelope.KIND_INDEX if folder == "index" else envelope.KIND_SNAPSHOT
            sealer = envelope.open_sealer(data, kind, encryption, self.wrapping_key)
            self.sealed.setdefault((encryption, kind), []).append(data)
            self.bodies[folder].append(sealer.open(0, data[len(sealer.header) :]))

    def _add_pack(self, encryption: str, data: bytes) -> None:
        sealer = envelope.open_sealer(data, envelope.KIND_PACK, encryption, self.wrapping_key)
        end = len(data) - pack.TRAILER_SIZE
        self.trailers.append(sealer.open(pack.NUMBER_TRAILER, data[end:]))
        body = sealer.open(pack.NUMBER_FOOTER, data[end - pack.decode_trailer(self.trailers[-1], len(data)) : end])
        self.bodies["footer"].append(body)
        footer = pack.decode_footer(body)
        offset = len(sealer.header)
        for number, block in enumerate(footer.blocks):
            payload = sealer.open(number, data[offset : offset + block.sealed_size])
            offset += block.sealed_size
            self.records.append((block, payload, footer.is_metadata))
            if block.codec not in (CODEC_DELTA, CODEC_NUMBERS):
                self.blocks.append((block.codec, payload, block.plain_size))

    def _add_deltas(self) -> None:
        """Samples of the blocks that may have bases, those first that others stand on."""
        chunks: dict[bytes, bytes] = {}
        for block, payload, is_metadata in sorted(self.records, key=lambda item: item[0].depth):
            names = [block.base_prefixes[at : at + ID_PREFIX_SIZE] for at in range(0, len(block.base_prefixes), 16)]
            base = b"".join(chunks[name] for name in names)
            sizes = struct.pack("<II", block.plain_size, len(base))
            if block.codec == CODEC_NUMBERS:
                self.parameters.append(block.parameters)
                self.numbers.append(block.parameters + sizes + base + payload)
                plain = reader.decode_numbers(block.parameters, payload, block.plain_size, base)
            else:
                plain = bytes(decode_block(block.codec, payload, block.plain_size, base))
            if block.codec == CODEC_DELTA:
                self.deltas.append(sizes + base + payload)
            if is_metadata:
                self._add_metadata(plain, block.chunk_sizes)
            start = 0
            for size in block.chunk_sizes:
                chunk = plain[start : start + size]
                chunks[blake3(chunk, key=self.id_key).digest()[:ID_PREFIX_SIZE]] = chunk
                start += size

    def _add_metadata(self, plain: bytes, sizes: list[int]) -> None:
        start = 0
        for size in sizes:
            chunk = plain[start : start + size]
            (self.lists if chunk.startswith(b"\x93") else self.leaves).append(chunk)
            start += size


def _open(encryption: str, kind: int, wrapping_key: bytes) -> Callable[[bytes], bytes]:
    def decode(data: bytes) -> bytes:
        sealer = envelope.open_sealer(data, kind, encryption, wrapping_key)
        return sealer.open(0, memoryview(data)[len(sealer.header) :])

    return decode


def _decode_block(data: bytes) -> object:
    """One byte of codec, four of plain length, then the payload."""
    return decode_block(data[0] if data else 0, data[5:], int.from_bytes(data[1:5], "little"))


def _split(data: bytes) -> tuple[int, bytes, bytes]:
    """Plain length, base and payload, after four bytes of the plain length and four of the base's."""
    plain_size, base_size = struct.unpack("<II", data[:8].ljust(8, b"\0"))
    return plain_size, data[8 : 8 + base_size], data[8 + base_size :]


def _decode_delta(data: bytes) -> object:
    size, base, payload = _split(data)
    return decode_block(CODEC_DELTA, payload, size, base)


def _decode_delta_into(data: bytes) -> object:
    """The same, into memory of the caller; nobody makes more of it than a block may have."""
    size, base, payload = _split(data)
    room = bytearray(min(size, 1 << 20))
    decode_block_into(CODEC_DELTA, payload, memoryview(room), as_prefix(base))
    return room


def _decode_delta_pieces(data: bytes) -> object:
    size, base, payload = _split(data)
    decompressor = zstandard.ZstdDecompressor(dict_data=as_prefix(base))
    return sum(len(piece) for piece in decode_block_pieces(decompressor, payload, size, memoryview(bytearray(1000))))


def _decode_planes(data: bytes) -> object:
    """Four bytes of parameters first."""
    size, _, payload = _split(data[4:])
    return numbers.decode_planes(data[:4], payload, size)


def _decode_numbers(data: bytes) -> object:
    """As the product does, with the base."""
    size, base, payload = _split(data[4:])
    return block_decoder.decode(_Shape(CODEC_NUMBERS, size, data[:4]), payload, base)


@dataclass(frozen=True)
class _Shape:
    codec: int
    plain_size: int
    parameters: bytes


def _reader_delta(data: bytes) -> object:
    size, base, payload = _split(data)
    return reader.decompress(payload, size, base)


def _reader_numbers(data: bytes) -> object:
    size, base, payload = _split(data[4:])
    return reader.decode_numbers(data[:4], payload, size, base)


def _reading(parse: Callable[[bytes], object]) -> Callable[[bytes], object]:
    def decode(data: bytes) -> object:
        with reader.parsing("it"):
            return parse(data)

    return decode


def _reader_footer(data: bytes) -> object:
    return reader.parse_blocks("", 56, 1 << 30, reader.unpack_body(data)[1])


def _reader_config(data: bytes) -> object:
    return json.loads(data.partition(b"\n")[0])["format"]


def all_decoders() -> list[Decoder]:
    """The codecs' decoders, then the reader's."""
    samples = _Samples()
    packed = envelope.pack_plain
    blocks = [bytes([codec]) + size.to_bytes(4, "little") + payload for codec, payload, size in samples.blocks]
    sealed = [
        Decoder(f"seal {encryption} {kind}", _open(encryption, kind, samples.wrapping_key), data)
        for (encryption, kind), data in samples.sealed.items()
    ]
    every_body = [body for bodies in samples.bodies.values() for body in bodies]
    return [
        Decoder("config", config.decode_config, samples.configs),
        Decoder("key", keys.decode_key, samples.keys),
        *sealed,
        Decoder("body", envelope.unpack_plain, every_body, packed),
        Decoder("footer", pack.decode_footer, samples.bodies["footer"], packed),
        Decoder("trailer", lambda data: pack.decode_trailer(data, 1 << 20), samples.trailers),
        Decoder("index", index.decode_index, samples.bodies["index"], packed),
        Decoder("snapshot", snapshot.decode_snapshot, samples.bodies["snapshots"], packed),
        Decoder("block", _decode_block, blocks),
        Decoder("delta", _decode_delta, samples.deltas),
        Decoder("delta into memory", _decode_delta_into, samples.deltas),
        Decoder("delta in pieces", _decode_delta_pieces, samples.deltas),
        Decoder("parameters", numbers.parse_parameters, samples.parameters),
        Decoder("planes", _decode_planes, samples.numbers),
        Decoder("numbers", _decode_numbers, samples.numbers),
        Decoder("leaf", tree.decode_listing, samples.leaves, bytes),
        Decoder("contents of a leaf", tree.decode_leaf_contents, samples.leaves, bytes),
        Decoder("content list", tree.decode_content, samples.lists, bytes),
        Decoder("reader: leaf", _reading(reader.parse_leaf), samples.leaves, bytes),
        Decoder("reader: footer", _reading(_reader_footer), samples.bodies["footer"], packed),
        Decoder("reader: body", _reading(reader.unpack_body), every_body, packed),
        Decoder("reader: delta", _reading(_reader_delta), samples.deltas),
        Decoder("reader: numbers", _reading(_reader_numbers), samples.numbers),
        Decoder("reader: config", _reading(_reader_config), samples.configs),
    ]


DECODERS = all_decoders()


def unwrapped(decoder: Decoder, sample: bytes) -> object:
    """The MessagePack value inside a sample of a decoder that wraps one."""
    return msgspec.msgpack.decode(sample if decoder.wrap is bytes else envelope.unpack_plain(sample), strict=False)
