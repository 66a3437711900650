"""Passwords and key files: every source of one, and the key commands."""

from __future__ import annotations

import base64
import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from conftest import Home, records

Run = Callable[..., Result]
Shell = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture
def locked(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with the password `open sesame`, named by the environment."""
    path = tmp_path / "locked"
    assert run("-r", path, "init", env={"OHDIFF_PASSWORD": "open sesame"}).exit_code == 0
    monkeypatch.setenv("OHDIFF_REPOSITORY", str(path))
    return path


def secret_file(tmp_path: Path, text: str, name: str = "password") -> Path:
    """A file that only its owner can read."""
    path = tmp_path / name
    path.touch(0o600)
    path.write_text(text)
    return path


def test_every_source_of_a_password_opens_the_repository(locked: Path, run: Run, shell: Shell, tmp_path: Path) -> None:
    path = secret_file(tmp_path, "open sesame\r\nsecond line\n")
    assert run("snapshots", env={"OHDIFF_PASSWORD": "open sesame"}).exit_code == 0
    assert run("snapshots", "--password-file", path).exit_code == 0
    assert run("--password-file", path, "snapshots", env={"OHDIFF_PASSWORD": "wrong"}).exit_code == 0
    assert run("snapshots", env={"OHDIFF_PASSWORD_FILE": str(path)}).exit_code == 0
    assert run("snapshots", env={"OHDIFF_PASSWORD_COMMAND": "echo 'open sesame'"}).exit_code == 0
    read_end, write_end = os.pipe()
    os.write(write_end, b"open sesame\n")
    os.close(write_end)
    variables = {**os.environ, "OHDIFF_PASSWORD_FD": str(read_end)}
    assert shell("snapshots", env=variables, pass_fds=[read_end]).returncode == 0
    os.close(read_end)


def test_a_wrong_or_missing_password_exits_with_12(locked: Path, run: Run) -> None:
    assert run("snapshots", env={"OHDIFF_PASSWORD": "wrong"}).exit_code == 12
    missing = run("snapshots")
    assert missing.exit_code == 12
    assert "--password-file" in missing.stderr


@pytest.mark.parametrize(
    "variables",
    [
        {"OHDIFF_PASSWORD": "a", "OHDIFF_PASSWORD_COMMAND": "echo a"},
        {"OHDIFF_PASSWORD_COMMAND": "false"},
        {"OHDIFF_PASSWORD_COMMAND": "true"},
        {"OHDIFF_PASSWORD_FD": "somewhere"},
        {"OHDIFF_PASSWORD_FD": "999"},
    ],
)
def test_sources_that_make_no_sense_are_refused(locked: Path, run: Run, variables: dict[str, str]) -> None:
    assert run("snapshots", env=variables).exit_code == 2


def test_a_password_file_that_cannot_be_read_is_named(locked: Path, run: Run, tmp_path: Path) -> None:
    result = run("snapshots", "--password-file", tmp_path / "none")
    assert result.exit_code == 1
    assert str(tmp_path / "none") in result.stderr


def test_init_without_any_secret_makes_nothing(run: Run, home: Home, tmp_path: Path) -> None:
    result = run("-r", tmp_path / "new", "init")
    assert result.exit_code == 2
    assert "--no-encryption" in result.stderr
    assert not (tmp_path / "new").exists()


def test_init_makes_a_missing_key_file_that_opens_the_repository(run: Run, home: Home, tmp_path: Path) -> None:
    key = tmp_path / "keys" / "mine"
    assert run("-r", tmp_path / "r", "--key-file", key, "init").exit_code == 0
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert run("-r", tmp_path / "r", "snapshots", env={"OHDIFF_KEY_FILE": str(key)}).exit_code == 0
    lines = [line for line in key.read_text().splitlines() if not line.startswith("#")]
    assert len(base64.b64decode("".join(lines))) == 32


def test_a_key_file_that_others_can_read_is_warned_of(run: Run, home: Home, tmp_path: Path) -> None:
    key = tmp_path / "key"
    run("-r", tmp_path / "r", "--key-file", key, "init")
    key.chmod(0o644)
    result = run("-r", tmp_path / "r", "--key-file", key, "snapshots")
    assert result.exit_code == 0
    assert "chmod 600" in result.stderr


def test_something_else_is_no_key_file(locked: Path, run: Run, tmp_path: Path) -> None:
    assert run("snapshots", "--key-file", secret_file(tmp_path, "not base64!")).exit_code == 2


def test_keys_are_added_listed_changed_and_removed(locked: Path, run: Run, tmp_path: Path) -> None:
    password = {"OHDIFF_PASSWORD": "open sesame"}
    key_file = tmp_path / "spare"
    assert run("key", "add", "--new-key-file", key_file, "--label", "spare", env=password).exit_code == 0
    listed = records(run("key", "list", "--json", env=password), "key")
    assert [(key["kind"], key["label"], key["is_current"]) for key in listed] == [
        ("password", "", True),
        ("key file", "spare", False),
    ]
    new = secret_file(tmp_path, "new word")
    assert run("key", "passwd", "--new-password-file", new, env=password).exit_code == 0
    assert run("snapshots", env=password).exit_code == 12
    assert run("snapshots", "--password-file", new).exit_code == 0
    (spare,) = [key["id"] for key in listed if key["label"] == "spare"]
    assert run("key", "remove", spare[:12], "--password-file", new).exit_code == 0
    assert run("snapshots", "--key-file", key_file).exit_code == 12


def test_the_last_key_is_removed_only_for_a_yes(locked: Path, run: Run) -> None:
    password = {"OHDIFF_PASSWORD": "open sesame"}
    (key,) = records(run("key", "list", "--json", env=password), "key")
    refused = run("key", "remove", key["id"], env=password)
    assert refused.exit_code == 1
    assert "last key" in refused.stderr
    assert run("snapshots", env=password).exit_code == 0
    assert run("key", "remove", key["id"], "--yes", env=password).exit_code == 0


def test_an_unknown_key_is_named(locked: Path, run: Run) -> None:
    assert run("key", "remove", "0000", env={"OHDIFF_PASSWORD": "open sesame"}).exit_code == 2


def test_the_default_key_is_exported_as_a_file_that_opens_the_repository(
    run: Run, home: Home, source: Path, tmp_path: Path
) -> None:
    run("snapshot", source)
    assert run("key", "export", "--output", tmp_path / "copy").exit_code == 0
    assert stat.S_IMODE((tmp_path / "copy").stat().st_mode) == 0o600
    assert run("key", "export").stdout == (tmp_path / "copy").read_text()
    assert run("key", "export", "--output", tmp_path / "copy").exit_code == 2
    home.key_file.unlink()
    assert run("snapshots", "--key-file", tmp_path / "copy").exit_code == 0


def test_a_password_is_no_key_file_to_export(locked: Path, run: Run) -> None:
    assert run("key", "export", env={"OHDIFF_PASSWORD": "open sesame"}).exit_code == 2


def test_a_repository_without_encryption_has_no_keys(repository: Path, run: Run) -> None:
    assert run("key", "list").exit_code == 2


def test_a_copied_chunker_cuts_like_the_first_repository(locked: Path, run: Run, source: Path, tmp_path: Path) -> None:
    variables = {"OHDIFF_PASSWORD": "open sesame"}
    second = tmp_path / "second"
    made = run("-r", second, "init", "--no-encryption", "--copy-chunker-from", locked, env=variables)
    assert made.exit_code == 0
    (source / "large").write_bytes(os.urandom(2_000_000))
    sizes = []
    for repository, known in ((locked, variables), (second, {})):
        assert run("-r", repository, "snapshot", source / "large", env=known).exit_code == 0
        (index,) = (repository / "index").iterdir()
        (shown,) = records(run("-r", repository, "cat", "index", index.name, "--json", env=known))
        sizes.append(sum(block["chunks"] for pack in shown["packs"] for block in pack["blocks"]))
    assert sizes[0] == sizes[1] > 10
