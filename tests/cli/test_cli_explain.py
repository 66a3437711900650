"""explain, stats and snapshot --only-complete as users meet them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from conftest import records

Run = Callable[..., Result]


@pytest.fixture
def two(run: Run, stored: Path, source: Path) -> Path:
    """A repository with a second snapshot of `source`, in which one file grew and one is new."""
    with (source / "sub" / "data.bin").open("ab") as file:
        file.write(random.Random(2).randbytes(100_000))
    (source / "new.txt").write_text("fresh\n" * 100)
    assert run("snapshot", source).exit_code == 0
    return stored


def test_explain_compares_with_the_parent_unless_told(run: Run, two: Path, source: Path) -> None:
    summaries = [
        records(run("explain", *arguments, "--json"), "summary")[0]
        for arguments in ([], ["latest"], ["latest~1", "latest"])
    ]
    assert summaries[0] == summaries[1] == summaries[2]
    ids = [each["id"] for each in records(run("snapshots", "--json"), "snapshot")]
    assert [summaries[0]["before"], summaries[0]["after"]] == ids
    data = summaries[0]["data"]
    assert data["size"] == data["shared_size"] + data["repeated_size"] + data["new"]["plain_size"]
    assert 100_600 <= data["new"]["plain_size"] < 300_000


def test_explain_names_the_files_that_take_the_most(run: Run, two: Path, source: Path) -> None:
    result = run("explain")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert " against " in lines[0]
    assert "6 files, 2 of them new or changed" in lines
    place = next(row for row, line in enumerate(lines) if line.startswith("takes"))
    assert [line.split()[-1] for line in lines[place + 1 :]] == [f"{source}/sub/data.bin", f"{source}/new.txt"]
    files = records(run("explain", "--json", "--limit", "1"), "file")
    assert [file["path"] for file in files] == [f"{source}/sub/data.bin"]
    assert sum(form["plain_size"] for form in files[0]["forms"]) == files[0]["new"]["plain_size"]
    kinds = {each["suffix"]: each for each in records(run("explain", "--json"), "kind")}
    assert {".bin", ".txt", ""} <= kinds.keys()
    assert kinds[".txt"]["changed_files"] == 1


def test_explain_of_a_first_snapshot_says_what_everything_takes(run: Run, stored: Path, source: Path) -> None:
    assert "against nothing, as it has no parent" in run("explain").stdout
    (summary,) = records(run("explain", "--json"), "summary")
    assert summary["before"] is None
    assert summary["data"]["shared_size"] == 0


def test_explain_of_a_part(run: Run, two: Path, source: Path) -> None:
    files = records(run("explain", f"latest:{source}/sub", "--json"), "file")
    assert [file["path"] for file in files] == [f"{source}/sub/data.bin"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["ffff"], 13),
        (["latest", "latest~7"], 13),
        (["latest:/nowhere"], 13),
        (["no snapshot"], 2),
        (["--limit", "-1"], 2),
    ],
)
def test_explain_of_what_is_not_there_fails(run: Run, stored: Path, arguments: list[str], code: int) -> None:
    assert run("explain", *arguments).exit_code == code


def test_explain_says_when_the_parent_is_gone(run: Run, two: Path) -> None:
    parent = records(run("snapshots", "--json"), "snapshot")[0]["id"]
    (two / "snapshots" / parent).unlink()
    result = run("explain", "latest")
    assert result.exit_code == 13
    assert f"{parent[:8]}, is not there any more" in result.stderr
    assert "ohdiff explain A " in result.stderr


def test_stats_tell_dedup_resemblance_and_compression_apart(run: Run, two: Path, source: Path) -> None:
    data = bytearray((source / "sub" / "data.bin").read_bytes())
    data[1000] ^= 1
    (source / "sub" / "data.bin").write_bytes(data)
    assert run("snapshot", source).exit_code == 0
    (summary,) = records(run("stats", "--json"), "summary")
    assert summary["resemblance"]["count"] > 0
    assert summary["resemblance_ratio"] > 2
    assert summary["unique_size"] == summary["resemblance"]["plain_size"] + summary["compression"]["plain_size"]
    assert {form["codec"] for form in summary["forms"]} >= {"delta"}
    text = run("stats").stdout
    assert "by resemblance" in text
    assert "delta of similar chunks" in text


def write_step(folder: Path, *, is_whole: bool) -> None:
    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    folder.mkdir(parents=True, exist_ok=True)
    weight_map = {f"layer.{row}": name for row, name in enumerate(names)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    for name in names if is_whole else names[:1]:
        (folder / name).write_bytes(b"weights of " + name.encode())


def test_only_complete_leaves_out_what_is_being_written_and_says_so(run: Run, repository: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    write_step(runs / "step_20", is_whole=True)
    write_step(runs / "step_40", is_whole=False)
    result = run("snapshot", runs, "--only-complete")
    assert result.exit_code == 0, result.output
    assert f"left out: {runs}/step_40: model-00002-of-00002.safetensors is missing" in result.stderr
    assert "parent" not in result.stderr
    listed = run("ls", "-R", "latest").stdout
    assert "step_20/model-00002-of-00002.safetensors" in listed
    assert "step_40" not in listed
    assert "--only-complete" in run("cat", "snapshot", "latest").stdout


def test_without_the_option_everything_is_kept(run: Run, repository: Path, tmp_path: Path) -> None:
    write_step(tmp_path / "runs" / "step_40", is_whole=False)
    result = run("snapshot", tmp_path / "runs")
    assert "left out" not in result.stderr
    assert "step_40/model-00001-of-00002.safetensors" in run("ls", "-R", "latest").stdout


def test_only_complete_says_what_the_parent_has(run: Run, repository: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    write_step(runs / "step_40", is_whole=True)
    (first,) = records(run("snapshot", runs, "--json"), "summary")
    (runs / "step_40" / "model-00002-of-00002.safetensors").unlink()
    result = run("snapshot", runs, "--only-complete", "--json")
    (told,) = records(result, "left_out")
    assert told["path"] == f"{runs}/step_40"
    assert told["parent_id"] == first["snapshot_id"]
    assert not told["only_files"]
    assert any("model-00002" in reason for reason in told["reasons"])
    again = run("snapshot", runs, "--only-complete", "--parent", first["snapshot_id"])
    assert f"it is in the parent snapshot {first['snapshot_id'][:8]}" in again.stderr


def test_of_a_given_path_only_the_files_are_left_out(run: Run, repository: Path, tmp_path: Path) -> None:
    write_step(tmp_path / "step_40", is_whole=False)
    write_step(tmp_path / "step_40" / "ema", is_whole=True)
    result = run("snapshot", tmp_path / "step_40", "--only-complete")
    assert f"left out: the files in {tmp_path}/step_40: " in result.stderr
    listed = run("ls", "-R", "latest").stdout
    assert "step_40/ema/model-00002-of-00002.safetensors" in listed
    assert "step_40/model-00001-of-00002.safetensors" not in listed
