"""What a later snapshot shares with an earlier one, and how the rest is stored; sums agree with the source."""

from __future__ import annotations

import array
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.container_files import safetensors_with_header
from support.sources import random_bytes, text_bytes, write, write_sparse
from support.vault import Vault

from ohdiff.operations import explain as explaining
from ohdiff.operations.explain import Explanation, explain, suffix_of
from ohdiff.operations.statistics import Form, RepositoryStatistics, repository_statistics
from ohdiff.operations.tree_reader import TreeReader
from ohdiff.repository.chunk_reader import ChunkReader
from ohdiff.repository.snapshots import StoredSnapshot

MiB = 1 << 20
ELEMENTS = 540_000


@contextmanager
def reading(vault: Vault) -> Iterator[tuple[TreeReader, ChunkReader]]:
    with vault.opened() as (repository, index):
        chunks = ChunkReader(repository, index)
        yield TreeReader(chunks), chunks


def explained(
    vault: Vault, source: Path, before: StoredSnapshot | None, after: StoredSnapshot, limit: int = 20
) -> Explanation:
    with reading(vault) as (tree, chunks):
        content, path = tree.directory(after.root, bytes(source))
        old = None if before is None else tree.directory(before.root, bytes(source))[0]
        return explain(tree, chunks, old, content, path=path, limit=limit)


def statistics(vault: Vault) -> RepositoryStatistics:
    with vault.opened() as (repository, index):
        return repository_statistics(repository, index, vault.snapshots())


def weights(seed: int, step: float = 0.0) -> bytes:
    """A model of one f32 tensor, a little further on for each step."""
    dice = random.Random(seed)
    values = array.array("f", (dice.gauss(0, 0.02) * (1 + step * dice.random()) for _ in range(ELEMENTS)))
    header = {"weight": {"dtype": "F32", "shape": [ELEMENTS], "data_offsets": [0, 4 * ELEMENTS]}}
    return safetensors_with_header(header, values.tobytes())


def rounded(model: bytes) -> bytes:
    """The same model in bf16, rounded to nearest, ties to even."""
    values = array.array("I", model[-4 * ELEMENTS :])
    words = array.array("H", ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 for bits in values))
    header = {"weight": {"dtype": "BF16", "shape": [ELEMENTS], "data_offsets": [0, 2 * ELEMENTS]}}
    return safetensors_with_header(header, words.tobytes())


def size_of(source: Path) -> int:
    return sum(path.stat().st_size for path in source.rglob("*") if path.is_file())


def test_equal_snapshots_share_everything(vault: Vault, source: Path) -> None:
    write(source / "a" / "one.txt", text_bytes(50_000))
    write(source / "two.txt", text_bytes(9_000, 2))
    first, second = vault.store(source), vault.store(source)
    found = explained(vault, source, first, second)
    assert (found.data.files, found.data.changed_files) == (2, 0)
    assert found.data.shared_size == found.data.size == 59_000
    assert found.data.forms == found.metadata.forms == {}
    assert found.largest == []
    assert found.metadata.shared_size > 0


def test_without_an_earlier_snapshot_everything_is_new(vault: Vault, source: Path) -> None:
    write(source / "one.txt", text_bytes(50_000))
    write(source / "copy.txt", text_bytes(50_000))
    write(source / "noise.bin", random_bytes(70_000))
    found = explained(vault, source, None, vault.store(source))
    assert (found.data.files, found.data.changed_files) == (3, 3)
    assert found.data.shared_size == 0
    assert found.data.repeated_size == 50_000
    assert found.data.added.plain_size == 120_000
    assert found.data.size == size_of(source)


def test_bytes_are_sorted_into_shared_repeated_and_new(vault: Vault, source: Path) -> None:
    write(source / "kept" / "same.txt", text_bytes(40_000))
    write(source / "kept" / "moved.bin", random_bytes(300_000, 1))
    write(source / "grows.log", text_bytes(200_000, 2))
    first = vault.store(source)
    (source / "kept" / "moved.bin").rename(source / "elsewhere.bin")
    write(source / "grows.log", text_bytes(200_000, 2) + text_bytes(100_000, 3))
    write(source / "new.bin", random_bytes(90_000, 4))
    write(source / "new copy.bin", random_bytes(90_000, 4))
    found = explained(vault, source, first, vault.store(source))
    assert (found.data.files, found.data.changed_files) == (5, 4)
    assert found.data.size == size_of(source)
    assert found.kinds[b".txt"].shared_size == 40_000
    binaries = found.kinds[b".bin"]
    assert (binaries.shared_size, binaries.repeated_size, binaries.added.plain_size) == (300_000, 90_000, 90_000)
    log = found.kinds[b".log"]
    assert 100_000 <= log.added.plain_size <= 100_000 + 256 * 1024
    assert log.shared_size + log.added.plain_size == 300_000
    assert found.metadata.added.plain_size > 0


def test_a_file_that_came_back_from_an_unchanged_folder_is_shared(vault: Vault, source: Path) -> None:
    write(source / "deep" / "down" / "data.bin", random_bytes(300_000, 1))
    write(source / "top" / "x", b"x")
    first = vault.store(source)
    write(source / "top" / "copy.bin", random_bytes(300_000, 1))
    found = explained(vault, source, first, vault.store(source))
    assert found.data.shared_size == 600_001
    assert found.data.added.plain_size == 0
    assert found.data.changed_files == 1


def test_forms_say_how_new_bytes_are_stored(vault: Vault, source: Path) -> None:
    write(source / "model.safetensors", weights(1))
    write(source / "noise.bin", random_bytes(400_000, 1))
    write(source / "text.txt", text_bytes(400_000, 2))
    first = vault.store(source)
    write(source / "model.safetensors", weights(1, step=1e-4))
    changed = bytearray(random_bytes(400_000, 1))
    for place in range(0, 400_000, 20_000):
        changed[place] ^= 1
    write(source / "noise.bin", changed)
    found = explained(vault, source, first, vault.store(source))
    (delta,) = [tally for form, tally in found.kinds[b".bin"].forms.items() if form.codec == "delta"]
    assert delta.ratio > 10
    assert delta.depth == 1
    numbers = {form: tally for form, tally in found.kinds[b".safetensors"].forms.items() if form.codec == "numbers"}
    ((form, tally),) = numbers.items()
    assert form.has_base
    assert form.transform in ("xor", "float difference", "grouped float difference")
    assert (tally.depth, tally.plain_size, tally.count) == (1, 4 * ELEMENTS, 1)
    assert tally.ratio > 1.3
    before = explained(vault, source, None, first)
    assert {form.codec for form in before.kinds[b".txt"].forms} == {"zstd"}
    assert Form("numbers", "planes") in before.kinds[b".safetensors"].forms


def test_a_rounded_copy_of_a_model_is_told_by_its_cast(vault: Vault, source: Path) -> None:
    write(source / "master.safetensors", weights(1))
    write(source / "rounded.safetensors", rounded(weights(1)))
    found = explained(vault, source, None, vault.store(source))
    casts = {form.cast: tally for form, tally in found.data.forms.items() if form.cast}
    assert list(casts) == ["f32 to bf16"]
    assert casts["f32 to bf16"].plain_size == 2 * ELEMENTS
    assert casts["f32 to bf16"].ratio > 100


def test_a_chunks_stored_size_is_its_part_of_the_block(vault: Vault, source: Path) -> None:
    for number in range(50):
        write(source / f"{number}.txt", text_bytes(1_000 + number, number))
    found = explained(vault, source, None, vault.store(source))
    assert found.data.added.stored_size == pytest.approx(statistics(vault).data_stored_size)


def test_the_largest_files_come_first_and_no_more_than_asked(vault: Vault, source: Path) -> None:
    for number in range(10):
        write(source / f"{number}.bin", random_bytes(10_000 * (number + 1), number))
    stored = vault.store(source)
    found = explained(vault, source, None, stored, limit=3)
    assert [file.path.rpartition(b"/")[2] for file in found.largest] == [b"9.bin", b"8.bin", b"7.bin"]
    assert explained(vault, source, None, stored, limit=0).largest == []
    assert found.data.files == 10


def test_holes_are_no_bytes(vault: Vault, source: Path) -> None:
    write_sparse(source / "sparse.img", 8 * MiB, {MiB: random_bytes(100_000, 1)})
    found = explained(vault, source, None, vault.store(source))
    assert found.data.size < 2 * MiB


def test_small_look_ups_find_the_same(vault: Vault, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        write(source / str(number % 3) / f"{number}.bin", random_bytes(100_000 + number, number // 2))
    first = vault.store(source)
    write(source / "0" / "0.bin", random_bytes(130_000, 77))
    second = vault.store(source)
    expected = explained(vault, source, first, second)
    monkeypatch.setattr(explaining, "_LOOK_UP_CHUNKS", 1)
    assert explained(vault, source, first, second) == expected


def test_a_type_that_changes_is_new(vault: Vault, source: Path) -> None:
    write(source / "a" / "file", b"in a folder")
    write(source / "b", b"a file")
    first = vault.store(source)
    (source / "a" / "file").unlink()
    (source / "a").rmdir()
    (source / "b").unlink()
    write(source / "a", b"now a file")
    write(source / "b" / "file", b"now in a folder")
    found = explained(vault, source, first, vault.store(source))
    assert (found.data.files, found.data.changed_files) == (2, 2)
    assert found.data.added.plain_size == len(b"now a file") + len(b"now in a folder")


@pytest.mark.parametrize(
    ("name", "suffix"),
    [
        (b"model.SAFETENSORS", b".safetensors"),
        (b"archive.tar.gz", b".gz"),
        (b".bashrc", b""),
        (b"..x", b""),
        (b"log.0001", b""),
        (b"README", b""),
        (b"ends.", b""),
        (b"a.sentence that is no suffix", b""),
    ],
)
def test_suffixes_tell_kinds(name: bytes, suffix: bytes) -> None:
    assert suffix_of(name) == suffix


# Statistics


def test_statistics_tell_resemblance_and_compression_apart(vault: Vault, source: Path) -> None:
    write(source / "noise.bin", random_bytes(400_000, 1))
    write(source / "text.txt", text_bytes(400_000, 2))
    write(source / "again.txt", text_bytes(400_000, 2))
    vault.store(source)
    before = statistics(vault)
    assert before.dedup_ratio == pytest.approx(1.5)
    assert before.resemblance.count == 0
    assert before.resemblance.ratio == 1.0
    assert before.compression.plain_size == before.unique_size == 800_000
    changed = bytearray(random_bytes(400_000, 1))
    changed[200_000] ^= 1
    write(source / "noise.bin", changed)
    vault.store(source)
    after = statistics(vault)
    assert after.compression == before.compression
    assert 0 < after.resemblance.plain_size < 400_000
    assert after.resemblance.ratio > 10
    assert after.resemblance.depth == 1
    assert after.unique_size == 800_000 + after.resemblance.plain_size
    assert after.data_stored_size == after.compression.stored_size + after.resemblance.stored_size
    assert sum(tally.plain_size for tally in after.forms.values()) == after.unique_size
    assert after.overall_ratio == pytest.approx(2_400_000 / after.data_stored_size)
    stored = [tally.stored_size for tally in after.forms.values()]
    assert stored == sorted(stored, reverse=True)


def test_an_empty_repository_has_statistics(vault: Vault) -> None:
    found = statistics(vault)
    assert (found.dedup_ratio, found.overall_ratio, found.forms) == (1.0, 1.0, {})
