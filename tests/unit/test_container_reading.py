"""Cutting containers while they are read: chunks tile the file, whatever it claims and whatever becomes of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st
from support.small_tensors import lower_limits, safetensors, weights
from support.sources import random_bytes, write
from support.vault import Vault, chunker, engine_of

from ohdiff.buffers import BufferPool
from ohdiff.chunking.cpu import CpuEngine
from ohdiff.errors import SourceError
from ohdiff.filesystem import DirectoryHandle
from ohdiff.operations import file_reading
from ohdiff.operations.container_reading import ContainerLayout, grouped, read_group, read_layout
from ohdiff.operations.file_reading import FilePieces, Piece, StreamEnd
from ohdiff.storage import MemoryStorage
from ohdiff_format.numbers import NumberKind
from ohdiff_format.tree import MARK_CHANGED_WHILE_READ

NAME = "model.safetensors"
PIECE_SIZE = 32_768
RULE = chunker(4096)


def model() -> bytes:
    """Pieces of numbers, a tensor without a kind that is larger than a buffer, and small ones between them."""
    return safetensors(
        {
            "wte": ("F32", weights(9_000, 1).tobytes()),
            "small": ("F32", weights(20, 2).tobytes()),
            "mask": ("BOOL", random_bytes(100_000, 3)),
            "ids": ("I64", weights(5_000, 4).tobytes()),
            "lm_head": ("BF16", random_bytes(3_001 * 2, 5)),
        }
    )


@pytest.fixture(scope="module", autouse=True)
def _low_limits() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        lower_limits(patch)
        patch.setattr(file_reading, "BATCH_SIZE_BYTES", PIECE_SIZE)
        yield


@pytest.fixture(scope="module")
def engine() -> CpuEngine:
    return engine_of(Vault(MemoryStorage("engine")).create(RULE).open())


@dataclass
class Read:
    """A file as it was read: its bytes, the size of each chunk, and how many chunks were pieces of tensors."""

    data: bytes = b""
    sizes: list[int] = field(default_factory=list)
    tensor_pieces: int = 0
    layout: ContainerLayout | None = None
    end: StreamEnd | None = None


def read_file(
    path: Path, engine: CpuEngine, id_key: bytes, meanwhile: Callable[[int], object] = lambda _: None
) -> Read:
    """Read by `FilePieces`, and hold what every piece must hold; `meanwhile` is called after each, with its number."""
    found = Read()
    pool = BufferPool(PIECE_SIZE, 2)
    pieces = FilePieces(DirectoryHandle.open_root(path.parent), os.fsencode(path.name), engine, pool)
    for number, piece in enumerate(pieces):
        take_piece(found, piece, id_key)
        piece.buffer.release()
        meanwhile(number)
    found.end = pieces.end
    return found


def take_piece(found: Read, piece: Piece, id_key: bytes) -> None:
    assert piece.cuts
    assert len(piece.ids) == 32 * len(piece.cuts)
    assert piece.rows is None or len(piece.rows) == len(piece.cuts)
    start = 0
    for number, end in enumerate(piece.cuts):
        assert end > start
        chunk = bytes(piece.buffer.data[start:end])
        assert piece.ids[32 * number : 32 * number + 32] == blake3(chunk, key=id_key).digest()
        row = -1 if piece.rows is None else piece.rows[number]
        if row >= 0:
            assert piece.layout is not None
            known = piece.layout.pieces[row]
            assert (known.start, known.end) == (len(found.data), len(found.data) + len(chunk))
            assert known.kind is not None
            found.tensor_pieces += 1
        found.data += chunk
        found.sizes.append(len(chunk))
        start = end
    found.layout = piece.layout or found.layout


@pytest.fixture(scope="module")
def id_key() -> bytes:
    return bytes(range(32))


@pytest.fixture(scope="module")
def keyed_engine(engine: CpuEngine, id_key: bytes) -> CpuEngine:
    return CpuEngine(engine.rule, id_key)


def test_chunks_tile_the_file_and_every_piece_of_a_tensor_is_one(
    keyed_engine: CpuEngine, id_key: bytes, tmp_path: Path
) -> None:
    data = model()
    found = read_file(write(tmp_path / NAME, data), keyed_engine, id_key)
    assert found.data == data
    assert found.layout is not None
    numeric = [piece for piece in found.layout.pieces if piece.kind is not None]
    assert found.tensor_pieces == len(numeric) == 9 + 3 + 3
    assert {piece.kind for piece in numeric} == {NumberKind.F32, NumberKind.I64, NumberKind.BF16}
    assert found.end is not None
    assert (found.end.size, found.end.extents, found.end.has_changed) == (len(data), None, False)
    # What is no number is cut by content.
    assert len(found.sizes) > len(numeric) + 10


def test_groups_are_neighbours_that_fit_into_a_buffer_and_cover_all_pieces(tmp_path: Path) -> None:
    path = write(tmp_path / NAME, model())
    with path.open("rb") as file:
        layout = read_layout(file.fileno(), path.stat().st_size)
    assert layout is not None
    groups = list(grouped(layout.pieces, PIECE_SIZE))
    assert [row for rows in groups for row in rows] == list(range(len(layout.pieces)))
    sizes = [layout.pieces[rows[-1]].end - layout.pieces[rows[0]].start for rows in groups]
    assert any(size > PIECE_SIZE for size in sizes)
    assert all(size <= PIECE_SIZE or len(rows) == 1 for size, rows in zip(sizes, groups, strict=True))
    assert list(grouped([], PIECE_SIZE)) == []


@pytest.mark.parametrize("name", ["text.txt", "model.safetensors"])
def test_what_is_no_container_is_cut_by_content(
    keyed_engine: CpuEngine, id_key: bytes, tmp_path: Path, name: str
) -> None:
    data = random_bytes(200_000)
    found = read_file(write(tmp_path / name, data), keyed_engine, id_key)
    assert (found.data, found.tensor_pieces, found.layout) == (data, 0, None)


def test_a_container_without_a_large_tensor_of_numbers_is_bytes(
    keyed_engine: CpuEngine, id_key: bytes, tmp_path: Path
) -> None:
    data = safetensors({"mask": ("BOOL", random_bytes(9_000)), "small": ("F32", bytes(40))})
    found = read_file(write(tmp_path / NAME, data), keyed_engine, id_key)
    assert (found.data, found.tensor_pieces, found.layout) == (data, 0, None)


@pytest.mark.parametrize(
    "lie",
    [
        lambda data: data[:-1],
        lambda data: data + b"x",
        lambda data: data[:9_000],
        lambda data: data.replace(b'"F32"', b'"F64"', 1),
        lambda data: data.replace(b"[9000]", b"[9001]", 1),
        lambda data: data.replace(b'"data_offsets": [0,', b'"data_offsets": [4,', 1),
        lambda data: b"\xff" * 8 + data[8:],
        lambda data: (2**40).to_bytes(8, "little") + data[8:],
        lambda data: bytes(8) + data[8:],
        lambda data: data[:8] + b"{" * 200 + data[208:],
    ],
)
def test_a_header_that_lies_makes_the_file_bytes(
    keyed_engine: CpuEngine, id_key: bytes, tmp_path: Path, lie: Callable[[bytes], bytes]
) -> None:
    data = lie(model())
    assert data != model()
    found = read_file(write(tmp_path / NAME, data), keyed_engine, id_key)
    assert (found.data, found.tensor_pieces) == (data, 0)
    assert found.end is not None
    assert not found.end.has_changed


@given(
    edits=st.lists(st.tuples(st.integers(0, 600), st.integers(0, 255)), min_size=1, max_size=4),
    cut=st.none() | st.integers(1_000, 60_000),
)
def test_any_header_gives_chunks_that_tile_the_file(
    keyed_engine: CpuEngine,
    id_key: bytes,
    tmp_path_factory: pytest.TempPathFactory,
    edits: list[tuple[int, int]],
    cut: int | None,
) -> None:
    data = bytearray(model())
    for at, byte in edits:
        data[at] = byte
    path = write(tmp_path_factory.getbasetemp() / "any" / NAME, bytes(data[:cut]))
    assert read_file(path, keyed_engine, id_key).data == bytes(data[:cut])


def piece_ends(path: Path, engine: CpuEngine, id_key: bytes) -> list[int]:
    """How much of a file has been read after each piece of it."""
    ends: list[int] = []
    found = Read()
    pool = BufferPool(PIECE_SIZE, 2)
    for piece in FilePieces(DirectoryHandle.open_root(path.parent), os.fsencode(path.name), engine, pool):
        take_piece(found, piece, id_key)
        piece.buffer.release()
        ends.append(len(found.data))
    return ends


def test_a_file_that_shrinks_while_it_is_read_is_what_was_read_of_it(
    keyed_engine: CpuEngine, id_key: bytes, tmp_path: Path
) -> None:
    data = model()
    ends = piece_ends(write(tmp_path / NAME, data), keyed_engine, id_key)
    assert len(ends) > 5
    for number, read_so_far in enumerate(ends[:-1]):
        # To less than was read, to just that, into the middle of a piece, and to a byte less than it was.
        for size in (0, read_so_far - 5, read_so_far, read_so_far + 1, read_so_far + 2_000, len(data) - 1):
            path = write(tmp_path / NAME, data)

            def shrink(at: int, path: Path = path, number: int = number, size: int = size) -> None:
                if at == number:
                    os.truncate(path, size)

            found = read_file(path, keyed_engine, id_key, shrink)
            # Somewhat more than is left may have been read ahead.
            assert max(size, read_so_far) <= len(found.data) < len(data)
            assert data.startswith(found.data)
            assert found.end is not None
            assert found.end.has_changed
            assert (found.end.size, found.end.extents) == (len(found.data), None)


def test_a_file_that_grows_while_it_is_read_is_what_its_header_spoke_of(
    keyed_engine: CpuEngine, id_key: bytes, tmp_path: Path
) -> None:
    data = model()
    path = write(tmp_path / NAME, data)

    def grow(_: int) -> None:
        with path.open("ab") as file:
            file.write(b"more" * 1_000)

    found = read_file(path, keyed_engine, id_key, grow)
    assert found.data == data
    assert found.end is not None
    assert (found.end.size, found.end.has_changed) == (len(data), True)


def test_a_group_of_a_file_that_is_shorter_by_now_is_cut_by_content(keyed_engine: CpuEngine, tmp_path: Path) -> None:
    data = model()
    path = write(tmp_path / NAME, data)
    with path.open("r+b") as file:
        layout = read_layout(file.fileno(), len(data))
        assert layout is not None
        rows = next(grouped(layout.pieces, PIECE_SIZE))
        end = layout.pieces[rows[-1]].end
        for size in (end, end - 1, 1_000, 1, 0):
            os.truncate(path, size)
            pool = BufferPool(PIECE_SIZE, 1)
            buffer, cuts, chunk_rows, read = read_group(file.fileno(), layout, rows, keyed_engine, pool)
            assert read == size
            assert (cuts[-1] if cuts else 0) == size
            assert len(chunk_rows) == len(cuts)
            assert any(row >= 0 for row in chunk_rows) == (size == end)
            assert buffer.data[:size] == data[:size]


class Shrinking(CpuEngine):
    """An engine during whose first work on a container the file is cut off."""

    path: Path | None = None
    size = 0

    def hash_chunks(self, data: object, cuts: object) -> bytes:
        if self.path is not None:
            os.truncate(self.path, self.size)
            self.path = None
        return super().hash_chunks(data, cuts)  # type: ignore[arg-type]


@pytest.mark.parametrize("rest", [0, 1, 40_000])
def test_a_container_that_shrinks_under_a_snapshot_is_told_and_the_snapshot_holds_what_was_read(
    source: Path, tmp_path: Path, rest: int
) -> None:
    vault = Vault(MemoryStorage("shrinking")).create(RULE)
    data = model()
    path = write(source / NAME, data)
    first_end = piece_ends(path, engine_of(vault.open()), vault.open().chunk_id_key)[0]
    repository = vault.open()
    shrinking = Shrinking(engine_of(repository).rule, repository.chunk_id_key)
    shrinking.path, shrinking.size = path, first_end + rest
    result = vault.snapshot(source, engine=shrinking)
    assert [type(error) for error in result.errors] == [SourceError]
    assert result.stored is not None
    assert vault.data(result.stored, path) == data[: first_end + rest]
    entry = vault.entry(result.stored, path)
    assert entry.listing.marks[entry.row] & MARK_CHANGED_WHILE_READ
    vault.assert_sound()
