"""JSON output: every line is an object with a type, paths are exact, status lines come."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from conftest import records

Run = Callable[..., Result]
Shell = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.mark.parametrize(
    ("arguments", "kinds"),
    [
        (["snapshots"], {"snapshot", "summary"}),
        (["ls", "-R", "latest"], {"snapshot", "node"}),
        (["find", "*"], {"match", "summary"}),
        (["cat", "config"], {"config"}),
        (["cat", "snapshot", "latest"], {"snapshot"}),
        (["diff", "latest", "latest"], {"statistics"}),
        (["check", "--read-data"], {"summary"}),
        (["stats"], {"summary"}),
        (["explain"], {"form", "kind", "file", "summary"}),
        (["devices"], {"device"}),
        (["completion", "fish"], {"completion"}),
        (["restore", "latest", "-t", "out"], {"summary"}),
        (["restore", "latest", "-t", "out", "-v"], {"verbose_status", "summary"}),
    ],
)
def test_every_command_writes_only_typed_objects(
    stored: Path, shell: Shell, tmp_path: Path, arguments: list[str], kinds: set[str]
) -> None:
    done = shell(*arguments, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == b""
    found = {each["message_type"] for each in records(done)}
    assert kinds <= found <= kinds | {"status"}


def test_names_that_are_not_utf8_come_with_their_exact_bytes(stored: Path, run: Run, source: Path) -> None:
    exact = os.fsencode(source) + b"/odd\xff"
    nodes = records(run("ls", "-R", "latest", "--json"), "node")
    (odd,) = [node for node in nodes if "path_b64" in node]
    assert base64.b64decode(odd["path_b64"]) == exact
    assert odd["path"] == f"{source}/odd\N{REPLACEMENT CHARACTER}"
    assert "odd\\xff" in run("ls", "-R", "latest").stdout


def test_a_verbose_snapshot_names_each_file(repository: Path, run: Run, source: Path) -> None:
    result = run("snapshot", source, "--json", "-v")
    items = {each["item"]: each["action"] for each in records(result, "verbose_status")}
    assert items[f"{source}/notes.txt"] == "new"
    (source / "notes.txt").write_text("more\n")
    changed = records(run("snapshot", source, "--json", "-v"), "verbose_status")
    assert f"{source}/notes.txt" in [each["path"] for each in changed if each["action"] == "changed"]
    again = records(run("snapshot", source, "--json", "-vv"), "verbose_status")
    assert "unchanged" in {each["action"] for each in again}


def test_status_lines_tell_how_far_a_snapshot_is(repository: Path, shell: Shell, tmp_path: Path) -> None:
    large = tmp_path / "large"
    large.mkdir()
    # With pauses between all units it lasts for a second or more at any speed.
    for number in range(8):
        (large / str(number)).write_bytes(os.urandom(4 << 20))
    done = shell("snapshot", large, "--json", "--device-share", "3")
    status = records(done, "status")
    assert status
    last = status[-1]
    assert last["engine"].startswith("cpu/")
    assert 0 <= last["percent_done"] <= 1
    assert last["bytes_done"] <= 32 << 20
    assert last["seconds_elapsed"] > 0
    assert records(done)[-1]["message_type"] == "summary"


def test_the_last_line_on_standard_error_tells_the_exit_code(stored: Path, shell: Shell) -> None:
    done = shell("ls", "ffff", "--json")
    assert done.stdout == b""
    last = json.loads(done.stderr.splitlines()[-1])
    assert (last["message_type"], last["code"]) == ("exit_error", 13)


def test_a_change_says_what_it_is_and_from_where(stored: Path, run: Run, source: Path) -> None:
    (source / "sub" / "data.bin").rename(source / "moved")
    (source / "notes.txt").write_text("one\n")
    changes = {each["path"]: each for each in records(run("diff", "latest", source, "--json", "--content"), "change")}
    moved = changes[f"{source}/moved"]
    assert (moved["modifier"], moved["source"]) == ("R", f"{source}/sub/data.bin")
    assert any(line.startswith("-two") for line in changes[f"{source}/notes.txt"]["diff"])


def test_quiet_says_nothing_of_success(repository: Path, shell: Shell, source: Path) -> None:
    done = shell("snapshot", source, "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
