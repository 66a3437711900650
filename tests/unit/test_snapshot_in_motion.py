"""Snapshots of sources that change, vanish or refuse: each is reported, nothing is mixed silently, the rest is kept."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.description import describe_folder, differences
from support.sources import as_ordinary_user, random_bytes, text_bytes, write, write_sparse
from support.vault import Told, Vault, engine_of, object_names

from ohdiff.chunking.cpu import CpuEngine
from ohdiff.errors import EXIT_PARTIAL, SourceError
from ohdiff.operations.observer import Progress, Silent
from ohdiff.repository import chunk_writer
from ohdiff.repository.chunk_writer import ChunkWriter
from ohdiff.repository.open_block import OpenBlock
from ohdiff.storage import MemoryStorage
from ohdiff_format.tree import MARK_CHANGED_WHILE_READ, MARK_INCOMPLETE

MiB = 1 << 20


class Meddler(Told):
    """Does something to the source once a path is met: after it was listed, before it is read."""

    def __init__(self, path: Path, meddle: Callable[[], object]) -> None:
        super().__init__()
        self._path = bytes(path)
        self._meddle = meddle

    def item(self, action: str, path: bytes) -> None:
        super().item(action, path)
        if path == self._path:
            self._meddle()


class MeddlingEngine:
    """A real engine that does something to the source when the first piece of a stream has been read."""

    def __init__(self, engine: CpuEngine, meddle: Callable[[], object]) -> None:
        self._engine = engine
        self._meddle = meddle
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def cut_stream(self, data: Any, is_last: bool) -> bytes:
        with self._lock:
            meddle, self._meddle = self._meddle, lambda: None
            meddle()
        return self._engine.cut_stream(data, is_last)


def meddling(vault: Vault, meddle: Callable[[], object]) -> Any:
    return MeddlingEngine(engine_of(vault.open()), meddle)


@pytest.fixture
def open_source() -> Iterator[Path]:
    """A source that an ordinary user can reach."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    (folder / "source").mkdir()
    yield folder / "source"
    shutil.rmtree(folder)


@pytest.fixture
def open_vault() -> Vault:
    """A repository that any user can reach."""
    return Vault(MemoryStorage("open")).create()


# Refusing


def test_an_unreadable_file_is_reported_and_the_rest_is_stored(open_vault: Vault, open_source: Path) -> None:
    write(open_source / "secret", b"x" * 10).chmod(0)
    write(open_source / "large secret", random_bytes(5 * MiB)).chmod(0)
    for number in range(5):
        write(open_source / f"{number}", text_bytes(3000, number))
    told = Told()
    with as_ordinary_user():
        result = open_vault.snapshot(open_source, observer=told)
    assert {error.item for error in result.errors} == {
        str(open_source / "secret"),
        str(open_source / "large secret"),
    }
    assert all(isinstance(error, SourceError) and error.exit_code == EXIT_PARTIAL for error in result.errors)
    assert told.errors == result.errors
    assert result.stored is not None
    assert result.snapshot.statistics.errors == 2
    assert result.snapshot.statistics.files == 5
    assert result.snapshot.statistics.size == 15_000
    names = open_vault.read(result.stored, open_source)
    assert set(names) == {b"", *(b"/%d" % number for number in range(5))}
    open_vault.assert_sound()


def test_a_file_that_could_not_be_read_is_read_by_the_next_snapshot(open_vault: Vault, open_source: Path) -> None:
    write(open_source / "file", b"x" * 10).chmod(0)
    write(open_source / "other", b"y")
    with as_ordinary_user():
        assert len(open_vault.snapshot(open_source).errors) == 1
        assert len(open_vault.snapshot(open_source).errors) == 1, "also when nothing else has changed"
    (open_source / "file").chmod(0o644)
    with as_ordinary_user():
        stored = open_vault.store(open_source)
    assert open_vault.data(stored, open_source / "file") == b"x" * 10


def test_a_folder_that_cannot_be_listed_is_reported_and_marked_incomplete(open_vault: Vault, open_source: Path) -> None:
    write(open_source / "closed" / "inside", b"x")
    write(open_source / "other", b"y")
    open_vault.store(open_source)
    (open_source / "closed").chmod(0o000)
    with as_ordinary_user():
        result = open_vault.snapshot(open_source)
    assert [error.item for error in result.errors] == [str(open_source / "closed")]
    assert result.stored is not None
    entry = open_vault.entry(result.stored, open_source / "closed")
    assert entry.listing.marks[entry.row] & MARK_INCOMPLETE
    assert open_vault.data(result.stored, open_source / "other") == b"y"
    (open_source / "closed").chmod(0o755)
    again = open_vault.store(open_source)
    assert open_vault.data(again, open_source / "closed" / "inside") == b"x"


def test_a_folder_that_can_be_entered_but_not_listed_may_lie_above_a_given_path(
    open_vault: Vault, open_source: Path
) -> None:
    write(open_source / "home" / "me" / "file", b"x")
    (open_source / "home").chmod(0o711)
    with as_ordinary_user():
        stored = open_vault.store(open_source / "home" / "me")
    assert open_vault.data(stored, open_source / "home" / "me" / "file") == b"x"


# Vanishing


@pytest.mark.parametrize("size", [10, 5 * MiB])
def test_a_file_that_vanishes_before_it_is_read_is_reported(vault: Vault, source: Path, size: int) -> None:
    path = write(source / "b", random_bytes(size))
    write(source / "a", b"before")
    write(source / "c", b"behind")
    result = vault.snapshot(source, observer=Meddler(path, path.unlink))
    (error,) = result.errors
    assert error.item == str(path)
    assert "vanished" in error.message
    assert result.stored is not None
    assert set(vault.read(result.stored, source)) == {b"", b"/a", b"/c"}
    assert result.snapshot.statistics.files == 2
    vault.assert_sound()


def test_a_folder_that_vanishes_before_it_is_entered_is_reported(vault: Vault, source: Path) -> None:
    write(source / "a", b"first")
    write(source / "folder" / "inside", b"x")
    meddler = Meddler(source / "a", lambda: shutil.rmtree(source / "folder"))
    result = vault.snapshot(source, observer=meddler)
    assert [error.item for error in result.errors] == [str(source / "folder")]
    assert result.stored is not None
    assert set(vault.read(result.stored, source)) == {b"", b"/a"}


def test_a_file_that_became_something_else_is_reported(vault: Vault, source: Path) -> None:
    path = write(source / "file", b"x")

    def swap() -> None:
        path.unlink()
        path.symlink_to("/etc/passwd")

    result = vault.snapshot(source, observer=Meddler(path, swap))
    assert [error.item for error in result.errors] == [str(path)]
    assert result.stored is not None
    assert set(vault.read(result.stored, source)) == {b""}


# Changing


def test_a_file_that_changed_before_it_was_read_is_stored_as_it_is_now(vault: Vault, source: Path) -> None:
    path = write(source / "file", b"before")
    write(source / "other", b"x" * 1000)
    result = vault.snapshot(source, observer=Meddler(path, lambda: path.write_bytes(b"after, and longer")))
    assert result.stored is not None
    assert differences(vault.read(result.stored, source), describe_folder(source)) == {}
    assert result.snapshot.statistics.size == 1017
    # It changed during the first snapshot, so the next one does not trust its times yet.
    vault.store(source)
    assert vault.store(source).snapshot.statistics.files_unchanged == 2


def test_a_small_file_that_changed_does_not_block_large_files_behind_it(vault: Vault, source: Path) -> None:
    path = write(source / "a", b"before")
    for name in "bcdef":
        write(source / name, random_bytes(9 * MiB, ord(name)))
    stored = vault.store(source, observer=Meddler(path, lambda: path.write_bytes(b"after")))
    assert vault.data(stored, path) == b"after"
    vault.assert_sound()


def appended(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def overwritten(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-10, os.SEEK_END)
        file.write(b"otherwise!")


def truncated(path: Path) -> None:
    os.truncate(path, 10 * MiB + 5)


@pytest.mark.parametrize("change", [appended, overwritten, truncated])
@pytest.mark.parametrize("has_holes", [False, True])
def test_a_file_that_changes_while_it_is_read_is_reported_marked_and_read_again(
    vault: Vault, source: Path, change: Callable[[Path], None], has_holes: bool
) -> None:
    path = source / "large"
    if has_holes:
        write_sparse(path, 20 * MiB, {MiB: random_bytes(18 * MiB, 1)})
    else:
        write(path, random_bytes(20 * MiB, 1))
    write(source / "other", b"x")
    result = vault.snapshot(source, engine=meddling(vault, lambda: change(path)))
    (error,) = result.errors
    assert isinstance(error, SourceError)
    assert error.item == str(path)
    assert "changed" in error.message
    assert result.stored is not None
    entry = vault.entry(result.stored, path)
    assert entry.listing.marks[entry.row] & MARK_CHANGED_WHILE_READ
    # What was read is there to the last byte that the size promises, whatever it is.
    assert vault.read(result.stored, source)[b"/large"].size == entry.size
    vault.assert_sound()
    told = Told()
    again = vault.store(source, observer=told)
    assert ("changed", bytes(path)) in told.items
    assert ("unchanged", bytes(source / "other")) in told.items
    assert differences(vault.read(again, source), describe_folder(source)) == {}
    third = vault.store(source)
    assert third.snapshot.statistics.read_size == 0


def test_a_file_marked_as_changed_is_read_again_even_if_its_times_say_nothing(vault: Vault, source: Path) -> None:
    path = write(source / "large", random_bytes(9 * MiB, 1))

    def touch() -> None:
        os.utime(path, ns=(0, 1))

    assert len(vault.snapshot(source, engine=meddling(vault, touch)).errors) == 1
    assert vault.store(source).snapshot.statistics.files_changed == 1
    assert vault.store(source).snapshot.statistics.files_changed == 0


# Interruption


class Interrupter(Silent):
    """Interrupts once so many bytes are done."""

    def __init__(self, after: int) -> None:
        self._after = after

    def progress(self, progress: Progress) -> None:
        if progress.bytes_done >= self._after:
            raise KeyboardInterrupt


def fill(source: Path, size: int) -> None:
    for number in range(8):
        write(source / f"{number}", random_bytes(size, number))
    for number in range(100):
        write(source / "small" / f"{number}", text_bytes(10_000, number))


def test_an_interruption_keeps_what_was_stored_and_makes_no_snapshot(vault: Vault, source: Path) -> None:
    fill(source, 5 * MiB)
    with pytest.raises(KeyboardInterrupt):
        vault.snapshot(source, observer=Interrupter(30 * MiB))
    assert vault.snapshots() == []
    assert vault.storage.list_objects("index") != []
    vault.assert_sound()
    stored = vault.store(source)
    assert stored.snapshot.statistics.added_size < 25 * MiB
    assert differences(vault.read(stored, source), describe_folder(source)) == {}
    vault.assert_sound()


@pytest.mark.parametrize("where", ["add_chunks", "add_metadata", "_submit", "take"])
@pytest.mark.parametrize("count", [3, 9])
def test_an_interruption_may_come_in_the_middle_of_anything(
    vault: Vault, source: Path, monkeypatch: pytest.MonkeyPatch, where: str, count: int
) -> None:
    """A signal arrives between any two instructions; here between those of the chunk writer."""
    monkeypatch.setattr(chunk_writer, "BLOCK_SIZE_BYTES", 128 << 10)
    monkeypatch.setattr(chunk_writer, "METADATA_BLOCK_SIZE_BYTES", 1 << 10)
    fill(source, 300_000)
    code = getattr(OpenBlock if where == "take" else ChunkWriter, where).__code__
    calls = 0

    def trace(frame: Any, event: str, argument: object) -> Any:
        nonlocal calls
        if frame.f_code is not code:
            return None
        calls += 1
        lines = 0

        def trace_lines(frame: Any, event: str, argument: object) -> Any:
            nonlocal lines
            lines += event == "line"
            if calls >= 2 and lines == count:
                sys.settrace(None)
                raise KeyboardInterrupt
            return trace_lines

        return trace_lines

    sys.settrace(trace)
    try:
        vault.snapshot(source)
    except KeyboardInterrupt:
        assert vault.snapshots() == []
    finally:
        sys.settrace(None)
    vault.assert_sound()
    assert differences(vault.read(vault.store(source), source), describe_folder(source)) == {}


# Storage that has lost something


def test_a_chunk_that_the_index_lost_is_read_and_stored_again(vault: Vault, source: Path) -> None:
    for number in range(3):
        write(source / f"{number}", random_bytes(200_000, number))
    vault.store(source)
    data_index = object_names(vault.storage, ["index"])
    for path in source.iterdir():
        os.utime(path, ns=(1, 1))
    # Its trees are its own now, its data is the first one's.
    vault.store(source)
    for name in data_index:
        vault.storage.delete(name)
    assert vault.check().problems != []
    healing = vault.store(source)
    assert healing.snapshot.statistics.read_size == 600_000
    assert differences(vault.read(healing, source), describe_folder(source)) == {}
    assert vault.store(source).snapshot.statistics.read_size == 0


def test_trees_that_the_index_lost_are_made_again_from_the_source(vault: Vault, source: Path) -> None:
    write(source / "folder" / "file", random_bytes(200_000, 1))
    vault.store(source)
    for name in object_names(vault.storage, ["index"]):
        vault.storage.delete(name)
    healing = vault.store(source)
    assert differences(vault.read(healing, source), describe_folder(source)) == {}
    vault.assert_sound()
