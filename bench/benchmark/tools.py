"""The tools compared: how each makes a repository, backs a folder up, and restores its latest backup.

Encryption is on wherever a tool has it, under a password that a file holds; compression is each tool's nearest to
zstd level 3. Everything a tool keeps (repository, caches, settings, temporary files) lies under one state folder that
belongs to one round of the bench, so that its first run meets empty caches.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from benchmark.errors import SetupError
from benchmark.running import Command, one

PASSWORD = "correct horse battery staple"
FOREIGN_PREFIXES = ("BORG_", "CASYNC_", "OHDIFF_", "RESTIC_", "XDG_", "ZSTD_")
FOREIGN_NAMES = frozenset({"GZIP", "TAR_OPTIONS", "TAPE"})


class Tool:
    """One way to back a folder up.

    `first`, `unchanged` and `v2` are the labels of backups, and names of phases.
    """

    name: str
    programs: tuple[str, ...]
    has_increments = True  # a second backup costs less than the first

    def __init__(self, *programs: str) -> None:
        self.programs = programs or self.programs

    def missing(self) -> list[str]:
        """The programs of this tool that are not installed."""
        return [program for program in self.programs if shutil.which(program) is None]

    def version(self) -> str:
        return first_line(self.programs[0], "--version")

    def init(self, state: Path) -> Command | None:
        """What makes the repository, untimed; None where the first backup does."""
        return None

    def backup(self, state: Path, source: Path, label: str) -> Command:
        raise NotImplementedError

    def restore(self, state: Path, source: Path, label: str, target: Path) -> Command:
        """Restore the latest backup, which had `label`, into the empty folder `target`."""
        raise NotImplementedError

    def restored(self, source: Path, target: Path) -> Path:
        """Where under `target` a restore puts what was in `source`."""
        return target

    def environment(self, state: Path) -> dict[str, str]:
        """The environment of every run: this process's, less any setting of a tool, plus places in `state`."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(FOREIGN_PREFIXES) and name not in FOREIGN_NAMES
        }
        return kept | {"LC_ALL": "C.UTF-8"} | {name: str(path) for name, path in self._places(state).items()}

    def prepare(self, state: Path) -> None:
        """Make the empty folders and the password file of a new state folder."""
        for folder in (self.repository(state), *self._places(state).values()):
            folder.mkdir(parents=True, exist_ok=True)
        self.password_file(state).write_text(PASSWORD)

    @staticmethod
    def repository(state: Path) -> Path:
        """The folder whose size counts."""
        return state / "repository"

    @staticmethod
    def password_file(state: Path) -> Path:
        return state / "password"

    def _places(self, state: Path) -> dict[str, Path]:
        return {
            "HOME": state / "home",
            "TMPDIR": state / "temporary",
            "XDG_CACHE_HOME": state / "cache",
            "XDG_CONFIG_HOME": state / "config",
            "XDG_DATA_HOME": state / "data",
        }


class Ohdiff(Tool):
    name = "ohdiff"
    programs = ("ohdiff",)

    def init(self, state: Path) -> Command:
        return self._command(state, "init")

    def backup(self, state: Path, source: Path, label: str) -> Command:
        return self._command(state, "snapshot", source)

    def restore(self, state: Path, source: Path, label: str, target: Path) -> Command:
        return self._command(state, "restore", f"latest:{source}", "--target", target)

    def _command(self, state: Path, verb: str, *arguments: str | Path) -> Command:
        options = ("-q", "-r", self.repository(state), "--password-file", self.password_file(state))
        return one(self.programs[0], verb, *options, *arguments)

    def _places(self, state: Path) -> dict[str, Path]:
        return super()._places(state) | {"OHDIFF_CACHE_DIR": state / "cache" / "ohdiff"}


class Restic(Tool):
    name = "restic"
    programs = ("restic",)

    def version(self) -> str:
        return first_line(self.programs[0], "version")

    def init(self, state: Path) -> Command:
        return self._command(state, "init")

    def backup(self, state: Path, source: Path, label: str) -> Command:
        return self._command(state, "backup", source)

    def restore(self, state: Path, source: Path, label: str, target: Path) -> Command:
        return self._command(state, "restore", "latest", "--target", target)

    def restored(self, source: Path, target: Path) -> Path:
        return target / source.relative_to("/")

    def _command(self, state: Path, verb: str, *arguments: str | Path) -> Command:
        options = ("-q", "-r", self.repository(state), "--password-file", self.password_file(state))
        return one(self.programs[0], verb, *options, *arguments)

    def _places(self, state: Path) -> dict[str, Path]:
        return super()._places(state) | {"RESTIC_CACHE_DIR": state / "cache" / "restic"}


class Borg(Tool):
    name = "borg"
    programs = ("borg",)

    def init(self, state: Path) -> Command:
        return one("borg", "init", "-e", "repokey", self.repository(state))

    def backup(self, state: Path, source: Path, label: str) -> Command:
        return one("borg", "create", "-C", "zstd,3", self._archive(state, label), source)

    def restore(self, state: Path, source: Path, label: str, target: Path) -> Command:
        return one("borg", "extract", self._archive(state, label), working_folder=target)

    def restored(self, source: Path, target: Path) -> Path:
        return target / source.relative_to("/")

    def environment(self, state: Path) -> dict[str, str]:
        return super().environment(state) | {"BORG_PASSPHRASE": PASSWORD}

    def _archive(self, state: Path, label: str) -> str:
        return f"{self.repository(state)}::{label}"

    def _places(self, state: Path) -> dict[str, Path]:
        return super()._places(state) | {"BORG_BASE_DIR": state / "home"}


class Casync(Tool):
    """Keeps names, contents and metadata in chunks; does not encrypt."""

    name = "casync"
    programs = ("casync",)

    def backup(self, state: Path, source: Path, label: str) -> Command:
        return one("casync", "make", self._store(state), self._index(state, label), source)

    def restore(self, state: Path, source: Path, label: str, target: Path) -> Command:
        return one("casync", "extract", self._store(state), self._index(state, label), target)

    def _store(self, state: Path) -> str:
        return f"--store={self.repository(state) / 'store.castr'}"

    def _index(self, state: Path, label: str) -> Path:
        return self.repository(state) / f"{label}.caidx"


class TarZstd(Tool):
    """The floor: one archive a backup, neither encrypted nor deduplicated."""

    name = "tar-zstd"
    programs = ("tar", "zstd")
    has_increments = False

    def version(self) -> str:
        return f"{first_line('tar', '--version')}; {first_line('zstd', '--version')}"

    def backup(self, state: Path, source: Path, label: str) -> Command:
        pipeline = (("tar", "-cf", "-", "-C", str(source), "."), ("zstd", "-3", "-q"))
        return Command(pipeline, stdout=self._archive(state, label))

    def restore(self, state: Path, source: Path, label: str, target: Path) -> Command:
        return Command((("zstd", "-dcq", str(self._archive(state, label))), ("tar", "-xpf", "-", "-C", str(target))))

    def _archive(self, state: Path, label: str) -> Path:
        return self.repository(state) / f"{label}.tar.zst"


def first_line(*command: str) -> str:
    """The first line that a version command writes; SetupError if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SetupError(f"{' '.join(command)} ended with exit code {done.returncode}: {done.stderr.strip()}")
    return (done.stdout or done.stderr).partition("\n")[0].strip(" *")


def all_tools(ohdiff: str) -> list[Tool]:
    """Every tool the bench knows, in the order of a round; `ohdiff` is the program to run as ohdiff."""
    return [Ohdiff(ohdiff), Restic(), Borg(), Casync(), TarZstd()]
