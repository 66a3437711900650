"""Restoring over what is there: only what differs is written, and what must not be written through is replaced."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.description import describe_folder, differences
from support.sources import build_zoo, mutate, random_bytes, text_bytes, write, write_sparse

MiB = 1 << 20
CHUNK_MAX = 16 << 10
PIECE = 128 << 10


@pytest.fixture
def copy(source: Path, place: Path) -> Callable[[], Path]:
    """A copy of the source with its times, as the target."""

    def make() -> Path:
        shutil.copytree(source, place / "target", symlinks=True)
        return place / "target"

    return make


def assert_equal(target: Path, source: Path) -> None:
    assert differences(describe_folder(target), describe_folder(source)) == {}


def test_one_flipped_byte_costs_one_chunk(library: Any, source: Path, copy: Callable[[], Path]) -> None:
    write(source / "file", random_bytes(MiB, 1))
    stored = library.vault.store(source)
    target = copy()
    with (target / "file").open("r+b") as file:
        file.seek(500_000)
        file.write(bytes([random_bytes(MiB, 1)[500_000] ^ 1]))
    inode = (target / "file").stat().st_ino
    result = library.restore(stored, target)
    assert result.errors == []
    assert 0 < result.bytes_written <= CHUNK_MAX
    assert result.bytes_kept == MiB - result.bytes_written
    assert (result.files.updated, result.files.unchanged) == (1, 0)
    assert (target / "file").stat().st_ino == inode
    assert_equal(target, source)


def test_a_flipped_byte_in_a_file_larger_than_a_check_costs_one_chunk(
    library: Any, source: Path, copy: Callable[[], Path]
) -> None:
    data = random_bytes(40 * MiB, 2)
    write(source / "file", data)
    stored = library.vault.store(source)
    target = copy()
    for offset in (0, 33 * MiB, 40 * MiB - 1):
        with (target / "file").open("r+b") as file:
            file.seek(offset)
            file.write(bytes([data[offset] ^ 0xFF]))
    result = library.restore(stored, target)
    assert 0 < result.bytes_written <= 3 * CHUNK_MAX
    assert_equal(target, source)


@pytest.mark.parametrize("size", [0, 1, 4096, 99_999, 100_001, 3 * MiB])
def test_a_file_of_another_length_gets_its_own(library: Any, source: Path, copy: Callable[[], Path], size: int) -> None:
    write(source / "file", random_bytes(100_000, 3))
    stored = library.vault.store(source)
    target = copy()
    write(target / "file", random_bytes(max(size, 100_000), 3)[:size])
    result = library.restore(stored, target)
    assert result.errors == []
    assert result.files.updated == 1
    assert result.bytes_written + result.bytes_kept == 100_000
    assert_equal(target, source)
    if size >= 100_000:
        assert result.bytes_written == 0


def test_attributes_alone_are_put_right_without_reading_the_repository(
    library: Any, source: Path, copy: Callable[[], Path]
) -> None:
    write(source / "time", b"1")
    write(source / "mode", random_bytes(3 * MiB, 4))
    (source / "folder").mkdir()
    (source / "link").symlink_to("x")
    stored = library.vault.store(source)
    target = copy()
    os.utime(target / "time", ns=(0, 0))
    os.utime(target / "link", ns=(0, 0), follow_symlinks=False)
    (target / "mode").chmod(0o600)
    (target / "folder").chmod(0o700)
    result = library.restore(stored, target)
    assert (result.files.metadata, result.directories.metadata, result.others.metadata) == (2, 1, 1)
    assert (result.files.updated, result.bytes_written) == (0, 0)
    assert_equal(target, source)


@pytest.mark.parametrize("seed", range(8))
def test_a_changed_tree_becomes_as_it_was(library: Any, source: Path, place: Path, seed: int) -> None:
    build_zoo(source)
    stored = library.vault.store(source)
    target = place / "target"
    assert library.restore(stored, target).errors == []
    expected = describe_folder(target)
    for number in range(5):
        mutate(target, seed * 5 + number)
    assert describe_folder(target) != expected
    result = library.restore(stored, target, delete=True, verify=True)
    assert result.errors == []
    assert differences(describe_folder(target), expected) == {}


OTHER_KINDS: dict[str, Callable[[Path], object]] = {
    "file": lambda path: write(path, b"other"),
    "large": lambda path: write(path, random_bytes(9 * MiB, 6)),
    "symlink": lambda path: path.symlink_to("somewhere"),
    "other symlink": lambda path: path.symlink_to("elsewhere"),
    "fifo": os.mkfifo,
    "folder": lambda path: write(path / "inner", b"1"),
}


@pytest.mark.parametrize("present", OTHER_KINDS)
@pytest.mark.parametrize("wanted", OTHER_KINDS)
def test_an_entry_of_another_kind_is_replaced(
    library: Any, source: Path, place: Path, wanted: str, present: str
) -> None:
    OTHER_KINDS[wanted](source / "entry")
    stored = library.vault.store(source)
    target = place / "target"
    target.mkdir()
    OTHER_KINDS[present](target / "entry")
    needs_delete = present == "folder" and wanted != "folder"
    if needs_delete:
        before = describe_folder(target / "entry")
        (refused,) = library.restore(stored, target).errors
        assert "--delete" in refused.hint
        assert refused.exit_code == 1
        assert describe_folder(target / "entry") == before
    result = library.restore(stored, target, delete=needs_delete)
    assert result.errors == []
    assert_equal(target, source)


def test_a_file_with_other_names_is_not_written_through(
    library: Any, source: Path, copy: Callable[[], Path], place: Path
) -> None:
    write(source / "small", b"wanted")
    write(source / "large", random_bytes(3 * MiB, 7))
    write(source / "time", b"same")
    stored = library.vault.store(source)
    target = copy()
    outside = place / "outside"
    outside.mkdir()
    write(target / "small", b"others")
    write(target / "large", random_bytes(3 * MiB - 1, 7) + b"?")
    os.utime(target / "time", ns=(0, 0))
    for name in ("small", "large", "time"):
        os.link(target / name, outside / name)
    before = describe_folder(outside)
    assert library.restore(stored, target).errors == []
    assert_equal(target, source)
    assert {path: entry for path, entry in describe_folder(outside).items() if path} == {
        path: entry for path, entry in before.items() if path
    }


def test_links_that_have_come_apart_are_made_again(library: Any, source: Path, copy: Callable[[], Path]) -> None:
    for name, data in (("small", b"1"), ("large", random_bytes(9 * MiB, 8))):
        write(source / f"{name} a", data)
        os.link(source / f"{name} a", source / f"{name} b")
        os.link(source / f"{name} a", source / f"{name} c")
    stored = library.vault.store(source)
    target = copy()
    (target / "small c").unlink()
    write(target / "large a", b"changed")
    result = library.restore(stored, target)
    assert result.errors == []
    assert (result.hard_links.restored, result.hard_links.updated) == (1, 3)
    assert_equal(target, source)


def test_a_link_group_is_changed_as_one(library: Any, source: Path, place: Path) -> None:
    write(source / "a", random_bytes(MiB, 9))
    os.link(source / "a", source / "b")
    first = library.vault.store(source)
    with (source / "b").open("r+b") as file:
        file.write(b"changed")
    second = library.vault.store(source)
    target = place / "target"
    for stored in (first, second, first):
        assert library.restore(stored, target).errors == []
        assert (target / "a").stat().st_ino == (target / "b").stat().st_ino
    with (source / "b").open("r+b") as file:
        file.write(random_bytes(MiB, 9)[:7])
    assert (target / "a").read_bytes() == (source / "a").read_bytes()


def holes_of(path: Path) -> tuple[tuple[int, int], ...]:
    return describe_folder(path.parent)[b"/" + path.name.encode()].extents


def test_holes_are_made_and_filled_until_they_are_as_they_were(library: Any, source: Path, place: Path) -> None:
    write_sparse(source / "sparse", 4 * MiB, {0: random_bytes(MiB, 10), 3 * MiB: random_bytes(MiB, 11)})
    write(source / "zeros", bytes(2 * MiB))
    write_sparse(source / "zeros in part", 2 * MiB, {0: bytes(MiB)})
    stored = library.vault.store(source)
    target = place / "target"
    target.mkdir()
    write(target / "sparse", (source / "sparse").read_bytes())
    write_sparse(target / "zeros", 2 * MiB, {})
    write_sparse(target / "zeros in part", 2 * MiB, {MiB: bytes(MiB)})
    result = library.restore(stored, target)
    assert result.errors == []
    assert_equal(target, source)
    assert library.restore(stored, target).files.unchanged == 3


def test_sparse_makes_holes_of_zeros_and_keeps_the_rest(library: Any, source: Path, place: Path) -> None:
    data = random_bytes(100_000, 12) + bytes(MiB) + random_bytes(200_000, 13) + bytes(300_000)
    write(source / "file", data)
    write(source / "small", bytes(100))
    write(source / "zeros", bytes(3 * MiB))
    write_sparse(source / "holes", 4 * MiB, {MiB: bytes(MiB), 3 * MiB: b"1" * 4096})
    stored = library.vault.store(source)
    target = place / "target"
    result = library.restore(stored, target, sparse=True)
    assert result.errors == []
    assert (target / "file").read_bytes() == data
    assert sum(end - start for start, end in holes_of(target / "file")) < 400_000
    assert holes_of(target / "zeros") == ()
    assert holes_of(target / "holes") == ((3 * MiB, 3 * MiB + 4096),)
    assert (target / "small").read_bytes() == bytes(100)
    assert library.restore(stored, target, sparse=True).bytes_written == 0
    shutil.copyfile(source / "zeros", target / "zeros")
    with (target / "zeros").open("r+b") as file:
        file.write(b"\1" * MiB)
    assert library.restore(stored, target, sparse=True).errors == []
    assert (target / "zeros").read_bytes() == bytes(3 * MiB)


def test_a_running_program_is_replaced(library: Any, source: Path, place: Path) -> None:
    shutil.copy2(shutil.which("sleep") or sys.executable, source / "program")
    stored = library.vault.store(source)
    target = place / "target"
    assert library.restore(stored, target).errors == []
    with (target / "program").open("ab") as file:
        file.write(b"appended")
    running = subprocess.Popen([target / "program", "60"])
    try:
        result = library.restore(stored, target)
        assert result.errors == []
        assert result.files.updated == 1
        assert_equal(target, source)
        assert running.poll() is None
    finally:
        running.kill()
        running.wait()


def test_no_temporary_name_is_left(library: Any, source: Path, copy: Callable[[], Path]) -> None:
    write(source / "a", random_bytes(9 * MiB, 14))
    (source / "b").symlink_to("x")
    stored = library.vault.store(source)
    target = copy()
    os.link(target / "a", target / "c")
    write(target / "a", text_bytes(1000))
    (target / "b").unlink()
    (target / "b").symlink_to("y")
    assert library.restore(stored, target).errors == []
    assert sorted(os.listdir(target)) == ["a", "b", "c"]
    assert (target / "c").read_bytes() == text_bytes(1000)


def test_a_huge_folder_is_compared_in_parts(library: Any, source: Path, copy: Callable[[], Path]) -> None:
    for number in range(5000):
        write(source / f"{number}", b"%d" % number)
    stored = library.vault.store(source)
    target = copy()
    for number in range(0, 5000, 100):
        (target / f"{number}").unlink()
        write(target / f"{number + 1}", b"other")
        write(target / f"extra {number}")
    result = library.restore(stored, target, delete=True)
    assert result.errors == []
    assert (result.files.restored, result.files.updated, result.files.deleted) == (50, 50, 50)
    assert result.files.unchanged == 4900
    assert_equal(target, source)
