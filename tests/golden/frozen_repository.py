"""A frozen repository: its objects laid out as local storage does, and the independent reader run on them."""

from __future__ import annotations

import base64
import contextlib
import importlib
import io
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import format_repository as golden
import pytest

import ohdiff_format
from ohdiff_format import envelope, keys

FOLDER = Path(__file__).parent / "format"
READER = Path(ohdiff_format.__file__).parent / "reader" / "ohdiff_reader.py"
WRAPPING_KEY = keys.derive_key(golden.MASTER_KEY, keys.CONTEXT_WRAPPING)
SECRETS = {"aes-256-gcm": "password", "chacha20-poly1305": "key", "none": None}


class Frozen:
    """One golden repository."""

    def __init__(self, name: str) -> None:
        self.frozen = json.loads((FOLDER / f"{name}.json").read_text())
        self.encryption: str = self.frozen["encryption"]
        self.objects = {name: base64.b64decode(text) for name, text in self.frozen["objects"].items()}

    def of(self, folder: str) -> dict[str, bytes]:
        """The objects of one folder."""
        return {name: data for name, data in self.objects.items() if name.startswith(folder + "/")}

    def open_body(self, data: bytes, kind: int) -> tuple[envelope.Sealer, bytes]:
        """The sealer of an index or snapshot, and its only message."""
        sealer = envelope.open_sealer(data, kind, self.encryption, WRAPPING_KEY)
        return sealer, sealer.open(0, data[len(sealer.header) :])

    def write(self, root: Path) -> Path:
        """Lay the objects out as local storage does; returns the repository's folder."""
        write_repository(self.objects, root / "repository")
        (root / "password").write_text(self.frozen["password"] + "\n")
        secret = base64.b64encode(bytes.fromhex(self.frozen["key_file"])).decode()
        (root / "key").write_text(f"# ohdiff key file\n{secret}\n")
        return root / "repository"

    def options(self, root: Path) -> list[str]:
        """What unlocks it, for the reader."""
        secret = SECRETS[self.encryption]
        return [] if secret is None else [f"--{secret}-file", str(root / secret)]


def write_repository(objects: dict[str, bytes], folder: Path) -> None:
    """Lay objects out as local storage does."""
    for kind in ("keys", "packs", "index", "snapshots"):
        (folder / kind).mkdir(parents=True)
    for name, data in objects.items():
        path = object_path(folder, name)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)


def object_path(folder: Path, name: str) -> Path:
    """Where local storage keeps an object."""
    kind, _, leaf = name.partition("/")
    return folder / kind / leaf[:2] / leaf if kind == "packs" else folder / name


# The reader is a file to be run, in no package.
sys.path.insert(0, str(READER.parent))
reader = importlib.import_module("ohdiff_reader")


@dataclass(frozen=True)
class Done:
    """What the reader printed."""

    stdout: str
    stderr: str


def read(*arguments: str | Path, code: int = 0) -> Done:
    """Run the reader's command line in this process, which takes a tenth of the time."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as ended:
        reader.main([str(argument) for argument in arguments])
    if isinstance(ended.value.code, str):
        err.write(ended.value.code)
    assert bool(ended.value.code) == bool(code), err.getvalue()
    return Done(out.getvalue(), err.getvalue())
