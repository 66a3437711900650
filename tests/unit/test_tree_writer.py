"""Content lists in parts, and leaves that are stored when the last thing in them is known."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.description import describe_folder, differences
from support.sources import random_bytes, write
from support.vault import Vault, chunker

from ohdiff.operations import tree_writer
from ohdiff.operations.tree_writer import ContentBuilder, OpenDirectory, TreeWriter, select_rows, without_rows
from ohdiff.storage import MemoryStorage
from ohdiff_format.limits import ID_SIZE
from ohdiff_format.tree import Content, Listing, decode_content, decode_listing

MiB = 1 << 20


class Sink:
    """Keeps chunks of metadata in a dict."""

    def __init__(self) -> None:
        self.chunks: dict[bytes, bytes] = {}

    def add_metadata(self, data: bytes, bases: Sequence[bytes] = ()) -> bytes:
        chunk_id = hashlib.sha256(data).digest()
        self.chunks[chunk_id] = data
        return chunk_id

    def flat(self, content: Content) -> list[tuple[bytes, int]]:
        if content.depth == 0:
            return list(zip(content.chunk_ids(), content.sizes, strict=True))
        chunks = []
        for chunk_id, size in zip(content.chunk_ids(), content.sizes, strict=True):
            inner = decode_content(self.chunks[chunk_id])
            assert inner.depth == content.depth - 1
            below = self.flat(inner)
            assert sum(each for _, each in below) == size
            chunks += below
        return chunks


def chunks_of(count: int, seed: int = 0) -> list[tuple[bytes, int]]:
    dice = random.Random(seed)
    return [(dice.randbytes(ID_SIZE), dice.randint(1, 1 << 20)) for _ in range(count)]


def built(sink: Sink, chunks: list[tuple[bytes, int]], step: int) -> Content:
    builder = ContentBuilder(sink)
    for start in range(0, len(chunks), step):
        part = chunks[start : start + step]
        builder.add(b"".join(chunk_id for chunk_id, _ in part), [size for _, size in part])
    return builder.finish()


@given(count=st.integers(0, 9_000), step=st.sampled_from([1, 100, 1024, 5000, 9_000]), seed=st.integers(0, 99))
def test_a_content_gives_its_chunks_back_however_they_were_added(count: int, step: int, seed: int) -> None:
    sink = Sink()
    chunks = chunks_of(count, seed)
    content = built(sink, chunks, step)
    assert sink.flat(content) == chunks
    assert content == built(Sink(), chunks, max(1, count)), "parts must not depend on how chunks were added"
    assert (content.depth == 0) == (count <= tree_writer.INLINE_CHUNKS_MAX)


def test_depth_grows_when_the_list_of_parts_is_itself_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_writer, "INLINE_CHUNKS_MAX", 8)
    monkeypatch.setattr(tree_writer, "_PART_CHUNKS_MIN", 4)
    monkeypatch.setattr(tree_writer, "_PART_CHUNKS_MAX", 16)
    monkeypatch.setattr(tree_writer, "_PART_CUT_MASK", 0x7)
    sink = Sink()
    chunks = chunks_of(800)
    content = built(sink, chunks, 13)
    assert content.depth >= 2
    assert sink.flat(content) == chunks


def test_an_edit_in_a_long_list_rewrites_few_parts() -> None:
    before, after = Sink(), Sink()
    chunks = chunks_of(40_000)
    built(before, chunks, 1000)
    built(after, [*chunks[:20_000], *chunks_of(3, 7), *chunks[20_001:]], 999)
    assert len(after.chunks) > 40
    assert len(after.chunks.keys() - before.chunks.keys()) <= 3


def test_a_file_of_thousands_of_chunks_is_stored_and_its_edit_adds_little(tmp_path: Path, source: Path) -> None:
    vault = Vault(MemoryStorage("tiny"), tmp_path / "cache").create(chunker(4096, 256, 8192))
    path = write(source / "long", random_bytes(12 * MiB, 1))
    first = vault.store(source)
    content = vault.entry(first, path).content
    assert content.depth == 1
    assert differences(vault.read(first, source), describe_folder(source)) == {}
    with path.open("r+b") as file:
        file.seek(6 * MiB)
        file.write(b"an edit in the middle")
    second = vault.store(source)
    assert differences(vault.read(second, source), describe_folder(source)) == {}
    after = vault.entry(second, path).content
    assert len(set(after.chunk_ids()) - set(content.chunk_ids())) <= 2
    assert vault.store(source).snapshot.statistics.read_size == 0
    vault.assert_sound()


def test_a_file_of_depth_two_is_stored_skipped_and_read(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree_writer, "INLINE_CHUNKS_MAX", 16)
    monkeypatch.setattr(tree_writer, "_PART_CHUNKS_MIN", 8)
    monkeypatch.setattr(tree_writer, "_PART_CHUNKS_MAX", 32)
    monkeypatch.setattr(tree_writer, "_PART_CUT_MASK", 0xF)
    vault = Vault(MemoryStorage("deep"), tmp_path / "cache").create(chunker(4096, 256, 8192))
    path = write(source / "long", random_bytes(9 * MiB, 1))
    stored = vault.store(source)
    assert vault.entry(stored, path).content.depth >= 2
    assert differences(vault.read(stored, source), describe_folder(source)) == {}
    assert vault.store(source).snapshot.statistics.files_unchanged == 1
    vault.assert_sound()


def listing_of(names: list[bytes], directories: set[bytes] = frozenset()) -> Listing:  # type: ignore[assignment]
    count = len(names)
    modes = [0o40755 if name in directories else 0o100644 for name in names]
    zeros = [[0] * count for _ in range(11)]
    return Listing(names, modes, *zeros, marks=[0] * count, contents=[Content()] * count)


def test_a_directory_is_stored_when_the_last_content_below_it_is_known() -> None:
    sink = Sink()
    writer = TreeWriter(sink)
    root = OpenDirectory(b"", None, 0)
    leaf = writer.open_leaf(root, listing_of([b"a", b"below"], {b"below"}))
    leaf.waiting += 2
    writer.release_directory(root)
    below = OpenDirectory(b"/below", leaf, 1)
    inner = writer.open_leaf(below, listing_of([b"x"]))
    inner.waiting += 1
    writer.release_leaf(inner)
    writer.release_directory(below)
    writer.release_leaf(leaf)
    assert sink.chunks == {}
    leaf.listing.contents[0] = Content(b"1" * ID_SIZE, (5,))
    writer.release_leaf(leaf)
    assert root.content is None
    inner.listing.contents[0] = Content(b"2" * ID_SIZE, (7,))
    writer.release_leaf(inner)
    assert root.content is not None
    (chunk_id,) = root.content.chunk_ids()
    stored = decode_listing(sink.chunks[chunk_id])
    assert stored.names == [b"a", b"below"]
    assert stored.contents[0] == Content(b"1" * ID_SIZE, (5,))
    (inner_id,) = stored.contents[1].chunk_ids()
    assert decode_listing(sink.chunks[inner_id]).contents == [Content(b"2" * ID_SIZE, (7,))]


def test_leaves_keep_their_order_whatever_order_they_become_known_in() -> None:
    sink = Sink()
    writer = TreeWriter(sink)
    root = OpenDirectory(b"", None, 0)
    leaves = [writer.open_leaf(root, listing_of([name])) for name in (b"a", b"b", b"c")]
    writer.release_directory(root)
    leaves[1].dropped.append(0)
    for place in (2, 1, 0):
        writer.release_leaf(leaves[place])
    assert root.content is not None
    names = [decode_listing(sink.chunks[chunk_id]).names for chunk_id in root.content.chunk_ids()]
    assert names == [[b"a"], [b"c"]], "a leaf of which nothing is left is left out"


@given(st.data())
def test_selecting_rows_moves_sparse_fields_with_them(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 30))
    rows = sorted(data.draw(st.sets(st.integers(0, count - 1))))
    listing = listing_of([b"%03d" % row for row in range(count)])
    listing.targets = {row: b"target %d" % row for row in range(0, count, 2)}
    listing.extents = {row: [row, row + 1] for row in range(0, count, 3)}
    chosen = select_rows(listing, rows)
    assert chosen.names == [listing.names[row] for row in rows]
    assert chosen.targets == {place: b"target %d" % row for place, row in enumerate(rows) if row % 2 == 0}
    assert chosen.extents == {place: [row, row + 1] for place, row in enumerate(rows) if row % 3 == 0}
    rest = without_rows(listing, rows)
    assert rest.names == [name for row, name in enumerate(listing.names) if row not in rows]
