"""A repository for tests: makes it, opens it as a new process would, and snapshots, checks and reads back with it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ohdiff.chunking.cpu import CpuEngine
from ohdiff.chunking.engine import Engine
from ohdiff.chunking.rule import ChunkingRule, thresholds
from ohdiff.errors import OhdiffError
from ohdiff.operations.check import CheckResult, Part, check
from ohdiff.operations.observer import Progress, Silent
from ohdiff.operations.snapshot import SnapshotOptions, SnapshotResult, make_snapshot
from ohdiff.operations.source_paths import resolve_path
from ohdiff.operations.tree_reader import Entry, TreeReader
from ohdiff.repository import snapshots
from ohdiff.repository.chunk_reader import ChunkReader
from ohdiff.repository.index import ChunkIndex, open_index
from ohdiff.repository.keys import KeyDescription, KeyFile, generate_key_file
from ohdiff.repository.repository import Repository, create_repository, open_repository
from ohdiff.repository.snapshots import StoredSnapshot
from ohdiff.storage import FOLDERS, Storage
from ohdiff_format.config import ChunkerConfig

from .description import Description, describe_snapshot

ALL = Part()


def chunker(avg_size: int = 64 << 10, min_size: int | None = None, max_size: int | None = None) -> ChunkerConfig:
    """A chunker config with the thresholds that belong to an average size."""
    return ChunkerConfig(
        "g32s2/1", min_size or avg_size // 4, avg_size, max_size or 4 * avg_size, *thresholds(avg_size)
    )


@dataclass
class Told(Silent):
    """An observer that remembers what it was told."""

    wants_items = True
    items: list[tuple[str, bytes]] = field(default_factory=list)
    errors: list[OhdiffError] = field(default_factory=list)

    def progress(self, progress: Progress) -> None:
        self.last = progress

    def item(self, action: str, path: bytes) -> None:
        self.items.append((action, path))

    def error(self, error: OhdiffError) -> None:
        self.errors.append(error)


class Vault:
    """A repository in `storage`; each call opens it anew, so that nothing is carried over in memory."""

    def __init__(self, storage: Storage, cache: Path | None = None) -> None:
        self.storage = storage
        self.cache = cache
        self.key: KeyFile | None = generate_key_file()
        self.time_ns = 1_000

    def create(self, config: ChunkerConfig | None = None, encryption: str = "aes-256-gcm") -> Vault:
        """Make the repository."""
        self.key = None if encryption == "none" else self.key
        create_repository(
            self.storage,
            encryption=encryption,
            unlock=self.key,
            chunker=config or chunker(),
            description=KeyDescription("test", "host", 1),
        )
        return self

    def over(self, storage: Storage) -> Vault:
        """The same repository seen through another storage, without the local index."""
        other = Vault(storage)
        other.key, other.time_ns = self.key, self.time_ns
        return other

    def open(self) -> Repository:
        """Open the repository."""
        return open_repository(self.storage, self.key, self.cache)

    @contextmanager
    def opened(self) -> Iterator[tuple[Repository, ChunkIndex]]:
        """The repository and its index, closed at the end."""
        repository = self.open()
        index = open_index(repository)
        try:
            yield repository, index
        finally:
            index.close()

    @contextmanager
    def tree(self) -> Iterator[TreeReader]:
        """A reader of its trees."""
        with self.opened() as (repository, index):
            yield TreeReader(ChunkReader(repository, index))

    def snapshots(self) -> list[StoredSnapshot]:
        """Every snapshot, oldest first."""
        return snapshots.list_snapshots(self.open())

    def snapshot(
        self, *paths: Path | bytes, observer: Silent | None = None, engine: Engine | None = None, **options: Any
    ) -> SnapshotResult:
        """Snapshot paths on the latest snapshot, unless `parent` says otherwise."""
        self.time_ns += 1_000
        # Files as young as a clock tick are read again by the next snapshot, which most tests do not want to see.
        time.sleep(0.025)
        with self.opened() as (repository, index):
            if "parent" not in options:
                options["parent"] = next(reversed(snapshots.list_snapshots(repository)), None)
            wanted = SnapshotOptions(time_ns=self.time_ns, host="host", user="user", **options)
            given = [resolve_path(path if isinstance(path, bytes) else str(path)) for path in paths]
            return make_snapshot(
                repository, index, engine or engine_of(repository), given, wanted, observer or Silent()
            )

    def store(self, *paths: Path | bytes, **options: Any) -> StoredSnapshot:
        """The same, when it must succeed without any error."""
        result = self.snapshot(*paths, **options)
        assert result.errors == []
        assert result.stored is not None
        return result.stored

    def read(self, stored: StoredSnapshot, path: Path) -> dict[bytes, Description]:
        """What a snapshot holds at and below a path, every chunk read."""
        with self.tree() as tree:
            return describe_snapshot(tree, stored, path)

    def entry(self, stored: StoredSnapshot, path: Path | bytes) -> Entry:
        """One entry of a snapshot."""
        with self.tree() as tree:
            entry = tree.find(stored.root, path if isinstance(path, bytes) else bytes(path))
            assert entry is not None
            return entry

    def data(self, stored: StoredSnapshot, path: Path | bytes) -> bytes:
        """The bytes of a file without holes."""
        entry = self.entry(stored, path)
        with self.tree() as tree:
            return b"".join(bytes(part) for _, part in tree.read_file(entry))

    def check(self, part: Part | None = ALL) -> CheckResult:
        """Check everything, by default with the data of all packs."""
        return check(self.open(), part, Silent())

    def assert_sound(self) -> None:
        """Nothing is wrong in the repository."""
        assert self.check().problems == []


def engine_of(repository: Repository, kernel: str = "auto") -> CpuEngine:
    """The engine that cuts and hashes for a repository."""
    config = repository.config.chunker
    rule = ChunkingRule.from_key(
        repository.chunker_key,
        avg_size=config.avg_size,
        min_size=config.min_size,
        max_size=config.max_size,
        threshold_strict=config.threshold_strict,
        threshold_loose=config.threshold_loose,
    )
    return CpuEngine(rule, repository.chunk_id_key, kernel)


def object_names(storage: Storage, folders: Sequence[str] = FOLDERS) -> list[str]:
    """The names of all objects in some folders."""
    return [info.name for folder in folders for info in storage.list_objects(folder)]


def replace_object(storage: Storage, name: str, data: bytes | None) -> None:
    """Put other bytes under a name, or none, as damage does."""
    storage.delete(name)
    if data is not None:
        storage.write_new(name, data)
