"""Storing, listing and selecting snapshots."""

from __future__ import annotations

import pytest
from support.vault import Vault, object_names, replace_object

from ohdiff.errors import IntegrityError, NoSnapshotError, UsageError
from ohdiff.repository.snapshots import (
    SnapshotFilter,
    StoredSnapshot,
    find_snapshot,
    list_snapshots,
    load_snapshot,
    read_snapshots,
    save_snapshot,
)
from ohdiff_format.snapshot import Snapshot


@pytest.fixture
def stored(vault: Vault) -> list[StoredSnapshot]:
    """Five snapshots, stored in another order than that of their times."""
    repository = vault.open()
    for time_ns, host, tags, paths in [
        (30, "desk", ["daily"], [b"/a"]),
        (10, "desk", [], [b"/a"]),
        (50, "lap", ["daily", "kept"], [b"/a", b"/b"]),
        (20, "lap", ["kept"], [b"/b"]),
        (-40, "desk", [], [b"/\xff"]),
    ]:
        save_snapshot(repository, Snapshot(time_ns, b"i" * 32, [5], 0, paths, host, "user", tags))
    return list_snapshots(repository)


def test_snapshots_are_listed_by_time(stored: list[StoredSnapshot]) -> None:
    assert [item.snapshot.time_ns for item in stored] == [-40, 10, 20, 30, 50]


def test_a_snapshot_comes_back_as_it_was_saved(vault: Vault, stored: list[StoredSnapshot]) -> None:
    for item in stored:
        assert load_snapshot(vault.open(), item.snapshot_id) == item
        assert item.root.ids == b"i" * 32


@pytest.mark.parametrize(
    ("accept", "times"),
    [
        (SnapshotFilter(), [-40, 10, 20, 30, 50]),
        (SnapshotFilter(hosts=("desk",)), [-40, 10, 30]),
        (SnapshotFilter(hosts=("desk", "lap")), [-40, 10, 20, 30, 50]),
        (SnapshotFilter(tags=("kept",)), [20, 50]),
        (SnapshotFilter(tags=("kept", "daily")), [50]),
        (SnapshotFilter(paths=(b"/a",)), [10, 30, 50]),
        (SnapshotFilter(paths=(b"/b", b"/a")), [50]),
        (SnapshotFilter(paths=(b"/\xff",)), [-40]),
        (SnapshotFilter(hosts=("other",)), []),
    ],
)
def test_filters_choose(vault: Vault, stored: list[StoredSnapshot], accept: SnapshotFilter, times: list[int]) -> None:
    assert [item.snapshot.time_ns for item in list_snapshots(vault.open(), accept)] == times


@pytest.mark.parametrize(("selector", "time_ns"), [("latest", 50), ("latest~0", 50), ("latest~4", -40)])
def test_latest_counts_back(vault: Vault, stored: list[StoredSnapshot], selector: str, time_ns: int) -> None:
    assert find_snapshot(vault.open(), selector).snapshot.time_ns == time_ns


def test_latest_counts_among_those_that_pass(vault: Vault, stored: list[StoredSnapshot]) -> None:
    assert find_snapshot(vault.open(), "latest~1", SnapshotFilter(hosts=("desk",))).snapshot.time_ns == 10
    with pytest.raises(NoSnapshotError):
        find_snapshot(vault.open(), "latest~2", SnapshotFilter(hosts=("lap",)))


def test_an_id_may_be_shortened_while_it_is_clear(vault: Vault, stored: list[StoredSnapshot]) -> None:
    for item in stored:
        assert find_snapshot(vault.open(), item.short_id) == item
        assert find_snapshot(vault.open(), item.snapshot_id.hex()) == item
    ids = [name.partition("/")[2] for name in object_names(vault.storage, ["snapshots"])]
    firsts = [each[0] for each in ids]
    for first in set(firsts):
        if firsts.count(first) == 1:
            assert find_snapshot(vault.open(), first).snapshot_id.hex().startswith(first)
        else:
            with pytest.raises(NoSnapshotError):
                find_snapshot(vault.open(), first)


@pytest.mark.parametrize("selector", ["", "latest~", "latest~-1", "LATEST", "xyz", "abc~1", "a" * 65, "../x"])
def test_what_is_no_selector_is_a_usage_error(vault: Vault, stored: list[StoredSnapshot], selector: str) -> None:
    with pytest.raises(UsageError):
        find_snapshot(vault.open(), selector)


@pytest.mark.parametrize("selector", ["latest", "0123456789abcdef"])
def test_an_empty_repository_has_no_snapshot_to_find(vault: Vault, selector: str) -> None:
    with pytest.raises(NoSnapshotError):
        find_snapshot(vault.open(), selector)


@pytest.mark.parametrize("damage", ["flipped", "cut short", "empty"])
def test_a_damaged_snapshot_hides_no_other(vault: Vault, stored: list[StoredSnapshot], damage: str) -> None:
    damaged = stored[1]
    name = f"snapshots/{damaged.snapshot_id.hex()}"
    data = bytearray(vault.storage.read(name))
    data[-1] ^= 1
    replace_object(vault.storage, name, {"flipped": bytes(data), "cut short": bytes(data[:40]), "empty": b""}[damage])
    found = read_snapshots(vault.open())
    assert found.stored == [item for item in stored if item is not damaged]
    (error,) = found.damaged
    assert error.item == name
    # It might be one that would pass: nobody can tell.
    assert [each.item for each in read_snapshots(vault.open(), SnapshotFilter(hosts=("lap",))).damaged] == [name]
    with pytest.raises(IntegrityError, match=name):
        list_snapshots(vault.open())
    for item in found.stored:
        assert find_snapshot(vault.open(), item.snapshot_id.hex()) == item
    with pytest.raises(IntegrityError, match=name):
        find_snapshot(vault.open(), damaged.snapshot_id.hex())


@pytest.mark.parametrize("selector", ["latest", "latest~1", "latest~9"])
def test_latest_is_refused_while_a_damaged_snapshot_might_be_newer(
    vault: Vault, stored: list[StoredSnapshot], selector: str
) -> None:
    name = f"snapshots/{stored[0].snapshot_id.hex()}"
    replace_object(vault.storage, name, vault.storage.read(name)[:-1])
    with pytest.raises(IntegrityError, match=name) as caught:
        find_snapshot(vault.open(), selector)
    assert "id" in caught.value.hint
    assert caught.value.item == name
