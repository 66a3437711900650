"""Local storage: objects as files below one folder.

config | keys/<name> | index/<name> | snapshots/<name> | packs/<first two digits>/<name> | tmp/<random>

Every object is written to `tmp/` of the same file system, made read-only, synced, and then renamed; then the folder
that got the name is synced, and a freshly made one in its parent too. So a name stands for a whole object at every
moment, also after a loss of power, and what a writer left behind is in `tmp/` only.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Final

from ohdiff.errors import IntegrityError, NoRepositoryError, ObjectMissingError, StorageError

from .contract import Buffer, ObjectExistsError, ObjectInfo
from .local_create import create_folders
from .local_writer import LocalWriter
from .names import CONFIG, PACKS, check_content_name, check_folder, check_name, check_range, is_object_name
from .system_calls import SystemCalls
from .system_errors import NOT_SUPPORTED, reporting
from .temporary import TEMPORARY_FOLDER, TemporaryFile, create_temporary, list_stale, remove_stale

_NO_LINKS: Final = NOT_SUPPORTED | {errno.EPERM, errno.EMLINK}
_COMPARE_SIZE_BYTES: Final = 1 << 20
_SHELF: Final = re.compile(r"[0-9a-f]{2}")


class LocalStorage:
    """A repository's objects in a folder of this machine (or of a mounted network file system).

    Use `open` and `create`; the constructor looks at nothing.

    Parameters
    ----------
    path : the repository's folder.
    calls : the system calls; only crash tests pass their own.
    """

    def __init__(self, path: Path, calls: SystemCalls | None = None) -> None:
        self._root = path.absolute()
        self._calls = calls or SystemCalls()
        self._synced_folders: set[Path] = set()

    @classmethod
    def create(cls, path: Path, calls: SystemCalls | None = None) -> LocalStorage:
        """Make the folders of a repository (mode 0700), where there is none and nothing else.

        Raises
        ------
        RepositoryExistsError
            There is a config.
        RepositoryError
            There are objects, but no config.
        UsageError
            There is something else.
        StorageError
            The folders could not be made.
        """
        storage = cls(path, calls)
        with storage._reporting("make", "the repository"):
            create_folders(storage._calls, storage._root)
        return storage

    @classmethod
    def open(cls, path: Path, calls: SystemCalls | None = None) -> LocalStorage:
        """The storage of a repository that exists.

        Raises
        ------
        NoRepositoryError
            There is no config.
        StorageError
            Whether there is one could not be told.
        """
        storage = cls(path, calls)
        with storage._reporting("open", CONFIG):
            if not storage._is_repository():
                raise NoRepositoryError(
                    f"there is no repository at {storage.location}",
                    hint="check the path and that its disk is mounted, or make a repository there with init",
                    item=storage.location,
                )
        return storage

    @property
    def location(self) -> str:
        return str(self._root)

    def list_objects(self, folder: str) -> list[ObjectInfo]:
        check_folder(folder)
        with self._reporting("list", folder):
            found = (self._info(folder, entry) for entry in self._entries(folder))
            return sorted(info for info in found if info is not None)

    def exists(self, name: str) -> bool:
        try:
            self.size(name)
        except ObjectMissingError:
            return False
        return True

    def size(self, name: str) -> int:
        path = self._path(name)
        with self._reporting("look at", name), self._telling_what_is_missing(name, path):
            return self._regular_size(self._calls.stat(path), name)

    def read(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
        check_range(offset, size)
        path = self._path(name)
        with self._reporting("read", name):
            with self._telling_what_is_missing(name, path):
                descriptor = self._calls.open_file(path)
            try:
                return self._read_range(descriptor, name, offset, size)
            finally:
                self._calls.close(descriptor)

    def write(self, name: str, data: Buffer) -> None:
        check_content_name(name)
        with self.open_writer(name.partition("/")[0]) as writer:
            writer.write(data)
            writer.commit(name)

    def write_new(self, name: str, data: Buffer) -> None:
        path = self._path(name)
        with self._writer(name) as writer:
            writer.write(data)
            writer.finish(name, lambda temporary: self._claim(temporary, path, name))

    def open_writer(self, folder: str) -> LocalWriter:
        check_folder(folder)
        return self._writer(folder)

    def delete(self, name: str) -> None:
        path = self._path(name)
        with self._reporting("delete", name):
            with self._telling_what_is_missing(name, path):
                self._calls.unlink(path)
            self._calls.sync_folder(path.parent)

    def spare_page_cache(self) -> None:
        """See `Storage.spare_page_cache`."""
        self._calls.spares_page_cache = True

    def free_size(self) -> int | None:
        with self._reporting("ask for the free space of", "the repository"):
            found = os.statvfs(self._root)
            return found.f_bavail * found.f_frsize

    def stale_temporaries(self) -> list[ObjectInfo]:
        folder = self._root / TEMPORARY_FOLDER
        with self._reporting("list", TEMPORARY_FOLDER):
            self._calls.stat(self._root)
            return list_stale(self._calls, folder) if folder.exists() else []

    def remove_temporary(self, name: str) -> bool:
        with self._reporting("remove the temporary", name):
            return remove_stale(self._calls, self._root / TEMPORARY_FOLDER, name)

    def publish(self, temporary: TemporaryFile, name: str) -> None:
        """Give a finished temporary its name; for `LocalWriter`. Raises OSError and IntegrityError."""
        path = self._path(name)
        self._make_shelf(path.parent)
        if self._is_stored(temporary, path, name):
            temporary.remove()
        else:
            self._calls.rename(temporary.path, path)
        # Also for an object that was there: whoever renamed it may not have synced yet.
        self._calls.sync_folder(path.parent)

    def _writer(self, item: str) -> LocalWriter:
        with self._reporting("write to", item):
            self._make_ready_to_write()
            temporary = create_temporary(self._calls, self._root / TEMPORARY_FOLDER)
        return LocalWriter(temporary, item, self.publish, self._reporting)

    def _path(self, name: str) -> Path:
        check_name(name)
        folder, _, leaf = name.partition("/")
        return self._root / folder / leaf[:2] / leaf if folder == PACKS else self._root / name

    def _reporting(self, action: str, item: str) -> AbstractContextManager[None]:
        return reporting(action, f"{item} in {self.location}")

    @contextmanager
    def _telling_what_is_missing(self, name: str, path: Path) -> Iterator[None]:
        """A missing object is one thing; a folder, or the far end of a link, that is not there (unmounted) another."""
        try:
            yield
        except FileNotFoundError as error:
            if path.is_symlink() or path.parent.is_symlink():
                raise
            self._calls.stat(self._root / name.partition("/")[0] if name != CONFIG else self._root)
            raise ObjectMissingError(f"there is no {name} in {self.location}", item=name) from error

    def _is_repository(self) -> bool:
        try:
            found = self._calls.stat(self._root / CONFIG)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return stat.S_ISREG(found.st_mode)

    def _entries(self, folder: str) -> Iterator[os.DirEntry[str]]:
        entries = self._calls.scan(self._root / folder)
        if folder != PACKS:
            yield from entries
            return
        for shelf in entries:
            if _SHELF.fullmatch(shelf.name):
                for entry in self._calls.scan(self._root / folder / shelf.name):
                    if entry.name.startswith(shelf.name):
                        yield entry

    def _info(self, folder: str, entry: os.DirEntry[str]) -> ObjectInfo | None:
        """None for what is not an object, and for one that was deleted after the scan."""
        name = f"{folder}/{entry.name}"
        if not is_object_name(name):
            return None
        try:
            return ObjectInfo(name, self._regular_size(entry.stat(), name))
        except FileNotFoundError:
            if entry.is_symlink():
                raise
            return None

    def _regular_size(self, found: os.stat_result, name: str) -> int:
        if not stat.S_ISREG(found.st_mode):
            raise StorageError(f"{name} in {self.location} is not a regular file", item=name)
        return found.st_size

    def _read_range(self, descriptor: int, name: str, offset: int, size: int | None) -> bytes:
        stored = self._regular_size(self._calls.stat_open(descriptor), name)
        wanted = stored - offset if size is None else size
        if wanted < 0 or offset + wanted > stored:
            raise self._too_short(name, offset + (size or 0), stored)
        pieces = []
        while wanted:
            piece = self._calls.read_at(descriptor, wanted, offset)
            if not piece:
                raise self._too_short(name, offset + wanted, offset)
            pieces.append(piece)
            wanted -= len(piece)
            offset += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _too_short(self, name: str, wanted: int, stored: int) -> IntegrityError:
        return IntegrityError(
            f"{name} in {self.location} is too short: {wanted} bytes are needed, it has {stored}", item=name
        )

    def _make_ready_to_write(self) -> None:
        """Nothing may outlive a config that whoever wrote it had no time to sync, so it is synced before all else.

        `tmp/` is empty at rest, and tools that copy repositories drop empty folders: it is made again.
        """
        if self._root not in self._synced_folders:
            with suppress(FileExistsError):
                self._calls.make_folder(self._root / TEMPORARY_FOLDER)
            self._calls.sync_folder(self._root)
            self._synced_folders.add(self._root)

    def _make_shelf(self, shelf: Path) -> None:
        """A folder under `packs/` that is there and will be after a crash, whichever process made it."""
        if shelf.parent == self._root / PACKS and shelf not in self._synced_folders:
            with suppress(FileExistsError):
                self._calls.make_folder(shelf)
            self._calls.sync_folder(shelf.parent)
            self._synced_folders.add(shelf)

    def _is_stored(self, temporary: TemporaryFile, path: Path, name: str) -> bool:
        """Whether the very bytes of `temporary` are at `path`; other bytes there are an IntegrityError."""
        try:
            descriptor = self._calls.open_file(path)
        except FileNotFoundError:
            return False
        try:
            size = self._regular_size(self._calls.stat_open(descriptor), name)
            offsets = range(0, size, _COMPARE_SIZE_BYTES)
            if size == temporary.size and all(
                self._calls.read_at(descriptor, _COMPARE_SIZE_BYTES, offset)
                == temporary.read_at(_COMPARE_SIZE_BYTES, offset)
                for offset in offsets
            ):
                return True
        finally:
            self._calls.close(descriptor)
        raise IntegrityError(f"{name} in {self.location} holds other bytes than its name promises", item=name)

    def _claim(self, temporary: TemporaryFile, path: Path, name: str) -> None:
        self._make_shelf(path.parent)
        try:
            self._link(temporary, path)
        except FileExistsError as error:
            raise ObjectExistsError(f"{name} is already in {self.location}", item=name) from error
        self._calls.sync_folder(path.parent)
        temporary.remove()

    def _link(self, temporary: TemporaryFile, path: Path) -> None:
        try:
            self._calls.link(temporary.path, path)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            # No hard links here (FAT, some FUSE): an empty file claims the name, and the whole one replaces it.
            self._calls.close(self._calls.create_file(path))
            self._calls.rename(temporary.path, path)
