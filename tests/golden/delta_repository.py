"""A tiny repository of deltas and numbers, made from the format's codecs alone, the same bytes every time.

Numbers are split here as SPEC section 6.5 words it, with integers and fractions, so that neither the kernels nor the
independent reader judge themselves.
"""

from __future__ import annotations

import stat
import struct
from fractions import Fraction

import zstandard
from format_repository import NOW_NS, EncodedBlock, RepositoryBuilder, Row, add_snapshot, fixed_bytes, joined_prefixes

from ohdiff_format.blocks import CODEC_DELTA, CODEC_NUMBERS, as_prefix
from ohdiff_format.envelope import KIND_INDEX
from ohdiff_format.index import Index, encode_index
from ohdiff_format.numbers import PLANE_CONSTANT, PLANE_RAW, PLANE_ZSTD, encode_planes
from ohdiff_format.tree import Content

ENCRYPTION = "aes-256-gcm"
COUNT = 500
DAY_NS = 86_400 * 10**9
# What casts must get right: zeros, denormals of both kinds, ties, the largest finite ones, infinities, NaNs.
ODD_F32 = [
    *(0, 1, 0x7FFFFF, 0x33000000, 0x33000001, 0x33800000, 0x387FE000, 0x387FF000, 0x38800000, 0x38801000, 0x38803000),
    *(0x3F808000, 0x3F818000, 0x477FEFFF, 0x477FF000, 0x47800000, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FC00000),
]
LINES = [
    b"line %d of some text, and %s\n" % (number, fixed_bytes(f"line {number}", 24).hex().encode())
    for number in range(80)
]


def words_of(data: bytes, width: int) -> list[int]:
    """Little-endian unsigned integers."""
    return [int.from_bytes(data[at : at + width], "little") for at in range(0, len(data), width)]


def bytes_of(words: list[int], width: int) -> bytes:
    """The same, back."""
    return b"".join(word.to_bytes(width, "little") for word in words)


def floats(label: str, width: int, exponent_bits: int) -> list[int]:
    """Floats of both signs whose exponents lie in a small range."""
    mantissa_bits = 8 * width - 1 - exponent_bits
    middle = 2 ** (exponent_bits - 1) - 4
    words = []
    for word in words_of(fixed_bytes(label, COUNT * 8), 8):
        exponent = middle + word % 4
        sign, mantissa = word >> 8 & 1, (word >> 9) % 2**mantissa_bits
        words.append(sign << 8 * width - 1 | exponent << mantissa_bits | mantissa)
    return words


def stepped(label: str, words: list[int], width: int) -> list[int]:
    """Each number a little more or less."""
    steps = struct.unpack(f"<{len(words)}b", fixed_bytes(label, len(words)))
    return [(word + step) % 2 ** (8 * width) for word, step in zip(words, steps, strict=True)]


def rounded(value: int, bits: int) -> int:
    """value / 2^bits, to nearest, ties to even: as Python rounds."""
    return round(Fraction(value, 2**bits))


def cast_word(cast: int, u: int) -> int:
    """An f32 as bf16 (1) or f16 (2)."""
    s, a = u >> 31, u % 2**31
    if cast == 1:
        return 0x7FC0 if a > 0x7F800000 else rounded(u, 16)
    if a > 0x7F800000:
        size = 0x7E00
    elif a >= 0x47800000:
        size = 0x7C00
    elif a >= 0x38800000:
        size = rounded(a - 0x38000000, 13)
    else:
        size = rounded(2**23 + a % 2**23, 126 - (a >> 23))
    return 2**15 * s + size


def codes_of(transform: int, words: list[int], base: list[int], width: int) -> list[int]:
    """The codes of numbers, in their order."""
    size, top = 2 ** (8 * width), 2 ** (8 * width - 1)

    def order(x: int) -> int:
        return x + top if x < top else size - 1 - x

    def zigzag(d: int) -> int:
        return 2 * d if d < top else 2 * (size - d) - 1

    if transform == 0:
        return words
    pairs = list(zip(words, base, strict=True))
    if transform == 1:
        return [x ^ y for x, y in pairs]
    if transform == 3:
        return [zigzag((x - y) % size) for x, y in pairs]
    if transform == 4:
        pairs.sort(key=lambda pair: 2 * pair[1] % size * 2**8 // size)
    return [zigzag((order(x) - order(y)) % size) for x, y in pairs]


def encode_plane(plane: bytes) -> tuple[int, bytes]:
    """The plane codec with the fewest bytes."""
    frame = zstandard.ZstdCompressor(level=3).compress(plane)
    if plane == plane[:1] * len(plane):
        return PLANE_CONSTANT, plane[:1]
    return (PLANE_ZSTD, frame) if len(frame) < len(plane) else (PLANE_RAW, plane)


class DeltaBuilder(RepositoryBuilder):
    """A builder that remembers how deep each chunk lies."""

    def __init__(self, encryption: str) -> None:
        super().__init__(encryption)
        self.depths: dict[bytes, int] = {}

    def delta(self, chunks: list[bytes], bases: list[bytes]) -> EncodedBlock:
        """A block as a delta against base chunks."""
        prefixes = joined_prefixes([self.chunk_id(base) for base in bases])
        compressor = zstandard.ZstdCompressor(level=1, dict_data=as_prefix(b"".join(bases)))
        payload = compressor.compress(b"".join(chunks))
        return EncodedBlock(CODEC_DELTA, payload, chunks, prefixes, bytes([self.note_depth(chunks, bases)]))

    def numbers(
        self, chunk: bytes, width: int, transform: int, base: bytes | None = None, cast: int = 0
    ) -> EncodedBlock:
        """A block of numbers."""
        bases = [] if base is None else [base]
        base_words = words_of(base or b"", 4 if cast else width)
        if cast:
            base_words = [cast_word(cast, word) for word in base_words]
        codes = bytes_of(codes_of(transform, words_of(chunk, width), base_words, width), width)
        payload = encode_planes(encode_plane(codes[plane::width]) for plane in range(width))
        prefixes = joined_prefixes([self.chunk_id(each) for each in bases])
        parameters = bytes([self.note_depth([chunk], bases), width, transform, cast])
        return EncodedBlock(CODEC_NUMBERS, payload, [chunk], prefixes, parameters)

    def note_depth(self, chunks: list[bytes], bases: list[bytes]) -> int:
        """The depth of a block on these bases."""
        depth = 1 + max(self.depths.get(base, 0) for base in bases) if bases else 0
        self.depths |= dict.fromkeys(chunks, depth)
        return depth

    def folder(self, files: dict[bytes, list[bytes]]) -> Content:
        """A root with /srv, in it files of these chunks."""
        rows = [
            Row(name, stat.S_IFREG | 0o640, self.content(chunks), sum(map(len, chunks)))
            for name, chunks in sorted(files.items())
        ]
        return self.directory([Row(b"srv", stat.S_IFDIR | 0o755, self.directory(rows))])


def steps_of_text() -> list[list[bytes]]:
    """The chunks of a text at three steps."""
    chunks = [b"".join(LINES[:40]), b"".join(LINES[40:])]
    edited = [chunks[0].replace(b"line 7 ", b"line seven "), chunks[1].replace(b"line 70 ", b"line seventy ")]
    again = [edited[0][:900] + b"put in\n" + edited[0][900:], edited[1][100:]]
    return [chunks, edited, again]


def steps_of_numbers() -> list[dict[bytes, bytes]]:
    """Files of one chunk of numbers each, at three steps; a file may be there at one step alone."""
    f32 = [word | sign for word in ODD_F32 for sign in (0, 2**31)] + floats("f32", 4, 8)
    f64 = floats("f64", 8, 11)
    f8 = list(fixed_bytes("f8", COUNT))
    i64 = [2**40 * number + 17 for number in range(COUNT)]
    u8 = [number * number // 7 % 256 for number in range(COUNT)]
    first = {b"f32": (f32, 4), b"f64": (f64, 8), b"f8": (f8, 1), b"i64": (i64, 8), b"u8": (u8, 1)}
    second = {name: (stepped(name.decode(), words, width), width) for name, (words, width) in first.items()}
    third = {name: (stepped(name.decode() + " again", words, width), width) for name, (words, width) in second.items()}
    second[b"bf16"] = [cast_word(1, word) for word in second[b"f32"][0]], 2
    second[b"f16"] = [cast_word(2, word) for word in second[b"f32"][0]], 2
    third[b"bf16"] = stepped("bf16", [cast_word(1, word) for word in third[b"f32"][0]], 2), 2
    third[b"f16"] = stepped("f16", [cast_word(2, word) for word in third[b"f32"][0]], 2), 2
    return [{name: bytes_of(*pair) for name, pair in step.items()} for step in (first, second, third)]


def files_at_each_step() -> list[dict[bytes, list[bytes]]]:
    """What /srv holds in each of the three snapshots: the chunks of each file."""
    steps = zip(steps_of_text(), steps_of_numbers(), strict=True)
    return [{b"text": chunks} | {name: [chunk] for name, chunk in numbers.items()} for chunks, numbers in steps]


def build_delta_repository() -> dict[str, bytes]:
    """Every object by name: three snapshots, each in a data pack of its own that stands on the ones before it."""
    builder = DeltaBuilder(ENCRYPTION)
    builder.add_config()
    roots = [builder.folder(files) for files in files_at_each_step()]
    (old, new, newest), (first, second, third) = steps_of_text(), steps_of_numbers()
    widths = {b"f32": 4, b"f64": 8, b"f8": 1, b"i64": 8, b"u8": 1}
    plain = [builder.numbers(first[name], width, 0) for name, width in widths.items()]
    builder.add_pack([[old[0]], [old[1]]], level=3)
    builder.add_encoded_pack(plain)
    on_first = {b"f32": 2, b"f64": 4, b"f8": 4, b"i64": 3, b"u8": 1}
    builder.add_encoded_pack(
        [
            builder.delta(new, old),
            *[builder.numbers(second[name], widths[name], how, first[name]) for name, how in on_first.items()],
            builder.numbers(second[b"bf16"], 2, 2, second[b"f32"], cast=1),
            builder.numbers(second[b"f16"], 2, 1, second[b"f32"], cast=2),
        ]
    )
    on_second = {b"f32": 4, b"f64": 2, b"f8": 3, b"i64": 1, b"u8": 3}
    # In this pack the blocks with bases in the pack itself come first, and one chunk lies at two depths.
    casts = [(b"bf16", 4, 1), (b"f16", 3, 2)]
    on_third = [builder.numbers(third[name], widths[name], how, second[name]) for name, how in on_second.items()]
    builder.add_encoded_pack(
        [
            builder.delta([newest[0]], [new[1], new[0]]),
            *[builder.numbers(third[name], 2, how, third[b"f32"], cast=cast) for name, how, cast in casts],
            *on_third,
            builder.delta([newest[1]], [newest[0], new[1]]),
        ]
    )
    builder.add_pack([[newest[1]]], level=3)
    # Leaves stand on leaves: those of the later snapshots on those of the first.
    first_leaves, later_leaves = builder.metadata[:2], builder.metadata[2:]
    builder.add_pack([first_leaves], level=3, is_metadata=True)
    builder.add_encoded_pack([builder.delta(later_leaves, first_leaves)], is_metadata=True)
    builder.add_sealed("index", KIND_INDEX, encode_index(Index(builder.records)))
    parent = b""
    for number, root in enumerate(roots):
        parent = add_snapshot(builder, root, NOW_NS + number * DAY_NS, parent)
    return builder.objects
