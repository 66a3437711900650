"""The parts of a restore by themselves: one read of each block, bounded windows and descriptors, layouts, the crew."""

from __future__ import annotations

import gc
import os
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.description import describe_folder, differences
from support.sources import build_zoo, random_bytes, text_bytes, write
from support.vault import replace_object

from ohdiff.filesystem import DirectoryHandle
from ohdiff.operations.restore import window as restore_window
from ohdiff.operations.restore.block_source import BlockSource
from ohdiff.operations.restore.crew import Crew
from ohdiff.operations.restore.folders import Folder, OpenFolders
from ohdiff.operations.restore.window import Window
from ohdiff.operations.restore.work import Layout
from ohdiff.operations.restore.write import Bucket, Outcome

MiB = 1 << 20


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[bytes, int]]:
    """Counts how often each block of file data is read."""
    counted: Counter[tuple[bytes, int]] = Counter()
    load_block = BlockSource.load

    def load(self: BlockSource, location: Any, base: Any = None) -> Any:
        counted[(location.pack_id, location.number)] += 1
        return load_block(self, location, base)

    monkeypatch.setattr(BlockSource, "load", load)
    return counted


def build_shared(source: Path) -> None:
    """Files that lie in several blocks, and share data far from each other."""
    for number in range(60):
        write(source / f"{number:02}" / "own", random_bytes(400_000, number))
        write(source / f"{number:02}" / "shared", random_bytes(300_000, 1000) + text_bytes(5_000, number))
    write(source / "large", random_bytes(20 * MiB, 2000))


def test_each_block_is_read_once(library: Any, source: Path, tmp_path: Path, loads: Counter[Any]) -> None:
    build_shared(source)
    stored = library.vault.store(source)
    loads.clear()
    assert library.restore(stored, tmp_path / "target").errors == []
    assert len(loads) >= 5
    assert set(loads.values()) == {1}
    loads.clear()
    assert library.restore(stored, tmp_path / "target").bytes_written == 0
    assert not loads


def test_only_blocks_that_are_needed_are_read(library: Any, source: Path, tmp_path: Path, loads: Counter[Any]) -> None:
    build_shared(source)
    stored = library.vault.store(source)
    target = tmp_path / "target"
    library.restore(stored, target)
    with (target / "large").open("r+b") as file:
        file.seek(10 * MiB)
        file.write(b"changed")
    (target / "30" / "own").unlink()
    loads.clear()
    assert library.restore(stored, target).errors == []
    assert 1 <= len(loads) <= 3
    assert differences(describe_folder(target), describe_folder(source)) == {}


@pytest.mark.parametrize("entries", [16, 100])
def test_small_windows_restore_the_same(
    library: Any, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entries: int
) -> None:
    build_zoo(source)
    build_shared(source)
    stored = library.vault.store(source)
    monkeypatch.setattr(restore_window, "WINDOW_ENTRIES", entries)
    monkeypatch.setattr(restore_window, "_LOOK_UP_ENTRIES", max(1, entries // 2))
    target = tmp_path / "target"
    for _ in range(2):
        assert library.restore(stored, target).errors == []
        assert differences(describe_folder(target), describe_folder(source)) == {}
        write(target / "binary", b"changed")
        (target / "00" / "own").unlink()


def test_a_block_that_straddles_two_windows_is_read_once(
    library: Any, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loads: Counter[Any]
) -> None:
    for number in range(300):
        write(source / f"{number:03}", random_bytes(100_000, number))
    stored = library.vault.store(source)
    loads.clear()
    monkeypatch.setattr(restore_window, "WINDOW_ENTRIES", 120)
    monkeypatch.setattr(restore_window, "_LOOK_UP_ENTRIES", 10)
    assert library.restore(stored, tmp_path / "target").errors == []
    assert len(loads) >= 4
    assert loads.total() <= len(loads) + 1


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_any_number_of_workers_restores_the_same(library: Any, source: Path, tmp_path: Path, workers: int) -> None:
    build_zoo(source)
    build_shared(source)
    stored = library.vault.store(source)
    assert library.restore(stored, tmp_path / "target", workers=workers, verify=True).errors == []
    assert differences(describe_folder(tmp_path / "target"), describe_folder(source)) == {}


def test_many_folders_need_few_descriptors(
    library: Any, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2000):
        write(source / f"{number % 40}" / f"{number}" / "file", b"%d" % number)
    stored = library.vault.store(source)
    most = 0
    acquire = OpenFolders.acquire

    def acquire_and_count(self: OpenFolders, folder: Folder) -> DirectoryHandle:
        nonlocal most
        handle = acquire(self, folder)
        most = max(most, len(os.listdir("/proc/self/fd")))
        return handle

    monkeypatch.setattr(OpenFolders, "acquire", acquire_and_count)
    before = len(os.listdir("/proc/self/fd"))
    assert library.restore(stored, tmp_path / "target").errors == []
    assert most - before < 400
    assert differences(describe_folder(tmp_path / "target"), describe_folder(source)) == {}


@pytest.fixture
def tower(tmp_path: Path) -> Iterator[tuple[OpenFolders, list[Folder]]]:
    """Twenty directories in each other, of which four may be open."""
    handle = DirectoryHandle.open_root(tmp_path)
    folders = [Folder(None, b"")]
    opened = OpenFolders(folders[0], handle, open_max=4)
    for level in range(20):
        with opened.opened(folders[-1]) as parent:
            parent.make_child(b"%d" % level).close()
        folders.append(Folder(folders[-1], b"%d" % level))
    yield opened, folders
    opened.close()


def test_closed_folders_are_opened_again_by_their_names(tower: tuple[OpenFolders, list[Folder]]) -> None:
    opened, folders = tower
    before = len(os.listdir("/proc/self/fd"))
    for folder in [folders[20], folders[3], folders[19], folders[0], folders[10]]:
        with opened.opened(folder) as handle:
            assert handle.names() == ([] if folder is folders[20] else [b"%d" % folders.index(folder)])
    assert len(os.listdir("/proc/self/fd")) <= before + 4
    assert folders[3].path == b"/0/1/2"


def test_folders_in_use_stay_open(tower: tuple[OpenFolders, list[Folder]]) -> None:
    opened, folders = tower
    handles = [opened.acquire(folder) for folder in folders]
    assert len({handle.fd for handle in handles}) == 21
    opened.forget(folders[5])
    assert handles[5].names() == [b"5"]
    for folder in folders:
        opened.release(folder)
    opened.forget(folders[5])
    with pytest.raises(ValueError, match="closed"):
        handles[5].names()


def test_a_folder_that_became_a_symlink_is_not_reopened(
    tower: tuple[OpenFolders, list[Folder]], tmp_path: Path
) -> None:
    opened, folders = tower
    opened.acquire(folders[20])
    opened.release(folders[20])
    for folder in folders[1:]:
        opened.forget(folder)
    (tmp_path / "0" / "1").rename(tmp_path / "moved")
    (tmp_path / "0" / "1").symlink_to(tmp_path / "moved")
    with pytest.raises(OSError, match=r"symbolic|directory"):
        opened.acquire(folders[20])
    with opened.opened(folders[1]) as handle:
        assert handle.names() == [b"1"]


@pytest.mark.parametrize(
    ("position", "size", "expected"),
    [
        (0, 10, [(100, 0, 10)]),
        (0, 11, [(100, 0, 10), (200, 10, 1)]),
        (5, 20, [(105, 0, 5), (200, 5, 5), (300, 10, 10)]),
        (10, 5, [(200, 0, 5)]),
        (34, 1, [(319, 0, 1)]),
        (34, 5, [(319, 0, 1)]),
        (35, 5, []),
        (12, 0, []),
    ],
)
def test_a_layout_maps_data_to_where_it_lies(position: int, size: int, expected: list[tuple[int, int, int]]) -> None:
    layout = Layout([(100, 110), (200, 205), (300, 320)])
    assert layout.data_size == 35
    assert list(layout.ranges(position, size)) == expected


def test_the_crew_hands_results_to_its_caller_and_raises_errors_there() -> None:
    crew = Crew(2)
    caller = threading.get_ident()
    seen: list[tuple[int, bool, bool]] = []
    for number in range(20):
        crew.submit(
            lambda number=number: (number, threading.get_ident()),  # type: ignore[misc]
            lambda result: seen.append((result[0], result[1] != caller, threading.get_ident() == caller)),
        )
    crew.finish()
    assert sorted(seen) == [(number, True, True) for number in range(20)]
    crew.submit(lambda: 1 / 0, lambda _: None)
    with pytest.raises(ZeroDivisionError):
        crew.finish()
    crew.stop()


def test_a_stopped_crew_finishes_what_runs_and_drops_the_rest() -> None:
    crew = Crew(1)
    go = threading.Event()
    seen: list[int] = []
    for number in range(10):
        crew.submit(lambda number=number: (go.wait(10), number)[1], seen.append)  # type: ignore[misc]
    threading.Timer(0.05, go.set).start()
    crew.stop()
    assert seen == list(range(len(seen)))
    assert 1 <= len(seen) < 10
    crew.submit(lambda: 99, seen.append)
    crew.stop()
    assert 99 not in seen


def test_the_crew_takes_urgent_jobs_first_and_waits_only_as_long_as_it_must() -> None:
    crew = Crew(1)
    go = threading.Event()
    started: list[str] = []
    ended: list[str] = []

    def submit(submit_as: Any, name: str) -> None:
        submit_as(lambda: (go.wait(10), started.append(name), name)[2], ended.append)

    for number in range(6):
        submit(crew.submit, f"{number}")
    submit(crew.submit_first, "urgent")
    assert not started
    go.set()
    crew.wait_while(lambda: len(ended) < 2)
    assert 2 <= len(ended) < 7
    crew.wait_while(lambda: True)
    assert sorted(ended) == [*"012345", "urgent"]
    assert started.index("urgent") < 4
    crew.stop()


@pytest.mark.parametrize("was_enabled", [True, False])
def test_the_collector_of_cycles_is_left_as_it_was(
    library: Any, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, was_enabled: bool
) -> None:
    write(source / "file", b"1")
    stored = library.vault.store(source)
    seen = []
    monkeypatch.setattr(Crew, "submit", lambda *_: seen.append(gc.isenabled()) or 1 / 0)
    if not was_enabled:
        gc.disable()
    try:
        with pytest.raises(ZeroDivisionError):
            library.restore(stored, tmp_path / "target")
        assert seen == [False]
        assert gc.isenabled() == was_enabled
    finally:
        gc.enable()


def test_blocks_that_were_not_asked_for_lately_are_sent_off_while_the_walk_goes_on(
    library: Any, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(40):
        for name in range(10):
            write(source / f"{number:02}" / f"{name}", random_bytes(100_000, 10 * number + name))
    stored = library.vault.store(source)
    monkeypatch.setattr(restore_window, "WINDOW_ENTRIES", 200)
    monkeypatch.setattr(restore_window, "_LOOK_UP_ENTRIES", 10)
    held: list[int] = []
    events: list[str] = []
    add_new_files, submit = Window.add_new_files, Crew.submit

    def add(self: Window, folder: Folder, listing: Any, rows: list[int]) -> None:
        add_new_files(self, folder, listing, rows)
        events.append("planned")
        held.append(sum(bucket.entry_count for bucket in self._buckets.values()))

    def note(self: Crew, job: Any, then: Any) -> None:
        events.append("sent")
        submit(self, job, then)

    monkeypatch.setattr(Window, "add_new_files", add)
    monkeypatch.setattr(Crew, "submit", note)
    assert library.restore(stored, tmp_path / "target").errors == []
    assert max(held) <= 200 + 10
    planned = [place for place, event in enumerate(events) if event == "planned"]
    sent_meanwhile = events[: planned[-1]].count("sent")
    assert 0 < sent_meanwhile < events.count("sent")
    # What is not old enough is not sent: the next directories need it as well.
    assert min(held) > 0


def test_errors_that_are_kept_hold_no_frames(library: Any, source: Path, tmp_path: Path) -> None:
    """With the collector off, an error that leads back to its block would keep that in memory to the end."""
    for number in range(3):
        write(source / f"{number}", random_bytes(9 * MiB, number))
    stored = library.vault.store(source)
    for name in [info.name for info in library.vault.storage.list_objects("packs")]:
        data = bytearray(library.vault.storage.read(name))
        if len(data) > MiB:
            data[len(data) // 3] ^= 1
            replace_object(library.vault.storage, name, bytes(data))
    gc.collect()
    held = [Bucket, Outcome]
    before = sum(isinstance(item, tuple(held)) for item in gc.get_objects())
    gc.disable()
    try:
        result = library.restore(stored, tmp_path / "target")
        assert result.errors
        assert sum(isinstance(item, tuple(held)) for item in gc.get_objects()) <= before + 1
    finally:
        gc.enable()
