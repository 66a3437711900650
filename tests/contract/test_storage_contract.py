"""The storage contract on every storage, and on storages with one planted fault each, which it must catch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from storage_contract import Place, StorageContract, laws_of

from ohdiff.errors import IntegrityError, ObjectMissingError, StorageError
from ohdiff.storage import Buffer, LocalStorage, MemoryStorage, ObjectExistsError, ObjectInfo, Storage
from ohdiff.storage.local_writer import LocalWriter
from ohdiff.storage.memory import MemoryWriter


class LocalPlace:
    """A folder that does not exist yet."""

    def __init__(self, folder: Path, kind: type[LocalStorage] = LocalStorage) -> None:
        self.folder = folder / "deep" / "repository"
        self.kind = kind

    def create(self) -> Storage:
        return self.kind.create(self.folder)

    def open(self) -> Storage:
        return self.kind.open(self.folder)

    def lose_folder(self, folder: str) -> None:
        (self.folder / folder).rename(self.folder / f"lost-{folder}")

    def truncate(self, name: str, size: int) -> None:
        folder, leaf = name.split("/")
        path = self.folder / folder / leaf[:2] / leaf
        path.chmod(0o600)
        with path.open("r+b") as file:
            file.truncate(size)


class MemoryPlace:
    """A name in this process."""

    def __init__(self, folder: Path, kind: type[MemoryStorage] = MemoryStorage) -> None:
        self.name = str(folder)
        self.kind = kind
        MemoryStorage.discard(self.name)

    def create(self) -> Storage:
        return self.kind.create(self.name)

    def open(self) -> Storage:
        return self.kind.open(self.name)

    def lose_folder(self, folder: str) -> None:
        del self.kind.open(self.name)._folders[folder]

    def truncate(self, name: str, size: int) -> None:
        objects = self.kind.open(self.name)._folders[name.partition("/")[0]]
        objects[name] = objects[name][:size]


class TestStorageContract(StorageContract):
    """The suite itself, on what we ship."""

    @pytest.fixture(params=[LocalPlace, MemoryPlace], ids=["local", "memory"])
    def place(self, request: pytest.FixtureRequest, tmp_path: Path) -> Place:
        place: Place = request.param(tmp_path)
        return place


class ShortReads(MemoryStorage):
    def read(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
        data = super().read(name)
        return data[offset:] if size is None else data[offset : offset + size]


class EmptyListingOnError(MemoryStorage):
    def list_objects(self, folder: str) -> list[ObjectInfo]:
        try:
            return super().list_objects(folder)
        except StorageError:
            return []


class AbsentOnError(LocalStorage):
    def exists(self, name: str) -> bool:
        return self._path(name).exists()


class MissingIsEmpty(MemoryStorage):
    def read(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
        try:
            return super().read(name, offset, size)
        except ObjectMissingError:
            return b""


class WritesInPlace(LocalStorage):
    def write(self, name: str, data: Buffer) -> None:
        path = self._path(name)
        if path.exists():
            super().write(name, data)
            return
        path.parent.mkdir(exist_ok=True)
        with path.open("wb") as file:
            for start in range(0, len(data), 50_000):
                file.write(data[start : start + 50_000])
                file.flush()
                time.sleep(0.001)


class OverwritesWithoutTruncating(LocalStorage):
    def write(self, name: str, data: Buffer) -> None:
        path = self._path(name)
        if not path.exists():
            super().write(name, data)
            return
        path.chmod(0o600)
        with path.open("r+b") as file:
            file.write(data)


class OverwritesWhole(MemoryStorage):
    def put(self, name: str, data: bytes) -> None:
        self._folder_of(name)[name] = data


class TrustsEqualSizes(MemoryStorage):
    def put(self, name: str, data: bytes) -> None:
        if len(self._folder_of(name).setdefault(name, data)) != len(data):
            raise IntegrityError(name)


class ClaimsTwice(MemoryStorage):
    def write_new(self, name: str, data: Buffer) -> None:
        self._folder_of(name)[name] = bytes(data)


class LooksBeforeItLeaps(MemoryStorage):
    def write_new(self, name: str, data: Buffer) -> None:
        if self.exists(name):
            raise ObjectExistsError(name)
        time.sleep(0.01)
        self._folder_of(name)[name] = bytes(data)


class MakesFoldersWhenAsked(LocalStorage):
    def write(self, name: str, data: Buffer) -> None:
        self._path(name).parent.mkdir(parents=True, exist_ok=True)
        super().write(name, data)


class AcceptsAnyName(LocalStorage):
    def _path(self, name: str) -> Path:
        return self._root / name


class ListsTemporaries(LocalStorage):
    def list_objects(self, folder: str) -> list[ObjectInfo]:
        made = self._root / "tmp"
        return super().list_objects(folder) + [ObjectInfo(path.name, path.stat().st_size) for path in made.iterdir()]


class ListsUnsorted(MemoryStorage):
    def list_objects(self, folder: str) -> list[ObjectInfo]:
        return super().list_objects(folder)[::-1]


class ListsThreeAtMost(MemoryStorage):
    def list_objects(self, folder: str) -> list[ObjectInfo]:
        return super().list_objects(folder)[:3]


class DeletesQuietly(MemoryStorage):
    def delete(self, name: str) -> None:
        if self.exists(name):
            super().delete(name)


class DeletesNothing(MemoryStorage):
    def delete(self, name: str) -> None:
        self.size(name)


class _KeepsBuffers(MemoryWriter):
    def write(self, buffer: Buffer) -> None:
        super().write(buffer)
        self._kept = [*getattr(self, "_kept", []), buffer]

    def commit(self, name: str) -> None:
        self._gathered = bytearray(b"".join(self._kept))
        super().commit(name)


class KeepsTheCallersBuffer(MemoryStorage):
    def open_writer(self, folder: str) -> MemoryWriter:
        super().open_writer(folder)
        return _KeepsBuffers(self, folder)


class _CommitsOnLeaving(MemoryWriter):
    def abort(self) -> None:
        if not self._is_finished and self._size:
            self._storage._folder_of("packs/")[f"packs/{'0' * 64}"] = bytes(self._gathered)
        super().abort()


class KeepsWhatWasAborted(MemoryStorage):
    def open_writer(self, folder: str) -> MemoryWriter:
        return _CommitsOnLeaving(self, folder) if folder == "packs" else super().open_writer(folder)


class _CountsWhatIsFlushed(LocalWriter):
    @property
    def size(self) -> int:
        return self._temporary.size - len(self._temporary._gathered)


class CountsWhatIsFlushed(LocalStorage):
    def open_writer(self, folder: str) -> LocalWriter:
        writer = super().open_writer(folder)
        return _CountsWhatIsFlushed(writer._temporary, folder, self.publish, self._reporting)


class ClearsTemporariesOfTheLiving(LocalStorage):
    def stale_temporaries(self) -> list[ObjectInfo]:
        return [ObjectInfo(path.name, path.stat().st_size) for path in (self._root / "tmp").iterdir()]

    def remove_temporary(self, name: str) -> bool:
        (self._root / "tmp" / name).unlink()
        return True


class LeavesTemporaries(LocalStorage):
    def open_writer(self, folder: str) -> LocalWriter:
        writer = super().open_writer(folder)
        writer._temporary.remove = lambda: None  # type: ignore[method-assign]
        return writer


class OneThreadOnly(MemoryStorage):
    def open_writer(self, folder: str) -> MemoryWriter:
        super().open_writer(folder)
        return _OneThreadWriter(self, folder)


class _OneThreadWriter(MemoryWriter):
    def __init__(self, storage: MemoryStorage, folder: str) -> None:
        super().__init__(storage, folder)
        self._thread = threading.current_thread()

    def commit(self, name: str) -> None:
        if threading.current_thread() is not self._thread:
            raise StorageError("not my thread")
        super().commit(name)


class Nameless(MemoryStorage):
    location = ""


class ForgetsToAskTheDisk(MemoryStorage):
    def free_size(self) -> int | None:
        return 0


class BytesOnly(MemoryStorage):
    def write(self, name: str, data: Buffer) -> None:
        super().write(name, b"" + data if isinstance(data, bytes) else str(data).encode())


class DropsEmptyObjects(MemoryStorage):
    def put(self, name: str, data: bytes) -> None:
        if data:
            super().put(name, data)


class IgnoresTheOffset(MemoryStorage):
    def read(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
        return super().read(name, offset, size) and super().read(name, 0, size)


class PadsWithZeros(MemoryStorage):
    def read(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
        return super().read(name)[offset:][:size].ljust(min(size or 0, 1 << 20), b"\0")


class SlicesBackwards(MemoryStorage):
    def read(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
        if offset < 0 or (size or 0) < 0:
            return super().read(name)[offset:][:size]
        return super().read(name, offset, size)


class RefusesARepeat(MemoryStorage):
    def put(self, name: str, data: bytes) -> None:
        self.write_new(name, data)


class _NeverFinished(MemoryWriter):
    def abort(self) -> None: ...


class WritersNeverEnd(MemoryStorage):
    def open_writer(self, folder: str) -> MemoryWriter:
        super().open_writer(folder)
        return _NeverFinished(self, folder)


class _CommitsAnywhere(MemoryWriter):
    def commit(self, name: str) -> None:
        self._folder = name.partition("/")[0]
        super().commit(name)


class CommitsToAnyFolder(MemoryStorage):
    def open_writer(self, folder: str) -> MemoryWriter:
        super().open_writer(folder)
        return _CommitsAnywhere(self, folder)


class ListsAnyFolder(LocalStorage):
    def list_objects(self, folder: str) -> list[ObjectInfo]:
        return [ObjectInfo(path.name, 0) for path in (self._root / folder).iterdir()]


class SeenByItsWriterOnly(MemoryStorage):
    @classmethod
    def open(cls, name: str) -> MemoryStorage:
        found, twin = super().open(name), cls(name)
        twin._folders[""] = found._folders[""]
        return twin


class RepositoryWithoutConfig(MemoryStorage):
    @classmethod
    def open(cls, name: str) -> MemoryStorage:
        return cls._shared[name]


class CreatesOverARepository(MemoryStorage):
    @classmethod
    def create(cls, name: str) -> MemoryStorage:
        cls._shared[name] = cls(name)
        return cls._shared[name]


FAULTS: list[tuple[type[LocalStorage] | type[MemoryStorage], str]] = [
    (RepositoryWithoutConfig, "test_there_is_a_repository_once_its_config_is_written_and_never_before"),
    (CreatesOverARepository, "test_an_interrupted_creation_can_be_repeated_and_a_finished_one_cannot"),
    (Nameless, "test_the_location_names_the_place"),
    (SeenByItsWriterOnly, "test_what_is_written_is_read_by_everyone"),
    (BytesOnly, "test_any_buffer_can_be_written"),
    (DropsEmptyObjects, "test_an_empty_object_is_an_object"),
    (ListsUnsorted, "test_a_new_folder_is_empty_and_a_listing_is_complete_and_in_order"),
    (ListsThreeAtMost, "test_a_new_folder_is_empty_and_a_listing_is_complete_and_in_order"),
    (EmptyListingOnError, "test_a_lost_folder_is_an_error_and_never_an_empty_listing"),
    (AbsentOnError, "test_a_lost_folder_is_not_a_missing_object"),
    (MakesFoldersWhenAsked, "test_a_lost_folder_is_not_made_again_by_writing"),
    (MissingIsEmpty, "test_a_missing_object_is_missing"),
    (DeletesQuietly, "test_a_missing_object_is_missing"),
    (IgnoresTheOffset, "test_a_range_is_exactly_that_range"),
    (ShortReads, "test_a_range_beyond_the_end_is_an_error_and_never_short"),
    (ShortReads, "test_an_object_cut_short_is_an_error_for_who_wants_what_is_gone"),
    (PadsWithZeros, "test_an_object_cut_short_is_an_error_for_who_wants_what_is_gone"),
    (SlicesBackwards, "test_a_negative_range_is_refused"),
    (RefusesARepeat, "test_writing_the_same_again_changes_nothing"),
    (OverwritesWithoutTruncating, "test_other_bytes_under_a_taken_name_are_refused_and_change_nothing"),
    (OverwritesWhole, "test_other_bytes_under_a_taken_name_are_refused_and_change_nothing"),
    (TrustsEqualSizes, "test_other_bytes_under_a_taken_name_are_refused_and_change_nothing"),
    (ClaimsTwice, "test_the_config_is_claimed_once"),
    (LooksBeforeItLeaps, "test_of_many_who_claim_at_once_exactly_one_wins"),
    (WritesInPlace, "test_nobody_sees_an_object_in_part"),
    (ListsTemporaries, "test_an_object_in_the_making_is_not_listed"),
    (CountsWhatIsFlushed, "test_the_writer_counts_every_byte_at_once"),
    (KeepsTheCallersBuffer, "test_a_buffer_is_free_for_reuse_once_it_was_written"),
    (KeepsWhatWasAborted, "test_an_aborted_writer_leaves_nothing"),
    (LeavesTemporaries, "test_an_aborted_writer_leaves_nothing"),
    (KeepsWhatWasAborted, "test_leaving_the_context_without_a_commit_aborts"),
    (WritersNeverEnd, "test_a_finished_writer_is_finished"),
    (OneThreadOnly, "test_another_thread_may_commit"),
    (CommitsToAnyFolder, "test_a_writer_commits_to_its_own_folder_only"),
    (DeletesNothing, "test_what_is_deleted_is_gone_and_nothing_else"),
    (AcceptsAnyName, "test_names_that_are_not_objects_are_refused"),
    (ListsAnyFolder, "test_folders_that_are_not_the_repositorys_are_refused"),
    (ForgetsToAskTheDisk, "test_the_free_size_is_a_size_or_unknown"),
    (ClearsTemporariesOfTheLiving, "test_the_temporary_of_a_live_writer_is_not_stale"),
]


def holds(law: str, place_of: Callable[[Path], Place], folder: Path) -> bool:
    """Whether a law holds, with each set of its parameters at a place of its own."""
    for number, (found, arguments) in enumerate(laws_of(StorageContract)):
        if found != law:
            continue
        (own := folder / str(number)).mkdir()
        try:
            getattr(StorageContract(), law)(place_of(own), **arguments)
        except (Exception, pytest.fail.Exception):  # noqa: BLE001 -- any failure is the finding
            return False
    return True


@pytest.mark.parametrize(("kind", "law"), FAULTS)
def test_the_suite_catches_a_planted_fault(
    kind: type[LocalStorage] | type[MemoryStorage], law: str, tmp_path: Path
) -> None:
    place: type[LocalPlace] | type[MemoryPlace] = LocalPlace if issubclass(kind, LocalStorage) else MemoryPlace
    (tmp_path / "sound").mkdir()
    assert holds(law, place, tmp_path / "sound")
    assert not holds(law, lambda folder: place(folder, kind), tmp_path)  # type: ignore[arg-type]


def test_every_law_is_broken_by_a_planted_fault() -> None:
    assert {law for law, _ in laws_of(StorageContract)} == {law for _, law in FAULTS}
