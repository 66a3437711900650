"""Checkpoints that are still being written are left out as whole folders; everything else is kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.container_files import safetensors_file
from support.sources import write
from support.vault import Vault

from ohdiff.operations import complete
from ohdiff.operations.complete import CompleteRules
from ohdiff.operations.excludes import ExcludeOptions, ExcludeRules
from ohdiff.operations.source_rules import KeepAll
from ohdiff.repository.snapshots import StoredSnapshot

TENSORS = safetensors_file({"w": ("F32", (2, 2))})


def write_sharded(folder: Path, present: range = range(1, 4), total: int = 3) -> Path:
    """A folder with some shards of a model, and the index of all of them."""
    names = [f"model-{number:05}-of-{total:05}.safetensors" for number in range(1, total + 1)]
    index = {"metadata": {}, "weight_map": {f"layer.{row}": name for row, name in enumerate(names)}}
    write(folder / "model.safetensors.index.json", json.dumps(index).encode())
    for number in present:
        write(folder / names[number - 1], TENSORS)
    return folder


def names_below(vault: Vault, stored: StoredSnapshot, source: Path) -> set[str]:
    return {path.decode().removeprefix("/") for path in vault.read(stored, source) if path}


def take(vault: Vault, source: Path, rules: CompleteRules) -> set[str]:
    return names_below(vault, vault.store(source, rules=rules), source)


def test_a_folder_that_lacks_shards_is_left_out_and_whole_ones_are_kept(vault: Vault, source: Path) -> None:
    write_sharded(source / "step_20")
    write_sharded(source / "step_40", range(1, 3))
    write(source / "step_40" / "optimizer" / "state.bin", b"state")
    write(source / "notes.txt", b"notes")
    rules = CompleteRules(KeepAll())
    kept = take(vault, source, rules)
    assert {name for name in kept if name.startswith("step_40")} == set()
    assert {"notes.txt", "step_20/model.safetensors.index.json", "step_20/model-00003-of-00003.safetensors"} <= kept
    (told,) = rules.left_out.items()
    assert told[0] == bytes(source / "step_40")
    assert any("model-00003-of-00003.safetensors is missing" in reason for reason in told[1])


def test_it_is_kept_once_it_is_whole(vault: Vault, source: Path) -> None:
    write_sharded(source / "step", range(1, 3))
    assert take(vault, source, CompleteRules(KeepAll())) == set()
    write_sharded(source / "step")
    rules = CompleteRules(KeepAll())
    assert "step/model-00003-of-00003.safetensors" in take(vault, source, rules)
    assert rules.left_out == {}


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["model.safetensors", "optimizer.pt.tmp"], "optimizer.pt.tmp is a temporary file"),
        (["__0_0.distcp", "__1_0.distcp"], ".metadata is missing"),
        (["model.safetensors.index.json"], "not a whole index"),
    ],
)
def test_the_reason_is_told(vault: Vault, source: Path, names: list[str], reason: str) -> None:
    for name in names:
        write(source / "deep" / "run" / "step" / name, b"{")
    rules = CompleteRules(KeepAll())
    assert take(vault, source, rules) == {"deep", "deep/run"}
    assert reason in rules.left_out[bytes(source / "deep" / "run" / "step")][0]


@pytest.mark.parametrize("name", ["tmp-checkpoint-40", "step_40.tmp"])
def test_a_checkpoint_folder_with_a_temporary_name_is_left_out(vault: Vault, source: Path, name: str) -> None:
    write(source / name / "model.safetensors", TENSORS)
    rules = CompleteRules(KeepAll())
    assert take(vault, source, rules) == set()
    assert rules.left_out[bytes(source / name)] == ["its name is a temporary one"]


def test_folders_that_are_no_checkpoints_are_kept_whatever_their_names(vault: Vault, source: Path) -> None:
    write(source / "cache.tmp" / "page.tmp", b"page")
    write(source / "part-1-of-3.txt", b"text")
    rules = CompleteRules(KeepAll())
    assert take(vault, source, rules) == {"cache.tmp", "cache.tmp/page.tmp", "part-1-of-3.txt"}
    assert rules.left_out == {}


def test_a_folder_that_holds_an_incomplete_one_is_not_incomplete_itself(vault: Vault, source: Path) -> None:
    write(source / "run" / "model.safetensors", TENSORS)
    write(source / "run" / "tmp-checkpoint-40" / "model.safetensors", TENSORS)
    rules = CompleteRules(KeepAll())
    assert take(vault, source, rules) == {"run", "run/model.safetensors"}
    assert list(rules.left_out) == [bytes(source / "run" / "tmp-checkpoint-40")]


def test_of_a_given_folder_only_the_files_are_left_out(vault: Vault, source: Path) -> None:
    write_sharded(source, range(1, 3))
    write_sharded(source / "inner")
    rules = CompleteRules(KeepAll())
    kept = take(vault, source, rules)
    assert all(name.startswith("inner") for name in kept)
    assert len(kept) == 5
    assert list(rules.left_out) == [bytes(source)]


def test_links_to_shards_count_and_a_linked_index_is_not_followed(vault: Vault, source: Path) -> None:
    whole = write_sharded(source / "blobs")
    linked = source / "linked"
    linked.mkdir()
    for path in whole.iterdir():
        (linked / path.name).symlink_to(path)
    rules = CompleteRules(KeepAll())
    assert "linked/model.safetensors.index.json" in take(vault, source, rules)
    (linked / "model-00002-of-00003.safetensors").unlink()
    assert "linked/model.safetensors.index.json" not in take(vault, source, rules)
    assert list(rules.left_out) == [bytes(linked)]


def test_an_index_is_read_no_further_than_its_limit(
    vault: Vault, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_sharded(source / "step")
    monkeypatch.setattr(complete, "INDEX_SIZE_BYTES_MAX", 10)
    rules = CompleteRules(KeepAll())
    assert take(vault, source, rules) == set()
    assert "is not a whole index" in rules.left_out[bytes(source / "step")][0]


def test_other_rules_hold_as_well(vault: Vault, source: Path) -> None:
    write_sharded(source / "step_20")
    write_sharded(source / "step_40", range(1, 3))
    write(source / "step_20" / "log.txt", b"log")
    rules = CompleteRules(ExcludeRules(ExcludeOptions(patterns=("*.txt", "step_40"))))
    kept = take(vault, source, rules)
    assert "step_20/log.txt" not in kept
    assert "step_20/model-00001-of-00003.safetensors" in kept
    assert rules.left_out == {}, "what is excluded anyway is not worth a word"
