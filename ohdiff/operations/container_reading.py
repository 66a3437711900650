"""Cutting container files while they are read: pieces of tensors as they are, everything between them by content."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ohdiff.buffers import BufferPool, PooledBuffer
from ohdiff.chunking.containers import Container, read_container
from ohdiff.chunking.containers.pieces import ContainerPiece, cut_points
from ohdiff.chunking.engine import Engine

from .extent_reader import ExtentReader


@dataclass(frozen=True, slots=True, eq=False)
class ContainerLayout:
    """A container, and the pieces and ranges that its file is cut into."""

    container: Container
    pieces: Sequence[ContainerPiece]


class OpenFile:
    """A file that is open, as a source for `read_container`."""

    def __init__(self, fd: int, size: int) -> None:
        self._fd = fd
        self.size = size

    def read(self, offset: int, size: int) -> bytes:
        """Some bytes, fewer only at the end."""
        parts = []
        while size > 0 and (part := os.pread(self._fd, size, offset)):
            parts.append(part)
            offset += len(part)
            size -= len(part)
        return b"".join(parts)


def read_layout(fd: int, size: int) -> ContainerLayout | None:
    """How a file is cut as a container; None if it is none, or has no tensor that is large enough."""
    container = read_container(OpenFile(fd, size))
    if container is None:
        return None
    pieces = cut_points(container, size)
    return ContainerLayout(container, pieces) if any(piece.kind is not None for piece in pieces) else None


def grouped(pieces: Sequence[ContainerPiece], size_bytes_max: int, *, is_by_kind: bool = False) -> Iterator[range]:
    """Rows of neighbouring pieces that fit into one buffer together; a range that fits into none is alone.

    Parameters
    ----------
    is_by_kind : ranges of bytes and pieces of tensors do not come together.
    """
    first = size = 0
    for row, piece in enumerate(pieces):
        is_other = is_by_kind and (piece.kind is None) != (pieces[first].kind is None)
        if row > first and (is_other or size + piece.size > size_bytes_max):
            yield range(first, row)
            first, size = row, 0
        size += piece.size
    if first < len(pieces):
        yield range(first, len(pieces))


def read_group(
    fd: int, layout: ContainerLayout, rows: range, engine: Engine, pool: BufferPool
) -> tuple[PooledBuffer, list[int], list[int], int]:
    """Read some neighbouring pieces into one buffer.

    Returns
    -------
    The buffer, the end of each chunk in it, for each chunk its row in the layout or -1, and the bytes that were read:
    fewer than the pieces have if the file has become shorter, and then cut by content alone.
    """
    pieces = [layout.pieces[row] for row in rows]
    start, end = pieces[0].start, pieces[-1].end
    buffer = pool.take(end - start)
    with ExtentReader(fd, [(start, end)]).read_into(buffer.data, b"") as data:
        size = len(data)
        if size < end - start:
            cuts = _cut(engine, data, 0)
            return buffer, cuts, [-1] * len(cuts), size
        cuts, chunk_rows = [], []
        for row, piece in zip(rows, pieces, strict=True):
            if piece.kind is None:
                with data[piece.start - start : piece.end - start] as part:
                    ends = _cut(engine, part, piece.start - start)
            else:
                ends = [piece.end - start]
            cuts += ends
            chunk_rows += [-1 if piece.kind is None else row] * len(ends)
    return buffer, cuts, chunk_rows, size


def _cut(engine: Engine, data: memoryview, origin: int) -> list[int]:
    return [origin + end for end in array("Q", engine.cut_stream(data, True))]
