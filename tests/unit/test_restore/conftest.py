"""Puts directories into a repository, and takes them out again onto the disk and into memory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3
from support.vault import Told, Vault, chunker

from ohdiff.buffers import BufferPool
from ohdiff.operations.restore import RestoreOptions, RestoreResult, restore
from ohdiff.repository.chunk_reader import ChunkReader
from ohdiff.repository.chunk_writer import ChunkWriter
from ohdiff.repository.snapshots import StoredSnapshot, load_snapshot, save_snapshot
from ohdiff.storage import MemoryStorage
from ohdiff_format.snapshot import Snapshot
from ohdiff_format.tree import EMPTY_CONTENT, Content, Listing, encode_listing

MEMORY = Path("/dev/shm")


@dataclass
class Heard(Told):
    """An observer that remembers the notes, too."""

    notes: list[str] = field(default_factory=list)

    def note(self, message: str) -> None:
        self.notes.append(message)

    def actions(self) -> dict[str, set[bytes]]:
        """The paths of each action."""
        found: dict[str, set[bytes]] = {}
        for action, path in self.items:
            found.setdefault(action, set()).add(path)
        return found


@dataclass
class Library:
    """A repository that snapshots are restored from; what one stored itself lies at `source`."""

    vault: Vault

    def restore(
        self, stored: StoredSnapshot, target: Path | bytes, observer: Heard | None = None, **options: Any
    ) -> RestoreResult:
        """Restore a snapshot; by default all that lies below its first path."""
        options.setdefault("source", stored.snapshot.paths[0])
        with self.vault.opened() as (repository, index):
            wanted = RestoreOptions(target=os.fsencode(target), **options)
            return restore(repository, index, ChunkReader(repository, index), stored, wanted, observer or Heard())

    def store_rows(self, listing: Listing, data: dict[bytes, bytes] | None = None) -> StoredSnapshot:
        """Store one directory made by hand, such as no file system would give it."""
        with self.vault.opened() as (repository, index), ThreadPoolExecutor(1) as executor:
            writer = ChunkWriter(repository, index, executor, level=3, queue_depth=2)
            key = repository.chunk_id_key
            for name, plain in (data or {}).items():
                buffer = BufferPool(0, 0).take(len(plain))
                buffer.data[:] = plain
                chunk_id = blake3(plain, key=key).digest()
                writer.add_chunks(buffer, [len(plain)], chunk_id, 0, 1)
                buffer.release()
                listing.contents[listing.names.index(name)] = Content(chunk_id, (len(plain),))
            leaf = encode_listing(listing)
            leaf_id = writer.add_metadata(leaf)
            writer.finish()
            snapshot = Snapshot(1, leaf_id, [len(leaf)], 0, [b""], "host", "user")
            return load_snapshot(repository, save_snapshot(repository, snapshot))


def rows(names_and_modes: dict[bytes, int], **columns: list[int]) -> Listing:
    """A listing of new entries, in order of name."""
    names = sorted(names_and_modes)
    count = len(names)
    listing = Listing(names, [names_and_modes[name] for name in names])
    for column in ("uids", "gids", "sizes", "mtimes", "ctimes", "btimes", "inodes", "devices", "rdevs", "flags"):
        setattr(listing, column, columns.get(column, [0] * count))
    listing.link_counts = columns.get("link_counts", [1] * count)
    listing.marks = [0] * count
    listing.contents = [EMPTY_CONTENT] * count
    return listing


@pytest.fixture
def library(tmp_path: Path) -> Library:
    """A repository in memory with small chunks, so that small files have many."""
    vault = Vault(MemoryStorage("restore"), tmp_path / "cache")
    return Library(vault.create(chunker(avg_size=4 << 10)))


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def new_heard() -> Callable[[], Heard]:
    """Makes as many observers as a test needs."""
    return Heard


@pytest.fixture(params=["disk", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """An empty directory on the file system of temporary files, and one on a tmpfs."""
    if request.param == "disk":
        (tmp_path / "place").mkdir()
        yield tmp_path / "place"
        return
    if not MEMORY.is_dir():
        pytest.skip("this system has no /dev/shm")
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        yield Path(folder)


@pytest.fixture
def needs_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may do this")


@pytest.fixture(name="rows")
def rows_fixture() -> Callable[..., Listing]:
    return rows
