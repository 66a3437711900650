"""What a snapshot needs is looked up once: the index remembers that all of it was there, until something is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.description import describe_folder, differences
from support.sources import random_bytes, write
from support.vault import Vault, object_names

from ohdiff.repository.chunk_reader import ChunkReader
from ohdiff.repository.index import ChunkIndex


@pytest.fixture
def filled(source: Path) -> Path:
    for number in range(5):
        write(source / f"{number}", random_bytes(30_000, number))
    return source


def is_whole(vault: Vault, snapshot_id: bytes) -> bool:
    with vault.opened() as (_, index):
        return index.is_whole_for(snapshot_id)


def test_the_latest_snapshot_is_known_to_be_whole(vault: Vault, filled: Path) -> None:
    first = vault.store(filled)
    assert is_whole(vault, first.snapshot_id)
    assert not is_whole(vault, bytes(32))
    write(filled / "more", random_bytes(30_000, 9))
    second = vault.store(filled)
    assert is_whole(vault, second.snapshot_id)
    assert not is_whole(vault, first.snapshot_id)


def test_an_index_object_that_is_gone_ends_that(vault: Vault, filled: Path) -> None:
    stored = vault.store(filled)
    for name in object_names(vault.storage, ["index"]):
        vault.storage.delete(name)
    assert not is_whole(vault, stored.snapshot_id)
    healing = vault.store(filled)
    assert healing.snapshot.statistics.read_size == 5 * 30_000
    assert differences(vault.read(healing, filled), describe_folder(filled)) == {}
    vault.assert_sound()


def test_without_a_cache_nothing_is_known(vault: Vault, filled: Path) -> None:
    vault.cache = None
    stored = vault.store(filled)
    assert not is_whole(vault, stored.snapshot_id)
    assert vault.store(filled).snapshot.statistics.files_unchanged == 5


def test_a_dry_run_says_nothing_of_what_it_did_not_store(vault: Vault, filled: Path) -> None:
    first = vault.store(filled)
    write(filled / "more", random_bytes(30_000, 9))
    vault.snapshot(filled, is_dry_run=True)
    assert is_whole(vault, first.snapshot_id)


def test_neighbours_in_a_block_are_read_without_a_look_up(
    vault: Vault, filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = vault.store(filled)
    entries = [vault.entry(stored, filled / f"{number}") for number in range(5)]
    asked: list[int] = []
    find = ChunkIndex.find
    monkeypatch.setattr(ChunkIndex, "find", lambda self, ids: asked.append(len(ids)) or find(self, ids))
    with vault.opened() as (repository, index):
        reader = ChunkReader(repository, index)
        for number, entry in enumerate(entries):
            data = b"".join(
                reader.read(chunk_id, size)
                for chunk_id, size in zip(entry.content.chunk_ids(), entry.content.sizes, strict=True)
            )
            assert data == random_bytes(30_000, number)
        assert sum(asked) == 1
        content = entries[0].content
        # A wrong size is no neighbour, and no harm.
        assert reader.read(content.chunk_ids()[0], 7) == random_bytes(30_000, 0)[: content.sizes[0]]
