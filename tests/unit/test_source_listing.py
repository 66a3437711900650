"""Listing a source directory in leaves: the same cuts as the format makes of all names at once."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ohdiff.errors import UsageError
from ohdiff.filesystem import DirectoryHandle, EntryColumns
from ohdiff.operations import source_listing
from ohdiff.operations.source_listing import SourceListing, _leaf_ends
from ohdiff.operations.source_paths import TARGET, Target, path_tree, resolve_path
from ohdiff.operations.source_rules import KeepAll
from ohdiff_format.tree import leaf_bounds


class KeepSome(KeepAll):
    """Keeps the rows whose names a function accepts."""

    def __init__(self, accepts: Callable[[bytes], bool]) -> None:
        self._accepts = accepts

    def kept_rows(self, path: bytes, entries: EntryColumns) -> list[int] | None:
        return [row for row, name in enumerate(entries.names) if self._accepts(name)]


@given(count=st.integers(0, 6000), seed=st.integers(0, 5), step=st.sampled_from([50, 128, 700, 4096]))
@settings(deadline=None, max_examples=60)
def test_cutting_piece_by_piece_is_cutting_at_once(count: int, seed: int, step: int) -> None:
    names = sorted(b"%d-%d" % (seed, number) for number in range(count))
    ends: list[int] = []
    kept: list[bytes] = []
    first = 0
    for start in range(0, max(1, count), step):
        kept += names[start : start + step]
        found = _leaf_ends(kept, start + step >= count)
        ends += [first + end for end in found]
        if found:
            first += found[-1]
            kept = kept[found[-1] :]
    assert ends == leaf_bounds(names)


@pytest.fixture
def crowded(tmp_path: Path) -> Path:
    for number in range(1500):
        (tmp_path / f"{number:04}").write_bytes(b"x" * (number % 50))
    os.symlink("0001", tmp_path / "link")
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 20)
    return tmp_path


@pytest.mark.parametrize("step", [100, 333, 4096])
@pytest.mark.parametrize("keeps", [lambda name: True, lambda name: name[-1:] in b"13579k", lambda name: False])
def test_leaves_do_not_depend_on_how_many_names_are_looked_at_at_once(
    crowded: Path, monkeypatch: pytest.MonkeyPatch, step: int, keeps: Callable[[bytes], bool]
) -> None:
    monkeypatch.setattr(source_listing, "_NAMES_PER_CALL", step)
    with DirectoryHandle.open_root(crowded) as handle:
        names = handle.names()
        source = SourceListing()
        leaves = [leaf for leaf, _ in source.leaves(handle, bytes(crowded), names, KeepSome(keeps))]
    kept = [name for name in names if keeps(name)]
    assert [name for leaf in leaves for name in leaf.names] == kept
    ends = [sum(len(leaf) for leaf in leaves[: place + 1]) for place in range(len(leaves))]
    assert ends == leaf_bounds(kept)
    for leaf in leaves:
        for row, name in enumerate(leaf.names):
            status = os.lstat(bytes(crowded) + b"/" + name)
            assert (leaf.sizes[row], leaf.inodes[row], leaf.modes[row]) == (
                0 if name == b"link" else status.st_size,
                status.st_ino,
                status.st_mode,
            ) or name == b"link"
            assert leaf.targets.get(row) == (b"0001" if name == b"link" else None)


@pytest.mark.parametrize("step", [100, 4096])
def test_rows_that_may_have_holes_are_counted_in_their_leaf(
    crowded: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    monkeypatch.setattr(source_listing, "_NAMES_PER_CALL", step)
    with DirectoryHandle.open_root(crowded) as handle:
        found = [
            leaf.names[row]
            for leaf, rows in SourceListing().leaves(handle, b"", handle.names(), KeepAll())
            for row in rows
        ]
    assert b"sparse" in found
    assert all(
        (crowded / os.fsdecode(name)).stat().st_blocks * 512 < (crowded / os.fsdecode(name)).stat().st_size
        for name in found
    )


def test_an_entry_that_cannot_be_looked_at_is_an_error_and_not_a_row(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    with DirectoryHandle.open_root(tmp_path) as handle:
        source = SourceListing()
        ((leaf, _),) = source.leaves(handle, b"", [b"a", b"gone"], KeepAll())
    assert leaf.names == [b"a"]
    assert [name for name, _, _ in source.errors] == [b"gone"]


def shape(tree: object) -> object:
    return "all" if isinstance(tree, Target) else {name: shape(below) for name, below in tree.items()}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        ([b"/a"], {b"a": "all"}),
        ([b"/a/b", b"/a/c"], {b"a": {b"b": "all", b"c": "all"}}),
        ([b"/a", b"/a/b"], {b"a": "all"}),
        ([b"/a/b/c", b"/a"], {b"a": "all"}),
        ([b"/a/", b"//a//"], {b"a": "all"}),
        ([b"/a/b", b"/"], "all"),
        ([b"/\xff"], {b"\xff": "all"}),
    ],
)
def test_given_paths_become_a_tree_of_names(paths: list[bytes], expected: object) -> None:
    assert shape(path_tree(paths)) == expected


def test_the_root_alone_is_everything() -> None:
    assert path_tree([b"/"]) is TARGET


def test_no_path_is_a_usage_error() -> None:
    with pytest.raises(UsageError):
        path_tree([])


def test_a_given_path_is_made_absolute_and_its_links_are_resolved(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert resolve_path(str(tmp_path / "link" / ".." / "link")) == os.fsencode(tmp_path / "real")
