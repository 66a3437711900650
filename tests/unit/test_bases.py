"""Stored bases: what a delta may stand on, and that whatever cannot be had costs space and never data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.description import describe_folder, differences
from support.sources import random_bytes, write
from support.vault import Vault, object_names, replace_object

from ohdiff.delta.frames import Budget
from ohdiff.errors import IntegrityError, StorageError
from ohdiff.operations import bases as bases_module
from ohdiff.operations.bases import DEPTH_MAX, StoredBases
from ohdiff.operations.tree_reader import TreeReader
from ohdiff.repository.chunk_reader import ChunkReader
from ohdiff.repository.index import ChunkIndex
from ohdiff.repository.index_segment import BlockLocation
from ohdiff.repository.lost_bases import split_prefixes
from ohdiff.repository.snapshots import StoredSnapshot
from ohdiff.storage import MemoryStorage
from ohdiff_format.blocks import CODEC_DELTA, CODEC_RAW
from ohdiff_format.tree import Content

# A file of one chunk: smaller than the least that the rule cuts.
SMALL = 12_000


@contextmanager
def bases_of(vault: Vault) -> Iterator[tuple[StoredBases, ChunkIndex]]:
    with vault.opened() as (repository, index):
        reader = ChunkReader(repository, index)
        yield StoredBases(index, reader, TreeReader(reader)), index


def ids_of(vault: Vault, stored: StoredSnapshot, path: Path) -> list[bytes]:
    entry = vault.entry(stored, path)
    with vault.tree() as tree:
        return [chunk_id for chunk_id, _ in tree.chunk_list(entry.content)]


def prefixes_of(vault: Vault, stored: StoredSnapshot, path: Path) -> list[bytes]:
    return [chunk_id[:16] for chunk_id in ids_of(vault, stored, path)]


def blocks_of(vault: Vault, stored: StoredSnapshot, path: Path) -> list[BlockLocation]:
    """The block of each chunk of a file."""
    with vault.opened() as (_, index):
        places = index.find(ids_of(vault, stored, path))
    assert all(place is not None for place in places)
    return [place.block for place in places if place is not None]


def edited(data: bytes, number: int) -> bytes:
    """One byte changed, at a place that depends on the number."""
    at = 1000 + 500 * number
    return data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]


def test_an_edited_chunk_stands_on_the_one_that_was_in_its_place(vault: Vault, source: Path) -> None:
    path = write(source / "file", random_bytes(SMALL))
    first = vault.store(source)
    write(path, edited(random_bytes(SMALL), 1))
    second = vault.store(source)
    (block,) = blocks_of(vault, second, path)
    assert (block.codec, block.depth) == (CODEC_DELTA, 1)
    assert split_prefixes(block.base_prefixes) == prefixes_of(vault, first, path)
    assert second.snapshot.statistics.added_stored_size < SMALL / 4
    assert vault.data(second, path) == edited(random_bytes(SMALL), 1)
    vault.assert_sound()


def test_bases_are_the_bytes_of_their_chunks_back_to_back(vault: Vault, source: Path) -> None:
    path = write(source / "file", random_bytes(700_000))
    prefixes = prefixes_of(vault, vault.store(source), path)
    assert len(prefixes) > 3
    with bases_of(vault) as (bases, _):
        base = bases.load(prefixes, is_metadata=False)
        assert base is not None
        assert (base.prefixes, base.data, base.depth) == (b"".join(prefixes), random_bytes(700_000), 1)
        assert b"".join(bases.read(prefix) or b"" for prefix in prefixes) == random_bytes(700_000)
        assert bases.errors == {}


def test_a_base_that_is_in_no_index_is_no_base_and_no_error(vault: Vault, source: Path) -> None:
    path = write(source / "file", random_bytes(SMALL))
    (known,) = prefixes_of(vault, vault.store(source), path)
    with bases_of(vault) as (bases, _):
        assert bases.load([b"u" * 16], is_metadata=False) is None
        assert bases.read(b"u" * 16) is None
        mixed = bases.load([b"u" * 16, known], is_metadata=False)
        assert mixed is not None
        assert mixed.prefixes == known
        assert bases.errors == {}


def test_metadata_is_never_a_base_of_data_nor_data_of_metadata(vault: Vault, source: Path) -> None:
    path = write(source / "file", random_bytes(SMALL))
    stored = vault.store(source)
    leaf = stored.root.ids[:16]
    (prefix,) = prefixes_of(vault, stored, path)
    with bases_of(vault) as (bases, index):
        (place,) = index.find([leaf])
        assert place is not None
        assert place.block.is_metadata
        assert bases.load([leaf], is_metadata=False) is None
        assert bases.read(leaf) is None
        assert bases.load([prefix], is_metadata=True) is None
        assert bases.errors == {}


def test_of_a_deep_chunk_what_it_stands_on_is_the_base(vault: Vault, source: Path) -> None:
    data = random_bytes(SMALL)
    path = write(source / "file", data)
    stored = [vault.store(source)]
    for number in range(5):
        data = edited(data, number)
        write(path, data)
        stored.append(vault.store(source))
    blocks = [blocks_of(vault, each, path)[0] for each in stored]
    assert [block.depth for block in blocks] == [0, 1, 2, 2, 2, 2]
    depth_one = prefixes_of(vault, stored[1], path)
    assert [split_prefixes(block.base_prefixes) for block in blocks[2:]] == [depth_one] * 4
    assert all(each.snapshot.statistics.added_stored_size < SMALL / 4 for each in stored[1:])
    assert vault.data(stored[-1], path) == data
    vault.assert_sound()


def test_a_base_of_full_depth_is_replaced_by_what_it_stands_on_beside_others(vault: Vault, source: Path) -> None:
    data, other = random_bytes(SMALL), write(source / "other", random_bytes(SMALL, 1))
    path = write(source / "file", data)
    stored = [vault.store(source)]
    for number in range(2):
        data = edited(data, number)
        write(path, data)
        stored.append(vault.store(source))
    below, deep = (prefixes_of(vault, each, path)[0] for each in stored[1:])
    (plain,) = prefixes_of(vault, stored[0], other)
    with bases_of(vault) as (bases, _):
        base = bases.load([deep, plain], is_metadata=False)
        assert base is not None
        assert base.depth == DEPTH_MAX
        assert sorted(split_prefixes(base.prefixes)) == sorted([plain, below])
        both = bases.load([below, deep], is_metadata=False)
        assert both is not None
        assert split_prefixes(both.prefixes) == [below]


def test_bases_are_no_more_than_the_compressor_can_use(
    vault: Vault, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(source / "file", random_bytes(900_000))
    prefixes = prefixes_of(vault, vault.store(source), path)
    monkeypatch.setattr(bases_module, "_BASE_SIZE_BYTES_MAX", 300_000)
    with bases_of(vault) as (bases, _):
        base = bases.load(prefixes, is_metadata=False)
        assert base is not None
        assert 0 < len(base.data) <= 300_000
        assert split_prefixes(base.prefixes) == prefixes[: len(base.prefixes) // 16]
    monkeypatch.setattr(bases_module, "_BASE_SIZE_BYTES_MAX", 10)
    with bases_of(vault) as (bases, _):
        assert bases.load(prefixes, is_metadata=False) is None
        assert bases.errors == {}


def test_a_damaged_base_is_told_and_the_chunk_is_stored_plain(vault: Vault, source: Path) -> None:
    path = write(source / "file", random_bytes(SMALL))
    first = vault.store(source)
    (block,) = blocks_of(vault, first, path)
    name = f"packs/{block.pack_id.hex()}"
    data = bytearray(vault.storage.read(name))
    data[block.offset + 100] ^= 1
    replace_object(vault.storage, name, bytes(data))
    write(path, edited(random_bytes(SMALL), 1))
    result = vault.snapshot(source)
    (error,) = result.errors
    assert isinstance(error, IntegrityError)
    assert error.item == name
    second = result.stored
    assert second is not None
    (block,) = blocks_of(vault, second, path)
    assert (block.codec, block.base_prefixes) == (CODEC_RAW, b"")
    assert differences(vault.read(second, source), describe_folder(source)) == {}


def test_a_missing_pack_of_a_base_is_told_once_for_all_that_would_stand_on_it(vault: Vault, source: Path) -> None:
    paths = [write(source / f"{number}", random_bytes(SMALL, number)) for number in range(5)]
    first = vault.store(source)
    packs = {f"packs/{blocks_of(vault, first, path)[0].pack_id.hex()}" for path in paths}
    for name in packs:
        vault.storage.delete(name)
    for number, path in enumerate(paths):
        write(path, edited(random_bytes(SMALL, number), 1))
    result = vault.snapshot(source)
    assert {error.item for error in result.errors} <= packs
    assert len(result.errors) == len({error.item for error in result.errors}) >= 1
    assert result.stored is not None
    assert differences(vault.read(result.stored, source), describe_folder(source)) == {}


class BrokenStorage(MemoryStorage):
    """A storage that fails to read packs, as long as it is broken."""

    is_broken = False

    def read(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
        if self.is_broken and name.startswith("packs/"):
            raise StorageError("no answer", item=name)
        return super().read(name, offset, size)


def test_a_storage_that_fails_to_read_a_base_is_told_and_yields_none(source: Path) -> None:
    storage = BrokenStorage("broken")
    vault = Vault(storage).create()
    path = write(source / "file", random_bytes(SMALL))
    prefixes = prefixes_of(vault, vault.store(source), path)
    with bases_of(vault) as (bases, _):
        storage.is_broken = True
        assert bases.load(prefixes, is_metadata=False) is None
        assert bases.read(prefixes[0]) is None
        (error,) = bases.errors.values()
        assert isinstance(error, StorageError)
        storage.is_broken = False
        assert bases.load(prefixes, is_metadata=False) is not None


def test_an_earlier_version_whose_chunk_list_is_damaged_gives_no_candidates(vault: Vault, source: Path) -> None:
    write(source / "file", random_bytes(SMALL))
    vault.store(source)
    with bases_of(vault) as (bases, _):
        lost = Content(bytes(32), (5_000,), 1)
        finder = bases.of_file(lost)
        assert list(finder.candidates(0, 1000)) == []
        assert [type(error) for error in bases.errors.values()] == [IntegrityError]


def test_candidates_are_found_from_where_the_buffer_lies_in_the_file(vault: Vault, source: Path) -> None:
    path = write(source / "file", random_bytes(700_000))
    stored = vault.store(source)
    content = vault.entry(stored, path).content
    prefixes = prefixes_of(vault, stored, path)
    with bases_of(vault) as (bases, _):
        finder = bases.of_file(content)
        start = 0
        for prefix, size in zip(prefixes, content.sizes, strict=True):
            # The buffer begins in the middle of the chunk.
            finder.origin = start + size // 2
            assert list(finder.candidates(-size // 2 + 1, size // 2)) == [prefix]
            finder.note_duplicate(prefix, -(size // 2))
            start += size


def test_a_stored_file_is_read_at_any_offset_and_knows_its_chunks(vault: Vault, source: Path) -> None:
    data = random_bytes(700_000)
    path = write(source / "file", data)
    content = vault.entry(vault.store(source), path).content
    with bases_of(vault) as (bases, _):
        file = bases.file(content)
        assert file.size == len(data)
        first = content.sizes[0]
        for offset, size in ((0, 10), (first - 3, 6), (5, 600_000), (699_990, 100), (700_000, 5), (0, 700_000)):
            assert file.read(offset, size) == data[offset : offset + size]
        found = file.chunks_at([(0, first), (0, first + 1), (first, first + content.sizes[1]), (5, 9)])
        assert [None if place is None else place[0] for place in found] == [
            content.ids[:16],
            None,
            content.ids[32:48],
            None,
        ]


def test_worthless_bases_are_tried_less_and_less_and_never_given_up() -> None:
    budget = Budget()
    tried = 0
    for _ in range(1000):
        if budget.allows():
            tried += 1
            budget.settle(is_taken=False)
    assert 16 < tried < 200
    budget.settle(is_taken=True)
    assert budget.allows()


def test_files_that_do_not_resemble_their_earlier_version_are_stored_plain(vault: Vault, source: Path) -> None:
    path = write(source / "file", random_bytes(SMALL, 1))
    vault.store(source)
    write(path, random_bytes(SMALL, 2))
    second = vault.store(source)
    assert [block.codec for block in blocks_of(vault, second, path)] == [CODEC_RAW]
    assert vault.data(second, path) == random_bytes(SMALL, 2)
    assert len(object_names(vault.storage, ["snapshots"])) == 2
