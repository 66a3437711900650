"""Random lives of a source and its repository, against a plain record of what the source was at each snapshot.

The product, its check, and the independent reader must all agree with the record.
"""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from support.description import Description, describe_folder, differences
from support.sources import BEFORE_1970_NS, build_zoo, random_bytes, text_bytes, write, write_sparse
from support.vault import Vault, object_names

from ohdiff.operations.observer import Silent
from ohdiff.operations.restore import RestoreOptions, restore
from ohdiff.repository.chunk_reader import ChunkReader
from ohdiff.repository.snapshots import StoredSnapshot, load_snapshot
from ohdiff.storage import LocalStorage, MemoryStorage

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
READER = Path(__file__).resolve().parents[2] / "repo_format" / "reader" / "ohdiff_reader.py"
NAMES = [b"a", b"b", b"c", b"\xff", b"long" * 60]
Folder = dict[bytes, Description]


def product_restore(vault: Vault, stored: StoredSnapshot, source: bytes, target: Path, **options: bool) -> None:
    with vault.opened() as (repository, index):
        wanted = RestoreOptions(target=bytes(target), source=source, **options)  # type: ignore[arg-type]
        result = restore(repository, index, ChunkReader(repository, index), stored, wanted, Silent())
    assert result.errors == []


class SnapshotMachine(RuleBasedStateMachine):
    """Edits, snapshots, deletions of snapshots, lost caches; every snapshot stays what it was."""

    @initialize()
    def start(self) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=MEMORY))
        self.source = self.folder / "source"
        self.source.mkdir()
        self.vault = Vault(MemoryStorage("model"), self.folder / "cache").create()
        self.known: dict[bytes, Folder] = {}

    def _folders(self) -> list[bytes]:
        return [root for root, _, _ in os.walk(bytes(self.source))]

    def _entries(self) -> list[bytes]:
        return sorted(root + b"/" + name for root, dirs, files in os.walk(bytes(self.source)) for name in dirs + files)

    places = st.randoms(use_true_random=False)

    @rule(dice=places, seed=st.integers(0, 9), size=st.sampled_from([0, 1, 100, 70_000, 300_000, 5 << 20]))
    def write_a_file(self, dice: random.Random, seed: int, size: int) -> None:
        path = Path(os.fsdecode(dice.choice(self._folders()) + b"/" + dice.choice(NAMES)))
        if not path.is_dir() or path.is_symlink():
            path.unlink(missing_ok=True)
            write(path, random_bytes(size, seed) if seed % 2 else text_bytes(min(size, 300_000), seed))

    @rule(dice=places, start=st.sampled_from([0, 1 << 20, (1 << 20) + 4096]))
    def write_a_sparse_file(self, dice: random.Random, start: int) -> None:
        path = Path(os.fsdecode(dice.choice(self._folders()) + b"/sparse"))
        path.unlink(missing_ok=True)
        write_sparse(path, 3 << 20, {start: random_bytes(8192, start)})

    @rule(dice=places)
    def make_a_folder(self, dice: random.Random) -> None:
        path = dice.choice(self._folders()) + b"/" + dice.choice(NAMES)
        if not os.path.lexists(path) and path.count(b"/") < 12:
            os.mkdir(path)

    @rule(dice=places)
    def make_a_link(self, dice: random.Random) -> None:
        path = dice.choice(self._folders()) + b"/" + dice.choice(NAMES)
        if not os.path.lexists(path):
            os.symlink(dice.choice([b"a", b"..", b"nowhere", b"\xfe"]), path)

    @precondition(lambda self: hasattr(self, "source") and self._entries())
    @rule(dice=places)
    def remove(self, dice: random.Random) -> None:
        path = dice.choice(self._entries())
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)

    @precondition(lambda self: hasattr(self, "source") and self._entries())
    @rule(dice=places, what=st.sampled_from(["edit", "truncate", "link", "mode", "time", "rename"]))
    def change(self, dice: random.Random, what: str) -> None:
        path = dice.choice(self._entries())
        is_file = os.path.isfile(path) and not os.path.islink(path)
        if what == "mode" and not os.path.islink(path):
            os.chmod(path, dice.choice([0o600, 0o755, 0o4711] if is_file else [0o700, 0o2755]))
        elif what == "time":
            os.utime(path, ns=(0, dice.choice([0, 1, BEFORE_1970_NS])), follow_symlinks=False)
        elif what == "rename" and not os.path.lexists(path + b" moved") and len(path.rpartition(b"/")[2]) < 200:
            os.rename(path, path + b" moved")
        elif what == "edit" and is_file:
            with open(path, "r+b") as file:
                file.seek(dice.randint(0, os.path.getsize(path)))
                file.write(b"edited")
        elif what == "truncate" and is_file:
            os.truncate(path, os.path.getsize(path) // 2)
        elif what == "link" and is_file and not os.path.lexists(path + b"2") and len(path.rpartition(b"/")[2]) < 200:
            os.link(path, path + b"2")

    @rule(has_parent=st.booleans(), is_forced=st.booleans())
    def snapshot(self, has_parent: bool, is_forced: bool) -> None:
        options = {} if has_parent else {"parent": None}
        stored = self.vault.store(self.source, is_forced=is_forced, **options)
        self.known[stored.snapshot_id] = describe_folder(self.source)
        assert differences(self.vault.read(stored, self.source), self.known[stored.snapshot_id]) == {}

    @rule()
    def lose_the_local_index(self) -> None:
        shutil.rmtree(self.folder / "cache", ignore_errors=True)

    @precondition(lambda self: getattr(self, "known", None))
    @rule(dice=places)
    def restore_one(self, dice: random.Random) -> None:
        snapshot_id = dice.choice(sorted(self.known))
        target = self.folder / "target"
        stored = load_snapshot(self.vault.open(), snapshot_id)
        # Now and then over what another restore left.
        if dice.random() < 0.5:
            shutil.rmtree(target, ignore_errors=True)
        product_restore(self.vault, stored, bytes(self.source), target, delete=True)
        assert differences(describe_folder(target), self.known[snapshot_id]) == {}

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            assert {item.snapshot_id for item in self.vault.snapshots()} == set(self.known)
            for item in self.vault.snapshots():
                assert differences(self.vault.read(item, self.source), self.known[item.snapshot_id]) == {}
            self.vault.assert_sound()
            shutil.rmtree(self.folder)


TestSnapshotMachine = SnapshotMachine.TestCase
TestSnapshotMachine.settings = settings(
    max_examples=15, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.fixture
def twice(tmp_path: Path) -> tuple[Vault, Path, list[Folder]]:
    """A repository in a folder with two snapshots of everything that a source can hold."""
    source = build_zoo(tmp_path / "source")
    write(source / "large", random_bytes(9 << 20, 7))
    vault = Vault(LocalStorage.create(tmp_path / "repository"), tmp_path / "cache").create()
    vault.store(source)
    folders = [describe_folder(source)]
    (source / "binary").write_bytes(random_bytes(600_000, 8))
    (source / "one").unlink()
    (source / "text" / "poem.txt").rename(source / "verse")
    shutil.rmtree(source / "many")
    write(source / "many", b"a file now")
    vault.store(source)
    return vault, source, [*folders, describe_folder(source)]


def reader(vault: Vault, tmp_path: Path, *arguments: str) -> str:
    assert vault.key is not None
    key_file = tmp_path / "key"
    if not key_file.exists():
        key_file.write_bytes(vault.key.secret)
    command = [sys.executable, READER, vault.storage.location, "--key-file", key_file, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("options", [(), ("--scan-packs",)])
def test_the_independent_reader_restores_what_the_product_stored(
    twice: tuple[Vault, Path, list[Folder]], tmp_path: Path, options: tuple[str, ...]
) -> None:
    vault, source, folders = twice
    for item, folder in zip(vault.snapshots(), folders, strict=True):
        target = tmp_path / f"by the reader {item.short_id}"
        reader(vault, tmp_path, *options, "restore", item.snapshot_id.hex(), str(target))
        below = target / source.relative_to("/")
        assert differences(describe_folder(below), folder) == {}


def test_product_and_reader_restore_the_same(twice: tuple[Vault, Path, list[Folder]], tmp_path: Path) -> None:
    vault, source, folders = twice
    for item, folder in zip(vault.snapshots(), folders, strict=True):
        target = tmp_path / f"by the product {item.short_id}"
        product_restore(vault, item, b"", target)
        assert differences(describe_folder(target / source.relative_to("/")), folder) == {}


def test_the_reader_lists_and_verifies(twice: tuple[Vault, Path, list[Folder]], tmp_path: Path) -> None:
    vault, source, _ = twice
    listed = reader(vault, tmp_path, "list")
    for item in vault.snapshots():
        assert item.short_id in listed
    reader(vault, tmp_path, "verify")
    names = reader(vault, tmp_path, "ls", "latest")
    assert str(source / "verse") in names
    assert str(source / "text" / "poem.txt") not in names
    pack = object_names(vault.storage, ["packs"])[0]
    path = Path(vault.storage.location) / "packs" / pack[6:8] / pack[6:]
    path.chmod(0o600)
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    with pytest.raises(subprocess.CalledProcessError):
        reader(vault, tmp_path, "verify")


def test_the_reader_is_one_file_that_needs_no_product() -> None:
    spec = importlib.util.spec_from_file_location("ohdiff_reader", READER)
    assert spec is not None
    script = "import sys, runpy; runpy.run_path(sys.argv[1]); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script, READER], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {"ohdiff", "ohdiff_format", "msgspec"}
