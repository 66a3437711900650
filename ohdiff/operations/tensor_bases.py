"""Bases of tensors: the same piece of the same-named tensor in a file's earlier version, or in a file like it.

A file like it is one of the same run (read again from the source, and proved by its chunk ids) or of the parent
snapshot: the step before in a folder beside, or the fp32 master of a copy in 16 bits.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakValueDictionary

from blake3 import blake3

from ohdiff.chunking.containers import read_container
from ohdiff.chunking.containers.matching import match_pieces
from ohdiff.chunking.containers.pieces import cut_points
from ohdiff.delta.numbers import NumbersEncoder
from ohdiff.errors import IntegrityError, StorageError
from ohdiff.repository.encoding import Encoded
from ohdiff.repository.index_segment import BlockLocation
from ohdiff_format.blocks import CODEC_NUMBERS
from ohdiff_format.limits import ID_PREFIX_SIZE
from ohdiff_format.numbers import CAST_NONE, NumberKind, parse_parameters
from ohdiff_format.tree import Content

from .bases import StoredBases, StoredFile
from .container_reading import ContainerLayout

# Restoring a piece loads one further piece for each step. A rounded copy may stand on a master that stands on two.
DEPTH_MAX: Final = 2
CAST_DEPTH_MAX: Final = 3
_FILES_KNOWN_MAX: Final = 64
_FILES_TRIED_MAX: Final = 4


@dataclass(frozen=True, slots=True, weakref_slot=True)
class KnownPiece:
    """A piece that is stored, or that this run stores.

    Attributes
    ----------
    prefix : the first 16 bytes of its chunk id.
    depth : of its block, at most.
    base : what it stands on itself, if that is known.
    place : (path, start, end) in the source, for a piece of this run; it can change, so what is read there is proved.
    """

    prefix: bytes
    kind: NumberKind
    depth: int
    base: KnownPiece | None = None
    place: tuple[bytes, int, int] | None = None


@dataclass(slots=True, eq=False)
class TensorFile:
    """A container file; `content` is that of the parent snapshot, None for a file that this run reads."""

    path: bytes
    size: int
    mtime_ns: int
    content: Content | None
    layout: ContainerLayout | None = None
    pieces: list[KnownPiece | None] = field(default_factory=list)

    @property
    def folder(self) -> bytes:
        """The path of its directory."""
        return os.path.split(self.path)[0]

    @property
    def name(self) -> bytes:
        """The last part of its path."""
        return os.path.split(self.path)[1]


class TensorBases:
    """Remembers the container files of a run and of the parent snapshot; used by the walking thread.

    Parameters
    ----------
    level : zstd level.
    """

    def __init__(self, stored: StoredBases, id_key: bytes, level: int) -> None:
        self._stored = stored
        self._id_key = id_key
        self._level = level
        self._known: deque[TensorFile] = deque(maxlen=_FILES_KNOWN_MAX)
        self._new: WeakValueDictionary[bytes, KnownPiece] = WeakValueDictionary()
        self._local = threading.local()

    def note_unchanged(self, path: bytes, size: int, mtime_ns: int, content: Content) -> None:
        """The parent has this container file, and it is as it was."""
        self._known.append(TensorFile(path, size, mtime_ns, content))

    def open(
        self, path: bytes, size: int, mtime_ns: int, layout: ContainerLayout, earlier: Content | None
    ) -> FileTensors:
        """Begin with a container file that is read; `earlier` is the parent's content at this path."""
        file = TensorFile(path, size, mtime_ns, None, layout, [None] * len(layout.pieces))
        bases: list[KnownPiece | None] = [None] * len(layout.pieces)
        for other, casts_only in self._candidates(file, earlier):
            _choose(layout, other, bases, casts_only=casts_only)
        self._known.append(file)
        return FileTensors(self, file, bases)

    def load(self, base: KnownPiece) -> bytes | None:
        """The bytes of a base; None if it can be read neither from the repository nor from the source."""
        if base.place is not None:
            data = _read_place(*base.place)
            if blake3(data, key=self._id_key).digest()[:ID_PREFIX_SIZE] == base.prefix:
                return data
        return self._stored.read(base.prefix)

    def note_new(self, piece: KnownPiece) -> None:
        """This run stores a piece."""
        self._new[piece.prefix] = piece

    def find(self, prefix: bytes, kind: NumberKind) -> KnownPiece | None:
        """A piece that was stored already, by this run or before it; None if it is not known how deep it lies."""
        piece = self._new.get(prefix)
        if piece is not None:
            return piece if piece.kind is kind else None
        block = self._stored.block_of(prefix)
        return None if block is None else _stored_piece(prefix, kind, block)

    def encoder(self) -> NumbersEncoder:
        """The encoder of the calling thread."""
        encoder = getattr(self._local, "encoder", None)
        if encoder is None:
            encoder = self._local.encoder = NumbersEncoder(self._level)
        return encoder

    def _candidates(self, file: TensorFile, earlier: Content | None) -> Iterator[tuple[TensorFile, bool]]:
        """Files that may hold bases, the most promising first, and whether only as masters of rounded copies."""
        beside = _nearest((other for other in self._known if other.folder == file.folder), file)
        namesakes = _nearest((other for other in self._known if other.name == file.name), file)
        others = _nearest((other for other in self._known if other.size == file.size), file)
        before = [] if earlier is None else [TensorFile(file.path, file.size, file.mtime_ns, earlier)]
        seen: set[int] = set()
        for other in [*beside, *before, *namesakes, *others]:
            if id(other) not in seen and len(seen) < _FILES_TRIED_MAX and self._lay_out(other):
                seen.add(id(other))
                yield other, other in beside
        for other in beside:
            if id(other) in seen:
                yield other, False

    def _lay_out(self, file: TensorFile) -> bool:
        """Whether the file's layout is known; it is read from the repository when that is asked for first."""
        if file.layout is None and file.content is not None:
            content, file.content = file.content, None
            try:
                source = self._stored.file(content)
                container = read_container(source)
                if container is not None:
                    file.layout = ContainerLayout(container, cut_points(container, source.size))
                    file.pieces = list(_stored_pieces(file.layout, source))
            except (IntegrityError, StorageError) as error:
                self._stored.note(error)
        return file.layout is not None


class FileTensors:
    """The bases of one container file that is read, and a record of its own pieces for those that follow."""

    def __init__(self, known: TensorBases, file: TensorFile, bases: list[KnownPiece | None]) -> None:
        self._known = known
        self._file = file
        self._bases = bases

    def plan(self, row: int) -> NumbersPlan:
        """How to encode a piece of the layout, if it is new."""
        assert self._file.layout is not None
        piece = self._file.layout.pieces[row]
        assert piece.kind is not None, "a range of bytes has no plan"
        base = self._bases[row]
        while base is not None and base.depth >= _depth_max(piece.kind, base):
            base = base.base
        self._bases[row] = base
        return NumbersPlan(self._known, piece.kind, base)

    def note(self, row: int, chunk_id: bytes, *, is_new: bool) -> None:
        """A piece is stored as it was planned, or, if it is not new, it lies as deep as whoever stored it chose."""
        assert self._file.layout is not None
        piece = self._file.layout.pieces[row]
        assert piece.kind is not None, "a range of bytes is no piece"
        prefix = chunk_id[:ID_PREFIX_SIZE]
        if not is_new:
            self._file.pieces[row] = self._known.find(prefix, piece.kind)
            return
        base = self._bases[row]
        depth = 0 if base is None else base.depth + 1
        place = (self._file.path, piece.start, piece.end)
        self._file.pieces[row] = new = KnownPiece(prefix, piece.kind, depth, base, place)
        self._known.note_new(new)


class NumbersPlan:
    """Encodes a piece of numbers, against its base if that helps."""

    def __init__(self, known: TensorBases, kind: NumberKind, base: KnownPiece | None) -> None:
        self._known = known
        self.kind = kind
        self.base = base

    def encode(self, plain: memoryview) -> Encoded | None:
        """See `EncodingPlan`."""
        base = self.base
        data = self.load_base()
        base_kind = None if base is None else base.kind
        depth = 0 if base is None else base.depth + 1
        encoded = self._known.encoder().encode(plain, self.kind, data, base_kind, depth)
        if encoded is None:
            return None
        prefixes, stands_on = b"", b""
        if encoded.uses_base:
            assert base is not None
            assert data is not None
            prefixes, stands_on = base.prefix, data
        size = len(plain)
        return Encoded(CODEC_NUMBERS, encoded.payload, size, prefixes, encoded.parameters, stands_on, is_measured=True)

    def load_base(self) -> bytes | None:
        """The bytes of the base; None if there is none, or if they are not to be had."""
        return None if self.base is None else self._known.load(self.base)

    def settle(self, *, is_taken: bool) -> None:
        """See `EncodingPlan`."""


def _stored_pieces(layout: ContainerLayout, source: StoredFile) -> Iterator[KnownPiece | None]:
    """The pieces of a stored file that are chunks by themselves."""
    ranges = [(piece.start, piece.end) for piece in layout.pieces]
    for piece, location in zip(layout.pieces, source.chunks_at(ranges), strict=True):
        if piece.kind is None or location is None:
            yield None
            continue
        yield _stored_piece(location[0], piece.kind, location[1])


def _stored_piece(prefix: bytes, kind: NumberKind, block: BlockLocation) -> KnownPiece:
    """A piece that lies in a block of the repository."""
    base = None
    if block.codec == CODEC_NUMBERS and block.base_prefixes:
        is_cast = parse_parameters(block.parameters).cast != CAST_NONE
        base = KnownPiece(block.base_prefixes, NumberKind.F32 if is_cast else kind, block.depth - 1)
    return KnownPiece(prefix, kind, block.depth, base)


def _choose(layout: ContainerLayout, other: TensorFile, bases: list[KnownPiece | None], *, casts_only: bool) -> None:
    """Fill in the bases that another file has, where none is known yet."""
    assert other.layout is not None
    matches = match_pieces(layout.container, layout.pieces, other.layout.container, other.layout.pieces)
    for row, match in enumerate(matches):
        base = None if match is None or bases[row] is not None else other.pieces[match]
        if base is not None and (not casts_only or base.kind is not layout.pieces[row].kind):
            bases[row] = base


def _depth_max(kind: NumberKind, base: KnownPiece) -> int:
    return DEPTH_MAX if base.kind is kind else CAST_DEPTH_MAX


def _nearest(files: Iterable[TensorFile], file: TensorFile) -> list[TensorFile]:
    """Sorted by how far apart they were written, of equal ones the last seen first."""
    latest_first = list(files)[::-1]
    return sorted(latest_first, key=lambda other: abs(other.mtime_ns - file.mtime_ns))


def _read_place(path: bytes, start: int, end: int) -> bytes:
    """Bytes of the source; fewer, or none, if they are not there any more."""
    try:
        # Without waiting for a writer, should there be a pipe in its place by now.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.pread(fd, end - start, start)
    except OSError:
        return b""
    finally:
        os.close(fd)
