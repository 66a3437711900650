"""Damage to what deltas and numbers stand on: each gives its named error for all that it breaks, and nothing else."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from blake3 import blake3
from support.chains import assert_chains
from support.description import Description, describe_folder, differences
from support.small_tensors import bf16, lower_limits, safetensors, stepped, weights
from support.sources import random_bytes, write
from support.vault import Vault, chunker, object_names, replace_object

from ohdiff.delta.frames import Base, compress
from ohdiff.errors import IntegrityError, OhdiffError, UnsupportedFormatError
from ohdiff.operations.check import CheckResult
from ohdiff.operations.observer import Silent
from ohdiff.operations.restore import RestoreOptions, restore
from ohdiff.repository import chunk_writer, objects, packs
from ohdiff.repository.chunk_reader import ChunkReader
from ohdiff.repository.index_segment import BlockLocation
from ohdiff.repository.lost_bases import split_prefixes
from ohdiff.repository.packs import PackSet
from ohdiff.repository.repository import Repository
from ohdiff.storage import LocalStorage, MemoryStorage
from ohdiff_format.blocks import CODEC_DELTA, CODEC_NUMBERS, CODEC_RAW
from ohdiff_format.envelope import KIND_INDEX
from ohdiff_format.index import NUMBER_BODY, Index, PackRecord, decode_index, encode_index
from ohdiff_format.limits import DEPTH_MAX
from ohdiff_format.numbers import PLANE_CONSTANT, encode_planes
from ohdiff_format.pack import BlockRecord

READER = Path(__file__).resolve().parents[2] / "repo_format" / "reader" / "ohdiff_reader.py"
SECONDS = 120
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
    assert len(blocks) > 12
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


def rewritten_index(vault: Vault, change: Callable[[list[PackRecord]], list[PackRecord]]) -> None:
    """Replace all index objects by one of other records."""
    repository = vault.open()
    records: list[PackRecord] = []
    for name in object_names(vault.storage, ["index"]):
        object_id = bytes.fromhex(name.partition("/")[2])
        records += objects.read_object(repository, "index", KIND_INDEX, NUMBER_BODY, object_id, decode_index).packs
        vault.storage.delete(name)
    objects.write_object(repository, "index", KIND_INDEX, NUMBER_BODY, encode_index(Index(change(records))))


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


# Forged blocks: of chunks that a tree names, in a pack of their own, known to the index in place of the real ones.


@dataclass(frozen=True)
class Forged:
    """A block of one chunk, and what it claims to stand on."""

    chunk: bytes
    codec: int
    payload: bytes
    bases: tuple[bytes, ...] = ()
    parameters: bytes = b""


def delta(chunk: bytes, *bases: bytes, made_with: bytes | None = None, depth: int = 1) -> Forged:
    """A delta against bases, or one that claims them and was made with other bytes."""
    data = b"".join(bases) if made_with is None else made_with
    payload = compress(memoryview(chunk), Base(b"", data, depth))
    return Forged(chunk, CODEC_DELTA, payload, bases, bytes([depth]))


@dataclass
class Forge:
    """A repository of some small files, one chunk each, whose blocks are then replaced."""

    vault: Vault
    source: Path
    chunks: list[bytes]

    def put(self, blocks: Sequence[Forged]) -> Vault:
        """A copy in which these blocks are all that there is of data, each in a pack of its own."""
        assert isinstance(self.vault.storage, MemoryStorage)
        vault = self.vault.over(self.vault.storage.copy())
        repository = vault.open()
        forged: list[PackRecord] = []
        for block in blocks:
            pack = PackSet(repository, forged.append)
            prefixes = b"".join(prefix_of(repository, base) for base in block.bases)
            own = prefix_of(repository, block.chunk)
            record = BlockRecord(0, block.codec, [len(block.chunk)], own, prefixes, block.parameters)
            pack.append(record, block.payload, is_metadata=False)
            pack.finish()
        rewritten_index(vault, lambda records: [*(each for each in records if each.is_metadata), *forged])
        return vault

    def path(self, number: int) -> Path:
        return self.source / f"{number}"


def prefix_of(repository: Repository, chunk: bytes) -> bytes:
    return blake3(chunk, key=repository.chunk_id_key).digest(length=16)


@pytest.fixture(scope="module")
def forge(tmp_path_factory: pytest.TempPathFactory) -> Forge:
    source = tmp_path_factory.mktemp("forge") / "source"
    chunks = [random_bytes(2_000)]
    for number in range(1, 8):
        chunks.append(edited(chunks[-1], number % 3))
    chunks = [chunk + bytes([number]) * 8 for number, chunk in enumerate(chunks)]
    for number, chunk in enumerate(chunks):
        write(source / f"{number}", chunk)
    vault = Vault(MemoryStorage("forge")).create()
    vault.store(source)
    return Forge(vault, source, chunks)


def plain(chunk: bytes) -> Forged:
    return Forged(chunk, CODEC_RAW, chunk)


def outcomes(forge: Forge, vault: Vault, tmp_path: Path) -> list[bytes | OhdiffError]:
    """What reading each file gives, many times at once; restoring and checking must say the same."""
    (stored,) = vault.snapshots()
    with vault.opened() as (repository, index):
        tree_reader = ChunkReader(repository, index)
        ids = [blake3(chunk, key=repository.chunk_id_key).digest() for chunk in forge.chunks]

        def read(chunk_id: bytes) -> bytes | OhdiffError:
            try:
                return bytes(tree_reader.read(chunk_id))
            except OhdiffError as error:
                return error

        pool = ThreadPoolExecutor(4)
        futures = [pool.submit(read, chunk_id) for _ in range(3) for chunk_id in ids]
        # Whoever waits in a circle does so for ever.
        results = [future.result(timeout=SECONDS) for future in futures]
        pool.shutdown()
        options = RestoreOptions(target=bytes(tmp_path / "target"), source=bytes(forge.source))
        result = restore(repository, index, ChunkReader(repository, index), stored, options, Silent())
    for number, chunk in enumerate(forge.chunks):
        each = results[number :: len(ids)]
        assert all(isinstance(found, OhdiffError) or found == chunk for found in each)
        assert len({isinstance(found, bytes) for found in each}) == 1
        path = tmp_path / "target" / f"{number}"
        assert path.exists() == isinstance(each[0], bytes)
        assert not path.exists() or path.read_bytes() == chunk
    assert bool(result.errors) == any(isinstance(found, OhdiffError) for found in results)
    touched = {path for _, path in touched_by(vault.check())}
    assert touched == {
        bytes(forge.path(number)) for number in range(len(ids)) if not isinstance(results[number], bytes)
    }
    read_by_reader(forge, vault, tmp_path, [isinstance(found, bytes) for found in results[: len(ids)]])
    return results[: len(ids)]


def read_by_reader(forge: Forge, vault: Vault, tmp_path: Path, is_whole: list[bool]) -> None:
    """The independent reader restores the same files, and no others."""
    local = LocalStorage.create(tmp_path / "repository")
    for name in ["config", *object_names(vault.storage)]:
        local.write_new(name, vault.storage.read(name))
    assert vault.key is not None
    write(tmp_path / "key", vault.key.secret)
    output = io.StringIO()
    with contextlib.redirect_stderr(output), contextlib.redirect_stdout(output), suppress(SystemExit):
        arguments = [tmp_path / "repository", "--key-file", tmp_path / "key", "restore", "latest", tmp_path / "reader"]
        reader_module().main([str(argument) for argument in arguments])
    for number, chunk in enumerate(forge.chunks):
        path = tmp_path / "reader" / forge.path(number).relative_to("/")
        assert path.exists() == is_whole[number], output.getvalue()
        assert not path.exists() or path.read_bytes() == chunk


def reader_module() -> object:
    """The reader, which is a file to be run, in no package."""
    if "ohdiff_reader" not in sys.modules:
        spec = importlib.util.spec_from_file_location("ohdiff_reader", READER)
        assert spec is not None
        assert spec.loader is not None
        sys.modules["ohdiff_reader"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["ohdiff_reader"])
    return sys.modules["ohdiff_reader"]


def assert_broken(found: Sequence[bytes | OhdiffError], numbers: set[int]) -> None:
    """Just these files give an IntegrityError."""
    assert {number for number, each in enumerate(found) if isinstance(each, IntegrityError)} == numbers
    assert all(isinstance(each, bytes | IntegrityError) for each in found)


def test_forged_chains_within_the_limit_are_read(forge: Forge, tmp_path: Path) -> None:
    c = forge.chunks
    chain = [delta(c[number], c[number - 1], depth=number) for number in range(1, DEPTH_MAX + 1)]
    vault = forge.put([plain(c[0]), *chain, *map(plain, c[DEPTH_MAX + 1 :])])
    assert_broken(outcomes(forge, vault, tmp_path), set())


def test_a_chain_over_the_limit_is_refused_however_it_names_its_depths(forge: Forge) -> None:
    c = forge.chunks
    chain = [delta(c[number], c[number - 1], depth=min(number, DEPTH_MAX)) for number in range(1, 8)]
    vault = forge.put([plain(c[0]), *chain])
    (stored,) = vault.snapshots()
    for number, chunk in enumerate(c):
        # A reader of its own for each, that has no block of the chain yet: the limit counts from what is read.
        if number <= DEPTH_MAX:
            assert vault.data(stored, forge.path(number)) == chunk
        else:
            with pytest.raises(IntegrityError, match="does not end"):
                vault.data(stored, forge.path(number))


def test_two_blocks_that_stand_on_each_other_are_damaged(forge: Forge, tmp_path: Path) -> None:
    c = forge.chunks
    vault = forge.put([delta(c[0], c[1]), delta(c[1], c[0], depth=2), delta(c[2], c[1], depth=3), *map(plain, c[3:])])
    found = outcomes(forge, vault, tmp_path)
    assert_broken(found, {0, 1, 2})
    packs_there = set(object_names(vault.storage, ["packs"]))
    assert all(each.item in packs_there for each in found if isinstance(each, OhdiffError))
    assert all("does not end" in each.message for each in found if isinstance(each, OhdiffError))


def test_a_block_that_stands_on_itself_is_damaged(forge: Forge, tmp_path: Path) -> None:
    c = forge.chunks
    assert_broken(outcomes(forge, forge.put([delta(c[0], c[0]), *map(plain, c[1:])]), tmp_path), {0})


def test_a_circle_of_numbers_and_deltas_is_damaged(forge: Forge, tmp_path: Path) -> None:
    c = forge.chunks
    size = len(c[0])
    xor = bytes(one ^ other for one, other in zip(c[0], c[1], strict=True))
    numbers = Forged(c[0], CODEC_NUMBERS, encode_planes([(0, xor)]), (c[1],), bytes((4, 1, 1, 0)))
    assert len(numbers.payload) == size + 5
    circle = [numbers, delta(c[1], c[3], c[2]), delta(c[2], c[0], depth=2)]
    assert_broken(outcomes(forge, forge.put([*circle, *map(plain, c[3:])]), tmp_path), {0, 1, 2})


def test_a_chunk_of_a_circle_that_also_lies_elsewhere_is_read_from_there(forge: Forge, tmp_path: Path) -> None:
    c = forge.chunks
    vault = forge.put([delta(c[0], c[1]), delta(c[1], c[0], depth=2), plain(c[1]), *map(plain, c[2:])])
    (stored,) = vault.snapshots()
    for number in (0, 1):
        assert vault.data(stored, forge.path(number)) == c[number]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda c: delta(c[0], c[2], made_with=c[1]),
        lambda c: delta(c[0], c[2], c[1], made_with=c[1] + c[2]),
        lambda c: delta(c[0], c[1], made_with=c[1][:-1]),
        lambda c: Forged(c[0], CODEC_DELTA, delta(c[3], c[1]).payload, (c[1],), b"\1"),
        lambda c: Forged(c[0], CODEC_NUMBERS, encode_planes([(0, c[0])]), (c[1],), bytes((1, 1, 1, 0))),
        lambda c: Forged(c[0], CODEC_NUMBERS, encode_planes([(PLANE_CONSTANT, b"\0")]), (c[1],), bytes((1, 1, 2, 0))),
        lambda c: Forged(c[0], CODEC_NUMBERS, encode_planes([(0, c[0][:1004])] * 2), (c[1],), bytes((1, 2, 3, 1))),
        lambda c: Forged(c[0], CODEC_NUMBERS, b"\0", (), bytes((0, 4, 0, 0))),
    ],
    ids=["other base", "other order", "longer base", "other chunk", "other sum", "no change", "cast", "no planes"],
)
def test_a_base_or_payload_of_other_content_never_gives_wrong_bytes(
    forge: Forge, tmp_path: Path, wrong: Callable[[list[bytes]], Forged]
) -> None:
    c = forge.chunks
    blocks = [wrong(c), *map(plain, c[1:7]), delta(c[7], c[0], depth=2)]
    found = outcomes(forge, forge.put(blocks), tmp_path)
    assert_broken(found, {0, 7})


def test_bases_that_are_more_bytes_together_than_allowed_are_refused(forge: Forge, tmp_path: Path) -> None:
    c = forge.chunks
    greedy = Forged(c[0], CODEC_DELTA, delta(c[0], c[1]).payload, (c[1],) * 17_000, b"\1")
    vault = forge.put([greedy, *map(plain, c[1:])])
    (stored,) = vault.snapshots()
    with pytest.raises(IntegrityError):
        vault.data(stored, forge.path(0))
    assert vault.data(stored, forge.path(1)) == c[1]


def test_a_codec_of_later_versions_is_named_as_such(forge: Forge) -> None:
    c = forge.chunks
    blocks = [Forged(c[0], CODEC_NUMBERS, encode_planes([(9, c[0])]), (), bytes((0, 1, 0, 0))), *map(plain, c[1:])]
    vault = forge.put(blocks)
    (stored,) = vault.snapshots()
    with pytest.raises(UnsupportedFormatError):
        vault.data(stored, forge.path(0))
    assert vault.check().problems != []
