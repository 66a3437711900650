"""What the tests of the command line share: a home of their own, and two ways to run the command."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ohdiff.cli.main import cli
from ohdiff_format import keys as format_keys


@dataclass(frozen=True)
class Home:
    """The folders that a user's environment names."""

    path: Path

    @property
    def data(self) -> Path:
        """Where the default repository lies."""
        return self.path / "data" / "ohdiff" / "repository"

    @property
    def key_file(self) -> Path:
        """Where its key lies."""
        return self.path / "config" / "ohdiff" / "default.key"

    @property
    def variables(self) -> dict[str, str]:
        """The environment that says so."""
        folders = {f"XDG_{name.upper()}_HOME": str(self.path / name) for name in ("data", "config", "cache")}
        return {"HOME": str(self.path), "XDG_RUNTIME_DIR": str(self.path), **folders}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A home without anything in it, in which no variable of ohdiff is set."""
    made = Home(tmp_path / "home")
    made.path.mkdir()
    for name in [name for name in os.environ if name.startswith("OHDIFF_")]:
        monkeypatch.delenv(name)
    for name, value in made.variables.items():
        monkeypatch.setenv(name, value)
    # New passwords are stretched as cheaply as the format allows: what is tested here is not their strength.
    monkeypatch.setattr(format_keys, "ARGON2_MEMORY_KIB", 64)
    monkeypatch.setattr(format_keys, "ARGON2_PASSES", 1)
    return made


def let_clocks_tick(arguments: tuple[str | Path, ...]) -> None:
    """Files as young as a clock tick are read again by the next snapshot, which no test means to see."""
    if not {"snapshot", "backup"}.isdisjoint(map(str, arguments)):
        time.sleep(0.05)


@pytest.fixture
def run(home: Home) -> Callable[..., Result]:
    """Runs the command in this process."""

    def call(*arguments: str | Path, **options: Any) -> Result:
        let_clocks_tick(arguments)
        return CliRunner().invoke(cli, [str(argument) for argument in arguments], **options)

    return call


@pytest.fixture
def shell(home: Home) -> Callable[..., subprocess.CompletedProcess[bytes]]:
    """Runs the command in a process of its own."""

    def call(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[bytes]:
        let_clocks_tick(arguments)
        command = [sys.executable, "-m", "ohdiff", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, timeout=600, check=False, **options)

    return call


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with files, an empty folder, links, and a name that is not UTF-8."""
    folder = tmp_path / "source"
    (folder / "sub" / "deep").mkdir(parents=True)
    (folder / "empty").mkdir()
    (folder / "notes.txt").write_text("one\ntwo\nthree\n")
    (folder / "sub" / "data.bin").write_bytes(random.Random(1).randbytes(256_000))
    (folder / "sub" / "deep" / "nothing").touch()
    (folder / "link").symlink_to("notes.txt")
    os.link(folder / "notes.txt", folder / "sub" / "same.txt")
    Path(os.fsdecode(os.fsencode(folder) + b"/odd\xff")).write_text("odd")
    return folder


@pytest.fixture
def repository(run: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty repository without encryption, named by the environment."""
    path = tmp_path / "repository"
    result = run("--repo", path, "init", "--no-encryption")
    assert result.exit_code == 0, result.output
    monkeypatch.setenv("OHDIFF_REPOSITORY", str(path))
    return path


@pytest.fixture
def stored(run: Callable[..., Result], repository: Path, source: Path) -> Path:
    """A repository with one snapshot of `source`."""
    result = run("snapshot", source, "--tag", "first")
    assert result.exit_code == 0, result.output
    return repository


def records(result: Result | subprocess.CompletedProcess[bytes], kind: str = "") -> list[dict[str, Any]]:
    """The JSON lines on standard output, or those of one type."""
    lines = (result.stdout if isinstance(result.stdout, str) else result.stdout.decode()).splitlines()
    parsed = [json.loads(line) for line in lines]
    return [each for each in parsed if kind in ("", each["message_type"])]
