"""An independent reader of ohdiff repositories: lists, restores and verifies snapshots without ohdiff.

    python ohdiff_reader.py REPO [--password-file F | --key-file F] [--scan-packs] list
    python ohdiff_reader.py REPO ... ls SNAPSHOT
    python ohdiff_reader.py REPO ... restore SNAPSHOT TARGET
    python ohdiff_reader.py REPO ... verify

Written from SPEC.md alone, sharing no code with the codecs or the product, so that each can judge the other. One file
on the standard library, blake3, cryptography and zstandard, to be kept beside a repository: it is the way back to the
data when nothing else of ohdiff is at hand. Numbers in parentheses are sections of SPEC.md. It never writes to REPO.
"""

from __future__ import annotations

import argparse
import base64
import errno
import fcntl
import hmac
import json
import os
import re
import stat
import struct
import sys
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import zstandard
from blake3 import blake3
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import keywrap
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id

CHUNK_SIZE_MAX = 16 << 20
BLOCK_SIZE_MAX = 32 << 20
BODY_SIZE_MAX = 64 << 20
PACK_SIZE_MAX = 1 << 30
CONTENT_DEPTH_MAX = 4
BASES_MAX = 1 << 16
DEPTH_MAX = 4
CONFIG_SIZE_MAX = 1 << 16
CACHE_SIZE = 256 << 20

CIPHERS = {"none": 0, "aes-256-gcm": 1, "chacha20-poly1305": 2}
KIND_PACK, KIND_INDEX, KIND_SNAPSHOT = 1, 2, 3
CODEC_RAW, CODEC_ZSTD, CODEC_DELTA, CODEC_NUMBERS = 0, 1, 2, 3
TAG_SIZE = 16
NUMBER_FOOTER, NUMBER_TRAILER = 2**64 - 1, 2**64 - 2
TRAILER_SIZE = 8 + TAG_SIZE
WORD_CODES = {1: "B", 2: "H", 4: "I", 8: "Q"}
SETTABLE_FLAGS = 0x74
FS_IOC_GETFLAGS, FS_IOC_SETFLAGS = 0x80086601, 0x40086602


class ReaderError(Exception):
    """What the user is told; exit code 1."""


class DamageError(ReaderError):
    """Stored bytes break a rule of the format."""


@contextmanager
def parsing(what: str) -> Iterator[None]:
    """Whatever goes wrong while malformed bytes are taken apart is damage of `what`."""
    try:
        yield
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError, struct.error) as error:
        raise DamageError(f"{what} is malformed: {error}") from error


class Report:
    """Tells the user of damage, and counts it."""

    def __init__(self) -> None:
        self.damage_count = 0
        self.noted: set[str] = set()

    def damage(self, where: str, error: Exception) -> None:
        """Something that was stored is damaged, or could not be restored."""
        self.damage_count += 1
        sys.stderr.write(f"damaged: {where}: {error}\n")

    def note(self, message: str) -> None:
        """Say a thing the first time that it happens."""
        if message not in self.noted:
            self.noted.add(message)
            sys.stderr.write(f"note: {message}\n")

    @contextmanager
    def collecting(self, where: str) -> Iterator[None]:
        """Damage inside is told and does not stop the rest."""
        try:
            yield
        except DamageError as error:
            self.damage(where, error)


def require(condition: bool, rule: str) -> None:
    """Raise DamageError with the broken rule."""
    if not condition:
        raise DamageError(rule)


# MessagePack (1.3) and compressed bodies (5.4)

_NUMBERS = {code: struct.Struct(">" + form) for code, form in zip(range(0xCC, 0xD4), "BHIQbhiq", strict=True)}
_LENGTH_SIZES = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4, 0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}


class Unpacker:
    """Decodes the subset of MessagePack that the format uses: no floats, no extension types."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def whole(self) -> Any:
        """The one value that the data holds."""
        value = self.value(0)
        require(self.at == len(self.data), "bytes follow a MessagePack value")
        return value

    def take(self, size: int) -> bytes:
        """The next `size` bytes."""
        taken = self.data[self.at : self.at + size]
        require(len(taken) == size, "a MessagePack value is cut off")
        self.at += size
        return taken

    def value(self, depth: int) -> Any:
        """The next value."""
        code = self.take(1)[0]
        if code < 0x80 or code >= 0xE0:
            return code if code < 0x80 else code - 0x100
        if code in _NUMBERS:
            return _NUMBERS[code].unpack(self.take(_NUMBERS[code].size))[0]
        if code in (0xC0, 0xC2, 0xC3):
            return {0xC0: None, 0xC2: False, 0xC3: True}[code]
        require(depth < 16, "MessagePack values are nested too deep")
        if code in _LENGTH_SIZES:
            length = int.from_bytes(self.take(_LENGTH_SIZES[code]), "big")
        else:
            length = code & (0x1F if 0xA0 <= code < 0xC0 else 0x0F)
        if code in (0xC4, 0xC5, 0xC6):
            return self.take(length)
        if 0xA0 <= code < 0xC0 or code in (0xD9, 0xDA, 0xDB):
            return self.take(length).decode()
        if 0x90 <= code < 0xA0 or code in (0xDC, 0xDD):
            return [self.value(depth + 1) for _ in range(length)]
        require(code < 0x90 or code in (0xDE, 0xDF), f"MessagePack type {code:#x} is not used")
        return {self.value(depth + 1): self.value(depth + 1) for _ in range(length)}


def decompress(frame: bytes, size: int, prefix: bytes = b"") -> bytes:
    """One zstd frame that declares and gives exactly `size` bytes, and may reach back into a prefix."""
    try:
        parameters = zstandard.get_frame_parameters(frame)
        require(parameters.content_size == size and parameters.dict_id == 0, "a zstd frame has another size")
        dictionary = zstandard.ZstdCompressionDict(prefix, zstandard.DICT_TYPE_RAWCONTENT) if prefix else None
        plain = zstandard.ZstdDecompressor(dict_data=dictionary).decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise DamageError(f"a zstd frame does not decode: {error}") from error
    require(len(plain) == size, "a zstd frame has another size")
    return plain


def unpack_body(body: bytes) -> Any:
    """The MessagePack value in the plain bytes of an index, a snapshot or a footer."""
    codec, size = struct.unpack_from("<BI", body)
    require(size <= BODY_SIZE_MAX, "a body is larger than its limit")
    require(codec in (0, 1), f"body codec {codec} is not known")
    plain = decompress(body[5:], size) if codec == 1 else body[5:]
    require(len(plain) == size, "a body has another size than it says")
    return Unpacker(plain).whole()


# Config and keys (3, 4)


class Unlock(NamedTuple):
    """What the user opens the repository with."""

    password: bytes | None = None
    key_file: bytes | None = None


def derive(master: bytes, use: str) -> bytes:
    """A sub-key of the master key."""
    return blake3(master, derive_key_context=f"ohdiff 2026-11 v1 {use}").digest()


def read_config(path: Path) -> tuple[dict[str, Any], bytes, bytes]:
    """The config, its first line and its second."""
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise ReaderError(f"{path.parent} is not a repository: it has no config") from error
    require(len(data) <= CONFIG_SIZE_MAX, "config is larger than its limit")
    line, _, mac = data.partition(b"\n")
    with parsing("config"):
        config = json.loads(line)
        require(config["format"] == "ohdiff repository", "config is not that of an ohdiff repository")
        if config["version"] != 1 or config.get("mandatory_features"):
            raise ReaderError("the repository is of a newer format than this reader knows")
        if config["encryption"] not in CIPHERS:
            raise ReaderError(f"the repository's encryption {config['encryption']!r} is not known to this reader")
    return config, line, mac


def config_mac(line: bytes, master: bytes) -> bytes:
    """What the second line of a config must be."""
    return blake3(line, key=derive(master, "config mac")).hexdigest().encode() + b"\n"


def try_key(key: dict[str, Any], unlock: Unlock) -> bytes | None:
    """The master key, if this key object opens with what the user gave."""
    if key["version"] != 1:
        return None
    if key["kdf"] == "argon2id" and unlock.password is not None:
        require(key["memory_kib"] <= 1 << 20 and key["passes"] <= 16 and key["lanes"] <= 64, "argon2id is too costly")
        stretched = Argon2id(
            salt=base64.b64decode(key["salt"], validate=True),
            length=32,
            iterations=key["passes"],
            lanes=key["lanes"],
            memory_cost=key["memory_kib"],
        ).derive(unlock.password)
    elif key["kdf"] == "keyfile" and unlock.key_file is not None:
        stretched = derive(unlock.key_file, "key file")
    else:
        return None
    try:
        return keywrap.aes_key_unwrap(stretched, base64.b64decode(key["wrapped"], validate=True))
    except keywrap.InvalidUnwrap:
        return None


def open_master_keys(folder: Path, unlock: Unlock, report: Report) -> Iterator[bytes]:
    """The master key out of each key object that opens: a stray one may hold another (10)."""
    is_opened = False
    if unlock == Unlock():
        raise ReaderError("the repository is encrypted: give --password-file or --key-file")
    for path in object_paths(folder):
        with report.collecting(f"keys/{path.name}"), parsing("a key object"):
            data = path.read_bytes()
            master = try_key(json.loads(data), unlock)
            if master is not None:
                is_opened = True
                yield master
            require(blake3(data).hexdigest() == path.name, "its bytes do not match its name")
    if not is_opened:
        raise ReaderError("no key of the repository opens with this password or key file")


def object_paths(folder: Path) -> list[Path]:
    """The objects in a folder, in order of name; what is not named like an object is not one."""
    if not folder.is_dir():
        raise ReaderError(f"{folder} is missing")
    return sorted(path for path in folder.iterdir() if re.fullmatch("[0-9a-f]{64}", path.name))


# Sealed objects (5)


class Sealer:
    """Opens the messages of one object."""

    def __init__(self, header: bytes, cipher: int, data_key: bytes) -> None:
        self.header = header
        self.aead = {0: lambda _: None, 1: AESGCM, 2: ChaCha20Poly1305}[cipher](data_key)

    def open(self, number: int, sealed: bytes) -> bytes:
        """The plain bytes of message `number`."""
        require(len(sealed) >= TAG_SIZE, "a sealed message is cut off")
        nonce = number.to_bytes(12, "little")
        if self.aead is None:
            plain, tag = sealed[:-TAG_SIZE], sealed[-TAG_SIZE:]
            require(blake3(nonce + self.header + plain).digest(length=TAG_SIZE) == tag, "a checksum does not match")
            return plain
        try:
            return bytes(self.aead.decrypt(nonce, sealed, self.header))
        except InvalidTag as error:
            raise DamageError("a sealed message does not match its tag") from error


# Numbers (6.5)


def decode_numbers(parameters: bytes, payload: bytes, plain_size: int, base: bytes | None) -> bytes:
    """The plain bytes of a block of numbers; `base` are the bytes of its base chunk (6.5)."""
    require(len(parameters) == 4, "a block of numbers has other parameters")
    _, width, transform, cast = parameters
    require(width in WORD_CODES and transform <= 4 and cast <= 2, "numbers of an unknown kind")
    require(cast == 0 or (width == 2 and transform != 0), "a cast of numbers that have none")
    require(0 < plain_size <= BLOCK_SIZE_MAX and plain_size % width == 0, "not whole numbers")
    codes = read_words(decode_planes(payload, plain_size // width, width), width)
    if transform == 0:
        require(not base, "numbers with a base that they do not need")
        return write_words(codes)
    base_words = read_base(base or b"", len(codes), width, cast)
    if transform == 4:
        codes = ungrouped(codes, base_words, width)
    return write_words(undo_transform(transform, codes, base_words, width))


def decode_planes(payload: bytes, count: int, width: int) -> bytes:
    """The codes as little-endian integers, from one plane for each of their bytes."""
    codes = bytearray(count * width)
    at = 0
    for plane in range(width):
        require(len(payload) - at >= 5, "a plane is missing")
        codec, size = payload[at], int.from_bytes(payload[at + 1 : at + 5], "little")
        data = payload[at + 5 : at + 5 + size]
        require(len(data) == size, "a plane reaches beyond its block")
        codes[plane::width] = decode_plane(codec, data, count)
        at += 5 + size
    require(at == len(payload), "bytes follow the last plane")
    return bytes(codes)


def decode_plane(codec: int, data: bytes, count: int) -> bytes:
    """One plane of `count` bytes."""
    require(codec in (0, 1, 2), f"plane codec {codec} is not known to this reader")
    if codec == 1:
        return decompress(data, count)
    require(len(data) == (count if codec == 0 else 1), "a plane has another size")
    return data if codec == 0 else data * count


def read_words(data: bytes, width: int) -> array[int]:
    """Little-endian unsigned integers."""
    words = array(WORD_CODES[width])
    require(words.itemsize == width, "this machine has integers of other sizes")
    words.frombytes(data)
    if sys.byteorder == "big":
        words.byteswap()
    return words


def write_words(words: array[int]) -> bytes:
    """The bytes that `read_words` read."""
    if sys.byteorder == "big":
        words.byteswap()
    return words.tobytes()


def read_base(base: bytes, count: int, width: int, cast: int) -> array[int]:
    """The numbers of the base, after the cast."""
    base_width = 4 if cast else width
    require(len(base) == count * base_width, "a base has another size than its block needs")
    words = read_words(base, base_width)
    if cast == 0:
        return words
    return array("H", map(bf16_of_f32 if cast == 1 else f16_of_f32, words))


def divide_to_even(value: int, bits: int) -> int:
    """value / 2^bits, rounded to nearest, ties to even."""
    quotient, rest = value >> bits, value & ((1 << bits) - 1)
    half = 1 << (bits - 1)
    return quotient + (rest > half or (rest == half and quotient & 1 == 1))


def bf16_of_f32(bits: int) -> int:
    """An f32 as bf16."""
    return 0x7FC0 if bits & 0x7FFFFFFF > 0x7F800000 else divide_to_even(bits, 16)


def f16_of_f32(bits: int) -> int:
    """An f32 as f16."""
    sign, size = bits >> 31 << 15, bits & 0x7FFFFFFF
    if size > 0x7F800000:
        return sign | 0x7E00
    if size >= 0x47800000:
        return sign | 0x7C00
    if size >= 0x38800000:
        return sign | divide_to_even(size - 0x38000000, 13)
    return sign | divide_to_even((size & 0x7FFFFF) | 0x800000, 126 - (size >> 23))


def ungrouped(codes: array[int], base: array[int], width: int) -> array[int]:
    """The codes in the order of their places, from the order of the magnitudes of their base."""
    shift, mask = 8 * width - 8, (1 << (8 * width)) - 1
    magnitudes = [((word << 1) & mask) >> shift for word in base]
    places = sorted(range(len(codes)), key=magnitudes.__getitem__)
    result = array(codes.typecode, bytes(len(codes) * codes.itemsize))
    for place, code in zip(places, codes, strict=True):
        result[place] = code
    return result


def undo_transform(transform: int, codes: array[int], base: array[int], width: int) -> array[int]:
    """The numbers that codes stand for."""
    mask, top = (1 << (8 * width)) - 1, 1 << (8 * width - 1)

    def order(word: int) -> int:
        return word + top if word < top else mask - word

    def unorder(value: int) -> int:
        return value - top if value >= top else mask - value

    def difference(code: int) -> int:
        return code >> 1 if code & 1 == 0 else -(code >> 1) - 1

    if transform == 1:
        numbers = (code ^ word for code, word in zip(codes, base, strict=True))
    elif transform == 3:
        numbers = ((word + difference(code)) & mask for code, word in zip(codes, base, strict=True))
    else:
        numbers = (unorder((order(word) + difference(code)) & mask) for code, word in zip(codes, base, strict=True))
    return array(codes.typecode, numbers)


# Packs and index (6, 7)


class Block(NamedTuple):
    """Where a block lies, and the lengths of its chunks."""

    pack: str
    number: int
    offset: int
    sealed_size: int
    codec: int
    chunk_sizes: list[int]
    bases: tuple[bytes, ...]
    parameters: bytes

    @property
    def depth(self) -> int:
        """How many blocks stand one upon the other."""
        return self.parameters[0] if self.parameters else 0


class Place(NamedTuple):
    """Where a chunk lies; `other` is one more place for the same id prefix."""

    block: Block
    start: int
    size: int
    other: Place | None


def parse_blocks(pack: str, offset: int, end: int, rows: list[list[Any]]) -> list[Block]:
    """Block records; the blocks lie back to back from `offset` on and must not reach beyond `end`."""
    blocks = []
    for number, row in enumerate(rows):
        sealed_size, codec, sizes = row[:3]
        bases, parameters = row[4] if len(row) > 4 else b"", row[5] if len(row) > 5 else b""
        prefixes = tuple(bases[i : i + 16] for i in range(0, len(bases), 16))
        block = Block(pack, number, offset, sealed_size, codec, sizes, prefixes, parameters)
        require(sealed_size >= TAG_SIZE and offset + sealed_size <= end, "a block reaches beyond its pack")
        require(all(0 <= size <= CHUNK_SIZE_MAX for size in sizes), "a chunk is larger than its limit")
        require(sum(sizes) <= BLOCK_SIZE_MAX, "a block is larger than its limit")
        require(len(bases) % 16 == 0 and len(prefixes) <= BASES_MAX, "a block has too many bases")
        check_codec(block)
        offset += sealed_size
        blocks.append(block)
    return blocks


def check_codec(block: Block) -> None:
    """Whether a block's codec, bases and parameters fit together."""
    codec, bases, parameters = block.codec, block.bases, block.parameters
    if codec in (CODEC_RAW, CODEC_ZSTD):
        is_known = not bases and not parameters
    elif codec == CODEC_DELTA:
        is_known = len(parameters) == 1 and len(bases) > 0
    else:
        is_known = codec == CODEC_NUMBERS and len(parameters) == 4 and len(block.chunk_sizes) == 1
        is_known = is_known and len(bases) == (parameters[2] != 0)
    require(is_known, f"block codec {codec} is not known to this reader")
    require(block.depth <= DEPTH_MAX and (block.depth > 0) == (len(bases) > 0), "a block's depth is out of bounds")


class Repository:
    """An opened repository."""

    def __init__(self, root: Path, unlock: Unlock, report: Report) -> None:
        self.root = root
        self.report = report
        self.config, line, mac = read_config(root / "config")
        if self.config["encryption"] == "none":
            # Otherwise whoever replaced the config could pass a forged repository off as the encrypted one.
            if unlock != Unlock():
                raise ReaderError("the repository is not encrypted, though a password or key file was given")
            with parsing("config"):
                masters = iter([base64.b64decode(self.config["master_key"], validate=True)])
        else:
            masters = open_master_keys(root / "keys", unlock, report)
        master = next((key for key in masters if hmac.compare_digest(mac, config_mac(line, key))), b"")
        require(len(master) == 32, "config does not match its authentication code")
        self.id_key = derive(master, "chunk id")
        self.wrapping_key = derive(master, "data key wrapping")
        self.places: dict[bytes, Place] = {}
        self.sealers: dict[str, Sealer] = {}
        self.cache: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self.cache_size = 0
        self.chain = 0

    # Objects

    def pack_path(self, pack: str) -> Path:
        """The file of a pack."""
        return self.root / "packs" / pack[:2] / pack

    def pack_names(self) -> list[str]:
        """Every pack in storage."""
        shelves = [path for path in (self.root / "packs").iterdir() if re.fullmatch("[0-9a-f]{2}", path.name)]
        return sorted(path.name for shelf in shelves for path in object_paths(shelf))

    def open_sealer(self, head: bytes, kind: int) -> Sealer:
        """The sealer of an object out of its first bytes."""
        require(len(head) >= 16, "the header is cut off")
        magic, version, found, scheme, cipher, wrapped_size, reserved = struct.unpack_from("<6sBBBBHI", head)
        require(magic == b"OHDIFF" and found == kind, "the header is not that of such an object")
        require((version, reserved) == (1, 0), "the object is of a newer format than this reader knows")
        require(cipher == CIPHERS[self.config["encryption"]], "the object's cipher is not the repository's")
        require((scheme, wrapped_size) == ((0, 0) if cipher == 0 else (1, 40)), "the wrapping scheme is not known")
        header = head[: 16 + wrapped_size]
        require(len(header) == 16 + wrapped_size, "the header is cut off")
        try:
            data_key = keywrap.aes_key_unwrap(self.wrapping_key, header[16:]) if cipher else b""
        except keywrap.InvalidUnwrap as error:
            raise DamageError("the object's data key does not open") from error
        return Sealer(header, cipher, data_key)

    def read_object(self, path: Path, kind: int) -> Any:
        """The value in an index or snapshot object."""
        data = path.read_bytes()
        with parsing("it"):
            require(blake3(data).hexdigest() == path.name, "its bytes do not match its name")
            sealer = self.open_sealer(data, kind)
            return unpack_body(sealer.open(0, data[len(sealer.header) :]))

    # The index

    def learn_chunks(self, do_scan: bool) -> None:
        """Learn where chunks lie, from the index or from the packs."""
        if do_scan:
            self.scan_packs()
        else:
            self.load_index()

    def load_index(self) -> dict[str, list[Block]]:
        """Learn from the index objects where chunks lie; returns the blocks of each pack."""
        objects = {}
        for path in object_paths(self.root / "index"):
            with self.report.collecting(f"index/{path.name} (--scan-packs does without it)"), parsing("it"):
                packs, *more = self.read_object(path, KIND_INDEX)
                objects[path.name] = (packs, {name.hex() for name in more[0]} if more else set())
        superseded = {name for _, names in objects.values() for name in names}
        found = {}
        for name in objects.keys() - superseded:
            with self.report.collecting(f"index/{name}"), parsing("it"):
                for record in objects[name][0]:
                    found[record[0].hex()] = self.add_pack(*record[:5])
        return found

    def add_pack(self, pack: bytes, size: int, offset: int, _: bool, rows: list[list[Any]]) -> list[Block]:
        """Learn one pack record of an index."""
        require(len(pack) == 32 and size <= PACK_SIZE_MAX, "a pack record is out of bounds")
        blocks = parse_blocks(pack.hex(), offset, size, rows)
        for block, row in zip(blocks, rows, strict=True):
            require(len(row[3]) == 16 * len(block.chunk_sizes), "a block does not have one id for each chunk")
            self.add_chunks(block, [row[3][i : i + 16] for i in range(0, len(row[3]), 16)])
        return blocks

    def add_chunks(self, block: Block, prefixes: list[bytes]) -> None:
        """Learn where the chunks of a block lie."""
        start = 0
        for prefix, size in zip(prefixes, block.chunk_sizes, strict=True):
            self.places[prefix] = Place(block, start, size, self.places.get(prefix))
            start += size

    def has_chunks(self, block: Block, ids: list[bytes]) -> bool:
        """Whether the index places these chunks into this block, back to back."""
        start = 0
        for chunk_id, size in zip(ids, block.chunk_sizes, strict=True):
            place = self.places.get(chunk_id[:16])
            while place is not None and (place.block, place.start, place.size) != (block, start, size):
                place = place.other
            if place is None:
                return False
            start += size
        return True

    def scan_packs(self) -> None:
        """Learn the same from the packs themselves, by decoding all of them (11): bases before what needs them."""
        blocks: list[Block] = []
        for pack in self.pack_names():
            with self.report.collecting(f"packs/{pack}"):
                blocks += self.read_footer(pack)
        for block in sorted(blocks, key=lambda block: block.depth):
            with self.report.collecting(f"packs/{block.pack}, block {block.number}"):
                self.scan_block(block)

    def scan_block(self, block: Block) -> None:
        """Learn the chunks of a block from their bytes."""
        self.add_chunks(block, [chunk_id[:16] for chunk_id in self.chunk_ids(block, self.read_block(block))])

    def read_footer(self, pack: str) -> list[Block]:
        """The blocks of a pack, from its own footer."""
        size = self.pack_path(pack).stat().st_size
        require(size <= PACK_SIZE_MAX, "the pack is larger than its limit")
        sealer = self.pack_sealer(pack)
        with parsing("the footer"):
            require(size >= len(sealer.header) + TRAILER_SIZE, "the pack is cut off")
            trailer = sealer.open(NUMBER_TRAILER, self.read_range(pack, size - TRAILER_SIZE, TRAILER_SIZE))
            (footer_size,) = struct.unpack("<Q", trailer)
            footer_start = size - TRAILER_SIZE - footer_size
            require(footer_start >= len(sealer.header), "the footer does not fit into the pack")
            footer = unpack_body(sealer.open(NUMBER_FOOTER, self.read_range(pack, footer_start, footer_size)))
            return parse_blocks(pack, len(sealer.header), footer_start, footer[1])

    # Blocks and chunks

    def read_range(self, pack: str, offset: int, size: int) -> bytes:
        """Bytes of a pack."""
        try:
            with self.pack_path(pack).open("rb") as file:
                file.seek(offset)
                data = file.read(size)
        except FileNotFoundError as error:
            raise DamageError(f"pack {pack} is missing") from error
        require(len(data) == size, f"pack {pack} is cut off")
        return data

    def pack_sealer(self, pack: str) -> Sealer:
        """The sealer of a pack."""
        if pack not in self.sealers:
            header_size = 16 if self.config["encryption"] == "none" else 56
            self.sealers[pack] = self.open_sealer(self.read_range(pack, 0, header_size), KIND_PACK)
        return self.sealers[pack]

    def read_block(self, block: Block) -> bytes:
        """The plain bytes of a block."""
        sealed = self.read_range(block.pack, block.offset, block.sealed_size)
        payload = self.pack_sealer(block.pack).open(block.number, sealed)
        size = sum(block.chunk_sizes)
        if block.codec == CODEC_RAW:
            plain = payload
        elif block.codec == CODEC_NUMBERS:
            plain = decode_numbers(block.parameters, payload, size, self.read_bases(block))
        else:
            plain = decompress(payload, size, self.read_bases(block))
        require(len(plain) == size, "a block has another size than its chunks")
        return plain

    def read_bases(self, block: Block) -> bytes:
        """The bytes of all base chunks of a block, back to back."""
        bases = b""
        for prefix in block.bases:
            bases += self.find_chunk(prefix)
            require(len(bases) <= BLOCK_SIZE_MAX, "a block's bases are larger than their limit")
        return bases

    def cached_block(self, block: Block) -> bytes:
        """The plain bytes of a block; those used last are kept."""
        key = (block.pack, block.number)
        if key not in self.cache:
            self.cache[key] = self.read_block(block)
            self.cache_size += len(self.cache[key])
            while self.cache_size > CACHE_SIZE and len(self.cache) > 1:
                self.cache_size -= len(self.cache.popitem(last=False)[1])
        self.cache.move_to_end(key)
        return self.cache[key]

    def chunk_ids(self, block: Block, plain: bytes) -> list[bytes]:
        """The ids of the chunks in a block."""
        view = memoryview(plain)
        ends = accumulate(block.chunk_sizes)
        sizes = block.chunk_sizes
        return [blake3(view[end - n : end], key=self.id_key).digest() for end, n in zip(ends, sizes, strict=True)]

    def read_chunk(self, chunk_id: bytes) -> bytes:
        """The bytes of a chunk, which are proved by its id."""
        return self.find_chunk(chunk_id)

    def find_chunk(self, chunk_id: bytes) -> bytes:
        """The bytes of a chunk of this id, or whose id begins so; places that stand on the fewest others come first."""
        reason = "it is in no index (try --scan-packs)"
        for place in sorted(self.all_places(chunk_id[:16]), key=lambda place: place.block.depth):
            self.chain += 1
            try:
                require(self.chain <= DEPTH_MAX + 1, "it stands on a chain that does not end")
                data = self.cached_block(place.block)[place.start : place.start + place.size]
                if blake3(data, key=self.id_key).digest()[: len(chunk_id)] == chunk_id:
                    return data
                reason = f"pack {place.block.pack} holds other bytes in its place"
            except DamageError as error:
                reason = f"pack {place.block.pack}, block {place.block.number}: {error}"
            finally:
                self.chain -= 1
        raise DamageError(f"chunk {chunk_id.hex()} cannot be read: {reason}")

    def all_places(self, prefix: bytes) -> Iterator[Place]:
        """Every place of a chunk."""
        place = self.places.get(prefix)
        while place is not None:
            yield place
            place = place.other

    # Snapshots

    def snapshots(self) -> list[tuple[str, dict[str, Any]]]:
        """Every readable snapshot with its id, oldest first; damaged ones are told of."""
        found = []
        for path in object_paths(self.root / "snapshots"):
            with self.report.collecting(f"snapshots/{path.name}"), parsing("it"):
                snapshot = self.read_object(path, KIND_SNAPSHOT)
                datetime_of(snapshot["time_ns"])
                require(all(isinstance(name, bytes) for name in snapshot["paths"]), "its paths are not bytes")
                root_of(snapshot)
                found.append((path.name, snapshot))
        return sorted(found, key=lambda item: (item[1]["time_ns"], item[0]))

    def snapshot(self, selector: str) -> dict[str, Any]:
        """The snapshot that `latest` or the beginning of an id means."""
        found = self.snapshots()
        fitting = found[-1:] if selector == "latest" else [item for item in found if item[0].startswith(selector)]
        if len(fitting) != 1:
            raise ReaderError(f"{len(fitting)} snapshots fit {selector!r}")
        return fitting[0][1]


# Trees and contents (8)


class Content(NamedTuple):
    """Chunk ids and lengths; at depth n the chunks are lists of depth n - 1."""

    ids: bytes
    sizes: list[int]
    depth: int


class Entry(NamedTuple):
    """One entry of a directory."""

    name: bytes
    mode: int
    uid: int
    gid: int
    size: int
    mtime_ns: int
    inode: int
    device: int
    link_count: int
    rdev: int
    flags: int
    content: Content
    target: bytes | None
    xattrs: list[list[bytes]]
    extents: list[int] | None


def check_content(content: Content) -> Content:
    """Raise unless a content list has one id and one length for each chunk, and is not nested too deep."""
    require(0 <= content.depth <= CONTENT_DEPTH_MAX, "a content list is nested too deep")
    require(len(content.ids) == 32 * len(content.sizes), "a content list does not have one id for each chunk")
    limit = CHUNK_SIZE_MAX if content.depth == 0 else 2**63
    require(all(0 <= size <= limit for size in content.sizes), "a length is out of bounds")
    return content


def expand(column: Any, count: int) -> list[int]:
    """A column as a list: one number stands for itself in every row."""
    values = [column] * count if isinstance(column, int) else column
    require(len(values) == count, "a column is not as long as the names")
    return list(values)


def wrap(value: int) -> int:
    """A number modulo 2^64, as signed 64-bit."""
    return (value + 2**63) % 2**64 - 2**63


def sums(column: Any, count: int) -> list[int]:
    """A column of differences, added up."""
    require(isinstance(column, list), "a column of differences is not an array")
    return [wrap(value) for value in accumulate(expand(column, count))]


def modification_times(column: Any, ctimes: list[int]) -> list[int]:
    """A column of differences, or the one distance of every entry to its status change time."""
    if isinstance(column, int):
        return [wrap(ctime - column) for ctime in ctimes]
    return sums(column, len(ctimes))


def parse_leaf(data: bytes) -> list[Entry]:
    """The entries of one leaf."""
    names, *columns = Unpacker(data).whole()
    count = len(names)
    modes, uids, gids, sizes = (expand(column, count) for column in columns[:4])
    mtimes = modification_times(columns[4], sums(columns[5], count))
    inodes = [inode % 2**64 for inode in sums(columns[7], count)]
    devices, links, rdevs, flags, _ = (expand(column, count) for column in columns[8:13])
    contents = split_contents(columns[13], columns[14], columns[15], columns[16], count)
    targets, xattrs, extents = columns[17:20]
    require(all(row in range(count) for field in columns[17:20] for row in field), "a row is not there")
    rows = zip(names, modes, uids, gids, sizes, mtimes, inodes, devices, links, rdevs, flags, contents, strict=True)
    return [
        check_entry(Entry._make((*row, targets.get(number), xattrs.get(number, []), extents.get(number))))
        for number, row in enumerate(rows)
    ]


def split_contents(depths: Any, counts: Any, ids: bytes, sizes: list[int], count: int) -> list[Content]:
    """The content of each entry of a leaf."""
    contents = []
    start = 0
    for depth, chunk_count in zip(expand(depths, count), expand(counts, count), strict=True):
        end = start + chunk_count
        require(chunk_count >= 0 and end <= len(sizes), "content counts do not add up")
        contents.append(check_content(Content(ids[32 * start : 32 * end], sizes[start:end], depth)))
        start = end
    require(start == len(sizes) and 32 * start == len(ids), "content counts do not add up")
    return contents


def check_entry(entry: Entry) -> Entry:
    """Raise for values that no entry can have."""
    numbers = (entry.size, entry.device, entry.link_count, entry.rdev, entry.flags)
    require(all(0 <= number < 2**64 for number in numbers), "a number is out of bounds")
    require(0 <= entry.mode < 2**16 and 0 <= entry.uid < 2**32 and 0 <= entry.gid < 2**32, "a number is out of bounds")
    require(all(isinstance(part, bytes) for name, value in entry.xattrs for part in (name, value)), "an odd xattr")
    require(all(name and b"\0" not in name for name, _ in entry.xattrs), "an odd xattr")
    if stat.S_ISLNK(entry.mode):
        target = entry.target
        require(isinstance(target, bytes) and target != b"" and b"\0" not in target, "a symlink without a target")
    return entry


def check_name(name: bytes, previous: bytes) -> None:
    """Raise for a name that could lead out of its directory, or that is not after `previous`."""
    require(bool(name) and name not in (b".", b"..") and b"/" not in name and b"\0" not in name, "a hostile name")
    require(name > previous, "the names of a directory do not ascend")


class Trees:
    """Walks the trees of a repository."""

    def __init__(self, repository: Repository) -> None:
        self.repository = repository

    def chunks(self, content: Content) -> Iterator[tuple[bytes, int]]:
        """Ids and lengths of the chunks that a content comes down to."""
        pairs = [(content.ids[32 * i : 32 * i + 32], size) for i, size in enumerate(content.sizes)]
        if content.depth == 0:
            yield from pairs
            return
        for chunk_id, size in pairs:
            with parsing("a content list"):
                depth, ids, sizes = Unpacker(self.repository.read_chunk(chunk_id)).whole()[:3]
                part = check_content(Content(ids, sizes, depth))
            require(part.depth == content.depth - 1, "a content list has another depth than announced")
            require(sum(part.sizes) == size, "a content list has another length than announced")
            yield from self.chunks(part)

    def entries(self, content: Content) -> Iterator[Entry]:
        """The entries of a directory, leaf by leaf."""
        previous = b""
        for chunk_id, size in self.chunks(content):
            data = self.repository.read_chunk(chunk_id)
            require(len(data) == size, "a leaf has another length than announced")
            with parsing("a tree leaf"):
                leaf = parse_leaf(data)
                for entry in leaf:
                    check_name(entry.name, previous)
                    previous = entry.name
            yield from leaf

    def data(self, entry: Entry) -> Iterator[tuple[int, memoryview]]:
        """The data of a file as (offset, bytes); what lies between is a hole."""
        extents = entry.extents if entry.extents is not None else [0, entry.size] if entry.size else []
        ascending = all(a < b for a, b in pairwise(extents))
        require(len(extents) % 2 == 0 and ascending, "data extents do not ascend")
        require(not extents or (extents[0] >= 0 and extents[-1] <= entry.size), "data extents are outside the file")
        ranges = iter(zip(extents[::2], extents[1::2], strict=True))
        start, end = next(ranges, (0, 0))
        for chunk_id, size in self.chunks(entry.content):
            rest = memoryview(self.repository.read_chunk(chunk_id))
            require(len(rest) == size, "a chunk has another length than announced")
            while rest:
                if start == end:
                    start, end = next(ranges, (0, 0))
                    require(start < end, "a file has more content than size")
                part = rest[: end - start]
                yield start, part
                start += len(part)
                rest = rest[len(part) :]
        require(start == end and next(ranges, None) is None, "a file has less content than size")

    def walk(self, root: Content) -> Iterator[tuple[str, bytes, Entry]]:
        """("enter" | "entry" | "leave", path of the directory, entry), without recursion: trees may be deep."""
        stack: list[tuple[bytes, Entry | None, Iterator[Entry]]] = [(b"", None, self.entries(root))]
        while stack:
            path, directory, rows = stack[-1]
            try:
                entry = next(rows, None)
            except DamageError as error:
                self.repository.report.damage(shown(path or b"/"), error)
                entry = None
            if entry is None:
                stack.pop()
                if directory is not None:
                    yield "leave", stack[-1][0], directory
            elif stat.S_ISDIR(entry.mode):
                yield "enter", path, entry
                stack.append((path + b"/" + entry.name, entry, self.entries(entry.content)))
            else:
                yield "entry", path, entry


def root_of(snapshot: dict[str, Any]) -> Content:
    """The root directory of a snapshot."""
    with parsing("a snapshot"):
        return check_content(Content(snapshot["root_ids"], snapshot["root_sizes"], snapshot["root_depth"]))


# Restoring


class Restorer:
    """Writes the tree of a snapshot below a folder that holds nothing else, so that nothing in it can mislead."""

    def __init__(self, trees: Trees, target: Path) -> None:
        self.trees = trees
        self.report = trees.repository.report
        self.is_root = os.geteuid() == 0
        self.links: dict[tuple[int, int], tuple[bytes, Entry]] = {}
        is_new = not target.exists()
        target.mkdir(parents=True, exist_ok=True)
        if any(target.iterdir()):
            raise ReaderError(f"{target} is not empty")
        self.root = os.open(target, os.O_RDONLY | os.O_DIRECTORY)
        self.folder = os.dup(self.root)
        if is_new and hasattr(os, "removexattr"):
            with suppress(OSError):  # else every entry would inherit it
                os.removexattr(self.root, "system.posix_acl_default")

    def restore(self, root: Content) -> None:
        """Everything below the root; what is damaged is told of and left out."""
        for event, path, entry in self.trees.walk(root):
            if event == "enter":
                os.mkdir(entry.name, 0o700, dir_fd=self.folder)
                self.move_to(entry.name)
            elif event == "leave":
                self.move_to("..")
                self.apply_attributes(entry)
            else:
                self.create(path + b"/" + entry.name, entry)

    def move_to(self, name: bytes | str) -> None:
        """Make a neighbouring directory the current one: one descriptor, however deep the tree."""
        folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=self.folder)
        os.close(self.folder)
        self.folder = folder

    def create(self, path: bytes, entry: Entry) -> None:
        """Create what is not a directory, in the current directory; a failure is told of unless it hits all."""
        try:
            if entry.link_count > 1 and self.link(path, entry):
                return
            self.create_node(entry)
            self.apply_attributes(entry)
        except DamageError as error:
            self.report.damage(shown(path), error)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO):
                raise
            if error.errno == errno.EPERM and stat.S_IFMT(entry.mode) in (stat.S_IFCHR, stat.S_IFBLK):
                self.report.note("devices are not restored, because only root can create them")
                return
            self.report.damage(shown(path), error)

    def link(self, path: bytes, entry: Entry) -> bool:
        """Make the entry one more name of a file that is there; False if it is the first of its names."""
        first_path, first = self.links.setdefault((entry.device, entry.inode), (path, entry))
        if first_path == path or data_of(first) != data_of(entry):
            return False
        try:
            self.link_from(first_path, entry.name)
        except OSError as error:
            self.report.note(f"some hard links became files of their own: {error.strerror}")
            return False
        return True

    def link_from(self, first_path: bytes, name: bytes) -> None:
        """Link step by step: the path may be longer than the system takes at once."""
        *folders, first_name = first_path.split(b"/")[1:]
        source = os.dup(self.root)
        try:
            for folder in folders:
                deeper = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=source)
                os.close(source)
                source = deeper
            os.link(first_name, name, src_dir_fd=source, dst_dir_fd=self.folder, follow_symlinks=False)
        finally:
            os.close(source)

    def create_node(self, entry: Entry) -> None:
        """Create a file with its data, a symlink, or a special file."""
        kind = stat.S_IFMT(entry.mode)
        if kind == stat.S_IFREG:
            self.create_file(entry)
        elif kind == stat.S_IFLNK:
            os.symlink(entry.target or b"", entry.name, dir_fd=self.folder)
        else:
            require(kind in (stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFCHR, stat.S_IFBLK), "an entry of unknown type")
            os.mknod(entry.name, kind | 0o600, entry.rdev, dir_fd=self.folder)

    def create_file(self, entry: Entry) -> None:
        """Write a file's data, leaving its holes out."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        fd = os.open(entry.name, flags, 0o600, dir_fd=self.folder)
        try:
            os.ftruncate(fd, entry.size)
            for offset, data in self.trees.data(entry):
                while data:
                    written = os.pwrite(fd, data, offset)
                    data, offset = data[written:], offset + written
        except BaseException:
            os.unlink(entry.name, dir_fd=self.folder)
            raise
        finally:
            os.close(fd)

    def apply_attributes(self, entry: Entry) -> None:
        """Owner, xattrs, mode, times, flags: a new owner clears set-id bits, a read-only file takes no xattrs."""
        name, folder = entry.name, self.folder
        mode = stat.S_IMODE(entry.mode)
        if self.is_root:
            os.chown(name, entry.uid, entry.gid, dir_fd=folder, follow_symlinks=False)
        elif (entry.uid, entry.gid) != (os.geteuid(), os.getegid()):
            mode &= ~(stat.S_ISUID | stat.S_ISGID)
            self.report.note("owners are not restored, because only root can")
        for xattr, value in entry.xattrs:
            self.attempt(f"set {shown(xattr)}", self.set_xattr, name, xattr, value)
        if not stat.S_ISLNK(entry.mode):
            os.chmod(name, mode, dir_fd=folder)
        os.utime(name, ns=(entry.mtime_ns, entry.mtime_ns), dir_fd=folder, follow_symlinks=False)
        if entry.flags & SETTABLE_FLAGS and stat.S_IFMT(entry.mode) in (stat.S_IFREG, stat.S_IFDIR):
            self.attempt("set file flags", self.set_flags, name, entry.flags & SETTABLE_FLAGS)

    def set_xattr(self, name: bytes, xattr: bytes, value: bytes) -> None:
        """Set an extended attribute of an entry of any type, relative to the current directory."""
        if not hasattr(os, "setxattr"):
            raise OSError(errno.ENOTSUP, "this system's Python cannot")
        os.setxattr(b"/proc/self/fd/%d/%s" % (self.folder, name), xattr, value, follow_symlinks=False)

    def set_flags(self, name: bytes, flags: int) -> None:
        """What chattr sets."""
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=self.folder)
        try:
            present = struct.unpack("i", fcntl.ioctl(fd, FS_IOC_GETFLAGS, bytes(4)))[0] & ~SETTABLE_FLAGS
            fcntl.ioctl(fd, FS_IOC_SETFLAGS, struct.pack("i", present | flags))
        finally:
            os.close(fd)

    def attempt(self, what: str, call: Callable[..., None], *arguments: object) -> None:
        """Do what this user or this file system may not be able to do."""
        try:
            call(*arguments)
        except OSError as error:
            self.report.note(f"could not {what}: {error.strerror}")


def data_of(entry: Entry) -> tuple[object, ...]:
    """What two names of one file have in common, unless it changed between the two."""
    return (stat.S_IFMT(entry.mode), entry.size, entry.rdev, entry.content, entry.target, entry.extents)


# Verifying


class Verifier:
    """Reads everything: each object against its name, each block, and each chunk that a snapshot needs."""

    def __init__(self, repository: Repository) -> None:
        self.repository = repository
        self.report = repository.report
        self.seen: set[bytes] = set()

    def verify(self, do_scan: bool) -> str:
        """A summary; damage is told of and counted."""
        repository = self.repository
        snapshots = repository.snapshots()
        damage_before = self.report.damage_count
        indexed = {} if do_scan else repository.load_index()
        # With a part of the index gone, the packs themselves say what they hold, and only the index counts as damaged.
        is_index_whole = self.report.damage_count == damage_before and not do_scan
        self.check_names("keys")
        packs = repository.pack_names()
        blocks: list[Block] = []
        for pack in packs:
            with self.report.collecting(f"packs/{pack}"):
                blocks += self.check_pack(pack, indexed.get(pack))
        damaged: set[str] = set()
        # What a block stands on comes before it, so that bases are known without an index as well.
        for block in sorted(blocks, key=lambda block: block.depth):
            if block.pack not in damaged:
                damaged.add(block.pack)
                with self.report.collecting(f"packs/{block.pack}"):
                    self.check_block(block, block.pack in indexed, is_index_whole)
                    damaged.remove(block.pack)
        for pack in sorted(set(indexed) - set(packs)):
            self.report.damage(f"packs/{pack}", DamageError("it is in the index, but missing"))
        for name, snapshot in snapshots:
            with self.report.collecting(f"snapshots/{name}"):
                self.check_tree(root_of(snapshot))
        return f"{len(packs)} packs, {len(snapshots)} snapshots, {self.report.damage_count} damaged"

    def check_names(self, kind: str) -> None:
        """Every object in a folder is named by the BLAKE3 of its bytes."""
        for path in object_paths(self.repository.root / kind):
            with self.report.collecting(f"{kind}/{path.name}"):
                require(blake3(path.read_bytes()).hexdigest() == path.name, "its bytes do not match its name")

    def check_pack(self, pack: str, indexed: list[Block] | None) -> list[Block]:
        """A pack's name and footer, and its index record if there is one; returns its blocks."""
        hasher = blake3()
        with self.repository.pack_path(pack).open("rb") as file:
            while data := file.read(1 << 20):
                hasher.update(data)
        require(hasher.hexdigest() == pack, "its bytes do not match its name")
        blocks = self.repository.read_footer(pack)
        require(indexed is None or indexed == blocks, "its footer and the index differ")
        return blocks

    def check_block(self, block: Block, is_indexed: bool, is_index_whole: bool) -> None:
        """A block, and its chunks against the index; without a whole index they are learned."""
        ids = self.repository.chunk_ids(block, self.repository.read_block(block))
        if is_indexed:
            require(self.repository.has_chunks(block, ids), "the index has other ids for its chunks")
        elif not is_index_whole:
            self.repository.add_chunks(block, [chunk_id[:16] for chunk_id in ids])

    def check_tree(self, root: Content) -> None:
        """Everything that a tree needs; what was seen before is not read again."""
        trees = Trees(self.repository)
        pending = [(b"", root)]
        while pending:
            path, content = pending.pop()
            if self.is_seen(content, b"d"):
                continue
            with self.report.collecting(shown(path or b"/")):
                for entry in trees.entries(content):
                    if stat.S_ISDIR(entry.mode):
                        pending.append((path + b"/" + entry.name, entry.content))
                    elif stat.S_ISREG(entry.mode) and not self.is_seen(entry.content, b"%d" % entry.size):
                        with self.report.collecting(shown(path + b"/" + entry.name)):
                            for _ in trees.data(entry):
                                pass

    def is_seen(self, content: Content, kind: bytes) -> bool:
        """Whether this content was checked; from now on it counts as such."""
        key = blake3(kind + bytes([content.depth]) + content.ids).digest()
        is_new = key not in self.seen
        self.seen.add(key)
        return not is_new


# The command line


def shown(path: bytes) -> str:
    """A path for a terminal: what is not plain text is escaped."""
    text = path.decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def datetime_of(time_ns: int) -> datetime:
    """A time in UTC, to the microsecond."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_ns // 1000)


def say(line: str) -> None:
    """Print a line."""
    sys.stdout.write(line + "\n")


def list_snapshots(repository: Repository) -> None:
    """One line a snapshot."""
    for name, snapshot in repository.snapshots():
        tags = shown(",".join(map(str, snapshot.get("tags", []))).encode())
        paths = " ".join(map(shown, snapshot["paths"]))
        host = shown(str(snapshot["host"]).encode())
        say(f"{name}  {datetime_of(snapshot['time_ns']):%Y-%m-%d %H:%M:%S}  {host}  [{tags}]  {paths}")


def list_tree(repository: Repository, root: Content) -> None:
    """One line an entry."""
    for event, path, entry in Trees(repository).walk(root):
        if event != "leave":
            arrow = f" -> {shown(entry.target)}" if entry.target is not None else ""
            when = f"{datetime_of(entry.mtime_ns):%Y-%m-%d %H:%M:%S}"
            owner = f"{entry.uid:>5} {entry.gid:>5}"
            say(f"{stat.filemode(entry.mode)} {owner} {entry.size:>12} {when} {shown(path + b'/' + entry.name)}{arrow}")


def read_unlock(options: argparse.Namespace) -> Unlock:
    """The secret in the file that the user named."""
    if options.password_file:
        return Unlock(password=options.password_file.read_bytes().split(b"\n", 1)[0].removesuffix(b"\r"))
    if not options.key_file:
        return Unlock()
    data = options.key_file.read_bytes()
    if len(data) != 32:
        lines = [line.strip() for line in data.splitlines() if not line.startswith(b"#")]
        with suppress(ValueError):
            data = base64.b64decode(b"".join(lines), validate=True)
    if len(data) != 32:
        raise ReaderError(f"{options.key_file} does not hold a key of 32 bytes")
    return Unlock(key_file=data)


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Reads ohdiff repositories without ohdiff.")
    parser.add_argument("repository", type=Path)
    secrets = parser.add_mutually_exclusive_group()
    secrets.add_argument("--password-file", type=Path, help="a file whose first line is the password")
    secrets.add_argument("--key-file", type=Path, help="a key file: 32 bytes, or a line of base64")
    parser.add_argument("--scan-packs", action="store_true", help="do without the index: decode every pack instead")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="list snapshots")
    commands.add_parser("ls", help="list what a snapshot holds").add_argument("snapshot")
    restoring = commands.add_parser("restore", help="restore a snapshot into a new or empty folder")
    restoring.add_argument("snapshot")
    restoring.add_argument("target", type=Path)
    commands.add_parser("verify", help="read and check everything")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace, report: Report) -> None:
    """Do what was asked."""
    repository = Repository(options.repository, read_unlock(options), report)
    if options.command == "list":
        list_snapshots(repository)
        return
    # Snapshots are read before the index, and the index before the packs (10): someone may be writing.
    if options.command == "verify":
        say(Verifier(repository).verify(options.scan_packs))
        return
    root = root_of(repository.snapshot(options.snapshot))
    repository.learn_chunks(options.scan_packs)
    if options.command == "ls":
        list_tree(repository, root)
    else:
        Restorer(Trees(repository), options.target).restore(root)


def main(arguments: list[str] | None = None) -> None:
    """Run, and exit with 1 if anything was damaged or failed."""
    report = Report()
    try:
        run(parse_arguments(arguments), report)
    except (ReaderError, OSError) as error:
        sys.exit(f"{Path(sys.argv[0]).name}: {error}")
    sys.exit(1 if report.damage_count else 0)


if __name__ == "__main__":
    main()
