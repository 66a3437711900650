"""Laws: whatever stands in the target, a restore with --delete makes it what was stored, and a second does nothing."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.description import describe_folder, differences
from support.sources import random_bytes
from support.vault import Vault, chunker

from ohdiff.operations.observer import Silent
from ohdiff.operations.restore import RestoreOptions, RestoreResult, restore
from ohdiff.repository.chunk_reader import ChunkReader
from ohdiff.repository.snapshots import StoredSnapshot
from ohdiff.storage import MemoryStorage

MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class FileSpec:
    """A file of some pieces, each data (by a seed) or a hole; few seeds, so that files share data."""

    pieces: tuple[tuple[int, int], ...]
    mode: int
    mtime_ns: int

    def make(self, path: bytes) -> None:
        with open(path, "wb") as file:
            for seed, size in self.pieces:
                if seed:
                    file.write(random_bytes(size, seed))
                else:
                    file.seek(size, os.SEEK_CUR)
            file.truncate(file.tell())
        os.chmod(path, self.mode)
        os.utime(path, ns=(self.mtime_ns, self.mtime_ns))


@dataclass(frozen=True)
class LinkSpec:
    """A symlink."""

    target: bytes
    mtime_ns: int

    def make(self, path: bytes) -> None:
        os.symlink(self.target, path)
        os.utime(path, ns=(self.mtime_ns, self.mtime_ns), follow_symlinks=False)


@dataclass(frozen=True)
class FifoSpec:
    """A FIFO."""

    mode: int

    def make(self, path: bytes) -> None:
        os.mkfifo(path)
        os.chmod(path, self.mode)


@dataclass(frozen=True)
class HardLinkSpec:
    """Another name of the first file in the same folder, or an empty file where there is none."""

    def make(self, path: bytes) -> None:
        folder = os.path.dirname(path)
        for name in sorted(os.listdir(folder)):
            first = os.path.join(folder, name)
            if os.path.isfile(first) and not os.path.islink(first):
                os.link(first, path)
                return
        FileSpec((), 0o600, 0).make(path)


@dataclass(frozen=True)
class FolderSpec:
    """A folder and what is in it."""

    entries: dict[bytes, Spec] = field(default_factory=dict)
    mode: int = 0o755
    mtime_ns: int = 0

    def make(self, path: bytes) -> None:
        os.makedirs(path, exist_ok=True)
        for name, entry in self.entries.items():
            entry.make(path + b"/" + name)
        os.chmod(path, self.mode)
        os.utime(path, ns=(self.mtime_ns, self.mtime_ns))


Spec = FileSpec | LinkSpec | FifoSpec | HardLinkSpec | FolderSpec

times = st.integers(-(2**33), 2**33) | st.integers(-(2**61), 2**61)
modes = st.sampled_from([0o600, 0o644, 0o755, 0o4711, 0o400, 0o000])
# Few names, so that what is stored and what is in the target meet under the same ones.
names = st.sampled_from([b"a", b"b", b"c", b"\xff", b"d e"]) | st.binary(min_size=1, max_size=12).filter(
    lambda name: b"/" not in name and b"\0" not in name and name not in (b".", b"..")
)
sizes = st.sampled_from([1, 4095, 4096, 4097, 12_288, 100_000]) | st.integers(0, 40_000)
pieces = st.lists(st.tuples(st.integers(0, 3), sizes), max_size=4).map(tuple)
leaves = (
    st.builds(FileSpec, pieces, modes, times)
    | st.builds(LinkSpec, st.sampled_from([b"a", b"../b", b"/", b"\xfe"]), times)
    | st.builds(FifoSpec, modes)
    | st.builds(HardLinkSpec)
)
folders = st.recursive(
    st.builds(FolderSpec, st.dictionaries(names, leaves, max_size=4), modes, times),
    lambda inner: st.builds(FolderSpec, st.dictionaries(names, leaves | inner, max_size=4), modes, times),
    max_leaves=6,
)
large = settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))


@contextmanager
def workplace(stored: FolderSpec, there: FolderSpec) -> Iterator[tuple[Vault, StoredSnapshot, Path, Path]]:
    """A vault that holds one folder, and a target in which another one stands."""
    place = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
    try:
        source, target = place / "source", place / "target"
        stored.make(bytes(source))
        there.make(bytes(target))
        vault = Vault(MemoryStorage("property"), place / "cache").create(chunker(avg_size=4 << 10))
        yield vault, vault.store(source), source, target
    finally:
        shutil.rmtree(place)


def restore_into(vault: Vault, stored: StoredSnapshot, target: Path, **options: bool) -> RestoreResult:
    with vault.opened() as (repository, index):
        wanted = RestoreOptions(bytes(target), stored.snapshot.paths[0], **options)  # type: ignore[arg-type]
        return restore(repository, index, ChunkReader(repository, index), stored, wanted, Silent())


@pytest.mark.skipif(os.geteuid() != 0, reason="the random modes shut an ordinary user out of the test's own folders")
@large
@given(folders, folders, st.booleans())
def test_any_tree_restored_over_any_other_becomes_what_was_stored(
    stored: FolderSpec, there: FolderSpec, verifies: bool
) -> None:
    with workplace(stored, there) as (vault, snapshot, source, target):
        expected = describe_folder(source)
        untouched = describe_folder(target)
        dry = restore_into(vault, snapshot, target, delete=True, dry_run=True)
        assert differences(describe_folder(target), untouched) == {}
        result = restore_into(vault, snapshot, target, delete=True, verify=verifies)
        assert result.errors == dry.errors == []
        assert differences(describe_folder(target), expected) == {}
        again = restore_into(vault, snapshot, target, delete=True)
        assert again.errors == []
        assert again.bytes_written == 0
        changed = [getattr(again, kind) for kind in ("files", "directories", "others", "hard_links")]
        assert all(tally.restored == tally.updated == tally.metadata == tally.deleted == 0 for tally in changed)


@pytest.mark.skipif(os.geteuid() != 0, reason="the random modes shut an ordinary user out of the test's own folders")
@large
@given(folders, folders)
def test_without_delete_nothing_goes_that_is_not_replaced(stored: FolderSpec, there: FolderSpec) -> None:
    with workplace(stored, there) as (vault, snapshot, source, target):
        before, wanted = describe_folder(target), describe_folder(source)
        result = restore_into(vault, snapshot, target, sparse=True)
        after = describe_folder(target)
        blocked = {os.fsencode(error.item)[len(bytes(target)) :] for error in result.errors}
        assert all("--delete" in error.hint for error in result.errors)
        replaced = {path for path in wanted if path in before} - blocked
        for path, entry in before.items():
            above = {path[:end] for end in range(len(path)) if path[end : end + 1] == b"/"} | {path}
            if not above & (replaced - {b""}) and path:
                assert after[path].digest == entry.digest, path
        for path, entry in wanted.items():
            is_blocked = any(path == name or path.startswith(name + b"/") for name in blocked)
            if not is_blocked:
                assert (after[path].mode, after[path].size, after[path].mtime_ns) == (
                    entry.mode,
                    entry.size,
                    entry.mtime_ns,
                ), path
