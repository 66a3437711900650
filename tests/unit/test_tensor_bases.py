"""Bases of tensors, end to end: the step before, the master of a rounded copy, and never a base that is not proved."""

from __future__ import annotations

import os
import shutil
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from blake3 import blake3
from support.chains import assert_chains
from support.small_tensors import PIECE_ELEMENTS, bf16, lower_limits, safetensors, stepped, weights
from support.sources import random_bytes, write
from support.vault import Told, Vault, replace_object

from ohdiff.operations import file_reading
from ohdiff.operations.bases import StoredBases
from ohdiff.operations.observer import Progress
from ohdiff.operations.tensor_bases import KnownPiece, TensorBases
from ohdiff.operations.tree_reader import TreeReader
from ohdiff.repository.chunk_reader import ChunkReader
from ohdiff.repository.index_segment import BlockLocation
from ohdiff.repository.snapshots import StoredSnapshot
from ohdiff_format.blocks import CODEC_NUMBERS
from ohdiff_format.numbers import CAST_F32_TO_BF16, NumberKind, Parameters, parse_parameters

COUNT = 3 * PIECE_ELEMENTS


@pytest.fixture(autouse=True)
def _low_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    lower_limits(monkeypatch)


def model(values: array[float], **others: tuple[str, bytes]) -> bytes:
    return safetensors({"w": ("F32", values.tobytes()), **others})


def rounded(values: array[float]) -> bytes:
    return safetensors({"w": ("BF16", bf16(values))})


def steps(count: int, seed: int = 1) -> list[array[float]]:
    """Weights after each step of a training run."""
    run = [weights(COUNT, seed)]
    for number in range(1, count):
        run.append(stepped(run[-1], 100 * seed + number))
    return run


Piece = tuple[bytes, BlockLocation]


def pieces_of(vault: Vault, stored: StoredSnapshot, path: Path) -> list[Piece]:
    """The (id prefix, block) of each chunk of a file that is a block of numbers."""
    entry = vault.entry(stored, path)
    with vault.tree() as tree, vault.opened() as (_, index):
        ids = [chunk_id for chunk_id, _ in tree.chunk_list(entry.content)]
        places = index.find(ids)
    blocks = [(chunk_id[:16], place.block) for chunk_id, place in zip(ids, places, strict=True) if place is not None]
    assert len(blocks) == len(ids)
    return [piece for piece in blocks if piece[1].codec == CODEC_NUMBERS]


def parameters_of(pieces: list[Piece]) -> list[Parameters]:
    return [parse_parameters(block.parameters) for _, block in pieces]


def assert_stands_on(pieces: list[Piece], bases: list[Piece]) -> None:
    """Each piece is a difference from the same piece of another file."""
    assert [block.base_prefixes for _, block in pieces] == [prefix for prefix, _ in bases]


def test_numbers_without_a_base_are_stored_in_planes(vault: Vault, source: Path) -> None:
    path = write(source / "model.safetensors", model(weights(COUNT, 1)))
    stored = vault.store(source)
    pieces = pieces_of(vault, stored, path)
    assert parameters_of(pieces) == [Parameters(0, 4, 0, 0)] * 3
    assert vault.data(stored, path) == path.read_bytes()


def test_a_step_stands_on_the_step_in_a_folder_beside_of_the_same_run(vault: Vault, source: Path) -> None:
    first, second = steps(2)
    one = write(source / "step_1" / "model.safetensors", model(first))
    two = write(source / "step_2" / "model.safetensors", model(second))
    stored = vault.store(source)
    assert_stands_on(pieces_of(vault, stored, two), pieces_of(vault, stored, one))
    assert {each.depth for each in parameters_of(pieces_of(vault, stored, two))} == {1}
    for path in (one, two):
        assert vault.data(stored, path) == path.read_bytes()
    assert_chains(vault)
    vault.assert_sound()


def test_a_step_stands_on_the_step_in_a_folder_beside_of_the_parent(vault: Vault, source: Path) -> None:
    first, second = steps(2)
    one = write(source / "step_1" / "model.safetensors", model(first))
    before = vault.store(source)
    two = write(source / "step_2" / "model.safetensors", model(second))
    stored = vault.store(source)
    assert stored.snapshot.statistics.files_unchanged == 1
    assert_stands_on(pieces_of(vault, stored, two), pieces_of(vault, before, one))
    assert vault.data(stored, two) == two.read_bytes()


def test_a_file_stands_on_its_earlier_version_at_the_same_path(vault: Vault, source: Path) -> None:
    first, second = steps(2)
    path = write(source / "model.safetensors", model(first))
    before = vault.store(source)
    write(path, model(second))
    stored = vault.store(source)
    assert_stands_on(pieces_of(vault, stored, path), pieces_of(vault, before, path))
    assert stored.snapshot.statistics.added_stored_size < 0.8 * before.snapshot.statistics.added_stored_size
    assert vault.data(stored, path) == path.read_bytes()
    assert vault.data(before, path) == model(first)


def test_tensors_are_found_by_name_wherever_they_lie(vault: Vault, source: Path) -> None:
    first, second = steps(2)
    path = write(source / "model.safetensors", model(first))
    before = vault.store(source)
    others = {"a": ("BOOL", random_bytes(3_000)), "b": ("F32", weights(700, 9).tobytes())}
    write(path, safetensors({"b": others["b"], "w": ("F32", second.tobytes()), "a": others["a"]}))
    stored = vault.store(source)
    known = {prefix for prefix, _ in pieces_of(vault, before, path)}
    assert known <= {block.base_prefixes for _, block in pieces_of(vault, stored, path)}
    assert vault.data(stored, path) == path.read_bytes()


def test_a_rounded_copy_stands_on_its_master_in_the_same_folder_and_run(vault: Vault, source: Path) -> None:
    (values,) = steps(1)
    # By name it would come first; by size the master does.
    copy = write(source / "a.safetensors", rounded(values))
    master = write(source / "b.safetensors", model(values))
    stored = vault.store(source)
    pieces = pieces_of(vault, stored, copy)
    assert_stands_on(pieces, pieces_of(vault, stored, master))
    assert {each.cast for each in parameters_of(pieces)} == {CAST_F32_TO_BF16}
    # Nothing is left of it but its parameters.
    assert all(block.sealed_size < 60 for _, block in pieces)
    assert vault.data(stored, copy) == copy.read_bytes()
    vault.assert_sound()


def test_a_changed_master_and_its_copy_stand_on_their_own_kind_and_on_each_other(vault: Vault, source: Path) -> None:
    first, second = steps(2)
    copy, master = source / "a.safetensors", source / "b.safetensors"
    for values in (first, second):
        write(copy, rounded(values))
        write(master, model(values))
        stored = vault.store(source)
    assert {each.transform > 0 and each.cast == 0 for each in parameters_of(pieces_of(vault, stored, master))} == {True}
    assert_stands_on(pieces_of(vault, stored, copy), pieces_of(vault, stored, master))
    assert {each.depth for each in parameters_of(pieces_of(vault, stored, copy))} == {2}
    assert_chains(vault)
    assert vault.data(stored, copy) == copy.read_bytes()


def test_no_chain_is_longer_than_the_policy_over_many_steps_and_runs(vault: Vault, source: Path) -> None:
    run = steps(9)
    kept = []
    for number, values in enumerate(run):
        write(source / f"step_{number}" / "model.safetensors", model(values))
        write(source / f"step_{number}" / "copy.safetensors", rounded(values))
        write(source / "last" / "model.safetensors", model(values))
        if number in (3, 4, 6):
            shutil.rmtree(source / f"step_{number - 2}")
        # Two steps at once now and then.
        if number not in (1, 5):
            kept.append((vault.store(source), number))
            assert_chains(vault)
    for stored, number in kept:
        assert vault.data(stored, source / f"step_{number}" / "model.safetensors") == model(run[number])
        assert vault.data(stored, source / f"step_{number}" / "copy.safetensors") == rounded(run[number])
        assert vault.data(stored, source / "last" / "model.safetensors") == model(run[number])
    vault.assert_sound()


def deep_repository(vault: Vault, source: Path) -> list[array[float]]:
    """Snapshots of steps until the last one stored lies as deep as a step may; the source is empty then."""
    run = steps(7)
    path = source / "model.safetensors"
    for values in run[:3]:
        write(path, model(values))
        stored = vault.store(source)
    assert {each.depth for each in parameters_of(pieces_of(vault, stored, path))} == {2}
    path.unlink()
    return run


def test_a_copy_of_a_deep_step_is_known_to_be_deep_by_what_stands_on_it(vault: Vault, source: Path) -> None:
    run = deep_repository(vault, source)
    # Nothing here tells of the steps before but the chunks themselves, which the repository has.
    write(source / "one" / "a.safetensors", model(run[2]))
    write(source / "two" / "a.safetensors", model(run[3]))
    write(source / "two" / "b.safetensors", rounded(run[3]))
    stored = vault.store(source, parent=None)
    assert_chains(vault)
    # And the same once more on top of those.
    shutil.rmtree(source / "one")
    write(source / "three" / "a.safetensors", model(run[4]))
    write(source / "three" / "b.safetensors", rounded(run[4]))
    again = vault.store(source)
    assert_chains(vault)
    for item, number in ((stored, 3), (again, 3), (again, 4)):
        folder = source / ("two" if number == 3 else "three")
        assert vault.data(item, folder / "a.safetensors") == model(run[number])
        assert vault.data(item, folder / "b.safetensors") == rounded(run[number])
    vault.assert_sound()


def test_copies_in_one_run_are_as_deep_as_what_they_are_copies_of(vault: Vault, source: Path) -> None:
    paths = {}
    for number, values in enumerate(steps(7)):
        # Each step, and a copy of it among more tensors and under a name by which only the next step finds it.
        names = (f"w{number - 1}", f"w{number}")
        for place, name in enumerate(names):
            others = {
                f"{number} {row}": ("F32", weights(700, 50 * number + row).tobytes())
                for row in range(place * (number + 1))
            }
            data = safetensors({**others, name: ("F32", values.tobytes())})
            paths[write(source / f"{number} {place}" / "model.safetensors", data)] = data
    stored = vault.store(source)
    assert_chains(vault)
    for path, data in paths.items():
        assert vault.data(stored, path) == data
    depths = {each.depth for path in paths for each in parameters_of(pieces_of(vault, stored, path))}
    assert depths == {0, 1, 2}
    vault.assert_sound()


class Meddler(Told):
    """An observer that does something once a file has been read."""

    def __init__(self, path: Path, act: Callable[[], object]) -> None:
        super().__init__()
        self._path = bytes(path)
        self._act: Callable[[], object] | None = act

    def progress(self, progress: Progress) -> None:
        if self._act is not None and self._path in progress.current:
            act, self._act = self._act, None
            act()


@pytest.mark.parametrize("change", ["other numbers", "shorter", "gone", "a folder"])
def test_a_source_that_changed_after_it_was_stored_is_no_base(vault: Vault, source: Path, change: str) -> None:
    first, second = steps(2)
    one = write(source / "step_1" / "model.safetensors", model(first))
    two = write(source / "step_2" / "model.safetensors", model(second))

    def act() -> None:
        if change == "other numbers":
            write(one, model(weights(COUNT, 77)))
        elif change == "shorter":
            os.truncate(one, 1_000)
        else:
            one.unlink()
            if change == "a folder":
                one.mkdir()

    result = vault.snapshot(source, observer=Meddler(one, act))
    assert result.stored is not None
    assert vault.data(result.stored, one) == model(first)
    assert vault.data(result.stored, two) == model(second)
    # What had been handed on before the change may stand on it, and is right; the rest stands by itself.
    assert_chains(vault)
    vault.assert_sound()


@pytest.fixture
def tensor_bases(vault: Vault) -> Iterator[TensorBases]:
    with vault.opened() as (repository, index):
        chunks = ChunkReader(repository, index)
        yield TensorBases(StoredBases(index, chunks, TreeReader(chunks)), repository.chunk_id_key, 3)


def known_piece(vault: Vault, data: bytes, path: Path, start: int) -> KnownPiece:
    prefix = blake3(data, key=vault.open().chunk_id_key).digest(length=16)
    return KnownPiece(prefix, NumberKind.F32, 0, None, (bytes(path), start, start + len(data)))


def test_a_base_of_this_run_is_read_from_the_source_and_proved(
    vault: Vault, source: Path, tensor_bases: TensorBases
) -> None:
    data = random_bytes(5_000)
    path = write(source / "file", b"head" + data)
    piece = known_piece(vault, data, path, 4)
    assert tensor_bases.load(piece) == data
    write(path, b"head" + data[:-1] + b"\0")
    assert tensor_bases.load(piece) is None
    write(path, b"head" + data[:-1])
    assert tensor_bases.load(piece) is None
    path.unlink()
    assert tensor_bases.load(piece) is None
    os.mkfifo(path)
    assert tensor_bases.load(piece) is None


def test_a_base_of_this_run_whose_source_is_gone_is_read_from_the_repository_if_it_is_there(
    vault: Vault, source: Path
) -> None:
    path = write(source / "model.safetensors", model(weights(COUNT, 1)))
    stored = vault.store(source)
    (prefix, _), *_ = pieces_of(vault, stored, path)
    with vault.opened() as (repository, index):
        chunks = ChunkReader(repository, index)
        bases = TensorBases(StoredBases(index, chunks, TreeReader(chunks)), repository.chunk_id_key, 3)
        piece = KnownPiece(prefix, NumberKind.F32, 0, None, (b"/nowhere at all", 0, 4 * PIECE_ELEMENTS))
        assert bases.load(piece) == weights(COUNT, 1).tobytes()[: 4 * PIECE_ELEMENTS]


def test_a_damaged_base_is_told_and_the_piece_is_stored_by_itself(vault: Vault, source: Path) -> None:
    first, second = steps(2)
    path = write(source / "model.safetensors", model(first))
    before = vault.store(source)
    for _, block in pieces_of(vault, before, path):
        name = f"packs/{block.pack_id.hex()}"
        data = bytearray(vault.storage.read(name))
        data[block.offset + 50] ^= 1
        replace_object(vault.storage, name, bytes(data))
    write(path, safetensors({"w": ("F32", second.tobytes())}))
    result = vault.snapshot(source)
    assert result.stored is not None
    assert result.errors != []
    assert {each.transform for each in parameters_of(pieces_of(vault, result.stored, path))} == {0}
    assert vault.data(result.stored, path) == path.read_bytes()


def test_numbers_that_do_not_resemble_their_base_stand_by_themselves(vault: Vault, source: Path) -> None:
    path = write(source / "model.safetensors", model(weights(COUNT, 1)))
    vault.store(source)
    write(path, model(weights(COUNT, 2)))
    stored = vault.store(source)
    assert {each.transform for each in parameters_of(pieces_of(vault, stored, path))} == {0}
    assert vault.data(stored, path) == path.read_bytes()


def test_without_compression_nothing_stands_on_anything(vault: Vault, source: Path) -> None:
    first, second = steps(2)
    path = write(source / "model.safetensors", model(first))
    vault.store(source, level=None)
    write(path, model(second))
    stored = vault.store(source, level=None)
    assert pieces_of(vault, stored, path) == []
    assert vault.data(stored, path) == path.read_bytes()


def test_a_large_file_whose_tensors_span_several_buffers_reads_back(
    vault: Vault, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_reading, "BATCH_SIZE_BYTES", 1 << 16)
    values = weights(300_000, 3)
    path = write(source / "model.safetensors", model(values))
    vault.store(source)
    write(path, model(stepped(values, 4)))
    stored = vault.store(source)
    assert len(pieces_of(vault, stored, path)) > 250
    assert vault.data(stored, path) == path.read_bytes()
    assert_chains(vault)
