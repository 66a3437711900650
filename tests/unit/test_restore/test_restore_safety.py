"""Nothing leads out of the target, damage is named and kept apart, and a restore cut short leaves files whole."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3
from support.description import describe_folder, differences
from support.sources import build_zoo, random_bytes, text_bytes, write
from support.vault import Vault, object_names, replace_object

from ohdiff.errors import EXIT_INTEGRITY, IntegrityError, StorageError, TargetError
from ohdiff.operations.restore import files as restore_files
from ohdiff.operations.restore import write as restore_write
from ohdiff.operations.tree_reader import TreeReader
from ohdiff.repository import objects
from ohdiff_format.envelope import KIND_INDEX
from ohdiff_format.errors import FormatError
from ohdiff_format.index import NUMBER_BODY, Index, decode_index, encode_index
from ohdiff_format.tree import Listing, decode_listing, encode_listing

MiB = 1 << 20


def test_symlinks_planted_for_folders_are_replaced_and_never_entered(library: Any, source: Path, place: Path) -> None:
    write(source / "a" / "b" / "file", b"restored")
    write(source / "a" / "large", random_bytes(9 * MiB, 1))
    write(source / "plain", b"restored")
    stored = library.vault.store(source)
    outside, target = place / "outside", place / "target"
    write(outside / "b" / "file", b"outside")
    write(outside / "large", b"outside")
    write(outside / "plain", b"outside")
    before = describe_folder(outside)
    target.mkdir()
    (target / "a").symlink_to(outside)
    (target / "plain").symlink_to(outside / "plain")
    assert library.restore(stored, target, delete=True).errors == []
    assert differences(describe_folder(outside), before) == {}
    assert differences(describe_folder(target), describe_folder(source)) == {}


@pytest.mark.parametrize("deletes", [False, True])
def test_a_folder_swapped_for_a_symlink_meanwhile_is_an_error_and_not_followed(
    library: Any, source: Path, place: Path, monkeypatch: pytest.MonkeyPatch, deletes: bool
) -> None:
    for number in range(3):
        write(source / f"folder {number}" / "file", random_bytes(50_000, number))
    stored = library.vault.store(source)
    outside, target = place / "outside", place / "target"
    write(outside / "file", b"outside")
    before = describe_folder(outside)
    write_bucket = restore_write.write_bucket

    def swap_then_write(run: Any, *given: Any) -> Any:
        moved = place / "moved"
        if not moved.exists():
            (target / "folder 1").rename(moved)
            (target / "folder 1").symlink_to(outside)
        return write_bucket(run, *given)

    monkeypatch.setattr(restore_write, "write_bucket", swap_then_write)
    result = library.restore(stored, target, delete=deletes)
    assert {type(error) for error in result.errors} == {TargetError}
    assert b"/folder 1" in {os.fsencode(error.item.removeprefix(str(target)))[:9] for error in result.errors}
    assert differences(describe_folder(outside), before) == {}
    for number in (0, 2):
        assert (target / f"folder {number}" / "file").read_bytes() == random_bytes(50_000, number)


def test_deletion_does_not_follow_symlinks(library: Any, source: Path, place: Path) -> None:
    stored = library.vault.store(source)
    outside, target = place / "outside", place / "target"
    build_zoo(outside)
    before = describe_folder(outside)
    (target / "extra" / "deep").mkdir(parents=True)
    (target / "extra" / "deep" / "link").symlink_to(outside)
    (target / "link").symlink_to(outside)
    assert library.restore(stored, target, delete=True).errors == []
    assert os.listdir(target) == []
    assert differences(describe_folder(outside), before) == {}


@pytest.mark.parametrize("name", [b"..", b".", b"", b"a/b", b"/etc", b"a\0b"])
def test_a_snapshot_cannot_hold_a_name_that_leads_elsewhere(
    library: Any, tmp_path: Path, rows: Callable[..., Listing], name: bytes
) -> None:
    listing = rows({name: stat.S_IFREG | 0o600})
    with pytest.raises(FormatError):
        decode_listing(encode_listing(listing))
    stored = library.store_rows(listing)
    result = library.restore(stored, tmp_path / "target", source=b"")
    assert [type(error) for error in result.errors] == [IntegrityError]
    assert os.listdir(tmp_path / "target") == []


def flip(vault: Vault, name: str, at: int) -> None:
    data = bytearray(vault.storage.read(name))
    data[at] ^= 1
    replace_object(vault.storage, name, bytes(data))


def data_packs(vault: Vault) -> list[str]:
    """The packs of file data."""
    with vault.opened() as (_, index):
        return sorted({f"packs/{block.pack_id.hex()}" for block in index.blocks() if not block.is_metadata})


def files_by_block(vault: Vault, source: Path) -> dict[tuple[str, int], set[bytes]]:
    """The files below `source` that need each block of data, by pack and number."""
    stored = vault.snapshots()[-1]
    needed: dict[tuple[str, int], set[bytes]] = {}
    with vault.opened() as (_, index), vault.tree() as tree:
        entry = tree.find(stored.root, bytes(source))
        assert entry is not None
        for file in tree.walk(entry.content, entry.path):
            if not file.is_file:
                continue
            for place in index.find([chunk_id for chunk_id, _ in tree.chunk_list(file.content)]):
                assert place is not None
                key = (f"packs/{place.block.pack_id.hex()}", place.block.number)
                needed.setdefault(key, set()).add(file.path)
    return needed


def build_several_blocks(source: Path) -> None:
    for number in range(30):
        write(source / f"{number % 3}" / f"small {number:02}", random_bytes(300_000, number))
    write(source / "large", random_bytes(20 * MiB, 100))
    write(source / "shares", random_bytes(300_000, 0))
    write(source / "empty")


def test_a_damaged_byte_costs_exactly_the_files_of_its_block(library: Any, source: Path, tmp_path: Path) -> None:
    vault = library.vault
    build_several_blocks(source)
    stored = vault.store(source)
    needed = files_by_block(vault, source)
    assert len(needed) >= 3
    expected = describe_folder(source)
    with vault.opened() as (_, index):
        blocks = [block for block in index.blocks() if not block.is_metadata]
    for number, block in enumerate(blocks):
        name = f"packs/{block.pack_id.hex()}"
        flip(vault, name, block.offset + block.sealed_size // 2)
        target = tmp_path / f"target {number}"
        result = library.restore(stored, target)
        lost = needed[(name, block.number)]
        assert {type(error) for error in result.errors} == {IntegrityError}
        assert {os.fsencode(error.item) for error in result.errors} == lost
        assert len(result.errors) == len(lost)
        assert result.exit_code == EXIT_INTEGRITY
        assert all("check" in error.hint for error in result.errors)
        kept = {path: entry for path, entry in expected.items() if bytes(source) + path not in lost}
        assert differences(describe_folder(target), kept) == {}
        flip(vault, name, block.offset + block.sealed_size // 2)


@pytest.mark.parametrize("damage", ["missing", "truncated", "another pack"])
def test_a_lost_pack_costs_its_files_and_no_others(library: Any, source: Path, tmp_path: Path, damage: str) -> None:
    vault = library.vault
    build_several_blocks(source)
    stored = vault.store(source)
    needed = files_by_block(vault, source)
    packs = data_packs(vault)
    name = packs[0]
    other = vault.storage.read(next(pack for pack in object_names(vault.storage, ["packs"]) if pack != name))
    lost = {path for (pack, _), paths in needed.items() if pack == name for path in paths}
    replace_object(vault.storage, name, {"missing": None, "truncated": b"OHDIFF", "another pack": other}[damage])
    result = library.restore(stored, tmp_path / "target")
    assert {os.fsencode(error.item) for error in result.errors} == lost
    assert {error.exit_code for error in result.errors} == {EXIT_INTEGRITY}


def test_chunks_that_are_in_no_index_are_named_by_their_files(library: Any, source: Path, tmp_path: Path) -> None:
    vault = library.vault
    write(source / "a first", text_bytes(1000))
    vault.store(source)
    before = set(object_names(vault.storage, ["index"]))
    write(source / "small", random_bytes(1000, 1))
    write(source / "large", random_bytes(9 * MiB, 2))
    write(source / "both", text_bytes(1000) + random_bytes(MiB, 3))
    os.link(source / "small", source / "small too")
    stored = vault.store(source)
    lister = Vault(vault.storage)
    lister.key = vault.key
    metadata = metadata_index(lister, set(object_names(vault.storage, ["index"])) - before)
    for name, data in metadata.items():
        replace_object(vault.storage, name, None)
        vault.storage.write(f"index/{blake3(data).hexdigest()}", data)
    library.vault = lister
    result = library.restore(stored, tmp_path / "target")
    lost = {Path(error.item).name for error in result.errors}
    assert lost == {"small", "large", "both", "small too"}
    assert len(result.errors) == 4
    assert os.listdir(tmp_path / "target") == ["a first"]
    assert result.exit_code == EXIT_INTEGRITY


def metadata_index(vault: Vault, names: set[str]) -> dict[str, bytes]:
    """The same index objects without the packs of file data."""
    repository = vault.open()
    made = {}
    for name in names:
        object_id = bytes.fromhex(name.partition("/")[2])
        index = objects.read_object(repository, "index", KIND_INDEX, NUMBER_BODY, object_id, decode_index)
        sealer = repository.new_sealer(KIND_INDEX)
        kept = encode_index(Index([pack for pack in index.packs if pack.is_metadata]))
        made[name] = sealer.header + sealer.seal(NUMBER_BODY, kept)
    return made


def test_a_damaged_tree_costs_its_folder_and_deletes_nothing(library: Any, source: Path, tmp_path: Path) -> None:
    vault = library.vault
    write(source / "a" / "file", b"1")
    first = vault.store(source)
    packs = set(object_names(vault.storage, ["packs"]))
    write(source / "b" / "file", b"2")
    write(source / "a" / "file", b"3")
    (source / "c").mkdir()
    target = tmp_path / "target"
    assert library.restore(first, target).errors == []
    write(target / "a" / "not in the snapshot", b"4")
    second = vault.store(source)
    entry = vault.entry(second, source / "a")
    with vault.opened() as (_, index):
        (place,) = index.find(entry.content.chunk_ids())
    assert f"packs/{place.block.pack_id.hex()}" not in packs
    # One block holds all new leaves: what is known without it is nothing but the parent's way to them.
    flip(vault, f"packs/{place.block.pack_id.hex()}", place.block.offset + 1)
    with pytest.raises(IntegrityError):
        library.restore(second, target, delete=True)
    assert (target / "a" / "not in the snapshot").exists()
    assert (target / "a" / "file").read_bytes() == b"1"


def test_a_folder_whose_listing_is_lost_keeps_what_is_in_it(
    library: Any, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader of trees is wrapped: a block of leaves of their own would need thousands of folders."""
    for name in ("a", "b", "c"):
        write(source / name / "file", name.encode())
    stored = library.vault.store(source)
    lost = library.vault.entry(stored, source / "b").content
    target = tmp_path / "target"
    write(target / "b" / "precious", b"1")
    leaves = TreeReader.leaves

    def leaves_or_damage(self: TreeReader, content: Any) -> Any:
        if content == lost:
            raise IntegrityError("the tree leaf is damaged")
        yield from leaves(self, content)

    monkeypatch.setattr(TreeReader, "leaves", leaves_or_damage)
    result = library.restore(stored, target, delete=True)
    assert [error.item for error in result.errors] == [str(source / "b")]
    assert (target / "b" / "precious").exists()
    assert (target / "a" / "file").read_bytes() == b"a"
    assert (target / "c" / "file").read_bytes() == b"c"


@pytest.mark.parametrize("size", [5, 9, 0])
def test_a_listing_that_lies_about_a_size_is_an_error_of_that_file(
    library: Any, tmp_path: Path, rows: Callable[..., Listing], size: int
) -> None:
    listing = rows({b"good": stat.S_IFREG | 0o600, b"liar": stat.S_IFREG | 0o600}, sizes=[4, size])
    stored = library.store_rows(listing, {b"good": b"good", b"liar": b"seven b"})
    result = library.restore(stored, tmp_path / "target", source=b"")
    assert [(type(error), error.item) for error in result.errors] == [(IntegrityError, "/liar")]
    assert os.listdir(tmp_path / "target") == ["good"]


def test_extents_that_do_not_fit_the_data_are_an_error_of_that_file(
    library: Any, tmp_path: Path, rows: Callable[..., Listing]
) -> None:
    for extents in ([0, 3], [0, 50], []):
        listing = rows({b"liar": stat.S_IFREG | 0o600}, sizes=[100])
        listing.extents[0] = extents
        stored = library.store_rows(listing, {b"liar": b"seven b"})
        for _ in range(2):
            result = library.restore(stored, tmp_path / "target", source=b"")
            assert [(type(error), error.item) for error in result.errors] == [(IntegrityError, "/liar")]
            assert os.listdir(tmp_path / "target") == []


class Failing:
    """Storage that is lost while blocks are read."""

    def __init__(self, inner: Any, reads: int) -> None:
        self._inner = inner
        self._reads = reads

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def read(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
        if name.startswith("packs/"):
            self._reads -= 1
            if self._reads < 0:
                raise StorageError("the storage is gone", can_retry=True)
        return self._inner.read(name, offset, size)


@pytest.mark.parametrize("reads", [3, 4, 5])
def test_storage_that_fails_ends_the_restore_and_leaves_whole_files(
    library: Any, source: Path, tmp_path: Path, reads: int
) -> None:
    build_several_blocks(source)
    stored = library.vault.store(source)
    library.vault = library.vault.over(Failing(library.vault.storage, reads))
    target = tmp_path / "target"
    with pytest.raises(StorageError):
        library.restore(stored, target)
    assert_whole(target, source)


def assert_whole(target: Path, source: Path) -> None:
    """Every file that is there is as long as it should be and has its data; nothing has a temporary name."""
    wanted = describe_folder(source)
    for path, entry in describe_folder(target).items():
        if stat.S_ISREG(entry.mode):
            assert (entry.size, entry.digest) == (wanted[path].size, wanted[path].digest), path


def interrupt_after(monkeypatch: pytest.MonkeyPatch, buckets: int) -> None:
    """Ctrl-C reaches the main thread after so many blocks have been dealt with."""
    settle = restore_files.FileBook.settle
    left = [buckets]

    def settle_or_stop(self: Any, bucket: Any, outcome: Any) -> None:
        settle(self, bucket, outcome)
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt

    monkeypatch.setattr(restore_files.FileBook, "settle", settle_or_stop)


@pytest.mark.parametrize("buckets", [1, 2, 3, 4])
def test_an_interruption_leaves_no_new_file_half_written(
    library: Any, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, buckets: int
) -> None:
    build_several_blocks(source)
    stored = library.vault.store(source)
    interrupt_after(monkeypatch, buckets)
    with pytest.raises(KeyboardInterrupt):
        library.restore(stored, tmp_path / "target")
    monkeypatch.undo()
    assert_whole(tmp_path / "target", source)
    assert library.restore(stored, tmp_path / "target").errors == []
    assert differences(describe_folder(tmp_path / "target"), describe_folder(source)) == {}


@pytest.mark.parametrize("buckets", [1, 2, 3])
def test_an_interruption_completes_what_is_being_rewritten_in_place(
    library: Any, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, buckets: int
) -> None:
    data = random_bytes(30 * MiB, 7)
    write(source / "in place", data)
    stored = library.vault.store(source)
    target = tmp_path / "target"
    write(target / "in place", data[:-1] + b"?")
    with (target / "in place").open("r+b") as file:
        for offset in range(0, 30 * MiB, MiB):
            file.seek(offset)
            file.write(b"changed")
    interrupt_after(monkeypatch, buckets)
    with pytest.raises(KeyboardInterrupt):
        library.restore(stored, target)
    assert (target / "in place").read_bytes() == data


@pytest.mark.parametrize("buckets", [1, 2, 3])
def test_an_interruption_leaves_what_is_being_replaced_as_it_was(
    library: Any, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, buckets: int
) -> None:
    write(source / "replaced", random_bytes(30 * MiB, 8))
    stored = library.vault.store(source)
    target = tmp_path / "target"
    os.link(write(target / "replaced", b"old"), tmp_path / "other name")
    interrupt_after(monkeypatch, buckets)
    with pytest.raises(KeyboardInterrupt):
        library.restore(stored, target)
    # Blocks that were being written at that moment are finished, and may have been the last ones.
    assert (target / "replaced").read_bytes() in (b"old", random_bytes(30 * MiB, 8))
    assert os.listdir(target) == ["replaced"]
    assert (tmp_path / "other name").read_bytes() == b"old"


def test_a_damaged_chunk_leaves_a_replaced_file_as_it_was(library: Any, source: Path, tmp_path: Path) -> None:
    write(source / "file", random_bytes(20 * MiB, 9))
    stored = library.vault.store(source)
    for name in data_packs(library.vault):
        flip(library.vault, name, 100_000)
    target = tmp_path / "target"
    os.link(write(target / "file", b"old"), tmp_path / "other name")
    (error,) = library.restore(stored, target).errors
    assert isinstance(error, IntegrityError)
    assert (target / "file").read_bytes() == b"old"
    assert os.listdir(target) == ["file"]


def test_a_damaged_chunk_of_a_file_in_place_is_reported_and_read_again_next_time(
    library: Any, source: Path, tmp_path: Path
) -> None:
    data = random_bytes(30 * MiB, 10)
    write(source / "file", data)
    stored = library.vault.store(source)
    target = tmp_path / "target"
    write(target / "file", bytes(30 * MiB))
    os.utime(target / "file", ns=(0, 0))
    with library.vault.opened() as (_, index):
        block = [block for block in index.blocks() if not block.is_metadata][-1]
    flip(library.vault, f"packs/{block.pack_id.hex()}", block.offset + 50)
    result = library.restore(stored, target)
    # Blocks lie in packs of random names: the damaged one may be the first, and then nothing is written at all.
    is_rewritten_in_part = result.bytes_written > 0
    assert [type(error) for error in result.errors] == [IntegrityError] + [TargetError] * is_rewritten_in_part
    assert result.exit_code == EXIT_INTEGRITY
    assert is_rewritten_in_part or (target / "file").read_bytes() == bytes(30 * MiB)
    assert (target / "file").stat().st_mtime_ns != (source / "file").stat().st_mtime_ns
    flip(library.vault, f"packs/{block.pack_id.hex()}", block.offset + 50)
    again = library.restore(stored, target, overwrite="if-changed")
    assert again.errors == []
    assert again.bytes_written + result.bytes_written == 30 * MiB
    assert (target / "file").read_bytes() == data


@pytest.fixture
def small_disk(tmp_path: Path) -> Any:
    """A file system of 12 MiB."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount")
    path = tmp_path / "small disk"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=12M", "tmpfs", path], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting is not allowed here")
    yield path
    subprocess.run(["umount", path], check=True)


def test_a_full_disk_stops_the_restore_with_a_hint_and_whole_files(
    library: Any, source: Path, small_disk: Path
) -> None:
    build_several_blocks(source)
    stored = library.vault.store(source)
    target = small_disk / "target"
    result = library.restore(stored, target)
    assert result.is_stopped_early
    assert result.exit_code == 1
    assert result.errors
    assert all("make room" in error.hint for error in result.errors)
    assert_whole(target, source)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_a_target_that_takes_nothing_more_ends_the_restore_soon(
    library: Any, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    for number in range(100):
        write(source / f"{number}" / "file", random_bytes(300_000, number))
    stored = library.vault.store(source)
    monkeypatch.setattr(restore_write, "create_files", lambda dir_fds, *_: [code] * len(dir_fds))
    result = library.restore(stored, tmp_path / "target")
    assert result.is_stopped_early
    assert {type(error) for error in result.errors} == {TargetError}
    assert len(result.errors) == 1


def test_an_error_of_one_entry_leaves_the_others(
    library: Any, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        write(source / name, name.encode())
    stored = library.vault.store(source)
    create = restore_write.create_files

    def refuse_b(dir_fds: Any, names: Any, *columns: Any) -> list[int]:
        done = create(dir_fds, names, *columns)
        os.unlink(b"b", dir_fd=dir_fds[0])
        return [errno.EIO if name == b"b" else status for name, status in zip(names, done, strict=True)]

    monkeypatch.setattr(restore_write, "create_files", refuse_b)
    result = library.restore(stored, tmp_path / "target")
    (error,) = result.errors
    assert error.item == str(tmp_path / "target" / "b")
    assert os.strerror(errno.EIO) in error.message
    assert not result.is_stopped_early
    assert sorted(os.listdir(tmp_path / "target")) == ["a", "c"]
    assert result.files.restored == 2
    assert (tmp_path / "target").stat().st_mtime_ns == source.stat().st_mtime_ns
