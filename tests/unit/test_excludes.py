"""Exclude rules on real trees: gitignore grammar, tags, sizes, ignore files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.sources import write, write_bytes_name, write_sparse
from support.vault import Vault

from ohdiff.errors import UsageError
from ohdiff.operations.excludes import ExcludeOptions, ExcludeRules, compile_patterns

SIGNATURE = b"Signature: 8a477f597d28d172789f06886806bc55\n"
FILES = ("a.o", "a.c", "build/out", "src/build/x", "src/a.o", "src/keep.o", "src/deep/er/b.c", "docs/a.txt", "odd #1")


@pytest.fixture
def tree(source: Path) -> Path:
    for name in FILES:
        write(source / name, b"x")
    return source


def kept(vault: Vault, source: Path, options: ExcludeOptions) -> set[str]:
    """The files of a snapshot made under some rules."""
    stored = vault.store(source, rules=ExcludeRules(options))
    return {
        os.fsdecode(path[1:]) for path, found in vault.read(stored, source).items() if found.mode & 0xF000 == 0x8000
    }


@pytest.mark.parametrize(
    ("patterns", "excluded"),
    [
        ((), set()),
        (("*.o",), {"a.o", "src/a.o", "src/keep.o"}),
        (("/*.o",), {"a.o"}),
        (("*.o", "!keep.o"), {"a.o", "src/a.o"}),
        (("!keep.o", "*.o"), {"a.o", "src/a.o", "src/keep.o"}),
        (("build",), {"build/out", "src/build/x"}),
        (("build/",), {"build/out", "src/build/x"}),
        (("/build",), {"build/out"}),
        (("a.c/",), set()),
        (("src/build",), {"src/build/x"}),
        (("**/er",), {"src/deep/er/b.c"}),
        (("src/**/b.c",), {"src/deep/er/b.c"}),
        (("src/*.o",), {"src/a.o", "src/keep.o"}),
        (("src/*", "!src/build"), {"src/a.o", "src/keep.o", "src/deep/er/b.c"}),
        (("src", "!src/keep.o"), {name for name in FILES if name.startswith("src/")}),
        (("?.c",), {"a.c", "src/deep/er/b.c"}),
        (("[ab].c",), {"a.c", "src/deep/er/b.c"}),
        (("[!a].c",), {"src/deep/er/b.c"}),
        (("# a comment", "", "docs"), {"docs/a.txt"}),
        (("odd \\#1",), {"odd #1"}),
        (("A.O",), set()),
        (("*",), set(FILES)),
    ],
)
def test_patterns_follow_the_gitignore_grammar(
    vault: Vault, tree: Path, patterns: tuple[str, ...], excluded: set[str]
) -> None:
    assert kept(vault, tree, ExcludeOptions(patterns)) == set(FILES) - excluded


def test_a_pattern_may_begin_with_the_given_path(vault: Vault, tree: Path) -> None:
    assert kept(vault, tree, ExcludeOptions((f"{tree}/build", f"!{tree}/nothing"))) == set(FILES) - {"build/out"}


def test_patterns_are_relative_to_each_given_path(vault: Vault, tree: Path) -> None:
    rules = ExcludeRules(ExcludeOptions(("/build",)))
    stored = vault.store(tree / "src", tree / "build", rules=rules)
    assert b"/build" not in vault.read(stored, tree / "src")
    assert b"/out" in vault.read(stored, tree / "build")


def test_an_excluded_folder_leaves_nothing_and_an_emptied_one_stays(vault: Vault, tree: Path) -> None:
    stored = vault.store(tree, rules=ExcludeRules(ExcludeOptions(("build/", "docs/*"))))
    names = set(vault.read(stored, tree))
    assert b"/build" not in names
    assert b"/docs" in names


def test_names_that_are_not_text_can_be_excluded(vault: Vault, source: Path) -> None:
    write_bytes_name(source, b"odd \xff.bin", b"x")
    write_bytes_name(source, b"odd \xff.txt", b"x")
    assert kept(vault, source, ExcludeOptions(("*.bin",))) == {os.fsdecode(b"odd \xff.txt")}


@pytest.mark.parametrize("pattern", ["!", "ends with \\"])
def test_a_pattern_that_is_not_valid_is_a_usage_error(pattern: str) -> None:
    with pytest.raises(UsageError):
        ExcludeRules(ExcludeOptions((pattern,)))
    with pytest.raises(UsageError):
        compile_patterns([pattern])


def test_files_larger_than_a_limit_are_left_out(vault: Vault, source: Path) -> None:
    for size in (0, 99, 100, 101):
        write(source / f"{size}", bytes(size))
    write_sparse(source / "sparse", 1000, {})
    (source / "link").symlink_to("x" * 200)
    (source / "folder").mkdir()
    stored = vault.store(source, rules=ExcludeRules(ExcludeOptions(larger_than=100)))
    assert set(vault.read(stored, source)) == {b"", b"/0", b"/99", b"/100", b"/link", b"/folder"}


def test_a_tagged_cache_folder_keeps_only_its_tag(vault: Vault, source: Path) -> None:
    write(source / "cache" / "CACHEDIR.TAG", SIGNATURE)
    write(source / "cache" / "data")
    write(source / "cache" / "below" / "data")
    write(source / "not a cache" / "CACHEDIR.TAG", b"something else")
    write(source / "not a cache" / "data")
    (source / "odd" / "CACHEDIR.TAG").mkdir(parents=True)
    write(source / "odd" / "data")
    assert kept(vault, source, ExcludeOptions(caches=True)) == {
        "cache/CACHEDIR.TAG",
        "not a cache/CACHEDIR.TAG",
        "not a cache/data",
        "odd/data",
    }
    assert len(kept(vault, source, ExcludeOptions(patterns=("x",)))) == 6


def test_a_folder_that_holds_a_named_file_keeps_only_that(vault: Vault, source: Path) -> None:
    write(source / "skip" / ".nobackup")
    write(source / "skip" / "data")
    write(source / "take" / "data")
    assert kept(vault, source, ExcludeOptions(if_present=(b".nobackup", b".never"))) == {"skip/.nobackup", "take/data"}


def test_ignore_files_hold_for_their_folder_and_below_and_the_nearest_wins(vault: Vault, source: Path) -> None:
    write(source / ".gitignore", b"*.log\n/top\r\n")
    write(source / "a.log")
    write(source / "top")
    write(source / "below" / "top")
    write(source / "below" / "a.log")
    write(source / "below" / ".gitignore", b"!a.log\n")
    write(source / "below" / "more" / "a.log")
    assert kept(vault, source, ExcludeOptions(ignore_files=(b".gitignore",))) == {
        ".gitignore",
        "below/.gitignore",
        "below/top",
        "below/a.log",
        "below/more/a.log",
    }


def test_a_bad_line_in_an_ignore_file_is_passed_over(vault: Vault, source: Path) -> None:
    write(source / ".gitignore", b"*.log\n!\nends with \\\n*.tmp\n\xff\xfe\n")
    for name in ("a.log", "a.tmp", "a.txt"):
        write(source / name)
    assert kept(vault, source, ExcludeOptions(ignore_files=(b".gitignore",))) == {".gitignore", "a.txt"}


def test_an_ignore_file_that_is_a_link_or_a_folder_does_not_count(vault: Vault, source: Path) -> None:
    write(source / "rules", b"*.log\n")
    (source / ".gitignore").symlink_to("rules")
    (source / "below" / ".gitignore").mkdir(parents=True)
    write(source / "a.log")
    assert kept(vault, source, ExcludeOptions(ignore_files=(b".gitignore",))) == {"rules", "a.log"}


def test_excluding_more_removes_it_from_the_next_snapshot(vault: Vault, tree: Path) -> None:
    assert kept(vault, tree, ExcludeOptions()) == set(FILES)
    assert kept(vault, tree, ExcludeOptions(("src",))) == {name for name in FILES if not name.startswith("src/")}
    assert kept(vault, tree, ExcludeOptions()) == set(FILES)


def test_options_that_exclude_nothing_are_false() -> None:
    assert not ExcludeOptions()
    assert ExcludeOptions(larger_than=0)
    assert ExcludeOptions(caches=True)
