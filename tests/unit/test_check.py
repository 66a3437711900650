"""What a check counts, finds and traces to files, beyond plain damage (tests/corruption)."""

from __future__ import annotations

import os
from pathlib import Path

from support.sources import build_zoo, random_bytes, write
from support.vault import Vault, object_names

from ohdiff.operations.check import Part
from ohdiff.operations.statistics import repository_statistics


def test_a_sound_repository_has_no_problems_and_everything_is_counted(vault: Vault, source: Path) -> None:
    build_zoo(source)
    vault.store(source)
    vault.store(source)
    result = vault.check()
    assert result.problems == []
    assert result.snapshots == 2
    assert result.packs == result.read_packs == len(object_names(vault.storage, ["packs"]))
    assert result.read_size == sum(info.size for info in vault.storage.list_objects("packs"))
    assert result.unused_packs == 0
    with vault.opened() as (_, index):
        assert result.chunks == index.chunk_count


def test_an_empty_repository_is_sound(vault: Vault) -> None:
    result = vault.check()
    assert (result.problems, result.snapshots, result.packs) == ([], 0, 0)


def test_a_pack_that_no_index_names_is_counted_and_is_no_problem(vault: Vault, source: Path) -> None:
    write(source / "file", random_bytes(1000))
    vault.store(source)
    for name in object_names(vault.storage, ["index"]):
        vault.storage.delete(name)
    for name in object_names(vault.storage, ["snapshots"]):
        vault.storage.delete(name)
    result = vault.check()
    assert result.problems == []
    assert result.unused_packs == result.packs > 0


def test_files_whose_chunks_are_lost_are_named_in_every_snapshot_that_shares_them(vault: Vault, source: Path) -> None:
    for number in range(3):
        write(source / "a" / f"{number}", random_bytes(10_000, number))
        write(source / "b" / f"{number}", random_bytes(10_000, 10 + number))
    vault.store(source)
    first_indexes = object_names(vault.storage, ["index"])
    for path in source.rglob("*"):
        os.utime(path, ns=(1, 1))
    # Its trees are its own: with the first as parent they would be differences from what will be lost.
    vault.store(source, parent=None)
    # This one shares the leaf of `a` with the one before, so a walk that skips what it has seen would miss it.
    os.utime(source / "b" / "1", ns=(2, 2))
    vault.store(source)
    first, second, third = vault.snapshots()
    vault.storage.delete(f"snapshots/{first.snapshot_id.hex()}")
    for name in first_indexes:
        vault.storage.delete(name)
    touched = {pair for problem in vault.check(None).problems for pair in problem.touched}
    files = {bytes(path) for path in source.rglob("*") if path.is_file()}
    assert touched == {(stored.short_id, path) for stored in (second, third) for path in files}


def test_parts_are_drawn_by_pack_id_and_are_disjoint() -> None:
    ids = [os.urandom(32) for _ in range(200)]
    for count in (1, 2, 7):
        owners = [[number for number in range(1, count + 1) if Part(number, count).has(pack_id)] for pack_id in ids]
        assert all(len(each) == 1 for each in owners)


def test_statistics_tell_what_dedup_and_compression_save(vault: Vault, source: Path) -> None:
    write(source / "a", random_bytes(100_000, 1))
    write(source / "b", random_bytes(100_000, 1))
    write(source / "c", bytes(100_000))
    stored = [vault.store(source), vault.store(source)]
    with vault.opened() as (repository, index):
        found = repository_statistics(repository, index, stored)
    assert (found.snapshots, found.files, found.source_size) == (2, 6, 600_000)
    assert 200_000 <= found.unique_size <= 201_000
    assert found.dedup_ratio > 2.9
    assert 1.9 < found.compression.ratio < 2.1
    assert found.packs == len(object_names(vault.storage, ["packs"]))
    assert found.storage_size > found.data_stored_size + found.metadata_stored_size
