"""One segment of the local index: a sorted id table and the blocks that its rows point into.

Local, rebuildable, and free to change: nothing here is part of the repository format. A segment is two files,
`<name>.ids` (kernels/id_table.hpp) mapping 16-byte id prefixes to (block row, offset in the block, chunk size), and
`<name>.blocks`, the tables of packs, blocks and base chunks.
"""

from __future__ import annotations

import mmap
import os
import struct
from array import array
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Final, NamedTuple

import xxhash

from ohdiff._kernels import IdTable, merge_id_tables, write_id_table
from ohdiff_format.envelope import Buffer
from ohdiff_format.index import PackRecord
from ohdiff_format.limits import ID_PREFIX_SIZE
from ohdiff_format.pack import BlockRecord, depth_of

VALUE: Final = struct.Struct("<III")
_ROWS_PER_READ: Final = 100_000
_HEADER: Final = struct.Struct("<8sQQQQ")
_MAGIC: Final = b"OHDBLK\0\2"
_PACK: Final = struct.Struct("<32sIIII")
# Pack row; row and count of bases; length of parameters, parameters; number, offset, sealed and plain size, codec.
_BLOCK: Final = struct.Struct("<IIII4sIIIII")
_BLOCK_WORDS: Final = _BLOCK.size // 4
_PACK_ROW_WORD: Final = 0
_BASE_ROW_WORD: Final = 1


class DamagedSegmentError(ValueError):
    """A local index file is not what was written; the caller rebuilds it from the repository."""


class BlockLocation(NamedTuple):
    """Where a block lies and how it is stored; `base_prefixes` are the base chunks of a delta, 16 bytes each."""

    pack_id: bytes
    header_size: int
    is_metadata: bool
    number: int
    offset: int
    sealed_size: int
    plain_size: int
    codec: int
    base_prefixes: bytes
    parameters: bytes

    @property
    def depth(self) -> int:
        """How many blocks stand one upon the other."""
        return depth_of(self.parameters)


class ChunkLocation(NamedTuple):
    """Where a chunk lies: its block, and its place in the block's plain bytes."""

    block: BlockLocation
    offset: int
    size: int


class IndexSegment:
    """An opened segment.

    Parameters
    ----------
    stem : path of the two files, without their suffixes.
    """

    def __init__(self, stem: Path) -> None:
        self.stem = stem
        try:
            self.ids = IdTable(str(stem.with_suffix(".ids")))
        except ValueError as error:
            raise DamagedSegmentError(str(error)) from error
        self._blocks = _map_blocks(stem.with_suffix(".blocks"))
        _, self.pack_count, self.block_count, self.base_count, _ = _HEADER.unpack_from(self._blocks)
        self._block_start = _HEADER.size + self.pack_count * _PACK.size
        self._base_start = self._block_start + self.block_count * _BLOCK.size

    @property
    def chunk_count(self) -> int:
        """Chunks that the segment knows."""
        return self.ids.count

    @property
    def is_on_disk(self) -> bool:
        """Whether the files still have their names."""
        return all(self.stem.with_suffix(suffix).exists() for suffix in (".ids", ".blocks"))

    def contains(self, prefixes: bytes) -> bytes:
        """One byte, 0 or 1, for each 16-byte prefix."""
        return self.ids.find(prefixes)[0]

    def find(self, prefixes: bytes) -> list[ChunkLocation | None]:
        """The location of each chunk, or None."""
        found, values = self.ids.find(prefixes)
        blocks: dict[int, BlockLocation] = {}
        places: list[ChunkLocation | None] = []
        for flag, (row, offset, size) in zip(found, VALUE.iter_unpack(values), strict=True):
            if not flag:
                places.append(None)
                continue
            block = blocks.get(row)
            if block is None:
                block = blocks[row] = self._block(row)
            places.append(ChunkLocation(block, offset, size))
        return places

    def blocks(self) -> Iterable[BlockLocation]:
        """Every block of the segment, in pack order: its place in that order is its row."""
        return map(self._block, range(self.block_count))

    def prefixes_in(self, block_rows: Container[int]) -> Iterator[bytes]:
        """The chunks of some blocks, by reading through all rows."""
        for start in range(0, self.ids.count, _ROWS_PER_READ):
            keys, values = self.ids.iterate(start, _ROWS_PER_READ)
            for number, (block_row, _, _) in enumerate(VALUE.iter_unpack(values)):
                if block_row in block_rows:
                    yield keys[number * ID_PREFIX_SIZE : (number + 1) * ID_PREFIX_SIZE]

    def close(self) -> None:
        """Release the files."""
        self.ids.close()
        self._blocks.close()

    def _block(self, row: int) -> BlockLocation:
        if row >= self.block_count:
            raise DamagedSegmentError("an id points to a block that is not there")
        fields = _BLOCK.unpack_from(self._blocks, self._block_start + row * _BLOCK.size)
        pack_row, base_row, base_count, size, parameters, number, offset, sealed_size, plain_size, codec = fields
        if pack_row >= self.pack_count:
            raise DamagedSegmentError("a block points to a pack that is not there")
        pack_id, header_size, is_metadata, _, _ = _PACK.unpack_from(self._blocks, _HEADER.size + pack_row * _PACK.size)
        base_start = self._base_start + base_row * ID_PREFIX_SIZE
        bases = self._blocks[base_start : base_start + base_count * ID_PREFIX_SIZE] if base_count else b""
        place = (number, offset, sealed_size, plain_size)
        return BlockLocation(pack_id, header_size, bool(is_metadata), *place, codec, bases, parameters[:size])


def write_segment(stem: Path, packs: Sequence[PackRecord], tag: bytes) -> None:
    """Build a segment from index records; its files are complete when this returns.

    Parameters
    ----------
    tag : 32 bytes that tie the files to their repository.
    """
    pack_table = bytearray()
    block_table = bytearray()
    base_table = bytearray()
    blocks: list[BlockRecord] = []
    for pack_row, pack in enumerate(packs):
        pack_table += _PACK.pack(pack.pack_id, pack.header_size, pack.is_metadata, 0, 0)
        offset = pack.header_size
        for number, block in enumerate(pack.blocks):
            block_table += _BLOCK.pack(
                *(pack_row, len(base_table) // ID_PREFIX_SIZE, len(block.base_prefixes) // ID_PREFIX_SIZE),
                *(len(block.parameters), block.parameters),
                *(number, offset, block.sealed_size, block.plain_size, block.codec),
            )
            base_table += block.base_prefixes
            offset += block.sealed_size
        blocks += pack.blocks
    keys = bytearray()
    values = array("I")
    # Of equal keys the table keeps the first: the one that stands on the fewest other blocks.
    for block_row in sorted(range(len(blocks)), key=lambda row: blocks[row].depth):
        block = blocks[block_row]
        values += _values(block_row, block.chunk_sizes)
        keys += block.chunk_prefixes
    if values.itemsize != 4 or struct.pack("=I", 1) != struct.pack("<I", 1):
        raise NotImplementedError("the local index needs a little-endian machine")
    counts = (len(packs), len(blocks), len(base_table) // ID_PREFIX_SIZE)
    _write_blocks(stem.with_suffix(".blocks"), counts, (pack_table, block_table, base_table))
    write_id_table(str(stem.with_suffix(".ids")), bytes(keys), values.tobytes(), ID_PREFIX_SIZE, VALUE.size, tag)


def _values(block_row: int, sizes: Sequence[int]) -> array[int]:
    """The values of the chunks of one block, back to back: see VALUE."""
    values = array("I", bytes(VALUE.size * len(sizes)))
    values[0::3] = array("I", [block_row]) * len(sizes)
    values[1::3] = array("I", accumulate(sizes[:-1], initial=0) if sizes else ())
    values[2::3] = array("I", sizes)
    return values


def merge_segments(stem: Path, segments: Sequence[IndexSegment], tag: bytes) -> None:
    """One segment holding all that `segments` hold, streamed: memory does not grow with their size."""
    pack_tables, block_tables, base_tables, biases = [], [], [], []
    pack_count = block_count = base_count = 0
    for segment in segments:
        biases.append(block_count)
        view = memoryview(segment._blocks)
        pack_tables.append(view[_HEADER.size : segment._block_start])
        block_table = bytes(view[segment._block_start : segment._base_start])
        block_tables.append(_rebase(block_table, pack_count, base_count))
        base_tables.append(view[segment._base_start :])
        view.release()
        pack_count += segment.pack_count
        block_count += segment.block_count
        base_count += segment.base_count
    tables: tuple[Buffer, ...] = (*pack_tables, *block_tables, *base_tables)
    _write_blocks(stem.with_suffix(".blocks"), (pack_count, block_count, base_count), tables)
    for view in (*pack_tables, *base_tables):
        view.release()
    inputs = [str(segment.stem.with_suffix(".ids")) for segment in segments]
    merge_id_tables(inputs, str(stem.with_suffix(".ids")), biases, tag)


def _rebase(block_table: bytes, pack_bias: int, base_bias: int) -> bytes:
    words = array("I", block_table)
    for first, bias in ((_PACK_ROW_WORD, pack_bias), (_BASE_ROW_WORD, base_bias)):
        words[first::_BLOCK_WORDS] = array("I", [row + bias for row in words[first::_BLOCK_WORDS]])
    return words.tobytes()


def _write_blocks(path: Path, counts: tuple[int, int, int], tables: Sequence[Buffer]) -> None:
    checksum = xxhash.xxh3_64(b"%d %d %d" % counts)
    with path.open("wb") as file:
        file.write(_HEADER.pack(_MAGIC, *counts, 0))
        for table in tables:
            checksum.update(table)
            file.write(table)
        file.seek(0)
        file.write(_HEADER.pack(_MAGIC, *counts, checksum.intdigest()))
        file.flush()
        os.fsync(file.fileno())


def _map_blocks(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < _HEADER.size:
            raise DamagedSegmentError(f"{path} is too short")
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    magic, *counts, checksum = _HEADER.unpack_from(mapped)
    pack_count, block_count, base_count = counts
    expected = _HEADER.size + pack_count * _PACK.size + block_count * _BLOCK.size + base_count * ID_PREFIX_SIZE
    hasher = xxhash.xxh3_64(b"%d %d %d" % (pack_count, block_count, base_count))
    view = memoryview(mapped)
    hasher.update(view[_HEADER.size :])
    view.release()
    if magic != _MAGIC or size != expected or hasher.intdigest() != checksum:
        mapped.close()
        raise DamagedSegmentError(f"{path} is damaged")
    return mapped
