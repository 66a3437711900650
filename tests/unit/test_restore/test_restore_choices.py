"""What the user may choose: overwrite policies, deletion, dry runs, filters, owners, verification."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from support.description import describe_folder, differences
from support.sources import build_zoo, random_bytes, text_bytes, write

from ohdiff.errors import EXIT_INTEGRITY, IntegrityError, NoSnapshotError, TargetError
from ohdiff.operations.restore import write as restore_write

MiB = 1 << 20
POLICIES = ["always", "if-changed", "if-newer", "never"]
OLD_NS, SNAPSHOT_NS, NEW_NS = 1_000_000_000, 2_000_000_000, 3_000_000_000


def stamp(path: Path, time_ns: int) -> None:
    os.utime(path, ns=(time_ns, time_ns), follow_symlinks=False)


@pytest.fixture
def pairs(library: Any, source: Path, tmp_path: Path) -> tuple[Any, Path]:
    """A snapshot, and a target in which each entry differs in one way."""
    target = tmp_path / "target"
    for name, data, there, time_ns in (
        ("older", b"wanted", b"on disk", OLD_NS),
        ("newer", b"wanted", b"on disk", NEW_NS),
        ("same time and size", b"wanted", b"target", SNAPSHOT_NS),
        ("same data, older", b"wanted", b"wanted", OLD_NS),
        ("same", b"wanted", b"wanted", SNAPSHOT_NS),
    ):
        stamp(write(source / name, data), SNAPSHOT_NS)
        stamp(write(target / name, there), time_ns)
    (source / "link").symlink_to("wanted")
    (target / "link").symlink_to("on disk")
    stamp(source / "link", SNAPSHOT_NS)
    stamp(target / "link", NEW_NS)
    stamp(write(source / "missing", b"wanted"), SNAPSHOT_NS)
    for root in (source, target):
        stamp(root, SNAPSHOT_NS)
    return library.vault.store(source), target


def contents(target: Path) -> dict[str, object]:
    return {
        path.name: path.readlink().name if path.is_symlink() else path.read_bytes().decode()
        for path in target.iterdir()
    }


EXPECTED: dict[str, dict[str, str]] = {
    "always": {},
    "if-changed": {"same time and size": "target"},
    "if-newer": {"newer": "on disk", "same time and size": "target", "link": "on disk"},
    "never": {"older": "on disk", "newer": "on disk", "same time and size": "target", "link": "on disk"},
}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_decides_on_entries_that_exist(library: Any, pairs: tuple[Any, Path], policy: str, heard: Any) -> None:
    stored, target = pairs
    result = library.restore(stored, target, heard, overwrite=policy)
    names = ("older", "newer", "same time and size", "same data, older", "same", "link", "missing")
    assert contents(target) == dict.fromkeys(names, "wanted") | EXPECTED[policy]
    assert result.errors == []
    assert result.files.restored == 1
    kept = {"if-newer": {"newer", "same time and size", "same"}, "never": set(names) - {"link", "missing"}}
    assert result.files.skipped == len(kept.get(policy, set()))
    time_ns = (target / "same data, older").stat().st_mtime_ns
    assert time_ns == (OLD_NS if policy == "never" else SNAPSHOT_NS)
    skipped = {Path(os.fsdecode(path)).name for path in heard.actions().get("skipped", set())}
    assert skipped - {"source"} == kept.get(policy, set()) | ({"link"} if policy in kept else set())


def test_what_a_policy_keeps_is_neither_entered_nor_linked_to(library: Any, source: Path, tmp_path: Path) -> None:
    write(source / "folder" / "inner", b"1")
    write(source / "a", b"wanted")
    os.link(source / "a", source / "b")
    os.link(source / "a", source / "c")
    stored = library.vault.store(source)
    target = tmp_path / "target"
    write(target / "folder", b"a file")
    write(target / "a", b"kept")
    result = library.restore(stored, target, overwrite="never")
    assert result.errors == []
    assert (target / "folder").read_bytes() == b"a file"
    assert (target / "a").read_bytes() == b"kept"
    assert (target / "b").read_bytes() == b"wanted"
    assert (target / "b").stat().st_ino == (target / "c").stat().st_ino != (target / "a").stat().st_ino


def test_delete_removes_what_the_snapshot_lacks_and_nothing_else(
    library: Any, source: Path, tmp_path: Path, heard: Any
) -> None:
    write(source / "kept" / "file", b"1")
    stored = library.vault.store(source)
    target = tmp_path / "target"
    build_zoo(target / "extra")
    write(target / "kept" / "extra file", b"2")
    (target / "kept" / "extra link").symlink_to(source)
    write(target / ".ohdiff-0123456789abcdef", b"left by a crash")
    without = library.restore(stored, target)
    assert (without.files.deleted, without.directories.deleted, without.others.deleted) == (0, 0, 0)
    assert (target / "extra" / "binary").exists()
    result = library.restore(stored, target, heard, delete=True)
    assert result.errors == []
    assert (result.files.deleted, result.directories.deleted, result.others.deleted) == (2, 1, 1)
    assert differences(describe_folder(target), describe_folder(source)) == {}
    names = {b"extra", b"kept/extra file", b"kept/extra link", b".ohdiff-0123456789abcdef"}
    assert heard.actions()["deleted"] == {bytes(source) + b"/" + name for name in names}
    assert (source / "kept" / "file").read_bytes() == b"1"


@pytest.mark.usefixtures("needs_root")
def test_delete_does_not_reach_into_what_is_mounted(library: Any, source: Path, tmp_path: Path) -> None:
    stored = library.vault.store(write(source / "x").parent)
    target = tmp_path / "target"
    write(tmp_path / "elsewhere" / "precious", b"1")
    mounts = [target / "extra" / "same file system", target / "extra" / "tmpfs"]
    for path in mounts:
        path.mkdir(parents=True)
    bind = ["mount", "--bind", str(tmp_path / "elsewhere"), str(mounts[0])]
    if os.system(" ".join(bind) + " 2> /dev/null"):
        pytest.skip("mounting is not allowed here")
    try:
        (error,) = library.restore(stored, target, delete=True).errors
        assert isinstance(error, TargetError)
        assert "unmount" in error.hint
        assert (tmp_path / "elsewhere" / "precious").read_bytes() == b"1"
        assert (target / "x").exists()
    finally:
        os.system(f"umount {mounts[0]}")
    assert library.restore(stored, target, delete=True).errors == []
    assert (tmp_path / "elsewhere" / "precious").exists()
    assert os.listdir(target) == ["x"]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_dry_run_touches_nothing_and_tells_what_would_be_done(
    library: Any, source: Path, tmp_path: Path, policy: str, new_heard: Callable[[], Any]
) -> None:
    build_zoo(source)
    write(source / "large", random_bytes(3 * MiB, 1))
    write(source / "large and linked", random_bytes(3 * MiB, 2))
    write(source / "was a folder", b"1")
    stored = library.vault.store(source)
    target = tmp_path / "target"
    assert library.restore(stored, target).errors == []
    write(target / "large", random_bytes(3 * MiB - 1, 1) + b"?")
    os.link(target / "large and linked", target / "extra link")
    with (target / "large and linked").open("ab") as file:
        file.write(b"more")
    shutil.rmtree(target / "many")
    (target / "text" / "poem.txt").write_bytes(text_bytes(30_000, 7))
    (target / "text" / "hard link").unlink()
    (target / "one").chmod(0o600)
    (target / "fifo").unlink()
    (target / "was a folder").unlink()
    write(target / "was a folder" / "inner", b"1")
    os.utime(target, ns=(0, 0))
    before = describe_folder(target)
    told, done = new_heard(), new_heard()
    dry = library.restore(stored, target, told, overwrite=policy, delete=True, dry_run=True)
    assert describe_folder(target) == before
    real = library.restore(stored, target, done, overwrite=policy, delete=True)
    assert dry.errors == real.errors == []
    assert told.actions() == done.actions()
    for tally in ("files", "directories", "others", "hard_links"):
        assert getattr(dry, tally) == getattr(real, tally)
    assert {"restored", "deleted"} <= told.actions().keys()


def test_a_dry_run_does_not_make_the_target(
    library: Any, source: Path, tmp_path: Path, new_heard: Callable[[], Any]
) -> None:
    build_zoo(source)
    stored = library.vault.store(source)
    told, done = new_heard(), new_heard()
    dry = library.restore(stored, tmp_path / "a" / "target", told, dry_run=True, delete=True)
    assert not (tmp_path / "a").exists()
    real = library.restore(stored, tmp_path / "a" / "target", done)
    assert told.actions() == done.actions()
    assert dry == real


def matching(*patterns: str) -> Callable[[bytes], bool]:
    return lambda path: any(fnmatchcase(os.fsdecode(path), pattern) for pattern in patterns)


def test_filters_choose_entries_and_make_only_the_folders_that_are_needed(
    library: Any, source: Path, tmp_path: Path
) -> None:
    for name in ("a/b/wanted.txt", "a/b/not.bin", "a/c/not.bin", "a/whole/x", "a/whole/y/z", "d/e/secret.txt", "f.txt"):
        write(source / name, name.encode())
    (source / "a" / "c" / "empty").mkdir()
    os.utime(source / "a" / "b", ns=(0, 5))
    stored = library.vault.store(source)
    target = tmp_path / "target"
    result = library.restore(
        stored, target, include=matching("*.txt", "*/whole"), exclude=matching("*/secret*", "*/whole/y")
    )
    assert result.errors == []
    found = {os.fsdecode(path) for path in describe_folder(target)}
    assert found == {"", "/a", "/a/b", "/a/b/wanted.txt", "/a/whole", "/a/whole/x", "/f.txt"}
    assert (target / "a" / "b").stat().st_mtime_ns == 5
    assert (result.files.restored, result.directories.restored) == (3, 4)


def test_deletion_leaves_alone_what_filters_leave_out(library: Any, source: Path, tmp_path: Path) -> None:
    write(source / "a" / "x.txt", b"1")
    write(source / "b" / "x.txt", b"1")
    stored = library.vault.store(source)
    target = tmp_path / "target"
    for name in ("a/extra.txt", "a/extra.bin", "a/kept.txt", "b/extra.bin", "extra.txt", "extra.bin"):
        write(target / name, b"2")
    library.restore(stored, target, delete=True, include=matching("*.txt"), exclude=matching("*/kept*"))
    found = {os.fsdecode(path) for path, entry in describe_folder(target).items() if stat.S_ISREG(entry.mode)}
    assert found == {"/a/x.txt", "/b/x.txt", "/a/extra.bin", "/a/kept.txt", "/b/extra.bin", "/extra.bin"}


def test_links_to_what_was_left_out_become_files_of_their_own(library: Any, source: Path, tmp_path: Path) -> None:
    write(source / "a", b"shared")
    for name in ("b", "c"):
        os.link(source / "a", source / name)
    stored = library.vault.store(source)
    target = tmp_path / "target"
    assert library.restore(stored, target, exclude=matching("*/a")).errors == []
    assert sorted(os.listdir(target)) == ["b", "c"]
    assert (target / "b").read_bytes() == b"shared"
    assert (target / "b").stat().st_ino == (target / "c").stat().st_ino


@pytest.mark.usefixtures("needs_root")
def test_without_owners_everything_is_ours_and_lends_no_rights(
    library: Any, source: Path, tmp_path: Path, heard: Any
) -> None:
    for name, mode in (("program", 0o6755), ("ours", 0o4755), ("folder", 0o2755)):
        path = source / name
        if name == "folder":
            path.mkdir()
        else:
            write(path, b"#!")
        if name != "ours":
            os.chown(path, 1000, 1000)
        path.chmod(mode)
    target = tmp_path / "target"
    assert library.restore(library.vault.store(source), target, heard, restore_owner=False).errors == []
    owners = {(entry.uid, entry.gid) for entry in describe_folder(target).values()}
    assert owners == {(0, 0)}
    assert stat.S_IMODE((target / "program").stat().st_mode) == 0o755
    assert stat.S_IMODE((target / "folder").stat().st_mode) == 0o2755
    assert stat.S_IMODE((target / "ours").stat().st_mode) == 0o4755
    assert heard.notes == []
    again = library.restore(library.vault.snapshots()[-1], target, restore_owner=False)
    assert (again.files.metadata, again.directories.metadata) == (0, 0)


def test_verifying_reads_everything_back(library: Any, source: Path, tmp_path: Path) -> None:
    build_zoo(source)
    write(source / "large", random_bytes(9 * MiB, 3))
    stored = library.vault.store(source)
    target = tmp_path / "target"
    for policy in ("always", "if-changed"):
        assert library.restore(stored, target, verify=True, overwrite=policy).errors == []
        assert differences(describe_folder(target), describe_folder(source)) == {}


def test_verifying_finds_what_a_lying_disk_has_written(
    library: Any, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system calls that write are wrapped, as a device that loses writes would do it."""
    write(source / "small", text_bytes(500))
    write(source / "fine", text_bytes(501))
    write(source / "large", random_bytes(20 * MiB, 4))
    write(source / "replaced", random_bytes(9 * MiB, 5))
    stored = library.vault.store(source)
    target = tmp_path / "target"
    os.link(write(target / "replaced", b"old"), tmp_path / "other name")
    create, write_at = restore_write.create_files, os.pwrite

    def create_badly(*arguments: Any) -> list[int]:
        done = create(*arguments)
        for fd, name in zip(arguments[0], arguments[1], strict=True):
            if name == b"small":
                bad = os.open(name, os.O_WRONLY, dir_fd=fd)
                write_at(bad, b"\0", 100)
                os.close(bad)
        return done

    monkeypatch.setattr(restore_write, "create_files", create_badly)
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: write_at(fd, bytes(len(data)), offset))
    result = library.restore(stored, target, verify=True)
    monkeypatch.undo()
    assert {type(error) for error in result.errors} == {IntegrityError}
    assert sorted(Path(error.item).name for error in result.errors) == ["large", "replaced", "small"]
    assert result.exit_code == EXIT_INTEGRITY
    assert sorted(os.listdir(target)) == ["fine", "replaced"]
    assert (target / "replaced").read_bytes() == b"old"
    assert result.files.restored == 1


def test_verifying_reports_a_file_that_only_looks_unchanged(library: Any, source: Path, tmp_path: Path) -> None:
    write(source / "file", b"wanted")
    stored = library.vault.store(source)
    target = tmp_path / "target"
    library.restore(stored, target)
    write(target / "file", b"forged")
    stamp(target / "file", (source / "file").stat().st_mtime_ns)
    assert library.restore(stored, target, overwrite="if-changed").errors == []
    (error,) = library.restore(stored, target, overwrite="if-changed", verify=True).errors
    assert "--overwrite always" in error.hint
    assert (target / "file").read_bytes() == b"forged"


@pytest.mark.parametrize("name", ["missing", "file/inner"])
def test_a_path_that_is_not_in_the_snapshot_is_refused_before_anything_is_made(
    library: Any, source: Path, tmp_path: Path, name: str
) -> None:
    write(source / "file")
    stored = library.vault.store(source)
    with pytest.raises(NoSnapshotError):
        library.restore(stored, tmp_path / "target", source=bytes(source / name))
    assert not (tmp_path / "target").exists()


def test_a_target_that_is_no_directory_is_refused(library: Any, source: Path, tmp_path: Path) -> None:
    stored = library.vault.store(source)
    write(tmp_path / "file", b"1")
    for target in (tmp_path / "file", tmp_path / "file" / "inner"):
        with pytest.raises(TargetError) as error:
            library.restore(stored, target)
        assert error.value.item == str(target)
    assert (tmp_path / "file").read_bytes() == b"1"


@pytest.mark.usefixtures("needs_root")
def test_a_place_for_everybody_keeps_its_attributes(library: Any, source: Path, tmp_path: Path) -> None:
    write(source / "file", b"1")
    source.chmod(0o700)
    stored = library.vault.store(source)
    shared, own = tmp_path / "shared", tmp_path / "own"
    for path, mode in ((shared, 0o1777), (own, 0o755)):
        path.mkdir()
        path.chmod(mode)
        os.chown(path, 1, 1)
        assert library.restore(stored, path).errors == []
        assert (path / "file").exists()
    assert (shared.stat().st_mode & 0o7777, shared.stat().st_uid) == (0o1777, 1)
    assert (own.stat().st_mode & 0o7777, own.stat().st_uid) == (0o700, 0)


def test_progress_knows_the_whole_where_the_snapshot_says_it(
    library: Any, source: Path, tmp_path: Path, new_heard: Callable[[], Any]
) -> None:
    write(source / "a", text_bytes(5000))
    stored = library.vault.store(source)
    whole, part = new_heard(), new_heard()
    library.restore(stored, tmp_path / "1", whole, source=b"")
    library.restore(stored, tmp_path / "2", part)
    assert (whole.last.files_done, whole.last.total_files) == (1, 1)
    assert (whole.last.bytes_done, whole.last.total_bytes) == (5000, 5000)
    assert part.last.total_files == 0
