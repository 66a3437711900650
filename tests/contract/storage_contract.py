"""The laws that every storage must keep, as one suite; a storage's test module says how to make one.

A law is a method of `StorageContract` that takes a `Place`: somewhere a storage can be, seen by more than one handle,
and with ways to do behind the storage's back what disks, people and other processes do.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import pytest

from ohdiff.errors import IntegrityError, NoRepositoryError, ObjectMissingError, RepositoryExistsError, StorageError
from ohdiff.storage import FOLDERS, ObjectExistsError, ObjectInfo, Storage

CONFIG = b"a config"


class Place(Protocol):
    """Somewhere a storage can be."""

    def create(self) -> Storage: ...

    def open(self) -> Storage:
        """A handle as another process would get it."""

    def lose_folder(self, folder: str) -> None:
        """Make a folder of the repository vanish, as an unmounted disk would."""

    def truncate(self, name: str, size: int) -> None:
        """Cut a stored object short, as a damaged file system would."""


def pack_name(number: int) -> str:
    return f"packs/{number:02x}{'c3' * 31}"


def some_bytes(size: int, salt: int = 1) -> bytes:
    return bytes((i * i + salt * (i >> 8) + salt) & 0xFF for i in range(min(size, 4099))) * (size // 4099 + 1)


def made(place: Place) -> Storage:
    storage = place.create()
    storage.write_new("config", CONFIG)
    return storage


class StorageContract:
    """Each method is a law; it fails on a storage that breaks it."""

    def test_there_is_a_repository_once_its_config_is_written_and_never_before(self, place: Place) -> None:
        with pytest.raises(NoRepositoryError):
            place.open()
        storage = place.create()
        with pytest.raises(NoRepositoryError):
            place.open()
        storage.write_new("config", CONFIG)
        assert place.open().read("config") == CONFIG

    def test_an_interrupted_creation_can_be_repeated_and_a_finished_one_cannot(self, place: Place) -> None:
        place.create()
        made(place)
        with pytest.raises(RepositoryExistsError):
            place.create()
        assert place.open().read("config") == CONFIG

    def test_the_location_names_the_place(self, place: Place) -> None:
        storage = made(place)
        assert storage.location
        assert storage.location == place.open().location

    def test_what_is_written_is_read_by_everyone(self, place: Place) -> None:
        storage, data = made(place), some_bytes(70_000)
        names = [f"{folder}/{'0f' * 32}" for folder in FOLDERS]
        for name in names:
            storage.write(name, data)
        other = place.open()
        for name in names:
            assert other.exists(name)
            assert other.size(name) == len(data)
            assert other.read(name) == data

    @pytest.mark.parametrize("buffer", [bytes, bytearray, memoryview])
    def test_any_buffer_can_be_written(self, place: Place, buffer: type[bytes | bytearray | memoryview]) -> None:
        storage, data = made(place), some_bytes(5_000)
        storage.write(pack_name(1), buffer(data))
        storage.write_new(pack_name(2), buffer(data))
        with storage.open_writer("packs") as writer:
            writer.write(buffer(data))
            writer.commit(pack_name(3))
        assert [storage.read(pack_name(i)) for i in (1, 2, 3)] == [data] * 3

    def test_an_empty_object_is_an_object(self, place: Place) -> None:
        storage = made(place)
        storage.write(pack_name(1), b"")
        assert storage.exists(pack_name(1))
        assert storage.size(pack_name(1)) == 0
        assert storage.read(pack_name(1)) == b""
        assert storage.list_objects("packs") == [ObjectInfo(pack_name(1), 0)]

    def test_a_new_folder_is_empty_and_a_listing_is_complete_and_in_order(self, place: Place) -> None:
        storage = made(place)
        assert [storage.list_objects(folder) for folder in FOLDERS] == [[]] * len(FOLDERS)
        for number in (200, 3, 77, 140, 4):
            storage.write(pack_name(number), b"p" * number)
        storage.write(f"index/{'ab' * 32}", b"i")
        assert place.open().list_objects("packs") == [ObjectInfo(pack_name(n), n) for n in (3, 4, 77, 140, 200)]
        assert storage.list_objects("index") == [ObjectInfo(f"index/{'ab' * 32}", 1)]
        assert storage.list_objects("keys") == storage.list_objects("snapshots") == []

    @pytest.mark.parametrize("folder", FOLDERS)
    def test_a_lost_folder_is_an_error_and_never_an_empty_listing(self, place: Place, folder: str) -> None:
        storage, name = made(place), f"{folder}/{'0f' * 32}"
        storage.write(name, b"x")
        place.lose_folder(folder)
        for handle in (storage, place.open()):
            with pytest.raises(StorageError):
                handle.list_objects(folder)

    @pytest.mark.parametrize("folder", FOLDERS)
    def test_a_lost_folder_is_not_a_missing_object(self, place: Place, folder: str) -> None:
        storage, name = made(place), f"{folder}/{'0f' * 32}"
        place.lose_folder(folder)
        for act in (storage.exists, storage.read, storage.size, storage.delete):
            with pytest.raises(StorageError) as caught:
                act(name)
            assert not isinstance(caught.value, ObjectMissingError)

    def test_a_lost_folder_is_not_made_again_by_writing(self, place: Place) -> None:
        storage = made(place)
        place.lose_folder("packs")
        with pytest.raises(StorageError):
            storage.write(pack_name(1), b"x")
        with pytest.raises(StorageError):
            storage.list_objects("packs")

    def test_a_missing_object_is_missing(self, place: Place) -> None:
        storage = made(place)
        storage.write(pack_name(1), b"x")
        for name in (pack_name(2), f"index/{'0f' * 32}"):
            assert storage.exists(name) is False
            for act in (storage.read, storage.size, storage.delete):
                with pytest.raises(ObjectMissingError):
                    act(name)

    def test_a_range_is_exactly_that_range(self, place: Place) -> None:
        storage, data = made(place), some_bytes(10_000)[:10_000]
        storage.write(pack_name(1), data)
        ranges = [(0, 0), (0, 1), (9_999, 1), (10_000, 0), (4_095, 4_099), (0, 10_000)]
        for offset, size in ranges:
            assert storage.read(pack_name(1), offset, size) == data[offset : offset + size]
        assert storage.read(pack_name(1), 9_000) == data[9_000:]
        assert storage.read(pack_name(1), 10_000) == b""

    def test_a_range_beyond_the_end_is_an_error_and_never_short(self, place: Place) -> None:
        storage = made(place)
        storage.write(pack_name(1), b"0123456789")
        for offset, size in [(0, 11), (10, 1), (9, 2), (11, 0), (11, None), (0, 1 << 62), (1 << 62, 1)]:
            with pytest.raises(IntegrityError):
                storage.read(pack_name(1), offset, size)

    def test_an_object_cut_short_is_an_error_for_who_wants_what_is_gone(self, place: Place) -> None:
        storage = made(place)
        storage.write(pack_name(1), b"0123456789")
        place.truncate(pack_name(1), 4)
        assert storage.read(pack_name(1), 0, 4) == b"0123"
        assert storage.list_objects("packs") == [ObjectInfo(pack_name(1), 4)]
        with pytest.raises(IntegrityError):
            storage.read(pack_name(1), 2, 4)

    def test_a_negative_range_is_refused(self, place: Place) -> None:
        storage = made(place)
        storage.write(pack_name(1), b"0123456789")
        for offset, size in [(-1, 1), (0, -1), (-1, None)]:
            with pytest.raises(ValueError, match="range"):
                storage.read(pack_name(1), offset, size)

    def test_writing_the_same_again_changes_nothing(self, place: Place) -> None:
        storage, data = made(place), some_bytes(3_000_000)
        for _ in range(2):
            with storage.open_writer("packs") as writer:
                writer.write(data)
                writer.commit(pack_name(1))
        storage.write(pack_name(1), data)
        assert storage.read(pack_name(1)) == data
        assert len(storage.list_objects("packs")) == 1

    @pytest.mark.parametrize("other", [b"short", b"0123456789ABCDEFx", b"0123456789ABCDEF and longer"])
    def test_other_bytes_under_a_taken_name_are_refused_and_change_nothing(self, place: Place, other: bytes) -> None:
        storage, data = made(place), b"0123456789ABCDEFG"
        storage.write(pack_name(1), data)
        with pytest.raises(IntegrityError):
            storage.write(pack_name(1), other)
        with storage.open_writer("packs") as writer, pytest.raises(IntegrityError):
            writer.write(other)
            writer.commit(pack_name(1))
        with pytest.raises(ObjectExistsError):
            storage.write_new(pack_name(1), other)
        assert place.open().read(pack_name(1)) == data

    def test_the_config_is_claimed_once(self, place: Place) -> None:
        storage = made(place)
        for data in (CONFIG, b"another, longer config"):
            with pytest.raises(ObjectExistsError):
                storage.write_new("config", data)
        with pytest.raises(ValueError, match="config"):
            storage.write("config", b"x")
        assert storage.read("config") == CONFIG

    def test_of_many_who_claim_at_once_exactly_one_wins(self, place: Place) -> None:
        storage, count = place.create(), 8
        barrier = threading.Barrier(count)

        def claim(number: int) -> bool:
            barrier.wait()
            try:
                storage.write_new("config", b"%d" % number * 1000)
            except ObjectExistsError:
                return False
            return True

        with ThreadPoolExecutor(count) as pool:
            won = list(pool.map(claim, range(count)))
        assert won.count(True) == 1
        assert storage.read("config") == b"%d" % won.index(True) * 1000

    def test_nobody_sees_an_object_in_part(self, place: Place) -> None:
        storage, other, data = made(place), place.open(), some_bytes(400_000)
        names = [pack_name(number) for number in range(8)]

        def write_all() -> None:
            for name in names:
                storage.write(name, data)

        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(write_all)
            for name in names:
                while not other.exists(name) and not writing.done():
                    pass
                assert other.read(name) == data
            writing.result()

    def test_an_object_in_the_making_is_not_listed(self, place: Place) -> None:
        storage, other, data = made(place), place.open(), some_bytes(2_500_000)
        with storage.open_writer("packs") as writer:
            for end in range(0, len(data), 99_991):
                writer.write(data[end : end + 99_991])
                assert other.list_objects("packs") == []
            assert writer.size == len(data)
            writer.commit(pack_name(1))
        assert other.list_objects("packs") == [ObjectInfo(pack_name(1), len(data))]
        assert other.read(pack_name(1)) == data

    def test_the_writer_counts_every_byte_at_once(self, place: Place) -> None:
        with made(place).open_writer("packs") as writer:
            assert writer.size == 0
            for size in (1, 10, 1 << 20):
                before = writer.size
                writer.write(b"x" * size)
                assert writer.size == before + size

    def test_a_buffer_is_free_for_reuse_once_it_was_written(self, place: Place) -> None:
        storage, buffer = made(place), bytearray(b"first")
        with storage.open_writer("packs") as writer:
            writer.write(buffer)
            buffer[:] = b"wrong"
            writer.write(memoryview(b"-then"))
            writer.commit(pack_name(1))
        assert storage.read(pack_name(1)) == b"first-then"

    def test_an_aborted_writer_leaves_nothing(self, place: Place) -> None:
        storage = made(place)
        writer = storage.open_writer("packs")
        writer.write(b"x" * 100)
        writer.abort()
        writer.abort()
        assert [storage.list_objects(folder) for folder in FOLDERS] == [[]] * len(FOLDERS)
        assert storage.stale_temporaries() == []

    def test_leaving_the_context_without_a_commit_aborts(self, place: Place) -> None:
        storage = made(place)
        with storage.open_writer("packs") as quiet:
            quiet.write(b"x")
        with pytest.raises(KeyError), storage.open_writer("packs") as failing:
            failing.write(b"x")
            raise KeyError
        for writer in (quiet, failing):
            with pytest.raises(ValueError, match="already"):
                writer.commit(pack_name(1))
        assert storage.list_objects("packs") == []
        assert storage.stale_temporaries() == []

    def test_a_finished_writer_is_finished(self, place: Place) -> None:
        storage = made(place)
        with storage.open_writer("packs") as writer:
            writer.write(b"x")
            writer.commit(pack_name(1))
            writer.abort()
            with pytest.raises(ValueError, match="already"):
                writer.write(b"y")
            with pytest.raises(ValueError, match="already"):
                writer.commit(pack_name(1))
        assert storage.read(pack_name(1)) == b"x"

    def test_another_thread_may_commit(self, place: Place) -> None:
        storage = made(place)
        with ThreadPoolExecutor(2) as pool:
            commits = []
            for number in range(20):
                writer = storage.open_writer("packs")
                writer.write(b"%d" % number)
                commits.append(pool.submit(writer.commit, pack_name(number)))
            for commit in commits:
                commit.result()
        assert [storage.read(pack_name(number)) for number in range(20)] == [b"%d" % n for n in range(20)]

    def test_a_writer_commits_to_its_own_folder_only(self, place: Place) -> None:
        storage = made(place)
        for name in (f"index/{'0f' * 32}", "config"):
            with storage.open_writer("packs") as writer, pytest.raises(ValueError, match="folder"):
                writer.write(b"x")
                writer.commit(name)
        assert storage.list_objects("index") == storage.list_objects("packs") == []
        assert storage.read("config") == CONFIG

    def test_what_is_deleted_is_gone_and_nothing_else(self, place: Place) -> None:
        storage = made(place)
        near = f"packs/01{'c3' * 30}c4"
        for name in (pack_name(1), near, pack_name(2)):
            storage.write(name, b"x")
        storage.delete(pack_name(1))
        assert place.open().exists(pack_name(1)) is False
        assert [info.name for info in storage.list_objects("packs")] == [near, pack_name(2)]
        storage.write(pack_name(1), b"again")
        assert storage.read(pack_name(1)) == b"again"

    @pytest.mark.parametrize(
        "name",
        [
            *("", "config/", "../config", "packs", "packs/", "packs/..", "packs/../config", "/packs/" + "a" * 32),
            *("packs/" + "A" * 32, "packs/" + "g" * 32, "packs/" + "a" * 15, "packs/" + "a" * 65, "other/" + "a" * 32),
            *("packs/aa/" + "a" * 32, "packs/" + "a" * 32 + "\n", "packs/" + "a" * 32 + "\0", "tmp/" + "a" * 32),
        ],
    )
    def test_names_that_are_not_objects_are_refused(self, place: Place, name: str) -> None:
        storage = made(place)
        for act in (storage.exists, storage.read, storage.size, storage.delete):
            with pytest.raises(ValueError, match="name"):
                act(name)
        for write in (storage.write, storage.write_new):
            with pytest.raises(ValueError, match="name"):
                write(name, b"x")
        with storage.open_writer("packs") as writer, pytest.raises(ValueError, match="name"):
            writer.commit(name)

    @pytest.mark.parametrize("folder", ["", ".", "..", "tmp", "config", "packs/", "packs/aa", "/"])
    def test_folders_that_are_not_the_repositorys_are_refused(self, place: Place, folder: str) -> None:
        storage = made(place)
        for act in (storage.list_objects, storage.open_writer):
            with pytest.raises(ValueError, match="folder"):
                act(folder)

    def test_the_free_size_is_a_size_or_unknown(self, place: Place) -> None:
        free = made(place).free_size()
        assert free is None or free > 0

    def test_the_temporary_of_a_live_writer_is_not_stale(self, place: Place) -> None:
        storage, other = made(place), place.open()
        with storage.open_writer("packs") as writer:
            writer.write(b"x" * (2 << 20))
            stale = other.stale_temporaries()
            for info in stale:
                other.remove_temporary(info.name)
            writer.commit(pack_name(1))
        assert stale == []
        assert storage.size(pack_name(1)) == 2 << 20
        assert other.stale_temporaries() == []


def laws_of(suite: type[StorageContract]) -> Iterator[tuple[str, dict[str, object]]]:
    """Every law with every set of its parameters, for running the suite on something that must fail it."""
    for law in sorted(name for name in vars(suite) if name.startswith("test_")):
        marks = getattr(getattr(suite, law), "pytestmark", [])
        if not marks:
            yield law, {}
        for mark in marks:
            argument, values = mark.args
            yield from ((law, {argument: value}) for value in values)
