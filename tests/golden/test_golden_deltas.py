"""A frozen repository of deltas and numbers: encoders still give its bytes, product and reader still read them.

The product also reads the frozen repositories from before there were deltas, and goes on with them.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import delta_repository
import format_repository as golden
import pytest
import zstandard
from frozen_repository import Frozen, object_path, read
from support.description import describe_folder, differences
from support.sources import write
from support.vault import Vault

from ohdiff.operations.observer import Silent
from ohdiff.operations.restore import RestoreOptions, restore
from ohdiff.repository.chunk_reader import ChunkReader
from ohdiff.repository.keys import KeyFile
from ohdiff.repository.snapshots import StoredSnapshot
from ohdiff.storage import MemoryStorage
from ohdiff_format import envelope, index, pack
from ohdiff_format.blocks import CODEC_DELTA, CODEC_NUMBERS, CODEC_ZSTD
from ohdiff_format.numbers import parse_parameters

Files = dict[str, bytes]


@dataclass
class Stored:
    """The frozen repository of deltas, in a folder for the reader and in memory for the product."""

    frozen: Frozen
    root: Path
    folder: Path
    vault: Vault
    expected: list[Files]

    def options(self) -> list[str]:
        """What the reader is given to open it."""
        return [str(self.folder), *self.frozen.options(self.root)]


def opened(frozen: Frozen) -> Vault:
    """The repository in memory, for the product."""
    storage = MemoryStorage("frozen")
    for name, data in frozen.objects.items():
        storage.write_new(name, data)
    vault = Vault(storage)
    vault.key = None if frozen.encryption == "none" else KeyFile(golden.KEY_FILE)
    vault.time_ns = golden.NOW_NS + 10 * delta_repository.DAY_NS
    return vault


@pytest.fixture
def stored(tmp_path: Path) -> Stored:
    frozen = Frozen("deltas")
    expected = [
        {f"srv/{os.fsdecode(name)}": b"".join(chunks) for name, chunks in files.items()}
        for files in delta_repository.files_at_each_step()
    ]
    return Stored(frozen, tmp_path, frozen.write(tmp_path), opened(frozen), expected)


def files_in(folder: Path) -> Files:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def product_restore(vault: Vault, target: Path) -> list[Files]:
    """What the product restores of each snapshot."""
    restored = []
    for stored in vault.snapshots():
        folder = target / stored.short_id
        with vault.opened() as (repository, chunks):
            options = RestoreOptions(target=bytes(folder), restore_owner=False)
            result = restore(repository, chunks, ChunkReader(repository, chunks), stored, options, Silent())
        assert result.errors == []
        restored.append(files_in(folder))
    return restored


def records_of(frozen: Frozen, *, is_metadata: bool = False) -> list[pack.BlockRecord]:
    """Every block of data, or of metadata, that the index names."""
    (data,) = frozen.of("index").values()
    found = index.decode_index(frozen.open_body(data, envelope.KIND_INDEX)[1])
    return [block for record in found.packs if record.is_metadata == is_metadata for block in record.blocks]


def test_the_codecs_still_build_the_frozen_bytes() -> None:
    frozen = Frozen("deltas")
    built = delta_repository.build_delta_repository()
    if list(zstandard.ZSTD_VERSION) == frozen.frozen["zstd_version"]:
        assert built == frozen.objects
    assert [name.partition("/")[0] for name in built] == [name.partition("/")[0] for name in frozen.objects]


def test_it_holds_every_transform_cast_and_plane_codec_and_chains_of_both_codecs(stored: Stored) -> None:
    records = records_of(stored.frozen)
    deltas = [block for block in records if block.codec == CODEC_DELTA]
    assert {block.depth for block in deltas} >= {1, 2}
    assert any(len(block.base_prefixes) > 16 for block in deltas)
    assert any(len(block.chunk_sizes) > 1 for block in deltas)
    assert {block.codec for block in records_of(stored.frozen, is_metadata=True)} == {CODEC_ZSTD, CODEC_DELTA}
    numbers = [parse_parameters(block.parameters) for block in records if block.codec == CODEC_NUMBERS]
    assert {each.transform for each in numbers} == {0, 1, 2, 3, 4}
    assert {each.width for each in numbers} == {1, 2, 4, 8}
    assert {each.cast for each in numbers} == {0, 1, 2}
    assert {each.depth for each in numbers} == {0, 1, 2, 3}
    assert plane_codecs(stored.vault) == {0, 1, 2}
    chunks = Counter(
        block.chunk_prefixes[at : at + 16] for block in records for at in range(0, len(block.chunk_prefixes), 16)
    )
    assert sorted(set(chunks.values())) == [1, 2]


def plane_codecs(vault: Vault) -> set[int]:
    """The codecs of the planes of all blocks of numbers."""
    found = set()
    with vault.opened() as (repository, chunks):
        for block in chunks.blocks():
            if block.codec != CODEC_NUMBERS:
                continue
            name = f"packs/{block.pack_id.hex()}"
            sealer = repository.open_sealer(
                repository.storage.read(name, 0, block.header_size), envelope.KIND_PACK, name
            )
            payload = sealer.open(block.number, repository.storage.read(name, block.offset, block.sealed_size))
            at = 0
            while at < len(payload):
                found.add(payload[at])
                at += 5 + int.from_bytes(payload[at + 1 : at + 5], "little")
    return found


@pytest.mark.parametrize("way", ["index", "scan", "scan without index"])
def test_the_reader_restores_every_snapshot(stored: Stored, way: str) -> None:
    scan = [] if way == "index" else ["--scan-packs"]
    if way == "scan without index":
        shutil.rmtree(stored.folder / "index")
    listed = read(*stored.options(), *scan, "list").stdout.splitlines()
    assert len(listed) == len(stored.expected)
    for number, (line, expected) in enumerate(zip(listed, stored.expected, strict=True)):
        target = stored.root / f"target {number}"
        read(*stored.options(), *scan, "restore", line.split()[0], target)
        assert files_in(target) == expected


@pytest.mark.parametrize("scan", [[], ["--scan-packs"]])
def test_the_reader_lists_and_verifies(stored: Stored, scan: list[str]) -> None:
    names = {line.rpartition(" /")[2] for line in read(*stored.options(), *scan, "ls", "latest").stdout.splitlines()}
    assert names == {"srv", *stored.expected[-1]}
    assert read(*stored.options(), *scan, "verify").stdout == "7 packs, 3 snapshots, 0 damaged\n"


def test_the_product_lists_restores_and_checks(stored: Stored) -> None:
    assert len(stored.vault.snapshots()) == len(stored.expected)
    assert product_restore(stored.vault, stored.root / "by the product") == stored.expected
    for item, expected in zip(stored.vault.snapshots(), stored.expected, strict=True):
        for path, data in expected.items():
            assert stored.vault.data(item, b"/" + os.fsencode(path)) == data
    result = stored.vault.check()
    assert (result.snapshots, result.packs, result.read_packs, result.problems) == (3, 7, 7, [])


def test_the_reader_and_the_product_find_each_damaged_block_and_all_that_stands_on_it(stored: Stored) -> None:
    name = next(name for name in stored.frozen.objects if name.startswith("packs/"))
    data = bytearray(stored.frozen.objects[name])
    data[100] ^= 1
    object_path(stored.folder, name).write_bytes(data)
    stored.vault.storage.delete(name)
    stored.vault.storage.write_new(name, bytes(data))
    # The first block of the first pack is the first chunk of the text, on which all later texts stand, but for a chunk
    # that is also stored plain.
    done = read(*stored.options(), "restore", "latest", stored.root / "target", code=1)
    assert [line.split(": ")[1] for line in done.stderr.splitlines() if line.startswith("damaged: ")] == ["/srv/text"]
    rest = {path: data for path, data in stored.expected[-1].items() if path != "srv/text"}
    assert files_in(stored.root / "target") == rest
    touched = {pair for problem in stored.vault.check().problems for pair in problem.touched}
    assert touched == {(item.short_id, b"/srv/text") for item in stored.vault.snapshots()}


def read_all(vault: Vault, stored: list[StoredSnapshot]) -> list[object]:
    return [vault.read(item, Path("/srv")) for item in stored]


@pytest.mark.parametrize("name", [*golden.ENCRYPTIONS, "deltas"])
def test_the_product_reads_old_repositories_and_goes_on_with_them(name: str, tmp_path: Path) -> None:
    vault = opened(Frozen(name))
    before = read_all(vault, vault.snapshots())
    assert len(before) >= 2
    source = tmp_path / "source"
    # Chunks that the repository has, an edit of one of its files, and news.
    old_text = delta_repository.steps_of_text()[0]
    write(source / "text", b"".join(old_text).replace(b"line 3,", b"line three,"))
    write(source / "news", b"news\n" * 1000)
    old = vault.snapshots()
    stored = [vault.store(source)]
    folders = [describe_folder(source)]
    write(source / "news", b"news\n" * 1000 + b"and more")
    stored.append(vault.store(source))
    folders.append(describe_folder(source))
    for item, folder in zip(stored, folders, strict=True):
        assert differences(vault.read(item, source), folder) == {}
    assert read_all(vault, old) == before
    vault.assert_sound()
