"""Damage to every kind of object: each gives its named error, and a check says which files it touches and no others."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.description import Description, describe_folder, differences
from support.sources import build_zoo, random_bytes, text_bytes, write
from support.vault import Vault, object_names, replace_object

from ohdiff.errors import (
    IntegrityError,
    ObjectMissingError,
    RepositoryError,
    StorageError,
    UnsupportedFormatError,
    WrongKeyError,
)
from ohdiff.operations.check import CheckResult, Part
from ohdiff.repository import chunk_writer, packs
from ohdiff.repository.index_segment import BlockLocation
from ohdiff.repository.keys import KeyDescription, Password, add_key, list_keys
from ohdiff.storage import MemoryStorage
from ohdiff_format import keys as format_keys
from ohdiff_format.envelope import HEADER_SIZE_MAX

Touched = set[tuple[str, bytes]]
Damage = Callable[[bytes], bytes | None]


@dataclass
class Site:
    """A repository of two snapshots in many small packs, and what the source was at each."""

    vault: Vault
    source: Path
    folders: list[dict[bytes, Description]]

    def damaged(self, name: str, damage: Damage) -> Vault:
        """A copy in which one object is damaged."""
        assert isinstance(self.vault.storage, MemoryStorage)
        storage = self.vault.storage.copy()
        replace_object(storage, name, damage(storage.read(name)))
        return self.vault.over(storage)

    def read_all(self, vault: Vault) -> None:
        """Read every snapshot; what comes back without an error is right."""
        stored = vault.snapshots()
        for item, folder in zip(stored, self.folders, strict=len(stored) == 2):
            assert differences(vault.read(item, self.source), folder) == {}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunk_writer, "BLOCK_SIZE_BYTES", 150_000)
        patch.setattr(chunk_writer, "_FULL_BLOCK_SIZE_BYTES", 120_000)
        patch.setattr(packs, "PACK_SIZE_BYTES", 400_000)
        source = tmp_path_factory.mktemp("site") / "source"
        build_zoo(source)
        for number in range(8):
            write(source / "random" / f"{number}", random_bytes(130_000, 50 + number))
        vault = Vault(MemoryStorage("site")).create()
        vault.store(source)
        first = describe_folder(source)
        write(source / "random" / "3", random_bytes(140_000, 99))
        write(source / "text" / "new", text_bytes(9_000, 98))
        shutil.rmtree(source / "many")
        vault.store(source)
    yield Site(vault, source, [first, describe_folder(source)])


def blocks_of(vault: Vault) -> dict[str, list[BlockLocation]]:
    """The blocks of each pack by its object's name."""
    found: dict[str, list[BlockLocation]] = {}
    with vault.opened() as (_, index):
        for block in index.blocks():
            found.setdefault(f"packs/{block.pack_id.hex()}", []).append(block)
    return found


def users_of(site: Site, block: BlockLocation) -> Touched:
    """The files of all snapshots that have a chunk in a block."""
    touched = set()
    with site.vault.opened() as (_, index), site.vault.tree() as tree:
        for stored in site.vault.snapshots():
            for entry in tree.walk(stored.root):
                if entry.is_file:
                    ids = [chunk_id for chunk_id, _ in tree.chunk_list(entry.content)]
                    if any(place is not None and place.block == block for place in index.find(ids)):
                        touched.add((stored.short_id, entry.path))
    return touched


def touched_by(result: CheckResult) -> Touched:
    return {pair for problem in result.problems for pair in problem.touched}


def flipped(offset: int) -> Damage:
    def damage(data: bytes) -> bytes:
        changed = bytearray(data)
        changed[offset] ^= 1 << offset % 8
        return bytes(changed)

    return damage


def cut(size: int) -> Damage:
    return lambda data: data[:size]


def lost(data: bytes) -> None:
    return None


def offsets_in(size: int) -> list[int]:
    return sorted(
        {0, 1, 4, 5, 6, 7, 8, 12, 20, 40, size // 3, size // 2, size - 40, size - 17, size - 1} & set(range(size))
    )


def all_damage(size: int) -> Iterator[Damage]:
    yield lost
    yield from (cut(length) for length in (0, 1, HEADER_SIZE_MAX // 2, size // 2, size - 1))
    yield from map(flipped, offsets_in(size))
    yield lambda data: data + b"\0"
    yield lambda data: bytes(len(data))


def test_the_site_has_what_the_tests_are_about(site: Site) -> None:
    site.read_all(site.vault)
    site.vault.assert_sound()
    blocks = blocks_of(site.vault)
    assert len(blocks) >= 5
    assert any(block.is_metadata for each in blocks.values() for block in each)
    assert any(len(each) > 1 for each in blocks.values())


def test_a_damaged_block_is_reported_with_exactly_the_files_in_it(site: Site) -> None:
    for name, blocks in blocks_of(site.vault).items():
        for block in blocks:
            if block.is_metadata:
                continue
            for place in (0, block.sealed_size // 2, block.sealed_size - 1):
                vault = site.damaged(name, flipped(block.offset + place))
                result = vault.check()
                assert name in {problem.item for problem in result.problems}
                assert touched_by(result) == users_of(site, block)
            with pytest.raises(IntegrityError):
                site.read_all(vault)


@pytest.mark.parametrize("damage", [lost, cut(0), cut(100), cut(1000), flipped(3)])
def test_a_damaged_pack_is_reported_with_exactly_the_files_in_it(site: Site, damage: Damage) -> None:
    for name, blocks in blocks_of(site.vault).items():
        if blocks[0].is_metadata:
            continue
        expected = set().union(*(users_of(site, block) for block in blocks))
        result = site.damaged(name, damage).check()
        assert name in {problem.item for problem in result.problems}
        assert touched_by(result) == expected


def test_damage_in_the_padding_or_footer_of_a_pack_is_reported_and_touches_nothing(site: Site) -> None:
    for name, blocks in blocks_of(site.vault).items():
        last = blocks[-1]
        size = site.vault.storage.size(name)
        for offset in {last.offset + last.sealed_size, size - 30, size - 1}:
            vault = site.damaged(name, flipped(offset))
            result = vault.check()
            assert {problem.item for problem in result.problems} == {name}
            assert touched_by(result) == set()
            site.read_all(vault)


def test_damaged_trees_are_reported_with_the_folders_that_they_hide(site: Site) -> None:
    for name, blocks in blocks_of(site.vault).items():
        if not blocks[0].is_metadata:
            continue
        for damage in (lost, cut(200), flipped(blocks[0].offset + 5)):
            vault = site.damaged(name, damage)
            result = vault.check()
            assert name in {problem.item for problem in result.problems}
            assert touched_by(result)
            with pytest.raises(IntegrityError):
                site.read_all(vault)


def test_every_damage_of_every_pack_gives_an_integrity_error_or_right_data(site: Site) -> None:
    of_each_kind = {blocks[0].is_metadata: name for name, blocks in blocks_of(site.vault).items()}
    for name in of_each_kind.values():
        for damage in all_damage(site.vault.storage.size(name)):
            vault = site.damaged(name, damage)
            assert vault.check().problems != []
            with suppress(IntegrityError):
                site.read_all(vault)


def test_two_packs_that_were_swapped_are_noticed(site: Site) -> None:
    names = object_names(site.vault.storage, ["packs"])
    for one, other in itertools.pairwise(names):
        vault = site.damaged(one, lambda data: data)
        first, second = vault.storage.read(one), vault.storage.read(other)
        replace_object(vault.storage, one, second)
        replace_object(vault.storage, other, first)
        result = vault.check()
        assert {one, other} <= {problem.item for problem in result.problems}
        with pytest.raises(IntegrityError):
            site.read_all(vault)


def test_a_check_without_reading_data_finds_what_is_missing_or_cut(site: Site) -> None:
    for name, blocks in blocks_of(site.vault).items():
        for damage in (lost, cut(300)):
            result = site.damaged(name, damage).check(None)
            assert result.read_packs == 0
            if not blocks[0].is_metadata:
                assert touched_by(result) == set().union(*(users_of(site, block) for block in blocks))


def test_the_parts_of_a_check_cover_every_pack_once(site: Site) -> None:
    counts = [site.vault.check(Part(number, 3)).read_packs for number in (1, 2, 3)]
    assert sum(counts) == len(object_names(site.vault.storage, ["packs"]))
    assert site.vault.check(None).read_packs == 0


def test_every_damage_of_an_index_object_is_named_and_checked_around(site: Site) -> None:
    for name in object_names(site.vault.storage, ["index"]):
        touched = touched_by(site.damaged(name, lost).check())
        assert touched
        for damage in all_damage(site.vault.storage.size(name)):
            vault = site.damaged(name, damage)
            result = vault.check()
            assert touched_by(result) == touched
            if damage is lost:
                continue
            assert name in {problem.item for problem in result.problems}
            with pytest.raises(IntegrityError) as caught:
                site.read_all(vault)
            assert caught.value.item == name


def test_swapped_index_objects_are_noticed(site: Site) -> None:
    one, other, *_ = object_names(site.vault.storage, ["index"])
    vault = site.damaged(one, lambda data: site.vault.storage.read(other))
    with pytest.raises(IntegrityError) as caught:
        site.read_all(vault)
    assert caught.value.item == one


def test_chunks_that_no_index_holds_are_reported_for_every_snapshot_that_needs_them(site: Site) -> None:
    first_index, second_index = indexes_by_age(site)
    lost_blocks = [block for each in blocks_of(site.vault).values() for block in each]
    vault = site.damaged(second_index, lost)
    still_there = {block for each in blocks_of(vault).values() for block in each}
    # The trees of the first snapshot are whole, so every file that it lost is named.
    first, second = site.vault.snapshots()
    lost_data = [block for block in lost_blocks if block not in still_there and not block.is_metadata]
    expected = set().union(*(users_of(site, block) for block in lost_data))
    assert expected
    touched = touched_by(vault.check())
    assert {pair for pair in touched if pair[0] == first.short_id} == {
        pair for pair in expected if pair[0] == first.short_id
    }
    assert {short_id for short_id, _ in touched_by(site.damaged(first_index, lost).check())} == {
        first.short_id,
        second.short_id,
    }


def indexes_by_age(site: Site) -> tuple[str, str]:
    """The index object of the first snapshot, and that of the second: without the latter the first is whole."""
    one, other = object_names(site.vault.storage, ["index"])
    first, _ = site.vault.snapshots()
    with suppress(IntegrityError):
        site.damaged(one, lost).read(first, site.source)
        return other, one
    return one, other


def test_every_damage_of_a_snapshot_is_an_integrity_error_that_names_it(site: Site) -> None:
    for name in object_names(site.vault.storage, ["snapshots"]):
        for damage in all_damage(site.vault.storage.size(name)):
            vault = site.damaged(name, damage)
            if damage is lost:
                assert len(vault.snapshots()) == 1
                vault.assert_sound()
                continue
            assert {problem.item for problem in vault.check().problems} == {name}
            with pytest.raises(IntegrityError) as caught:
                vault.snapshots()
            assert caught.value.item == name


def test_every_damage_of_the_config_is_named_before_anything_is_written(site: Site) -> None:
    size = site.vault.storage.size("config")
    for damage in [*all_damage(size), *map(flipped, range(0, size, 3))]:
        vault = site.damaged("config", damage)
        with pytest.raises((IntegrityError, UnsupportedFormatError, ObjectMissingError)) as caught:
            vault.open()
        assert caught.value.item == "config"


def test_every_damage_of_the_only_key_is_an_integrity_error_or_a_wrong_key(site: Site) -> None:
    (name,) = object_names(site.vault.storage, ["keys"])
    for damage in all_damage(site.vault.storage.size(name)):
        vault = site.damaged(name, damage)
        with pytest.raises((IntegrityError, WrongKeyError)) as caught:
            vault.open()
        assert isinstance(caught.value, WrongKeyError) == (damage is lost)


def test_a_damaged_key_does_not_keep_another_from_opening(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(format_keys, "ARGON2_MEMORY_KIB", 64)
    vault = site.damaged("config", lambda data: data)
    other = Password(b"secret")
    added = add_key(vault.storage, vault.open().master_key, other, KeyDescription("other"))
    (first,) = set(object_names(vault.storage, ["keys"])) - {f"keys/{added}"}
    replace_object(vault.storage, first, flipped(30)(vault.storage.read(first)))
    vault.key = other  # type: ignore[assignment]
    site.read_all(vault)
    with pytest.raises(IntegrityError) as caught:
        list_keys(vault.storage)
    assert caught.value.item == first


def test_errors_name_what_to_look_at(site: Site) -> None:
    name = next(name for name, blocks in blocks_of(site.vault).items() if not blocks[0].is_metadata)
    with pytest.raises(IntegrityError) as caught:
        site.read_all(site.damaged(name, lost))
    assert caught.value.item == name
    assert caught.value.hint
    assert not isinstance(caught.value, StorageError | RepositoryError)


def test_a_snapshot_on_a_damaged_parent_is_an_integrity_error_and_stores_no_snapshot(site: Site) -> None:
    for name, blocks in blocks_of(site.vault).items():
        if not blocks[0].is_metadata:
            continue
        vault = site.damaged(name, flipped(blocks[0].offset + 9))
        try:
            vault.snapshot(site.source)
        except IntegrityError as error:
            assert error.item == name
            assert len(object_names(vault.storage, ["snapshots"])) == 2
