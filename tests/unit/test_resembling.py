"""Files that were renamed and changed are stored as differences from what they resemble; so are later streams."""

from __future__ import annotations

import io
from pathlib import Path

from support.description import describe_folder, differences
from support.sources import text_bytes, write
from support.vault import Vault, engine_of

from ohdiff import clock
from ohdiff.operations.observer import Silent
from ohdiff.operations.snapshot import SnapshotOptions
from ohdiff.operations.snapshot_stream import make_stream_snapshot
from ohdiff.repository.snapshots import StoredSnapshot


def edited(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + b" an edit " + data[middle:]


def test_a_renamed_and_edited_file_costs_little(vault: Vault, tmp_path: Path) -> None:
    source = tmp_path / "source"
    for number in range(8):
        write(source / "old" / f"{number}.txt", text_bytes(60_000, number))
    first = vault.store(source)
    (source / "new").mkdir()
    for number in range(8):
        write(source / "new" / f"renamed-{number}.txt", edited(text_bytes(60_000, number)))
        (source / "old" / f"{number}.txt").unlink()
    second = vault.store(source)
    stored = [each.snapshot.statistics.added_stored_size for each in (first, second)]
    assert stored[1] < stored[0] / 4
    assert differences(vault.read(second, source), describe_folder(source)) == {}
    vault.assert_sound()


def test_without_its_cache_nothing_but_space_is_lost(vault: Vault, tmp_path: Path) -> None:
    source = tmp_path / "source"
    write(source / "old", text_bytes(100_000, 1))
    vault.store(source)
    (table,) = (path for path in (tmp_path / "cache").rglob("resemblance") if path.is_file())
    table.write_bytes(b"not a cache")
    (source / "old").rename(source / "new")
    write(source / "new", edited(text_bytes(100_000, 1)))
    stored = vault.store(source)
    assert differences(vault.read(stored, source), describe_folder(source)) == {}


def test_a_later_stream_of_the_same_name_is_stored_as_a_difference(vault: Vault) -> None:
    data = text_bytes(600_000, 1)
    parent: StoredSnapshot | None = None
    sizes = []
    for content in (data, edited(data)):
        with vault.opened() as (repository, index):
            options = SnapshotOptions(time_ns=clock.now_ns(), host="host", user="user", parent=parent)
            engine = engine_of(repository)
            result = make_stream_snapshot(repository, index, engine, b"dump", io.BytesIO(content), options, Silent())
        parent = result.stored
        assert parent is not None
        assert result.errors == []
        assert vault.data(parent, b"/dump") == content
        sizes.append(result.snapshot.statistics.added_stored_size)
    assert sizes[1] < sizes[0] / 10
