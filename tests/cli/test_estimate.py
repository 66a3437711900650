"""Counting a source ahead: the same files as a snapshot, rules included."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ohdiff import clock
from ohdiff.operations.estimate import LOOK_COST_BYTES, SourceEstimate
from ohdiff.operations.excludes import ExcludeOptions, ExcludeRules
from ohdiff.operations.source_paths import resolve_path
from ohdiff.operations.source_rules import DirectoryRules, KeepAll
from ohdiff.scheduling.core import SECOND
from ohdiff.scheduling.window import Work


def count(path: Path, rules: DirectoryRules) -> tuple[int, int, bool]:
    """Files, bytes, and whether all of it was counted."""
    with SourceEstimate([resolve_path(path)], rules, one_file_system=False) as estimate:
        estimate.join()
        return estimate.files, estimate.size, estimate.is_complete


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Three files of 10 bytes and a link."""
    (tmp_path / "t" / "sub").mkdir(parents=True)
    for name in ("a", "sub/b.tmp", "sub/c"):
        (tmp_path / "t" / name).write_bytes(bytes(10))
    (tmp_path / "t" / "link").symlink_to("a")
    return tmp_path / "t"


def test_every_file_counts_once(tree: Path) -> None:
    assert count(tree, KeepAll()) == (3, 30, True)
    assert count(tree / "a", KeepAll()) == (1, 10, True)


def test_excluded_files_do_not_count(tree: Path) -> None:
    assert count(tree, ExcludeRules(ExcludeOptions(patterns=("*.tmp",)))) == (2, 20, True)


def test_what_is_not_there_or_not_readable_counts_nothing(tree: Path) -> None:
    assert count(tree / "gone", KeepAll()) == (0, 0, True)
    if os.geteuid():
        (tree / "sub").chmod(0)
        assert count(tree, KeepAll()) == (1, 10, True)
        (tree / "sub").chmod(0o700)


@pytest.mark.parametrize("below", [True, False])
def test_what_has_changed_since_the_parent_will_be_read(tree: Path, below: bool) -> None:
    path = resolve_path(tree)
    settled_ns = (tree / "a").stat().st_ctime_ns
    for name in ("sub/b.tmp", "sub/c"):
        os.utime(tree / name, ns=(0, settled_ns - SECOND))
        assert (tree / name).stat().st_ctime_ns >= settled_ns
    before_ns = settled_ns - 1
    parent = [path if below else path + b"/sub/elsewhere"]
    (tree / "a").write_bytes(bytes(5000))
    for settled, read in ((before_ns, 5020), (clock.now_ns() + SECOND, 0 if below else 5020)):
        with SourceEstimate(
            [path], KeepAll(), one_file_system=False, settled_ns=settled, settled_paths=parent
        ) as estimate:
            estimate.join()
        assert (estimate.files, estimate.size, estimate.read_size) == (3, 5020, read)


def test_an_unchanged_tree_is_hardly_any_work(tree: Path) -> None:
    (tree / "a").write_bytes(bytes(1 << 20))
    path = resolve_path(tree)
    settled_ns = clock.now_ns() + SECOND
    with SourceEstimate(
        [path], KeepAll(), one_file_system=False, settled_ns=settled_ns, settled_paths=[path]
    ) as estimate:
        estimate.join()
    assert estimate.work(0).likely_bytes == 3 * LOOK_COST_BYTES
    assert estimate.work(2).likely_bytes == LOOK_COST_BYTES
    assert estimate.work(7).likely_bytes == 0


def test_holes_are_no_work_for_certain(tmp_path: Path) -> None:
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(1 << 30)
    with SourceEstimate([resolve_path(tmp_path)], KeepAll(), one_file_system=False) as estimate:
        estimate.join()
    assert estimate.work(1).least_bytes < 1 << 20
    assert estimate.work(1).likely_bytes == 1 << 30


def test_while_it_counts_the_rest_is_taken_to_be_alike(tree: Path) -> None:
    estimate = SourceEstimate([resolve_path(tree)], KeepAll(), one_file_system=False, files_likely=30)
    assert estimate.work(0) == Work()
    estimate.files, estimate.read_size, estimate.data_size = 3, 30, 30
    assert estimate.work(3) == Work(30, 300)
    estimate.is_complete = True
    assert estimate.work(3) == Work(30, 30)
