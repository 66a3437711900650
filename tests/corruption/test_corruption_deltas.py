"""Damage to what deltas and numbers stand on: each gives its named error for all that it breaks, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.chains import assert_chains, rewritten_index
from support.description import Description, describe_folder, differences
from support.small_tensors import bf16, lower_limits, safetensors, stepped, weights
from support.sources import random_bytes, write
from support.vault import Vault, chunker, replace_object

from ohdiff.errors import IntegrityError, OhdiffError
from ohdiff.operations.check import CheckResult
from ohdiff.operations.observer import Silent
from ohdiff.operations.restore import RestoreOptions, restore
from ohdiff.repository import chunk_writer, packs
from ohdiff.repository.chunk_reader import ChunkReader
from ohdiff.repository.index_segment import BlockLocation
from ohdiff.repository.lost_bases import split_prefixes
from ohdiff.storage import MemoryStorage
from ohdiff_format.blocks import CODEC_DELTA, CODEC_NUMBERS

Folder = dict[bytes, Description]
Touched = set[tuple[str, bytes]]
Damage = Callable[[bytes], bytes | None]


@dataclass
class Site:
    """A repository of snapshots that stand on each other, in many small packs, and what the source was at each."""

    vault: Vault
    source: Path
    folders: list[Folder]
    users: dict[tuple[bytes, int], Touched] = field(default_factory=dict)

    def copied(self) -> Vault:
        assert isinstance(self.vault.storage, MemoryStorage)
        return self.vault.over(self.vault.storage.copy())

    def damaged(self, name: str, damage: Damage) -> Vault:
        """A copy in which one object is damaged."""
        vault = self.copied()
        replace_object(vault.storage, name, damage(vault.storage.read(name)))
        return vault


def edited(data: bytes, seed: int) -> bytes:
    """A few bytes changed all over."""
    changed = bytearray(data)
    for at in range(seed * 500, len(data), 3_000):
        changed[at] ^= 1 + seed
    return bytes(changed)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with pytest.MonkeyPatch.context() as patch:
        lower_limits(patch)
        patch.setattr(chunk_writer, "BLOCK_SIZE_BYTES", 20_000)
        patch.setattr(chunk_writer, "_FULL_BLOCK_SIZE_BYTES", 16_000)
        patch.setattr(chunk_writer, "_DELTA_BLOCK_SIZE_BYTES", 16_000)
        patch.setattr(packs, "PACK_SIZE_BYTES", 12_000)
        source = tmp_path_factory.mktemp("site") / "source"
        vault = Vault(MemoryStorage("site")).create(chunker(4096, 1024, 16_384))
        files = {number: random_bytes(40_000, number) for number in range(3)}
        values = weights(4_096, 7)
        folders = []
        for step in range(3):
            for number, data in files.items():
                write(source / f"file {number}", data)
            write(source / f"step {step}" / "model.safetensors", safetensors({"w": ("F32", values.tobytes())}))
            write(source / f"step {step}" / "copy.safetensors", safetensors({"w": ("BF16", bf16(values))}))
            vault.store(source)
            folders.append(describe_folder(source))
            files = {number: edited(data, step) for number, data in files.items()}
            values = stepped(values, step)
        yield Site(vault, source, folders)


def blocks_of(vault: Vault) -> dict[str, list[BlockLocation]]:
    """The blocks of each pack of data by its object's name."""
    found: dict[str, list[BlockLocation]] = {}
    with vault.opened() as (_, index):
        for block in index.blocks():
            if not block.is_metadata:
                found.setdefault(f"packs/{block.pack_id.hex()}", []).append(block)
    return found


def standing_on(vault: Vault, lost: Sequence[BlockLocation]) -> list[BlockLocation]:
    """These blocks, and all that stand on them, directly or not."""
    blocks = [block for each in blocks_of(vault).values() for block in each]
    broken = list(lost)
    with vault.opened() as (_, index):
        for block in sorted(blocks, key=lambda block: block.depth):
            places = index.find(split_prefixes(block.base_prefixes))
            if block not in broken and any(place is None or place.block in broken for place in places):
                broken.append(block)
    return broken


def users_of(site: Site, blocks: Sequence[BlockLocation]) -> Touched:
    """The files of all snapshots that have a chunk in one of these blocks."""
    if not site.users:
        with site.vault.opened() as (_, index), site.vault.tree() as tree:
            for stored in site.vault.snapshots():
                for entry in tree.walk(stored.root):
                    if entry.is_file:
                        ids = [chunk_id for chunk_id, _ in tree.chunk_list(entry.content)]
                        for place in index.find(ids):
                            assert place is not None
                            key = (place.block.pack_id, place.block.number)
                            site.users.setdefault(key, set()).add((stored.short_id, entry.path))
    return set().union(*(site.users.get((block.pack_id, block.number), set()) for block in blocks))


def touched_by(result: CheckResult) -> Touched:
    return {pair for problem in result.problems for pair in problem.touched}


def read_each(site: Site, vault: Vault) -> list[OhdiffError]:
    """Read every file of every snapshot; what comes back without an error is right."""
    errors: list[OhdiffError] = []
    for stored, folder in zip(site.vault.snapshots(), site.folders, strict=True):
        with site.vault.tree() as tree:
            entries = [entry for entry in tree.walk(stored.root) if entry.is_file]
        with vault.tree() as tree:
            for entry in entries:
                try:
                    data = b"".join(bytes(part) for _, part in tree.read_file(entry))
                except IntegrityError as error:
                    errors.append(error)
                    continue
                assert len(data) == folder[entry.path[len(bytes(site.source)) :]].size
    return errors


def restore_each(site: Site, vault: Vault, target: Path) -> tuple[Touched, list[OhdiffError]]:
    """Restore every snapshot; gives the files that could not be, and the errors; all others are right."""
    lost: Touched = set()
    errors: list[OhdiffError] = []
    for stored, folder in zip(vault.snapshots(), site.folders, strict=True):
        with vault.opened() as (repository, index):
            options = RestoreOptions(target=bytes(target / stored.short_id), source=bytes(site.source))
            result = restore(repository, index, ChunkReader(repository, index), stored, options, Silent())
        errors += result.errors
        found = describe_folder(target / stored.short_id)
        for name in folder:
            if name not in found:
                lost.add((stored.short_id, bytes(site.source) + name))
        kept = {name: folder[name] for name in found if name in folder and found[name].size}
        assert differences({name: found[name] for name in kept}, kept) == {}
    return lost, errors


def flipped(offset: int) -> Damage:
    def damage(data: bytes) -> bytes:
        changed = bytearray(data)
        changed[offset] ^= 1 << offset % 8
        return bytes(changed)

    return damage


def lost(data: bytes) -> None:
    return None


def cut(share: float) -> Damage:
    return lambda data: data[: int(share * len(data))]


def test_the_site_has_what_the_tests_are_about(site: Site) -> None:
    blocks = blocks_of(site.vault)
    codecs = {(block.codec, block.depth) for each in blocks.values() for block in each}
    assert {(CODEC_DELTA, 1), (CODEC_DELTA, 2), (CODEC_NUMBERS, 0), (CODEC_NUMBERS, 1), (CODEC_NUMBERS, 2)} <= codecs
    # How many packs there are depends on which threads were first.
    assert len(blocks) > 8
    bases = [name for name, each in blocks.items() if len(standing_on(site.vault, each)) > len(each)]
    assert len(bases) > 5
    assert any(
        not {block.pack_id for block in standing_on(site.vault, blocks[name])} <= {blocks[name][0].pack_id}
        for name in bases
    )
    assert read_each(site, site.vault) == []
    site.vault.assert_sound()
    assert_chains(site.vault)


@pytest.mark.parametrize("damage", [lost, cut(0.0), cut(0.1), cut(0.6)])
def test_a_lost_pack_of_bases_breaks_all_that_stands_on_it_and_no_more(
    site: Site, tmp_path: Path, damage: Damage
) -> None:
    for number, (name, blocks) in enumerate(blocks_of(site.vault).items()):
        expected = users_of(site, standing_on(site.vault, blocks))
        vault = site.damaged(name, damage)
        result = vault.check()
        assert name in {problem.item for problem in result.problems}
        assert touched_by(result) == expected
        # Without reading packs the index tells as much.
        assert touched_by(vault.check(None)) == expected
        if number % 4 == 0:
            # Blocks before the end of what is left can still be read.
            is_rest_readable = vault.storage.exists(name) and vault.storage.size(name) > blocks[0].offset
            assert {error.item for error in read_each(site, vault)} <= {name}
            missing, errors = restore_each(site, vault, tmp_path / str(number))
            assert missing <= expected if is_rest_readable else missing == expected
            assert all(isinstance(error, IntegrityError) for error in errors)
            assert bool(errors) == bool(missing)


def test_a_damaged_base_block_breaks_all_that_stands_on_it_and_no_more(site: Site, tmp_path: Path) -> None:
    blocks = [block for each in blocks_of(site.vault).values() for block in each]
    bases = [block for block in blocks if len(standing_on(site.vault, [block])) > 1]
    assert len(bases) > 5
    for number, block in enumerate(bases[:: max(1, len(bases) // 6)]):
        name = f"packs/{block.pack_id.hex()}"
        vault = site.damaged(name, flipped(block.offset + block.sealed_size // 2))
        expected = users_of(site, standing_on(site.vault, [block]))
        result = vault.check()
        assert name in {problem.item for problem in result.problems}
        assert touched_by(result) == expected
        errors = read_each(site, vault)
        assert {error.item for error in errors} == {name}
        assert len(errors) == len(expected)
        missing, _ = restore_each(site, vault, tmp_path / str(number))
        assert missing == expected


def leaves_of(vault: Vault) -> dict[str, set[bytes]]:
    """The ids of all tree leaves of each snapshot."""
    found = {}
    with vault.tree() as tree:
        for stored in vault.snapshots():
            contents = [stored.root, *(entry.content for entry in tree.walk(stored.root) if entry.is_directory)]
            found[stored.short_id] = {chunk_id for content in contents for chunk_id in content.chunk_ids()}
    return found


def test_a_damaged_leaf_breaks_the_snapshots_whose_leaves_stand_on_it_and_no_others(site: Site) -> None:
    leaves = leaves_of(site.vault)
    with site.vault.opened() as (_, index):
        blocks = [block for block in index.blocks() if block.is_metadata]
        bases = {prefix for block in blocks for prefix in split_prefixes(block.base_prefixes)}
        lost = [place.block for place in index.find(sorted(bases)) if place is not None]
        assert lost
        for damaged in lost:
            broken = [damaged]
            for block in sorted(blocks, key=lambda block: block.depth):
                places = index.find(split_prefixes(block.base_prefixes))
                if any(place is not None and place.block in broken for place in places):
                    broken.append(block)
            name = f"packs/{damaged.pack_id.hex()}"
            vault = site.damaged(name, flipped(damaged.offset + damaged.sealed_size // 2))
            result = vault.check()
            assert name in {problem.item for problem in result.problems}
            expected = {
                short_id
                for short_id, ids in leaves.items()
                if any(place is not None and place.block in broken for place in index.find(sorted(ids)))
            }
            assert {short_id for short_id, _ in touched_by(result)} == expected
            for stored, folder in zip(vault.snapshots(), site.folders, strict=True):
                if stored.short_id in expected:
                    with pytest.raises(IntegrityError) as caught:
                        vault.read(stored, site.source)
                    assert caught.value.item == name
                else:
                    assert differences(vault.read(stored, site.source), folder) == {}


def test_a_base_that_no_index_names_breaks_all_that_stands_on_it_and_no_more(site: Site, tmp_path: Path) -> None:
    found = blocks_of(site.vault)
    bases = [name for name, each in found.items() if len(standing_on(site.vault, each)) > len(each)]
    for name in bases[:4]:
        vault = site.copied()
        rewritten_index(vault, lambda records, name=name: [r for r in records if r.pack_id.hex() != name[6:]])
        expected = users_of(site, standing_on(site.vault, found[name]))
        for part in (None, "all"):
            result = vault.check() if part else vault.check(None)
            assert touched_by(result) == expected
        errors = read_each(site, vault)
        assert len(errors) == len(expected)
        prefixes = {bytes.fromhex(error.item or "") for error in errors}
        # The errors name chunks: of files, or bases that are not there.
        assert all(len(prefix) in (16, 32) for prefix in prefixes)
        missing, _ = restore_each(site, vault, tmp_path / name[6:12])
        assert missing == expected
        # A new snapshot stores what has become unreadable again, and stands on nothing that is lost.
        assert vault.snapshot(site.source, is_forced=True).stored is not None
        newest = vault.snapshots()[-1]
        assert differences(vault.read(newest, site.source), site.folders[-1]) == {}


def test_a_base_that_only_deltas_need_is_missed_all_the_same(site: Site) -> None:
    vault = site.copied()
    first, *rest = vault.snapshots()
    vault.storage.delete(f"snapshots/{first.snapshot_id.hex()}")
    needed = users_of(site, [block for each in blocks_of(site.vault).values() for block in each])
    for name, blocks in blocks_of(site.vault).items():
        if blocks[0].depth == 0 and len(standing_on(site.vault, blocks)) > len(blocks):
            pack = vault.storage.read(name)
            vault.storage.delete(name)
            expected = users_of(site, standing_on(site.vault, blocks))
            for result in (vault.check(), vault.check(None)):
                assert touched_by(result) == {pair for pair in expected if pair[0] != first.short_id}
            vault.storage.write_new(name, pack)
    assert {short_id for short_id, _ in needed} == {first.short_id, *(each.short_id for each in rest)}
    vault.assert_sound()
