"""Differences of trees: the same for snapshots and for folders, whichever stands on which side."""

from __future__ import annotations

import itertools
import os
import resource
import shutil
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.sources import as_ordinary_user, build_zoo, random_bytes, text_bytes, write, write_sparse
from support.vault import Told, Vault, engine_of

from ohdiff.errors import IntegrityError
from ohdiff.filesystem import DirectoryHandle
from ohdiff.operations import diff_reading, tree_reader, tree_writer
from ohdiff.operations.diff import Change, DiffResult, diff
from ohdiff.operations.diff_content import changed_ranges, content_change
from ohdiff.operations.diff_reading import FolderReader
from ohdiff.operations.diff_sides import Directory, FolderDirectory, SnapshotDirectory, open_folder
from ohdiff.operations.file_reading import FileBatch
from ohdiff.operations.restore.folders import Folder
from ohdiff.operations.source_rules import KeepAll
from ohdiff.operations.tree_reader import Entry

MiB = 1 << 20
Side = Callable[[Path], Directory]


class Sides:
    """Makes either side of a diff out of a folder."""

    def __init__(self, vault: Vault, stack: ExitStack) -> None:
        self.vault = vault
        self.told = Told()
        self._stack = stack

    def folder(self, path: Path) -> Directory:
        handle = DirectoryHandle.open_root(path)
        return open_folder(handle, b"", engine_of(self.vault.open()), KeepAll(), self.told)

    def snapshot(self, path: Path) -> Directory:
        stored = self.vault.store(path, parent=None)
        tree = self._stack.enter_context(self.vault.tree())
        return SnapshotDirectory(tree, tree.directory(stored.root, bytes(path))[0], b"")


@pytest.fixture
def sides(vault: Vault) -> Iterator[Sides]:
    with ExitStack() as stack:
        yield Sides(vault, stack)


@pytest.fixture(params=["snapshot-snapshot", "snapshot-folder", "folder-snapshot", "folder-folder"])
def compare(request: pytest.FixtureRequest, sides: Sides) -> Callable[..., DiffResult]:
    left, right = request.param.split("-")

    def compare(before: Path, after: Path, **options: bool) -> DiffResult:
        return diff(getattr(sides, left)(before), getattr(sides, right)(after), **options)

    return compare


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """Two folders that hold the same."""
    build_zoo(tmp_path / "a")
    subprocess.run(["cp", "-a", tmp_path / "a", tmp_path / "b"], check=True)
    return tmp_path / "a", tmp_path / "b"


def told(result: DiffResult) -> list[tuple[str, bytes]]:
    return [(change.kind, change.path) for change in result.changes]


def test_equal_trees_have_no_differences(compare: Callable[..., DiffResult], pair: tuple[Path, Path]) -> None:
    result = compare(*pair)
    assert told(result) == []
    assert (result.new_size, result.shared_size, result.removed_size) == (0, 0, 0)


def test_every_kind_of_difference_is_told_in_order_of_path(
    compare: Callable[..., DiffResult], pair: tuple[Path, Path]
) -> None:
    _, after = pair
    write(after / "added", text_bytes(500, 77))
    (after / "binary").write_bytes(random_bytes(700_000, 55))
    (after / "one").unlink()
    (after / "many" / "007").unlink()
    (after / "many" / "007").mkdir()
    (after / "to file").unlink()
    (after / "to file").symlink_to("elsewhere")
    (after / "text" / "poem.txt").rename(after / "verse.txt")
    (after / "new empty folder").mkdir()
    (after / "empty folder").rmdir()
    write(after / "new folder" / "inside", b"fresh")
    shutil.rmtree(after / "folder with mode")
    result = compare(*pair)
    assert told(result) == [
        ("added", b"/added"),
        ("modified", b"/binary"),
        ("removed", b"/empty folder"),
        ("removed", b"/folder with mode"),
        ("type", b"/many/007"),
        ("added", b"/new empty folder"),
        ("added", b"/new folder"),
        ("added", b"/new folder/inside"),
        ("removed", b"/one"),
        ("modified", b"/text/hard link"),
        ("modified", b"/to file"),
        ("moved", b"/verse.txt"),
    ]
    (moved,) = [change for change in result.changes if change.kind == "moved"]
    assert moved.before is not None
    assert moved.before.path == b"/text/poem.txt"
    assert result.count("modified") == 3
    assert result.removed_size == 1


def test_metadata_is_told_only_when_it_is_asked_for(
    compare: Callable[..., DiffResult], pair: tuple[Path, Path]
) -> None:
    _, after = pair
    (after / "text" / "copy.txt").chmod(0o600)
    os.utime(after / "many" / "003", ns=(5, 5))
    (after / "folder with mode").chmod(0o700)
    for path in (after / "text", after / "many"):
        os.utime(path, ns=(0, (pair[0] / path.name).stat().st_mtime_ns))
    assert told(compare(*pair)) == []
    changes = compare(*pair, with_metadata=True).changes
    details = {change.path: change.details for change in changes}
    assert {change.kind for change in changes} == {"metadata"}
    assert details[b"/text/copy.txt"] == ["mode"]
    assert details[b"/many/003"] == ["mtime"]
    assert details[b"/folder with mode"] == ["mode"]


def test_xattrs_and_owners_are_metadata(compare: Callable[..., DiffResult], tmp_path: Path) -> None:
    for name in "ab":
        write(tmp_path / name / "file", b"x")
        os.utime(tmp_path / name / "file", ns=(1, 1))
    try:
        os.setxattr(tmp_path / "b" / "file", "user.x", b"1")
    except OSError:
        pytest.skip("this file system has no xattrs")
    expected = ["xattrs"]
    if os.geteuid() == 0:
        os.chown(tmp_path / "b" / "file", 5, 6)
        expected = ["owner", "xattrs"]
    (change,) = compare(tmp_path / "a", tmp_path / "b", with_metadata=True).changes
    assert change.details == expected


def test_files_of_equal_size_are_told_apart_by_their_bytes(compare: Callable[..., DiffResult], tmp_path: Path) -> None:
    for name in "ab":
        write(tmp_path / name / "same", b"equal")
        write(tmp_path / name / "other", name.encode() * 5)
        for entry in ("same", "other"):
            os.utime(tmp_path / name / entry, ns=(7, 7))
    assert told(compare(tmp_path / "a", tmp_path / "b")) == [("modified", b"/other")]


def test_where_the_data_of_a_sparse_file_lies_makes_a_difference(
    compare: Callable[..., DiffResult], tmp_path: Path
) -> None:
    data = random_bytes(256 << 10, 1)
    for name in "ab":
        write_sparse(tmp_path / name / "same", 4 * MiB, {MiB: data})
    write_sparse(tmp_path / "a" / "shifted", 4 * MiB, {MiB: data})
    write_sparse(tmp_path / "b" / "shifted", 4 * MiB, {2 * MiB: data})
    assert told(compare(tmp_path / "a", tmp_path / "b")) == [("modified", b"/shifted")]


def test_new_and_shared_bytes_are_counted_by_chunk(compare: Callable[..., DiffResult], tmp_path: Path) -> None:
    write(tmp_path / "a" / "grown", random_bytes(2 * MiB, 1))
    write(tmp_path / "b" / "grown", random_bytes(2 * MiB, 1) + random_bytes(MiB, 2))
    result = compare(tmp_path / "a", tmp_path / "b")
    assert told(result) == [("modified", b"/grown")]
    assert result.new_size + result.shared_size == 3 * MiB
    assert MiB <= result.new_size <= MiB + (512 << 10)


def test_bytes_that_an_unchanged_file_of_the_left_snapshot_holds_are_shared(sides: Sides, tmp_path: Path) -> None:
    for name in "ab":
        write(tmp_path / name / "kept", random_bytes(MiB, 1))
    write(tmp_path / "b" / "copy", random_bytes(MiB, 1))
    result = diff(sides.snapshot(tmp_path / "a"), sides.folder(tmp_path / "b"))
    assert told(result) == [("added", b"/copy")]
    assert (result.new_size, result.shared_size) == (0, MiB)


def test_each_removed_file_is_moved_to_one_place_at_most(compare: Callable[..., DiffResult], tmp_path: Path) -> None:
    write(tmp_path / "a" / "old", b"content")
    (tmp_path / "b").mkdir()
    for name in ("x", "y"):
        write(tmp_path / "b" / name, b"content")
    assert told(compare(tmp_path / "a", tmp_path / "b")) == [("moved", b"/x"), ("added", b"/y")]


def test_empty_files_are_not_taken_for_moved(compare: Callable[..., DiffResult], tmp_path: Path) -> None:
    write(tmp_path / "a" / "old")
    write(tmp_path / "b" / "new")
    assert told(compare(tmp_path / "a", tmp_path / "b")) == [("added", b"/new"), ("removed", b"/old")]


def test_an_unchanged_subtree_of_two_snapshots_is_not_entered(sides: Sides, source: Path) -> None:
    for number in range(50):
        write(source / "quiet" / f"{number}", b"%d" % number)
    write(source / "loud" / "file", b"before")
    before = sides.vault.store(source)
    write(source / "loud" / "file", b"after!")
    after = sides.vault.store(source)
    entered: list[bytes] = []

    class Watched(SnapshotDirectory):
        def child(self, entry: object) -> SnapshotDirectory:
            child = super().child(entry)  # type: ignore[arg-type]
            return Watched(child._tree, child.content, child.path)

        def entries_apart(self, other: SnapshotDirectory) -> tuple[Iterator[Entry], Iterator[Entry]]:
            entered.append(self.path)
            return super().entries_apart(other)

    with sides.vault.tree() as tree:
        left, right = (Watched(tree, tree.directory(each.root, bytes(source))[0], b"") for each in (before, after))
        assert told(diff(left, right)) == [("modified", b"/loud/file")]
    assert entered == [b"", b"/loud"]


def test_of_a_large_folder_only_leaves_that_differ_are_read(
    sides: Sides, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(6000):
        write(source / f"{number:05}", b"%d" % number)
    before = sides.vault.store(source)
    write(source / "03000", b"changed")
    (source / "04000").unlink()
    after = sides.vault.store(source)
    decoded: list[bytes] = []
    decode = tree_reader.decode_listing
    monkeypatch.setattr(tree_reader, "decode_listing", lambda data: decoded.append(data) or decode(data))
    with sides.vault.tree() as tree:
        contents = [tree.directory(each.root, bytes(source))[0] for each in (before, after)]
        decoded.clear()
        result = diff(*(SnapshotDirectory(tree, content, b"") for content in contents))
    assert told(result) == [("modified", b"/03000"), ("removed", b"/04000")]
    assert result.new_size == len(b"changed")
    assert len(contents[0].sizes) > 6
    assert len(decoded) <= 4


def test_one_file_against_another_of_the_same_leaf_is_compared(sides: Sides, source: Path) -> None:
    write(source / "one", b"first text")
    write(source / "two", b"other text")
    stored = sides.vault.store(source)
    with sides.vault.tree() as tree:
        content = tree.directory(stored.root, bytes(source))[0]
        result = diff(*(SnapshotDirectory(tree, content, b"", name) for name in (b"one", b"two")))
    assert told(result) == [("removed", b"/one"), ("added", b"/two")]
    assert (result.new_size, result.removed_size) == (10, 10)


def test_the_chunks_of_all_files_are_those_that_a_walk_finds(
    sides: Sides, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree_writer, "INLINE_CHUNKS_MAX", 4)
    build_zoo(source)
    write(source / "many chunks", random_bytes(3 * MiB, 1))
    (source / "empty").mkdir()
    for number in range(300):
        write(source / "folder" / "deep" / f"{number}", b"%d" % (number % 7))
    stored = sides.vault.store(source)
    with sides.vault.tree() as tree:
        files = [entry for entry in tree.walk(stored.root) if entry.is_file]
        assert any(entry.content.depth for entry in files)
        walked = [chunk_id for entry in files for chunk_id in tree.joined(entry.content).chunk_ids()]
        found = b"".join(tree.file_chunk_ids(stored.root))
    assert Counter(found[start : start + 32] for start in range(0, len(found), 32)) == Counter(walked)


def test_a_snapshot_against_its_own_folder_reads_no_file(
    sides: Sides, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_zoo(source)
    left = sides.snapshot(source)
    monkeypatch.setattr(FolderReader, "read", lambda *_: pytest.fail("a file was read"))
    assert told(diff(left, sides.folder(source))) == []


def test_what_cannot_be_read_in_a_folder_is_reported(sides: Sides, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents[:2]:
        parent.chmod(0o755)
    for name in "ab":
        write(tmp_path / name / "closed" / "inside", b"x")
        write(tmp_path / name / "secret", name.encode())
        os.utime(tmp_path / name / "secret", ns=(3, 3))
    (tmp_path / "b" / "closed").chmod(0)
    (tmp_path / "b" / "secret").chmod(0)
    left, right = sides.folder(tmp_path / "a"), sides.folder(tmp_path / "b")
    with as_ordinary_user():
        diff(left, right)
    (tmp_path / "b" / "closed").chmod(0o755)
    assert {error.item for error in sides.told.errors} == {"/closed", "/secret"}


# Reading


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[bytes]:
    """Counts how often each file of a folder is read, by name."""
    counted: Counter[bytes] = Counter()
    read, alone = diff_reading.read_batch, diff_reading.FilePieces

    def read_batch(batch: FileBatch, *rest: Any) -> Any:
        counted.update(batch.names)
        return read(batch, *rest)

    def read_alone(handle: DirectoryHandle, name: bytes, *rest: Any) -> Any:
        counted.update([name])
        return alone(handle, name, *rest)

    monkeypatch.setattr(diff_reading, "read_batch", read_batch)
    monkeypatch.setattr(diff_reading, "FilePieces", read_alone)
    return counted


def test_each_file_of_a_folder_is_read_once(sides: Sides, tmp_path: Path, reads: Counter[bytes]) -> None:
    for number, name in enumerate("ab"):
        for size in (5, 70_000, 3 * MiB, 9 * MiB):
            write(tmp_path / name / "kept" / f"kept {size}", random_bytes(size, size))
            write(tmp_path / name / "changed" / f"changed {size}", random_bytes(size, size + number + 1))
            write(tmp_path / name / f"moved {name}" / f"moved {size} {name}", random_bytes(size, size + 9))
            write(tmp_path / name / f"only {name} {size}", random_bytes(size, size + 20 + number))
        write(tmp_path / name / "grown", random_bytes(1000 + number, 3))
        write_sparse(tmp_path / name / "sparse", 4 * MiB, {(1 + number) * MiB: random_bytes(70_000, 1)})
    result = diff(sides.folder(tmp_path / "a"), sides.folder(tmp_path / "b"))
    assert result.count("moved") == 4
    assert result.count("modified") == 6
    assert (result.count("added"), result.count("removed")) == (5, 5)
    for change in result.changes:
        content_change(change)
    is_twice = {name for name in reads if not name.startswith((b"moved", b"only"))}
    assert {name: count for name, count in reads.items() if count != 1 + (name in is_twice)} == {}
    assert len(reads) == 8 + 2 * 4 + 2 * 4 + 2


@pytest.mark.parametrize("batch_size", [1, 100_000])
def test_small_batches_find_the_same(
    sides: Sides, pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, batch_size: int
) -> None:
    before, after = pair
    (after / "binary").write_bytes(random_bytes(700_000, 55))
    (after / "text" / "poem.txt").rename(after / "verse.txt")
    expected = told(diff(sides.snapshot(before), sides.snapshot(after)))
    monkeypatch.setattr(diff_reading, "BATCH_SIZE_BYTES", batch_size)
    monkeypatch.setattr(diff_reading, "BATCH_FILES_MAX", 2)
    monkeypatch.setattr(diff_reading, "_AHEAD", 1)
    assert told(diff(sides.snapshot(before), sides.folder(after))) == expected
    assert told(diff(sides.folder(before), sides.folder(after))) == expected
    assert sides.told.errors == []


@pytest.mark.parametrize("others", [0, 400])
def test_many_and_deep_folders_need_few_descriptors(sides: Sides, tmp_path: Path, others: int) -> None:
    deep = Path(*["d"] * 150)
    for number, name in enumerate("ab"):
        for folder in range(200):
            write(tmp_path / name / f"{folder:03}" / "file", b"%d of %d" % (number, folder))
        write(tmp_path / name / deep / "file", b"%d" % number)
    held = [os.open(tmp_path, os.O_RDONLY) for _ in range(others)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 100, hard))
    try:
        left, right = sides.folder(tmp_path / "a"), sides.folder(tmp_path / "b")
        result = diff(left, right)
        assert sides.told.errors == []
        assert result.count("modified") == 201
        assert sum(len(content_change(change).lines or ()) for change in result.changes) >= 201
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in held:
            os.close(fd)


def test_a_file_that_changes_after_it_was_listed_is_read_as_it_is_then(
    sides: Sides, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        write(tmp_path / name / "file", b"before")
        write(tmp_path / name / "other", b"other")
        os.utime(tmp_path / name / "other", ns=(ord(name), 1))
    left = sides.snapshot(tmp_path / "a")
    read = diff_reading.read_batch

    def change_then_read(*arguments: Any) -> Any:
        write(tmp_path / "b" / "file", b"later!")
        return read(*arguments)

    monkeypatch.setattr(diff_reading, "read_batch", change_then_read)
    assert told(diff(left, sides.folder(tmp_path / "b"))) == [("modified", b"/file")]


def test_a_folder_that_vanishes_before_its_files_are_read_is_reported(
    sides: Sides, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        write(tmp_path / name / "folder" / "file", b"data!")
        write(tmp_path / name / "rest", b"data!")
    read = FolderReader.read

    def remove_then_read(self: FolderReader, folder: Folder, *rest: Any) -> None:
        if folder.name == b"folder":
            shutil.rmtree(tmp_path / "b" / "folder", ignore_errors=True)
            self._folders.forget(folder)
        read(self, folder, *rest)

    left = sides.snapshot(tmp_path / "a")
    monkeypatch.setattr(FolderReader, "read", remove_then_read)
    assert told(diff(left, sides.folder(tmp_path / "b"))) == [("modified", b"/folder/file")]
    assert [error.item for error in sides.told.errors] == ["/folder/file"]


def test_readers_end_with_a_diff_that_fails(sides: Sides, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "ab":
        write(tmp_path / name / "file", random_bytes(5 * MiB, 1))
        write(tmp_path / name / "z" / "file", b"x")

    def fail(self: FolderDirectory, entry: Entry) -> Directory:
        raise IntegrityError("damaged")

    monkeypatch.setattr(FolderDirectory, "child", fail)
    before = threading.active_count()
    with pytest.raises(IntegrityError):
        diff(sides.folder(tmp_path / "a"), sides.folder(tmp_path / "b"))
    assert threading.active_count() == before


# Content


def change_of(result: DiffResult) -> Change:
    (change,) = result.changes
    return change


def test_text_is_shown_as_a_unified_diff(compare: Callable[..., DiffResult], tmp_path: Path) -> None:
    write(tmp_path / "a" / "poem", b"one\ntwo\nthree\n")
    write(tmp_path / "b" / "poem", "one\nzwölf\nthree\n".encode())
    found = content_change(change_of(compare(tmp_path / "a", tmp_path / "b")))
    assert found.lines == [
        "--- a/poem\n",
        "+++ b/poem\n",
        "@@ -1,3 +1,3 @@\n",
        " one\n",
        "-two\n",
        "+zwölf\n",
        " three\n",
    ]


def test_added_and_removed_text_is_shown_against_nothing(compare: Callable[..., DiffResult], tmp_path: Path) -> None:
    write(tmp_path / "a" / "old", b"gone\n")
    write(tmp_path / "b" / "new", b"come\n")
    lines = [content_change(change).lines for change in compare(tmp_path / "a", tmp_path / "b").changes]
    assert [each[-1] for each in lines if each] == ["+come\n", "-gone\n"]


def test_other_files_are_shown_as_changed_ranges(compare: Callable[..., DiffResult], tmp_path: Path) -> None:
    data = random_bytes(3 * MiB, 1)
    write(tmp_path / "a" / "blob", data)
    changed = bytearray(data)
    changed[MiB : MiB + 100] = bytes(100)
    write(tmp_path / "b" / "blob", changed)
    found = content_change(change_of(compare(tmp_path / "a", tmp_path / "b")))
    assert found.lines is None
    assert sum(end - start for start, end in found.ranges) < MiB
    assert any(start <= MiB and MiB + 100 <= end for start, end in found.ranges)


def test_a_file_that_vanished_has_no_content_to_show(sides: Sides, tmp_path: Path) -> None:
    write(tmp_path / "a" / "file", b"one\n")
    write(tmp_path / "b" / "file", b"two two\n")
    change = change_of(diff(sides.folder(tmp_path / "a"), sides.folder(tmp_path / "b")))
    (tmp_path / "b" / "file").unlink()
    content_change(change)
    assert [error.item for error in sides.told.errors][:1] == ["/file"]


@given(
    before=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9))),
    after=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9))),
)
def test_changed_ranges_are_the_chunks_that_are_new(
    before: list[tuple[int, int]], after: list[tuple[int, int]]
) -> None:
    left = [(b"%d" % number, size) for number, size in before]
    right = [(b"%d" % number, size) for number, size in after]
    known = {chunk_id for chunk_id, _ in left}
    expected: set[int] = set()
    offset = 0
    for chunk_id, size in right:
        if chunk_id not in known:
            expected |= set(range(offset, offset + size))
        offset += size
    ranges = changed_ranges(left, right)
    assert {position for start, end in ranges for position in range(start, end)} == expected
    assert all(first[1] < second[0] for first, second in itertools.pairwise(ranges))
