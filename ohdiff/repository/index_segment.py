"""One segment of the local index: a sorted id table and the blocks that its rows point into.

Local, rebuildable, and free to change: nothing here is part of the repository format. A segment is two files,
`<name>.ids` (kernels/id_table.hpp) mapping 16-byte id prefixes to (block row, offset in the block, chunk size), and
`<name>.blocks`, the block and pack tables.
"""

from __future__ import annotations

import mmap
import os
import struct
from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, repeat
from pathlib import Path
from typing import Final, NamedTuple

import xxhash

from ohdiff._kernels import IdTable, merge_id_tables, write_id_table
from ohdiff_format.index import PackRecord
from ohdiff_format.limits import ID_PREFIX_SIZE

VALUE: Final = struct.Struct("<III")
_HEADER: Final = struct.Struct("<8sQQQ")
_MAGIC: Final = b"OHDBLK\0\1"
_PACK: Final = struct.Struct("<32sIIII")
_BLOCK: Final = struct.Struct("<IIIIII")


class DamagedSegmentError(ValueError):
    """A local index file is not what was written; the caller rebuilds it from the repository."""


class BlockLocation(NamedTuple):
    """Where a block lies and how it is stored."""

    pack_id: bytes
    header_size: int
    is_metadata: bool
    number: int
    offset: int
    sealed_size: int
    plain_size: int
    codec: int


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
        _, self.pack_count, self.block_count, _ = _HEADER.unpack_from(self._blocks)
        self._block_start = _HEADER.size + self.pack_count * _PACK.size

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
        rows = VALUE.iter_unpack(values)
        return [self._locate(*row) if flag else None for flag, row in zip(found, rows, strict=True)]

    def blocks(self) -> Iterable[BlockLocation]:
        """Every block of the segment, in pack order."""
        return map(self._block, range(self.block_count))

    def close(self) -> None:
        """Release the files."""
        self.ids.close()
        self._blocks.close()

    def _locate(self, row: int, offset: int, size: int) -> ChunkLocation:
        return ChunkLocation(self._block(row), offset, size)

    def _block(self, row: int) -> BlockLocation:
        if row >= self.block_count:
            raise DamagedSegmentError("an id points to a block that is not there")
        pack_row, number, offset, sealed_size, plain_size, codec = _BLOCK.unpack_from(
            self._blocks, self._block_start + row * _BLOCK.size
        )
        if pack_row >= self.pack_count:
            raise DamagedSegmentError("a block points to a pack that is not there")
        pack_id, header_size, is_metadata, _, _ = _PACK.unpack_from(self._blocks, _HEADER.size + pack_row * _PACK.size)
        return BlockLocation(pack_id, header_size, bool(is_metadata), number, offset, sealed_size, plain_size, codec)


def write_segment(stem: Path, packs: Sequence[PackRecord], tag: bytes) -> None:
    """Build a segment from index records; its files are complete when this returns.

    Parameters
    ----------
    tag : 32 bytes that tie the files to their repository.
    """
    keys = bytearray()
    values = array("I")
    pack_table = bytearray()
    block_table = bytearray()
    block_row = 0
    for pack_row, pack in enumerate(packs):
        pack_table += _PACK.pack(pack.pack_id, pack.header_size, pack.is_metadata, 0, 0)
        offset = pack.header_size
        for number, block in enumerate(pack.blocks):
            sizes = block.chunk_sizes
            starts = accumulate(sizes[:-1], initial=0)
            values.extend(chain.from_iterable(zip(repeat(block_row), starts, sizes, strict=False)))
            keys += block.chunk_prefixes
            block_table += _BLOCK.pack(pack_row, number, offset, block.sealed_size, block.plain_size, block.codec)
            offset += block.sealed_size
            block_row += 1
    if values.itemsize != 4 or struct.pack("=I", 1) != struct.pack("<I", 1):
        raise NotImplementedError("the local index needs a little-endian machine")
    _write_blocks(stem.with_suffix(".blocks"), len(packs), block_row, (bytes(pack_table), bytes(block_table)))
    write_id_table(str(stem.with_suffix(".ids")), bytes(keys), values.tobytes(), ID_PREFIX_SIZE, VALUE.size, tag)


def merge_segments(stem: Path, segments: Sequence[IndexSegment], tag: bytes) -> None:
    """One segment holding all that `segments` hold, streamed: memory does not grow with their size."""
    pack_tables, block_tables, biases = [], [], []
    pack_count = block_count = 0
    for segment in segments:
        biases.append(block_count)
        view = memoryview(segment._blocks)
        pack_tables.append(bytes(view[_HEADER.size : segment._block_start]))
        end = segment._block_start + segment.block_count * _BLOCK.size
        block_tables.append(_rebase(bytes(view[segment._block_start : end]), pack_count))
        view.release()
        pack_count += segment.pack_count
        block_count += segment.block_count
    _write_blocks(stem.with_suffix(".blocks"), pack_count, block_count, (*pack_tables, *block_tables))
    inputs = [str(segment.stem.with_suffix(".ids")) for segment in segments]
    merge_id_tables(inputs, str(stem.with_suffix(".ids")), biases, tag)


def _rebase(block_table: bytes, pack_bias: int) -> bytes:
    words = array("I", block_table)
    stride = _BLOCK.size // 4
    words[::stride] = array("I", [row + pack_bias for row in words[::stride]])
    return words.tobytes()


def _write_blocks(path: Path, pack_count: int, block_count: int, tables: Sequence[bytes]) -> None:
    checksum = xxhash.xxh3_64(b"%d %d" % (pack_count, block_count))
    with path.open("wb") as file:
        file.write(_HEADER.pack(_MAGIC, pack_count, block_count, 0))
        for table in tables:
            checksum.update(table)
            file.write(table)
        file.seek(0)
        file.write(_HEADER.pack(_MAGIC, pack_count, block_count, checksum.intdigest()))
        file.flush()
        os.fsync(file.fileno())


def _map_blocks(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < _HEADER.size:
            raise DamagedSegmentError(f"{path} is too short")
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    magic, pack_count, block_count, checksum = _HEADER.unpack_from(mapped)
    expected = _HEADER.size + pack_count * _PACK.size + block_count * _BLOCK.size
    hasher = xxhash.xxh3_64(b"%d %d" % (pack_count, block_count))
    view = memoryview(mapped)
    hasher.update(view[_HEADER.size :])
    view.release()
    if magic != _MAGIC or size != expected or hasher.intdigest() != checksum:
        mapped.close()
        raise DamagedSegmentError(f"{path} is damaged")
    return mapped
