"""Folders that are checkpoints, and why one is not whole yet."""

from __future__ import annotations

import json

import pytest

from ohdiff.chunking.containers.shards import INDEX_SIZE_BYTES_MAX, looks_like_checkpoint, missing_of_checkpoint

INDEX = b"model.safetensors.index.json"


def shards(total: int, prefix: str = "model", ending: str = "safetensors") -> list[bytes]:
    return [f"{prefix}-{number:05}-of-{total:05}.{ending}".encode() for number in range(1, total + 1)]


def index_of(names: list[bytes]) -> bytes:
    weights = {f"layer.{row}": name.decode() for row, name in enumerate(names)}
    return json.dumps({"metadata": {"total_size": 5}, "weight_map": weights}).encode()


def missing(names: list[bytes], index: bytes = b"{}") -> list[str]:
    def read(name: bytes) -> bytes:
        assert name in names
        return index

    return missing_of_checkpoint(names, read)


@pytest.mark.parametrize(
    "names",
    [[b"model.safetensors"], [b"optim.pt", b"x"], [b"pytorch_model.bin"], [INDEX], [b"__0_0.distcp"], [b"a.ckpt.tmp"]],
)
def test_folders_with_weights_look_like_checkpoints(names: list[bytes]) -> None:
    assert looks_like_checkpoint(names)


@pytest.mark.parametrize("names", [[], [b"readme.txt"], [b"firmware.bin"], [b"model.safetensors.json", b"safetensors"]])
def test_other_folders_do_not(names: list[bytes]) -> None:
    assert not looks_like_checkpoint(names)
    assert missing([*names, b"a.tmp"]) == []


def test_whole_checkpoints_miss_nothing() -> None:
    four = shards(4)
    assert missing([*four, INDEX, b"config.json"], index_of(four)) == []
    assert missing([b"model.safetensors", b"optimizer.pt", b"temp_log.txt", b"template.json"]) == []
    assert missing([b"__0_0.distcp", b"__1_0.distcp", b"__7_3.distcp", b".metadata"]) == []
    assert missing([f"m-{number:05}-of-00003.gguf".encode() for number in range(3)]) == []
    assert missing([b"whole.gguf.part1of2", b"whole.gguf.part2of2", b"a.pt"]) == []


def test_missing_shards_are_named() -> None:
    four = shards(4)
    assert missing([four[0], four[3]]) == [f"{four[1].decode()} is missing", f"{four[2].decode()} is missing"]
    assert missing(shards(2, "pytorch_model", "bin")[:1]) == ["pytorch_model-00002-of-00002.bin is missing"]


def test_sets_of_shards_are_judged_apart() -> None:
    names = [*shards(2, "a"), *shards(3, "b")[:2], *shards(2, "a", "fp16.safetensors")]
    assert missing(names) == ["b-00003-of-00003.safetensors is missing"]


def test_a_name_that_claims_a_million_shards_is_told_in_brief() -> None:
    reasons = missing([b"m-999999-of-999999.pt", *(b"m%d-1-of-999999.pt" % row for row in range(1000))])
    assert len(reasons) == 9
    assert reasons[-1] == "and more"


def test_an_index_that_names_absent_files_is_told() -> None:
    two = shards(2)
    reasons = missing([two[0], INDEX], index_of([*two, b"elsewhere/x.safetensors"]))
    assert reasons == [
        f"{two[1].decode()} is missing",
        f"{two[1].decode()} is missing, which {INDEX.decode()} names",
    ]
    assert missing([b"pytorch_model.bin.index.json"], index_of([b"pytorch_model.bin"]))


@pytest.mark.parametrize(
    "index",
    [
        b"",
        b"{",
        b"[]",
        b'{"weight_map": {"a": 1}}',
        b'{"weight_map": []}',
        b"[" * 100_000,
        b'{"weight_map": {"a"',
        b"\xff",
    ],
)
def test_an_index_that_cannot_be_read_is_told(index: bytes) -> None:
    assert missing([INDEX], index) == [f"{INDEX.decode()} is not a whole index"]


def test_an_index_over_the_bound_is_not_parsed() -> None:
    assert missing([INDEX], index_of([]).ljust(INDEX_SIZE_BYTES_MAX + 1)) == [f"{INDEX.decode()} is not a whole index"]
    assert missing([INDEX], index_of([]).ljust(1000)) == []


def test_a_distributed_checkpoint_needs_its_metadata() -> None:
    assert missing([b"__0_0.distcp"]) == [".metadata is missing, which is written last"]
    assert missing([b"__0_0.distcp", b".metadata.tmp"])[0] == ".metadata.tmp is a temporary file"


@pytest.mark.parametrize(
    "name",
    [
        b"x.tmp",
        b"x.safetensors.incomplete",
        b"x.part",
        b".tmp-abc",
        b"tmp_model.pt",
        b"tmpk3_x9ab2",
        b"x.TMP",
        b"x.tmp.4711",
        b"x.tmp12",
        b"x.pt.partial",
        b"x.tmp-4f2a",
        b"\xff.tmp",
    ],
)
def test_temporary_names_are_told(name: bytes) -> None:
    reasons = missing([b"model.safetensors", name])
    assert len(reasons) == 1
    assert reasons[0].endswith(" is a temporary file")


def test_errors_of_reading_an_index_come_through() -> None:
    def read(name: bytes) -> bytes:
        raise PermissionError(13, "denied", name)

    with pytest.raises(PermissionError):
        missing_of_checkpoint([INDEX], read)
