"""A tiny repository made from the format's codecs alone, the same bytes every time: fixed keys, times and contents.

It holds one of each thing that a tree can hold. `regenerate_format.py` freezes it; the golden tests compare.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass, field

import msgspec
import zstandard
from blake3 import blake3

from ohdiff_format.blocks import CODEC_RAW, CODEC_ZSTD
from ohdiff_format.config import FORMAT_NAME, ChunkerConfig, Config, encode_config
from ohdiff_format.envelope import KIND_INDEX, KIND_PACK, KIND_SNAPSHOT, Sealer, new_sealer
from ohdiff_format.index import Index, PackRecord, encode_index
from ohdiff_format.keys import (
    CONTEXT_CHUNK_ID,
    CONTEXT_CHUNKER,
    CONTEXT_CONFIG,
    CONTEXT_KEY_FILE,
    CONTEXT_WRAPPING,
    KeyObject,
    derive_key,
    encode_key,
    key_from_file,
    key_from_password,
    wrap_key,
)
from ohdiff_format.limits import FORMAT_VERSION, ID_PREFIX_SIZE
from ohdiff_format.pack import (
    NUMBER_FOOTER,
    NUMBER_TRAILER,
    TRAILER_SIZE,
    BlockRecord,
    Footer,
    encode_footer,
    encode_trailer,
    padded_size,
)
from ohdiff_format.snapshot import NUMBER_BODY, Snapshot, Statistics, encode_snapshot
from ohdiff_format.tree import (
    EMPTY_CONTENT,
    MARK_CHANGED_WHILE_READ,
    TIME_UNKNOWN,
    Content,
    Listing,
    encode_content,
    encode_listing,
    is_leaf_end,
)

ENCRYPTIONS = ("aes-256-gcm", "chacha20-poly1305", "none")
PASSWORD = "correct horse – battery"  # noqa: RUF001 - not ASCII on purpose; no secret
NOW_NS = 1_790_000_000_123_456_789
OWNER = (1234, 4321)
CONTEXTS = (CONTEXT_CHUNK_ID, CONTEXT_CHUNKER, CONTEXT_WRAPPING, CONTEXT_CONFIG, CONTEXT_KEY_FILE)


def fixed_bytes(label: str, size: int = 32) -> bytes:
    """Bytes that look random and are the same every time."""
    return blake3(label.encode()).digest(length=size)


MASTER_KEY = fixed_bytes("master key")
KEY_FILE = fixed_bytes("key file")


@dataclass
class Row:
    """One entry; what is not given is as plain as can be."""

    name: bytes
    mode: int
    content: Content = EMPTY_CONTENT
    size: int = 0
    mtime: int = NOW_NS
    btime: int = TIME_UNKNOWN
    inode: int = 0
    links: int = 1
    rdev: int = 0
    flags: int = 0
    marks: int = 0
    target: bytes | None = None
    xattrs: list[tuple[bytes, bytes]] | None = None
    extents: list[int] | None = None


@dataclass(frozen=True)
class EncodedBlock:
    """One block before it is sealed."""

    codec: int
    payload: bytes
    chunks: list[bytes]
    base_prefixes: bytes = b""
    parameters: bytes = b""


@dataclass
class PackBuilder:
    """One pack, block by block."""

    sealer: Sealer
    is_metadata: bool
    blocks: list[BlockRecord] = field(default_factory=list)
    data: bytes = b""

    def add_block(self, block: EncodedBlock, ids: list[bytes]) -> None:
        """Seal one block."""
        sealed = self.sealer.seal(len(self.blocks), block.payload)
        sizes = [len(chunk) for chunk in block.chunks]
        stands_on = (block.base_prefixes, block.parameters)
        self.blocks.append(BlockRecord(len(sealed), block.codec, sizes, joined_prefixes(ids), *stands_on))
        self.data += sealed

    def finish(self) -> tuple[bytes, PackRecord]:
        """The whole pack and its index record."""
        table = [msgspec.structs.replace(block, chunk_prefixes=b"") for block in self.blocks]
        footer = self.sealer.seal(NUMBER_FOOTER, encode_footer(Footer(self.is_metadata, table)))
        front = self.sealer.header + self.data
        end_size = len(footer) + TRAILER_SIZE
        padding = fixed_bytes("padding", padded_size(len(front) + end_size) - len(front) - end_size)
        pack = front + padding + footer + self.sealer.seal(NUMBER_TRAILER, encode_trailer(len(footer)))
        record = PackRecord(blake3(pack).digest(), len(pack), len(self.sealer.header), self.is_metadata, self.blocks)
        return pack, record


def encode_block(chunks: list[bytes], level: int | None) -> EncodedBlock:
    """One frame if that is shorter, the plain bytes otherwise or without a level."""
    plain = b"".join(chunks)
    frame = plain if level is None else zstandard.ZstdCompressor(level=level).compress(plain)
    return (
        EncodedBlock(CODEC_ZSTD, frame, chunks) if len(frame) < len(plain) else EncodedBlock(CODEC_RAW, plain, chunks)
    )


def joined_prefixes(ids: list[bytes]) -> bytes:
    """The first 16 bytes of each id, back to back."""
    return b"".join(chunk_id[:ID_PREFIX_SIZE] for chunk_id in ids)


class RepositoryBuilder:
    """Collects objects by name."""

    def __init__(self, encryption: str) -> None:
        self.encryption = encryption
        self.objects: dict[str, bytes] = {}
        self.records: list[PackRecord] = []
        self.data_keys = 0
        self.metadata: list[bytes] = []

    def new_sealer(self, kind: int) -> Sealer:
        """A sealer with the next data key."""
        self.data_keys += 1
        wrapping_key = derive_key(MASTER_KEY, CONTEXT_WRAPPING)
        return new_sealer(kind, self.encryption, wrapping_key, fixed_bytes(f"data key {self.data_keys}"))

    def chunk_id(self, data: bytes) -> bytes:
        """The id of a chunk."""
        return blake3(data, key=derive_key(MASTER_KEY, CONTEXT_CHUNK_ID)).digest()

    def content(self, chunks: list[bytes]) -> Content:
        """The content that names these chunks; the caller puts them into a pack."""
        return Content(b"".join(map(self.chunk_id, chunks)), tuple(map(len, chunks)))

    def add_metadata(self, data: bytes) -> tuple[bytes, int]:
        """Keep a leaf or content list for the metadata pack."""
        self.metadata.append(data)
        return self.chunk_id(data), len(data)

    def nested(self, chunks: list[bytes], part_sizes: list[int]) -> Content:
        """The content of depth 1 that names these chunks in parts."""
        ids, sizes, start = b"", [], 0
        for count in part_sizes:
            part = self.content(chunks[start : start + count])
            ids += self.add_metadata(encode_content(part))[0]
            sizes.append(sum(part.sizes))
            start += count
        return Content(ids, tuple(sizes), 1)

    def directory(self, *leaves: list[Row]) -> Content:
        """The content of a directory with these leaves."""
        stored = [self.add_metadata(encode_listing(listing_of(rows))) for rows in leaves]
        return Content(b"".join(leaf_id for leaf_id, _ in stored), tuple(size for _, size in stored))

    def add_pack(self, blocks: list[list[bytes]], level: int | None, is_metadata: bool = False) -> None:
        """Store chunks, given as blocks."""
        self.add_encoded_pack([encode_block(chunks, level) for chunks in blocks], is_metadata)

    def add_encoded_pack(self, blocks: list[EncodedBlock], is_metadata: bool = False) -> None:
        """Store blocks."""
        pack = PackBuilder(self.new_sealer(KIND_PACK), is_metadata)
        for block in blocks:
            pack.add_block(block, [self.chunk_id(chunk) for chunk in block.chunks])
        data, record = pack.finish()
        self.objects[f"packs/{record.pack_id.hex()}"] = data
        self.records.append(record)

    def add_sealed(self, folder: str, kind: int, plain: bytes) -> bytes:
        """Store an index or a snapshot; returns its id."""
        sealer = self.new_sealer(kind)
        return self.add_named(folder, sealer.header + sealer.seal(NUMBER_BODY, plain))

    def add_named(self, folder: str, data: bytes) -> bytes:
        """Store an object under the BLAKE3 of its bytes."""
        object_id = blake3(data).digest()
        self.objects[f"{folder}/{object_id.hex()}"] = data
        return object_id

    def add_config(self) -> None:
        """Store the config, and two keys if there is encryption."""
        config = Config(
            format=FORMAT_NAME,
            version=FORMAT_VERSION,
            id=fixed_bytes("repository id"),
            created_ns=NOW_NS,
            encryption=self.encryption,  # type: ignore[arg-type]
            chunker=ChunkerConfig("g32s2/1", 16384, 65536, 262144, 16384, 262144),
            optional_features=("a later hint",),
            master_key=MASTER_KEY if self.encryption == "none" else b"",
        )
        self.objects["config"] = encode_config(config, derive_key(MASTER_KEY, CONTEXT_CONFIG))
        if self.encryption != "none":
            self.add_named("keys", encode_key(password_key()))
            secret = wrap_key(key_from_file(KEY_FILE), MASTER_KEY)
            self.add_named("keys", encode_key(KeyObject(1, "keyfile", secret, label="file", created_ns=NOW_NS)))


def password_key() -> KeyObject:
    """A key object with argon2id parameters that cost next to nothing."""
    salt = fixed_bytes("salt", 16)
    draft = KeyObject(1, "argon2id", b"", salt, memory_kib=64, passes=1, lanes=2)
    wrapped = wrap_key(key_from_password(PASSWORD.encode(), draft), MASTER_KEY)
    return KeyObject(1, "argon2id", wrapped, salt, 64, 1, 2, "password", NOW_NS, "host")


def listing_of(rows: list[Row]) -> Listing:
    """Rows as columns."""
    count = len(rows)
    return Listing(
        names=[row.name for row in rows],
        modes=[row.mode for row in rows],
        uids=[OWNER[0]] * count,
        gids=[OWNER[1]] * count,
        sizes=[row.size for row in rows],
        mtimes=[row.mtime for row in rows],
        ctimes=[NOW_NS + number for number in range(count)],
        btimes=[row.btime for row in rows],
        inodes=[row.inode or 1000 + number for number, row in enumerate(rows)],
        devices=[2049] * count,
        link_counts=[row.links for row in rows],
        rdevs=[row.rdev for row in rows],
        flags=[row.flags for row in rows],
        marks=[row.marks for row in rows],
        contents=[row.content for row in rows],
        targets={number: row.target for number, row in enumerate(rows) if row.target is not None},
        xattrs={number: row.xattrs for number, row in enumerate(rows) if row.xattrs is not None},
        extents={number: row.extents for number, row in enumerate(rows) if row.extents is not None},
    )


def build_repository(encryption: str) -> dict[str, bytes]:
    """Every object by name; the first snapshot is the parent of the second, which adds a file."""
    builder = RepositoryBuilder(encryption)
    builder.add_config()
    pieces = [fixed_bytes(f"piece {number}", 300 + number) for number in range(7)]
    text = [b"some text that compresses, line after line\n" * 20, b"more text\n" * 50]
    holey = b"\x01" * 4096 + b"\x02" * 8192
    srv = stat.S_IFDIR | 0o755
    news = [Row(b"zz-new", stat.S_IFREG | 0o600, builder.content([b"new"]), 3, inode=2000)]
    first_root = builder.directory([Row(b"srv", srv, srv_content(builder, pieces, text, holey, []))])
    second_root = builder.directory([Row(b"srv", srv, srv_content(builder, pieces, text, holey, news))])
    builder.add_pack([pieces[:4], pieces[4:]], level=None)
    builder.add_pack([text, [holey], [b"new"]], level=3)
    builder.add_pack([list(dict.fromkeys(builder.metadata))], level=3, is_metadata=True)
    superseded = builder.add_sealed("index", KIND_INDEX, encode_index(Index(builder.records[:2])))
    builder.add_sealed("index", KIND_INDEX, encode_index(Index(builder.records, [superseded])))
    first = add_snapshot(builder, first_root, NOW_NS, b"")
    add_snapshot(builder, second_root, NOW_NS + 86_400 * 10**9, first)
    return builder.objects


def srv_content(
    builder: RepositoryBuilder, pieces: list[bytes], text: list[bytes], holey: bytes, news: list[Row]
) -> Content:
    """/srv in two leaves: one of each thing, and `news`."""
    file, hard = stat.S_IFREG | 0o640, builder.content([pieces[6]])
    long_list = pieces[:6]
    return builder.directory(
        [
            Row(b"all-hole", file, size=5000, extents=[]),
            Row(b"bytes-\xff\xfe", file, builder.content([text[1]]), len(text[1])),
            Row(b"device", stat.S_IFCHR | 0o666, rdev=0x103),
            Row(b"directory", stat.S_IFDIR | 0o2750, builder.directory([Row(b"leaf", file)]), mtime=-1),
            Row(b"empty-directory", stat.S_IFDIR | 0o1777, mtime=1),
            Row(b"empty-file", file, mtime=0, marks=MARK_CHANGED_WHILE_READ),
            Row(b"fifo", stat.S_IFIFO | 0o600),
            Row(b"hard-1", stat.S_IFREG | 0o4755, hard, len(pieces[6]), inode=2**64 - 1, links=2),
            Row(b"hard-2", stat.S_IFREG | 0o4755, hard, len(pieces[6]), inode=2**64 - 1, links=2),
        ],
        [
            Row(b"link", stat.S_IFLNK | 0o777, size=14, target=b"../no/where \xe9\x01"),
            Row(b"list", file, builder.nested(long_list, [2, 4]), sum(map(len, long_list))),
            Row(b"multi", file, builder.content([*text, pieces[0]]), sum(map(len, [*text, pieces[0]]))),
            Row(b"old", file, mtime=-1_500_000_000_000_000_007, btime=-5),
            Row(b"socket", stat.S_IFSOCK | 0o755),
            Row(b"sparse", file, builder.content([holey]), 1 << 20, extents=[65536, 69632, 524288, 532480]),
            Row(b"xattrs", file, xattrs=[(b"user.empty", b""), (b"user.ohdiff", bytes(range(256)))]),
            *news,
        ],
    )


def add_snapshot(builder: RepositoryBuilder, root: Content, time_ns: int, parent: bytes) -> bytes:
    """Store a snapshot of /srv; returns its id."""
    snapshot = Snapshot(
        time_ns=time_ns,
        root_ids=root.ids,
        root_sizes=list(root.sizes),
        root_depth=root.depth,
        paths=[b"/srv"],
        host="host",
        user="user",
        tags=["daily", "häufig"],
        parent=parent,
        program="ohdiff 0",
        users={OWNER[0]: "someone"},
        groups={OWNER[1]: "some"},
        excludes=["*.tmp"],
        started_ns=time_ns - 5,
        statistics=Statistics(files=12, directories=4, others=4, size=1 << 20),
    )
    return builder.add_sealed("snapshots", KIND_SNAPSHOT, encode_snapshot(snapshot))


def single_values() -> dict[str, object]:
    """Values of single functions, so that a change of the format names the rule that it broke."""
    builder = RepositoryBuilder("none")
    odd = Row(b"odd", stat.S_IFREG, Content(fixed_bytes("id"), (2**40,), 2), 2**63 - 1, -(2**63), 2**63 - 1, 2**64 - 1)
    return {
        "sub_keys": {context: derive_key(MASTER_KEY, context).hex() for context in CONTEXTS},
        "key_from_file": key_from_file(KEY_FILE).hex(),
        "key_from_password": key_from_password(PASSWORD.encode(), password_key()).hex(),
        "wrapped_master_key": wrap_key(key_from_file(KEY_FILE), MASTER_KEY).hex(),
        "chunk_ids": {data.hex(): builder.chunk_id(data).hex() for data in (b"", b"abc", bytes(1024))},
        "seals": {encryption: seal_sample(encryption) for encryption in ENCRYPTIONS},
        "padded_sizes": {str(size): padded_size(size) for size in (0, 1, 2, 9, 10, 1000, 123_456_789, 2**30)},
        "leaf_ends": [number for number in range(20_000) if is_leaf_end(b"%d" % number)],
        "empty_leaf": encode_listing(Listing()).hex(),
        "odd_leaf": encode_listing(listing_of([odd])).hex(),
        "leaf_of_plain_writes": encode_listing(plain_writes()).hex(),
        "content_list": encode_content(Content(fixed_bytes("ids", 64), (1, 16 << 20), 0)).hex(),
    }


def plain_writes() -> Listing:
    """Entries whose modification time is a fixed distance before their status change time."""
    listing = listing_of([Row(b"a", stat.S_IFREG), Row(b"b", stat.S_IFREG)])
    listing.mtimes = [ctime - 7 for ctime in listing.ctimes]
    return listing


def seal_sample(encryption: str) -> list[str]:
    """The header of an object, and two of its messages."""
    sealer = RepositoryBuilder(encryption).new_sealer(KIND_PACK)
    return [sealer.header.hex(), sealer.seal(0, b"plain").hex(), sealer.seal(NUMBER_TRAILER, b"").hex()]
