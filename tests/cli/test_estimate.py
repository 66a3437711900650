"""Counting a source ahead: the same files as a snapshot, rules included."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ohdiff.operations.estimate import SourceEstimate
from ohdiff.operations.excludes import ExcludeOptions, ExcludeRules
from ohdiff.operations.source_paths import resolve_path
from ohdiff.operations.source_rules import DirectoryRules, KeepAll


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
