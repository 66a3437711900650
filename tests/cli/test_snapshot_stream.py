"""Snapshots of a stream: its chunks are those of the same bytes in a file, whatever the reads are."""

from __future__ import annotations

import io
import random
from pathlib import Path

import pytest

from ohdiff.chunking.engine import Engine
from ohdiff.cli import engines
from ohdiff.errors import OhdiffError, UsageError
from ohdiff.operations.observer import Silent
from ohdiff.operations.snapshot import SnapshotOptions, make_snapshot
from ohdiff.operations.snapshot_stream import make_stream_snapshot
from ohdiff.operations.source_paths import resolve_path
from ohdiff.operations.tree_reader import TreeReader
from ohdiff.repository.chunk_reader import ChunkReader
from ohdiff.repository.index import ChunkIndex, open_index
from ohdiff.repository.keys import KeyDescription
from ohdiff.repository.repository import Repository, create_repository
from ohdiff.repository.snapshots import StoredSnapshot, list_snapshots
from ohdiff.storage import open_storage
from ohdiff_format.tree import Content


class Trickle(io.BytesIO):
    """A stream that gives odd amounts, as a pipe does."""

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Some bytes."""
        return super().readinto(buffer[: 1 + self.tell() % 70_001])


class House:
    """A repository in memory with its engine."""

    def __init__(self, name: str) -> None:
        chunker = engines.chunker_of_size(4 << 10)
        storage = open_storage(f"memory:{name}", create=True)
        self.repository: Repository = create_repository(
            storage, encryption="none", unlock=None, chunker=chunker, description=KeyDescription()
        )
        self.index: ChunkIndex = open_index(self.repository)
        keys = (self.repository.chunker_key, self.repository.chunk_id_key)
        self.engine: Engine = engines.choose(chunker, *keys, "auto", "auto").engine

    def snapshot(self, data: bytes, **options: object) -> StoredSnapshot | None:
        """Snapshot `data` as the file `name`."""
        given = SnapshotOptions(time_ns=5, host="h", user="u", **options)  # type: ignore[arg-type]
        return make_stream_snapshot(
            self.repository, self.index, self.engine, b"name", Trickle(data), given, Silent()
        ).stored

    def content(self, stored: StoredSnapshot, path: bytes) -> Content:
        """What a file holds."""
        entry = self.tree.find(stored.root, path)
        assert entry is not None
        return entry.content

    @property
    def tree(self) -> TreeReader:
        """Reads trees."""
        return TreeReader(ChunkReader(self.repository, self.index))


@pytest.fixture
def house(request: pytest.FixtureRequest) -> House:
    """A fresh repository."""
    return House(request.node.name)


@pytest.mark.parametrize("size", [0, 1, 5000, 20_000_000])
def test_a_stream_is_stored_as_the_same_chunks_as_a_file(house: House, tmp_path: Path, size: int) -> None:
    data = random.Random(size).randbytes(size)
    (tmp_path / "file").write_bytes(data)
    path = resolve_path(tmp_path / "file")
    options = SnapshotOptions(time_ns=1, host="h", user="u")
    of_file = make_snapshot(house.repository, house.index, house.engine, [path], options, Silent()).stored
    of_stream = house.snapshot(data)
    assert of_file is not None
    assert of_stream is not None
    assert house.content(of_stream, b"/name") == house.content(of_file, path)
    assert of_stream.snapshot.statistics.size == size
    entry = house.tree.find(of_stream.root, b"/name")
    assert entry is not None
    assert b"".join(part for _, part in house.tree.read_file(entry)) == data


def test_what_the_confirmation_raises_prevents_the_snapshot(house: House) -> None:
    def refuse() -> None:
        raise OhdiffError("the program failed")

    options = SnapshotOptions(time_ns=1, host="h", user="u")
    with pytest.raises(OhdiffError, match="the program failed"):
        make_stream_snapshot(
            house.repository, house.index, house.engine, b"name", Trickle(b"half"), options, Silent(), confirm=refuse
        )
    assert list_snapshots(house.repository) == []


def test_a_dry_run_stores_nothing(house: House) -> None:
    assert house.snapshot(b"data", is_dry_run=True) is None
    assert list_snapshots(house.repository) == []
    assert house.index.chunk_count == 0


def test_an_unchanged_stream_can_be_skipped(house: House) -> None:
    first = house.snapshot(b"data")
    assert house.snapshot(b"data", parent=first, skip_if_unchanged=True) is None
    assert house.snapshot(b"other", parent=first, skip_if_unchanged=True) is not None


@pytest.mark.parametrize("name", [b"", b".", b"..", b"a/b", b"a\0b"])
def test_a_name_that_no_file_can_have_is_refused(house: House, name: bytes) -> None:
    options = SnapshotOptions(time_ns=1, host="h", user="u")
    with pytest.raises(UsageError):
        make_stream_snapshot(house.repository, house.index, house.engine, name, Trickle(b""), options, Silent())
