"""Storage in the memory of this process, for tests and for library users; nothing outlives the process."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import ClassVar, Final, Self

from ohdiff.errors import IntegrityError, NoRepositoryError, ObjectMissingError, RepositoryExistsError, StorageError

from .contract import Buffer, ObjectExistsError, ObjectInfo
from .names import CONFIG, FOLDERS, check_content_name, check_folder, check_in_folder, check_name, check_range

_ROOT: Final = ""


class MemoryStorage:
    """Objects in dicts.

    `create` and `open` share one storage per name; the constructor makes one that nobody else can find.
    """

    _lock_shared: ClassVar[threading.Lock] = threading.Lock()
    _shared: ClassVar[dict[str, MemoryStorage]] = {}

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.RLock()
        self._folders: dict[str, dict[str, bytes]] = {folder: {} for folder in (_ROOT, *FOLDERS)}

    @classmethod
    def create(cls, name: str) -> MemoryStorage:
        """A new storage of this name; RepositoryExistsError if there is one with a config."""
        with cls._lock_shared:
            found = cls._shared.setdefault(name, cls(name))
            if found.exists(CONFIG):
                raise RepositoryExistsError(f"there already is a repository at {found.location}", item=found.location)
            return found

    @classmethod
    def open(cls, name: str) -> MemoryStorage:
        """The storage of this name; NoRepositoryError if there is none with a config."""
        with cls._lock_shared:
            found = cls._shared.get(name)
            if found is None or not found.exists(CONFIG):
                raise NoRepositoryError(f"there is no repository at memory:{name}", item=f"memory:{name}")
            return found

    @classmethod
    def discard(cls, name: str) -> None:
        """Forget the storage of this name, and free it once nobody uses it."""
        with cls._lock_shared:
            cls._shared.pop(name, None)

    def copy(self) -> MemoryStorage:
        """A storage of its own with the same objects, that nobody else can find."""
        twin = MemoryStorage(self._name)
        with self._lock:
            twin._folders = {folder: dict(objects) for folder, objects in self._folders.items()}
        return twin

    @property
    def location(self) -> str:
        return f"memory:{self._name}"

    def list_objects(self, folder: str) -> list[ObjectInfo]:
        check_folder(folder)
        with self._lock:
            return sorted(ObjectInfo(name, len(data)) for name, data in self._folder(folder).items())

    def exists(self, name: str) -> bool:
        check_name(name)
        with self._lock:
            return name in self._folder_of(name)

    def size(self, name: str) -> int:
        return len(self._object(name))

    def read(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
        check_range(offset, size)
        data = self._object(name)
        end = max(offset, len(data)) if size is None else offset + size
        if end > len(data):
            raise IntegrityError(
                f"{name} in {self.location} is too short: {end} bytes are needed, it has {len(data)}", item=name
            )
        return data[offset:end]

    def write(self, name: str, data: Buffer) -> None:
        check_content_name(name)
        self.put(name, bytes(data))

    def write_new(self, name: str, data: Buffer) -> None:
        check_name(name)
        with self._lock:
            if name in self._folder_of(name):
                raise ObjectExistsError(f"{name} is already in {self.location}", item=name)
            self._folder_of(name)[name] = bytes(data)

    def open_writer(self, folder: str) -> MemoryWriter:
        check_folder(folder)
        self._folder(folder)
        return MemoryWriter(self, folder)

    def delete(self, name: str) -> None:
        with self._lock:
            self._object(name)
            del self._folder_of(name)[name]

    def spare_page_cache(self) -> None:
        """See `Storage.spare_page_cache`; nothing is cached twice here."""

    def free_size(self) -> int | None:
        return None

    def stale_temporaries(self) -> list[ObjectInfo]:
        return []

    def remove_temporary(self, name: str) -> bool:
        """There are none: what a writer gathered goes with it."""
        return True

    def put(self, name: str, data: bytes) -> None:
        """Keep an object under its content name; for `MemoryWriter`."""
        with self._lock:
            if self._folder_of(name).setdefault(name, data) != data:
                raise IntegrityError(f"{name} in {self.location} holds other bytes than its name promises", item=name)

    def _object(self, name: str) -> bytes:
        check_name(name)
        with self._lock:
            try:
                return self._folder_of(name)[name]
            except KeyError as error:
                raise ObjectMissingError(f"there is no {name} in {self.location}", item=name) from error

    def _folder_of(self, name: str) -> dict[str, bytes]:
        return self._folder(_ROOT if name == CONFIG else name.partition("/")[0])

    def _folder(self, folder: str) -> dict[str, bytes]:
        try:
            return self._folders[folder]
        except KeyError as error:
            raise StorageError(f"the folder {folder} is missing in {self.location}", item=folder) from error


class MemoryWriter:
    """An object in the making; see `ObjectWriter`."""

    def __init__(self, storage: MemoryStorage, folder: str) -> None:
        self._storage = storage
        self._folder = folder
        self._gathered = bytearray()
        self._size = 0
        self._is_finished = False

    @property
    def size(self) -> int:
        return self._size

    def write(self, buffer: Buffer) -> None:
        self._check_unfinished()
        with memoryview(buffer) as view, view.cast("B") as data:
            self._gathered += data
            self._size += len(data)

    def commit(self, name: str) -> None:
        check_in_folder(name, self._folder)
        self._check_unfinished()
        data = bytes(self._gathered)
        self.abort()
        self._storage.put(name, data)

    def abort(self) -> None:
        self._is_finished = True
        self._gathered.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.abort()

    def _check_unfinished(self) -> None:
        if self._is_finished:
            raise ValueError("this object was already committed or aborted")
