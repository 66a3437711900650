"""Forged blocks that stand on each other, on themselves, or on other bytes than they say: no wrong bytes, no hang."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from blake3 import blake3
from support.chains import rewritten_index
from support.sources import random_bytes, write
from support.vault import Vault, object_names

from ohdiff.delta.frames import Base, compress
from ohdiff.errors import IntegrityError, OhdiffError, UnsupportedFormatError
from ohdiff.operations.check import CheckResult
from ohdiff.operations.observer import Silent
from ohdiff.operations.restore import RestoreOptions, restore
from ohdiff.repository.chunk_reader import ChunkReader
from ohdiff.repository.packs import PackSet
from ohdiff.repository.repository import Repository
from ohdiff.storage import LocalStorage, MemoryStorage
from ohdiff_format.blocks import CODEC_DELTA, CODEC_NUMBERS, CODEC_RAW
from ohdiff_format.index import PackRecord
from ohdiff_format.limits import DEPTH_MAX
from ohdiff_format.numbers import PLANE_CONSTANT, encode_planes
from ohdiff_format.pack import BlockRecord

READER = Path(__file__).resolve().parents[2] / "repo_format" / "reader" / "ohdiff_reader.py"
SECONDS = 120


def edited(data: bytes, seed: int) -> bytes:
    """A few bytes changed all over."""
    changed = bytearray(data)
    for at in range(seed * 500, len(data), 3_000):
        changed[at] ^= 1 + seed
    return bytes(changed)


def touched_by(result: CheckResult) -> set[tuple[str, bytes]]:
    return {pair for problem in result.problems for pair in problem.touched}


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
