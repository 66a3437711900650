"""Snapshots of real trees: what is stored is what the system says is there, and what is unchanged is not read."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from pathlib import Path

import pytest
from support.description import describe_folder, differences
from support.sources import build_deep, build_zoo, random_bytes, text_bytes, write, write_sparse
from support.vault import Told, Vault, object_names

from ohdiff.storage import MemoryStorage
from ohdiff_format.tree import LEAF_ENTRIES_MAX

MiB = 1 << 20


def assert_same(vault: Vault, stored: object, path: Path) -> None:
    assert differences(vault.read(stored, path), describe_folder(path)) == {}  # type: ignore[arg-type]


def test_every_kind_of_entry_is_stored_as_it_is(vault: Vault, source: Path) -> None:
    build_zoo(source)
    stored = vault.store(source)
    assert_same(vault, stored, source)
    vault.assert_sound()
    statistics = stored.snapshot.statistics
    files = [path for path in source.rglob("*") if path.is_file() and not path.is_symlink()]
    assert statistics.files == statistics.files_new == len(files)
    assert statistics.size == sum(path.stat().st_size for path in files)
    assert stored.snapshot.paths == [bytes(source)]
    if os.geteuid() == 0:
        assert stored.snapshot.users[0] == "root"
        assert 12_345 not in stored.snapshot.users


@pytest.mark.parametrize("encryption", ["none", "chacha20-poly1305"])
def test_other_encryptions_store_the_same(tmp_path: Path, source: Path, encryption: str) -> None:
    vault = Vault(MemoryStorage("other")).create(encryption=encryption)
    build_zoo(source)
    assert_same(vault, vault.store(source), source)
    vault.assert_sound()


@pytest.mark.parametrize("level", [None, 1, 7])
def test_every_compression_level_reads_back(vault: Vault, source: Path, level: int | None) -> None:
    write(source / "text", text_bytes(300_000))
    write(source / "noise", random_bytes(300_000))
    assert_same(vault, vault.store(source, level=level), source)
    vault.assert_sound()


def test_an_empty_folder_is_stored(vault: Vault, source: Path) -> None:
    stored = vault.store(source)
    assert_same(vault, stored, source)
    assert stored.snapshot.statistics.files == 0
    assert stored.snapshot.statistics.added_chunks > 0


def test_large_files_and_many_batches_are_stored_in_walk_order(vault: Vault, source: Path) -> None:
    write(source / "large", random_bytes(21 * MiB + 12_345, 1))
    write(source / "zeros", bytes(9 * MiB))
    for number in range(12):
        write(source / f"folder {number % 3}" / f"{number}", random_bytes(2 * MiB + number, number + 2))
    for number in range(300):
        write(source / "small" / f"{number}", text_bytes(100 + number, number))
    stored = vault.store(source)
    assert_same(vault, stored, source)
    vault.assert_sound()
    statistics = stored.snapshot.statistics
    assert statistics.read_size == statistics.size
    assert statistics.added_size < statistics.size - 8 * MiB, "nine MiB of zeros are a few chunks"


@pytest.mark.parametrize("size", [8 * MiB - 1, 8 * MiB, 8 * MiB + 1, 4 * MiB, 4 * MiB + 1])
def test_sizes_at_the_borders_of_batches_and_blocks_read_back(vault: Vault, source: Path, size: int) -> None:
    write(source / "a", random_bytes(size, size))
    write(source / "b", random_bytes(100, 1))
    assert_same(vault, vault.store(source), source)


def test_holes_come_back_where_they_were(vault: Vault, source: Path) -> None:
    write_sparse(source / "front", 5 * MiB, {4 * MiB: random_bytes(MiB, 1)})
    write_sparse(source / "back", 5 * MiB, {0: random_bytes(MiB, 1)})
    write_sparse(source / "many", 64 * MiB, {n * MiB: random_bytes(4096, n) for n in range(0, 64, 3)})
    write_sparse(source / "nothing", 100 * MiB, {})
    write_sparse(source / "large", 40 * MiB, {3 * MiB: random_bytes(20 * MiB, 5)})
    stored = vault.store(source)
    assert_same(vault, stored, source)
    assert stored.snapshot.statistics.read_size < 30 * MiB
    again = vault.store(source)
    assert again.snapshot.statistics.read_size == 0
    assert_same(vault, again, source)


def test_a_folder_of_many_entries_is_cut_into_leaves_and_an_insertion_rewrites_few(vault: Vault, source: Path) -> None:
    for number in range(5_000):
        (source / f"entry {number:05}").write_bytes(b"%d" % number)
    first = vault.store(source)
    content = vault.entry(first, source).content
    assert len(content.sizes) > 5_000 // LEAF_ENTRIES_MAX + 1
    assert_same(vault, first, source)
    write(source / "entry 02500 and a half", b"new")
    second = vault.store(source)
    assert_same(vault, second, source)
    after = vault.entry(second, source).content
    kept = set(content.chunk_ids()) & set(after.chunk_ids())
    assert len(kept) >= len(content.sizes) - 2
    assert second.snapshot.statistics.files_new == 1
    assert second.snapshot.statistics.files_unchanged == 5_000


def test_a_path_of_600_levels_is_stored_to_its_bottom(vault: Vault, tmp_path: Path) -> None:
    build_deep(tmp_path / "deep", 600)
    try:
        stored = vault.store(tmp_path / "deep")
        path = bytes(tmp_path / "deep") + b"".join(b"/level %d" % level for level in range(600)) + b"/bottom"
        assert vault.data(stored, path) == b"deep"
        assert stored.snapshot.statistics.directories >= 600
        again = vault.store(tmp_path / "deep")
        assert again.snapshot.statistics.files_unchanged == 1
    finally:
        subprocess.run(["rm", "-rf", tmp_path / "deep"], check=True)


def test_many_folders_of_one_file_need_few_descriptors(vault: Vault, source: Path) -> None:
    for number in range(700):
        write(source / f"{number:04}" / "file", b"%d" % number)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (opened + 350, hard))
    try:
        stored = vault.store(source)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert stored.snapshot.statistics.files == 700
    assert_same(vault, stored, source)


# Which paths


def test_several_given_paths_share_one_root(vault: Vault, tmp_path: Path) -> None:
    write(tmp_path / "a" / "x", b"x")
    write(tmp_path / "b" / "y", b"y")
    write(tmp_path / "c" / "z", b"z")
    stored = vault.store(tmp_path / "a", tmp_path / "c")
    assert_same(vault, stored, tmp_path / "a")
    assert_same(vault, stored, tmp_path / "c")
    with vault.tree() as tree:
        content, path = tree.directory(stored.root, bytes(tmp_path))
        assert [entry.name for entry in tree.entries(content, path)] == [b"a", b"c"]


@pytest.mark.parametrize("is_upper_first", [True, False])
def test_a_path_below_another_adds_nothing(vault: Vault, source: Path, is_upper_first: bool) -> None:
    write(source / "below" / "x", b"x")
    write(source / "y", b"y")
    paths = [source, source / "below"]
    stored = vault.store(*(paths if is_upper_first else reversed(paths)))
    assert_same(vault, stored, source)
    assert stored.snapshot.statistics.files == 2


def test_a_given_path_may_be_a_file(vault: Vault, source: Path) -> None:
    write(source / "one", b"data")
    write(source / "other", b"not asked for")
    stored = vault.store(source / "one")
    assert vault.data(stored, source / "one") == b"data"
    with vault.tree() as tree:
        content, path = tree.directory(stored.root, bytes(source))
        assert [entry.name for entry in tree.entries(content, path)] == [b"one"]
    assert vault.store(source / "one").snapshot.statistics.files_unchanged == 1


def test_the_folders_above_a_given_path_keep_their_metadata(vault: Vault, source: Path) -> None:
    write(source / "a" / "b" / "file", b"x")
    (source / "a").chmod(0o711)
    os.utime(source / "a", ns=(5, 5_000_000_005))
    stored = vault.store(source / "a" / "b")
    entry = vault.entry(stored, source / "a")
    assert entry.mode & 0o7777 == 0o711
    assert entry.listing.mtimes[entry.row] == 5_000_000_005


def test_links_in_a_given_path_are_resolved(vault: Vault, source: Path) -> None:
    write(source / "real" / "file", b"x")
    (source / "link").symlink_to("real")
    stored = vault.store(source / "link")
    assert stored.snapshot.paths == [bytes(source / "real")]


def test_a_given_path_that_is_not_there_is_reported(vault: Vault, source: Path) -> None:
    write(source / "there", b"x")
    result = vault.snapshot(source / "there", source / "gone")
    assert [error.item for error in result.errors] == [str(source / "gone")]
    assert result.stored is not None
    assert vault.data(result.stored, source / "there") == b"x"


def test_a_given_path_that_leads_through_a_file_is_reported(vault: Vault, source: Path) -> None:
    write(source / "file", b"x")
    result = vault.snapshot(source / "file" / "below")
    assert [error.item for error in result.errors] == [str(source / "file")]


# Unchanged files


def test_a_second_snapshot_reads_nothing_and_stores_no_new_data(vault: Vault, source: Path) -> None:
    build_zoo(source)
    first = vault.store(source)
    told = Told()
    second = vault.store(source, observer=told)
    statistics = second.snapshot.statistics
    assert statistics.read_size == 0
    assert statistics.files_new == statistics.files_changed == 0
    assert statistics.files_unchanged == first.snapshot.statistics.files
    assert statistics.files == first.snapshot.statistics.files
    assert statistics.others == first.snapshot.statistics.others
    assert statistics.directories == first.snapshot.statistics.directories
    assert vault.entry(first, source).content == vault.entry(second, source).content
    assert {action for action, _ in told.items} == {"unchanged"}
    assert second.snapshot.parent == first.snapshot_id
    assert_same(vault, second, source)


def test_one_changed_file_is_read_and_nothing_else(vault: Vault, source: Path) -> None:
    build_zoo(source)
    vault.store(source)
    write(source / "binary", random_bytes(650_000, 99))
    told = Told()
    stored = vault.store(source, observer=told)
    # The file has two names.
    assert sorted(path for action, path in told.items if action != "unchanged") == [
        bytes(source / "binary"),
        bytes(source / "text" / "hard link"),
    ]
    assert stored.snapshot.statistics.read_size == 1_300_000
    assert_same(vault, stored, source)


def test_metadata_alone_is_taken_without_changing_the_data(vault: Vault, source: Path) -> None:
    build_zoo(source)
    vault.store(source)
    (source / "text" / "poem.txt").chmod(0o600)
    os.utime(source / "many" / "007", ns=(7, 7))
    try:
        os.setxattr(source / "many" / "008", "user.late", b"1")
    except OSError:
        pytest.skip("this file system has no xattrs")
    stored = vault.store(source)
    assert_same(vault, stored, source)
    assert stored.snapshot.statistics.added_stored_size < 100_000


def test_a_file_of_the_same_size_and_mtime_but_other_content_is_noticed(vault: Vault, source: Path) -> None:
    path = write(source / "file", b"before")
    status = path.stat()
    vault.store(source)
    path.write_bytes(b"after!")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert vault.data(vault.store(source), path) == b"after!"


def test_types_may_change_between_snapshots(vault: Vault, source: Path) -> None:
    write(source / "file to folder", b"x" * 1000)
    write(source / "folder to file" / "inside", b"y")
    write(source / "file to link", b"z")
    (source / "link to file").symlink_to("nowhere")
    vault.store(source)
    (source / "file to folder").unlink()
    write(source / "file to folder" / "inside", b"new")
    shutil.rmtree(source / "folder to file")
    write(source / "folder to file", b"now a file")
    (source / "file to link").unlink()
    (source / "file to link").symlink_to("link to file")
    (source / "link to file").unlink()
    write(source / "link to file", b"a")
    stored = vault.store(source)
    assert_same(vault, stored, source)


def test_force_reads_everything_and_stores_nothing_twice(vault: Vault, source: Path) -> None:
    build_zoo(source)
    first = vault.store(source)
    second = vault.store(source, is_forced=True)
    assert second.snapshot.statistics.read_size >= first.snapshot.statistics.read_size
    assert vault.entry(first, source).content == vault.entry(second, source).content
    assert second.snapshot.statistics.added_size < 20_000, "only the folders above may be new"


def test_without_a_parent_equal_content_is_not_stored_again(vault: Vault, source: Path) -> None:
    write(source / "a", random_bytes(3 * MiB, 1))
    vault.store(source)
    shutil.copyfile(source / "a", source / "b")
    stored = vault.store(source, parent=None)
    assert stored.snapshot.statistics.added_size < 100_000
    assert_same(vault, stored, source)


def test_snapshots_of_other_paths_do_not_disturb_a_parent(vault: Vault, tmp_path: Path) -> None:
    write(tmp_path / "a" / "x", b"x" * 5000)
    write(tmp_path / "b" / "y", b"y" * 5000)
    vault.store(tmp_path / "a")
    stored = vault.store(tmp_path / "a", tmp_path / "b")
    assert stored.snapshot.statistics.files_unchanged == 1
    assert stored.snapshot.statistics.files_new == 1
    last = vault.store(tmp_path / "b")
    assert last.snapshot.statistics.files_unchanged == 1
    with vault.tree() as tree:
        content, path = tree.directory(last.root, bytes(tmp_path))
        assert [entry.name for entry in tree.entries(content, path)] == [b"b"]


# Options


def test_a_dry_run_counts_and_stores_nothing(vault: Vault, source: Path) -> None:
    build_zoo(source)
    before = object_names(vault.storage)
    result = vault.snapshot(source, is_dry_run=True)
    assert result.stored is None
    assert object_names(vault.storage) == before
    real = vault.store(source).snapshot
    # The folders above the source may change between the two; everything else is counted alike.
    assert result.snapshot.statistics.files == real.statistics.files
    assert result.snapshot.statistics.read_size == real.statistics.read_size
    assert result.snapshot.statistics.added_chunks == real.statistics.added_chunks


def test_skip_if_unchanged_stores_no_snapshot_until_something_changes(vault: Vault, source: Path) -> None:
    write(source / "file", b"x")
    first = vault.snapshot(source, skip_if_unchanged=True)
    assert first.stored is not None
    # The folders above are not the user's concern.
    write(source.parent / "a stranger", b"")
    assert vault.snapshot(source, skip_if_unchanged=True).stored is None
    assert len(vault.snapshots()) == 1
    os.utime(source / "file", ns=(1, 1))
    assert vault.snapshot(source, skip_if_unchanged=True).stored is not None
    source.chmod(0o700)
    assert vault.snapshot(source, skip_if_unchanged=True).stored is not None
    write(source / "new", b"")
    assert vault.snapshot(source, skip_if_unchanged=True).stored is not None
    assert vault.snapshot(source, source.parent / "a stranger", skip_if_unchanged=True).stored is not None


def test_one_file_system_keeps_the_mount_point_and_not_what_is_mounted(vault: Vault, source: Path) -> None:
    (source / "mounted").mkdir()
    write(source / "file", b"x")
    done = subprocess.run(["mount", "-t", "tmpfs", "none", source / "mounted"], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("mounting is not allowed here")
    try:
        write(source / "mounted" / "elsewhere", b"y")
        on_one = vault.store(source, one_file_system=True)
        names = set(vault.read(on_one, source))
        assert names == {b"", b"/file", b"/mounted"}
        everywhere = vault.store(source)
        assert_same(vault, everywhere, source)
        assert b"/mounted/elsewhere" in vault.read(everywhere, source)
        # A given path that is itself another file system is entered.
        assert b"/elsewhere" in vault.read(vault.store(source / "mounted", one_file_system=True), source / "mounted")
    finally:
        subprocess.run(["umount", source / "mounted"], check=True)


def test_what_describes_a_snapshot_is_kept(vault: Vault, source: Path) -> None:
    stored = vault.store(source, tags=("a", "b"), excludes=("*.o",))
    (found,) = vault.snapshots()
    assert found == stored
    assert (found.snapshot.tags, found.snapshot.excludes) == (["a", "b"], ["*.o"])
    assert (found.snapshot.host, found.snapshot.user) == ("host", "user")
    assert found.snapshot.time_ns == vault.time_ns
