"""Every kind of entry comes back exactly, on the disk and in memory, and a second restore finds nothing to do."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.description import describe_folder, differences
from support.sources import BEFORE_1970_NS, build_zoo, random_bytes, text_bytes, write, write_bytes_name, write_sparse

from ohdiff._posix import get_flags, set_flags
from ohdiff.filesystem import DirectoryHandle
from ohdiff_format.tree import Listing

MiB = 1 << 20


def build_files(root: Path) -> None:
    """Files of none, one and many chunks, within one block and over several, and the same data again."""
    write(root / "empty")
    write(root / "one byte", b"x")
    write(root / "many chunks", random_bytes(300_001, 1))
    write(root / "two blocks", random_bytes(9 * MiB, 2))
    write(root / "two blocks again", random_bytes(9 * MiB, 2))
    write(root / "repeats", random_bytes(20_000, 3) * 5)
    write(root / "straddles", text_bytes(8 * MiB, 4))
    for number in range(50):
        write(root / f"small {number}", text_bytes(number * 997, number % 40))


def build_directories(root: Path) -> None:
    (root / "empty" / "inner").mkdir(parents=True)
    write(root / "closed" / "file", b"1")
    (root / "sticky").mkdir()
    for number in range(3000):
        write(root / "wide" / f"{number:05}", b"%d" % (number % 7))
    os.utime(root / "wide", ns=(1, -1))
    os.utime(root / "empty", ns=(1, 1_000_000_000_000_000_001))
    (root / "sticky").chmod(0o3777)
    (root / "closed").chmod(0o000)


def build_links(root: Path) -> None:
    write(root / "b first", b"shared")
    write(root / "a" / "second", b"x").unlink()
    os.link(root / "b first", root / "a" / "second")
    os.link(root / "b first", root / "third")
    (root / "symlink 1").symlink_to("target")
    os.link(root / "symlink 1", root / "symlink 2", follow_symlinks=False)
    write(root / "a" / "large", random_bytes(9 * MiB, 5))
    os.link(root / "a" / "large", root / "large too")
    write(root / "empty 1")
    os.link(root / "empty 1", root / "empty 2")
    os.mkfifo(root / "fifo 1")
    os.link(root / "fifo 1", root / "fifo 2")


def build_holes(root: Path) -> None:
    write_sparse(root / "all hole", MiB, {})
    write_sparse(root / "hole first", MiB, {MiB // 2: b"x" * 4096})
    write_sparse(root / "hole last", MiB, {0: b"x" * 4096})
    write_sparse(root / "hole in the midst", 3 * MiB, {0: random_bytes(MiB, 6), 2 * MiB: random_bytes(MiB, 7)})
    write_sparse(root / "many holes", 10 * MiB, {number << 16: bytes([number]) * 5000 for number in range(1, 150, 3)})
    write_sparse(root / "zeros as data", MiB // 2, {0: bytes(MiB // 4)})
    write_sparse(root / "beyond 4 GiB", (5 << 30) + 3, {0: b"begin", (5 << 30) - 1: b"end!"})


def build_owners(root: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may do this")
    write(root / "file", b"1")
    write(root / "set-id", b"1")
    (root / "folder").mkdir()
    (root / "link").symlink_to("file")
    os.mknod(root / "device", stat.S_IFBLK, os.makedev(259, 70_000))
    for number, path in enumerate(sorted(root.iterdir())):
        os.chown(path, 1000 + number, 2000 + number, follow_symlinks=False)
    (root / "set-id").chmod(0o6755)
    (root / "folder").chmod(0o2750)


def build_times(root: Path) -> None:
    for number, mtime_ns in enumerate((BEFORE_1970_NS, -1, 0, 1, 2**31 * 10**9 + 7, 2**33 * 10**9 + 999_999_999)):
        os.utime(write(root / f"{number}", b"1"), ns=(0, mtime_ns))
        (root / f"link {number}").symlink_to("x")
        os.utime(root / f"link {number}", ns=(0, mtime_ns), follow_symlinks=False)
        (root / f"folder {number}").mkdir()
        os.utime(root / f"folder {number}", ns=(0, mtime_ns))


def build_modes(root: Path) -> None:
    for mode in (0o0, 0o400, 0o4711, 0o2755, 0o1644, 0o7777, 0o000):
        write(root / f"{mode:o}", b"%d" % mode).chmod(mode)
        write(root / f"large {mode:o}", random_bytes(9 * MiB, 8)).chmod(mode)


BUILDERS = [
    build_zoo, build_files, build_directories, build_links, build_holes, build_owners, build_times, build_modes,
]  # fmt: skip


@pytest.mark.parametrize("build", BUILDERS)
def test_entries_come_back_exactly_and_a_second_restore_writes_nothing(
    library: Any, place: Path, build: Callable[[Path], object]
) -> None:
    source, target = place / "source", place / "target"
    source.mkdir()
    build(source)
    stored = library.vault.store(source)
    result = library.restore(stored, target)
    assert result.errors == []
    assert differences(describe_folder(target), describe_folder(source)) == {}
    again = library.restore(stored, target)
    assert again.errors == []
    assert again.bytes_written == 0
    for tally in (again.files, again.directories, again.others, again.hard_links):
        assert (tally.restored, tally.updated, tally.metadata) == (0, 0, 0)
    assert again.files.unchanged == result.files.restored
    assert differences(describe_folder(target), describe_folder(source)) == {}


def test_counts_say_what_was_restored(library: Any, source: Path, tmp_path: Path, heard: Any) -> None:
    build_zoo(source)
    stored = library.vault.store(source)
    result = library.restore(stored, tmp_path / "target", heard)
    entries = describe_folder(source)
    first = {path: entry for path, entry in entries.items() if entry.first_name == path}
    files = {path for path, entry in first.items() if stat.S_ISREG(entry.mode)}
    directories = {path for path, entry in first.items() if stat.S_ISDIR(entry.mode)}
    assert result.files.restored == len(files)
    assert result.directories.restored == len(directories)
    assert result.others.restored == len(first) - len(files) - len(directories)
    assert result.hard_links.restored == len(entries) - len(first)
    assert result.bytes_written == sum(end - start for path in files for start, end in entries[path].extents)
    assert heard.last.files_done == len(files)
    assert heard.last.bytes_done == result.bytes_written
    assert heard.actions() == {"restored": {bytes(source) + path for path in entries}}
    assert result.exit_code == 0


def test_a_whole_snapshot_is_restored_under_its_absolute_path(library: Any, source: Path, tmp_path: Path) -> None:
    build_zoo(source)
    target = tmp_path / "target"
    result = library.restore(library.vault.store(source), target, source=b"")
    assert result.errors == []
    inner = target / source.relative_to("/")
    assert differences(describe_folder(inner), describe_folder(source)) == {}
    for restored, original in zip(inner.parents, source.parents, strict=False):
        if restored == target:
            break
        assert restored.stat().st_mode == original.stat().st_mode


@pytest.mark.parametrize("name", ["poem.txt", "folder", "link", "fifo"])
def test_one_entry_is_restored_into_the_target_under_its_name(
    library: Any, source: Path, tmp_path: Path, name: str
) -> None:
    write(source / "poem.txt", text_bytes(100_000))
    write(source / "other", b"not asked for")
    (source / "folder").mkdir()
    (source / "link").symlink_to("poem.txt")
    os.mkfifo(source / "fifo")
    target = tmp_path / "target"
    write(target / "stays", b"1")
    stored = library.vault.store(source)
    result = library.restore(stored, target, source=bytes(source / name), delete=name != "folder")
    assert result.errors == []
    expected = {b"/stays"} if name == "folder" else {b"/stays", b"/" + name.encode()}
    found = describe_folder(target)
    assert found.keys() - {b""} == expected
    if name != "folder":
        assert found[b"/" + name.encode()] == describe_folder(source)[b"/" + name.encode()]


def test_names_are_bytes(library: Any, source: Path, place: Path) -> None:
    names = [b"\xff", b"\xc3\x28", b"new\nline", b" ", b"-rf", b"*", b"...", b"\\", "ä€𝄞".encode(), b"a" * 255]
    for number, name in enumerate(names):
        write_bytes_name(source, name, b"%d" % number)
    stored = library.vault.store(source)
    assert library.restore(stored, bytes(place) + b"/\xfe target").errors == []
    assert set(os.listdir(bytes(place) + b"/\xfe target")) == set(names)


def test_a_tree_deeper_than_a_path_may_be_long_comes_back_with_few_descriptors(
    library: Any, source: Path, place: Path
) -> None:
    build_tower(source, 1000)
    stored = library.vault.store(source)
    expected = climb(source)
    assert len(expected) == 1000
    assert library.restore(stored, place / "target").errors == []
    assert climb(place / "target") == expected
    again = library.restore(stored, place / "target")
    assert (again.directories.unchanged, again.bytes_written) == (1001, 0)
    # Removing it by --delete is part of the test, and spares the deep tree to what clears up after tests.
    flat = library.vault.store(write(source.parent / "flat" / "x").parent)
    for path in (place / "target", source):
        assert library.restore(flat, path, delete=True).errors == []
        assert os.listdir(path) == ["x"]


def build_tower(root: Path, levels: int) -> None:
    """Directories in each other, each with a file, of which every tenth lies in several blocks with others."""
    handle = DirectoryHandle.open_root(root)
    for level in range(levels):
        fd = handle.create_file(b"file")
        os.write(fd, b"%d" % level if level % 10 else random_bytes(20_000, level))
        os.close(fd)
        inner = handle.make_child(b"folder with a long name")
        os.utime(b"file", ns=(0, level), dir_fd=handle.fd)
        os.utime(handle.fd, ns=(0, -level))
        handle.close()
        handle = inner
    handle.close()


def climb(root: Path) -> list[tuple[int, int, bytes]]:
    """Of each level the times and the file's first bytes."""
    found = []
    handle = DirectoryHandle.open_root(root)
    while b"file" in handle.names():
        fd = handle.open_file(b"file")
        found.append((os.fstat(handle.fd).st_mtime_ns, os.fstat(fd).st_mtime_ns, os.pread(fd, 100, 0)))
        os.close(fd)
        inner = handle.open_child(b"folder with a long name")
        handle.close()
        handle = inner
    handle.close()
    return found


def test_xattrs_and_acls_come_back_and_those_handed_down_do_not_stay(
    library: Any, source: Path, tmp_path: Path
) -> None:
    acl = bytes.fromhex("02000000 01000600ffffffff 02000700e7030000 04000400ffffffff 10000700ffffffff 20000000ffffffff")
    for name in ("file", "large"):
        write(source / name, random_bytes(9 * MiB if name == "large" else 10))
        os.setxattr(source / name, "user.a", b"\0\xff")
        os.setxattr(source / name, "user.empty", b"")
    (source / "folder").mkdir()
    write(source / "plain", b"1")
    target = tmp_path / "target"
    target.mkdir()
    try:
        os.setxattr(source / "file", "system.posix_acl_access", acl)
        os.setxattr(source / "folder", "system.posix_acl_default", acl)
        os.setxattr(target, "system.posix_acl_default", acl)
    except OSError:
        pytest.skip("this file system keeps no ACLs")
    stored = library.vault.store(source)
    assert library.restore(stored, target).errors == []
    assert differences(describe_folder(target), describe_folder(source)) == {}
    assert os.listxattr(target / "plain") == []
    os.removexattr(target / "large", "user.a")
    os.setxattr(target / "plain", "user.too much", b"1")
    again = library.restore(stored, target)
    assert (again.files.metadata, again.bytes_written) == (2, 0)
    assert differences(describe_folder(target), describe_folder(source)) == {}


IMMUTABLE, APPEND, NODUMP = 0x10, 0x20, 0x40


def flags_of(path: Path) -> int:
    fd = os.open(path, os.O_RDONLY)
    try:
        return get_flags(fd)
    finally:
        os.close(fd)


def flag(path: Path, flags: int) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        set_flags(fd, flags)
    except OSError as error:
        pytest.skip(f"no flags here: {error}")
    finally:
        os.close(fd)


def unflag(root: Path) -> None:
    for path in [root, *root.rglob("*")]:
        if not path.is_symlink():
            flag(path, 0)


@pytest.mark.usefixtures("needs_root")
def test_flags_are_set_last_and_lifted_to_make_changes(library: Any, source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    write(source / "folder" / "immutable", b"1")
    write(source / "folder" / "append only", random_bytes(9 * MiB))
    write(source / "no dump", b"1")
    os.link(source / "folder" / "immutable", source / "link")
    wanted = {
        "folder/immutable": IMMUTABLE, "folder/append only": APPEND, "no dump": NODUMP, "folder": IMMUTABLE,
    }  # fmt: skip
    try:
        for name, flags in wanted.items():
            flag(source / name, flags)
        stored = library.vault.store(source)
        assert library.restore(stored, target).errors == []
        assert {name: flags_of(target / name) for name in wanted} == wanted
        assert differences(describe_folder(target), describe_folder(source)) == {}
        assert library.restore(stored, target).bytes_written == 0
        unflag(source)
        write(source / "folder" / "immutable", b"2")
        write(source / "folder" / "append only", b"short")
        write(source / "folder" / "new", b"3")
        os.utime(source / "no dump", ns=(0, 0))
        changed = library.vault.store(source)
        assert library.restore(changed, target).errors == []
        assert differences(describe_folder(target), describe_folder(source)) == {}
        assert {flags_of(target / name) for name in wanted} == {0}
        for name, flags in wanted.items():
            flag(target / name, flags)
        empty = library.vault.store(write(tmp_path / "empty" / "x").parent)
        assert library.restore(empty, target, delete=True).errors == []
        assert os.listdir(target) == ["x"]
    finally:
        unflag(source)
        if target.exists():
            unflag(target)


def test_special_files_are_made_of_rows(library: Any, tmp_path: Path, rows: Callable[..., Listing]) -> None:
    listing = rows({b"a": stat.S_IFIFO | 0o640, b"b": stat.S_IFSOCK | 0o755, b"c": stat.S_IFLNK | 0o777})
    listing.targets[2] = b"../\xff"
    assert library.restore(library.store_rows(listing), tmp_path / "target", source=b"").errors == []
    found = describe_folder(tmp_path / "target")
    assert [found[b"/" + name].mode for name in listing.names] == listing.modes
    assert found[b"/c"].target == b"../\xff"
