"""Finding entries in snapshots that share most of what they hold."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.sources import build_zoo, write
from support.vault import Vault

from ohdiff.operations import find, tree_reader
from ohdiff.operations.find import Finder
from ohdiff.operations.tree_reader import Entry, TreeReader
from ohdiff_format.tree import Content


@pytest.fixture
def tree(vault: Vault) -> Iterator[TreeReader]:
    with vault.tree() as opened:
        yield opened


@pytest.fixture
def roots(vault: Vault, source: Path) -> list[Content]:
    """Three snapshots: of a zoo, with one file more, and with a folder less."""
    build_zoo(source)
    for number in range(400):
        write(source / "large" / f"{number:04}.txt", b"%d" % number)
    found = [vault.store(source).root]
    write(source / "large" / "0123 and more.txt", b"new")
    found.append(vault.store(source).root)
    for path in (source / "large").iterdir():
        path.unlink()
    (source / "large").rmdir()
    return [*found, vault.store(source).root]


def columns(entry: Entry) -> tuple[object, ...]:
    """Everything that is known of an entry."""
    listing, row = entry.listing, entry.row
    return (entry.path, *(column[row] for column in listing.columns()), *(each.get(row) for each in listing.sparse()))


def is_wanted(path: bytes) -> bool:
    return path.endswith(b"3.txt") or b"e" in path.rpartition(b"/")[2]


@pytest.mark.parametrize("kept_max", [0, 7, 50_000])
def test_what_is_found_is_what_a_walk_meets(
    roots: list[Content], tree: TreeReader, monkeypatch: pytest.MonkeyPatch, kept_max: int
) -> None:
    monkeypatch.setattr(find, "_ENTRIES_KEPT_MAX", kept_max)
    finder = Finder(tree, is_wanted)
    for root in [*roots, *reversed(roots)]:
        walked = [columns(entry) for entry in tree.walk(root) if is_wanted(entry.path)]
        assert walked
        assert [columns(entry) for entry in finder.search(root)] == walked


def test_a_directory_that_snapshots_share_is_read_once(
    roots: list[Content], tree: TreeReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    finder = Finder(tree, is_wanted)
    first = list(finder.search(roots[0]))
    decode = tree_reader.decode_listing
    decoded: list[bytes] = []
    monkeypatch.setattr(tree_reader, "decode_listing", lambda data: decoded.append(data) or decode(data))
    assert [entry.path for entry in finder.search(roots[0])] == [entry.path for entry in first]
    assert not decoded
    # The directories down to the changed one, and the leaves of that one.
    list(finder.search(roots[1]))
    assert 0 < len(decoded) < 16
