"""The storage contract: what the repository asks of any place that keeps named bytes.

An object is written once, whole and durable when the call returns, and never changed after; the one who writes gives
it a name that its bytes decide (only `config` is different, and is claimed exclusively). Doubt is an error: a listing
is complete or fails, a range comes back whole or fails, and a folder that cannot be seen is never an empty one.
Retrying, caching and the meaning of the bytes are left to the callers.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from ohdiff.errors import StorageError

Buffer = bytes | bytearray | memoryview


class ObjectExistsError(StorageError):
    """An object of this name is already there; it was not touched."""


@dataclass(frozen=True, slots=True, order=True)
class ObjectInfo:
    """One stored object, or one left-over temporary.

    Parameters
    ----------
    name : as passed to `Storage.read`, or to `Storage.remove_temporary`.
    size : in bytes.
    """

    name: str
    size: int


class ObjectWriter(Protocol):
    """An object in the making; nobody sees it under its name before `commit`.

    Used by one thread at a time, not always the same one: another thread may commit while the caller fills the next
    object. Leaving the context without a commit aborts.
    """

    @property
    def size(self) -> int:
        """Bytes taken so far."""

    def write(self, buffer: Buffer) -> None:
        """Append; `buffer` is free for reuse on return. After an error the writer is aborted.

        Raises
        ------
        StorageError
            With `can_retry` false when space has run out.
        """

    def commit(self, name: str) -> None:
        """Give the object its name. On return it is durable, and the writer is finished.

        An object of that name and the same bytes is left as it is, which makes a repeated commit harmless.

        Raises
        ------
        StorageError
            Nothing is under `name` that was not there before, or the whole object is; committing the same bytes
            again is safe.
        IntegrityError
            An object of that name holds other bytes; it was not touched.
        ValueError
            `name` is not in the folder that the writer was opened for.
        """

    def abort(self) -> None:
        """Give up the object and what it took; does nothing after `commit` or `abort`."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class Storage(Protocol):
    """Named bytes. Every method may be called from several threads at once.

    Names are `config`, or a folder of `names.FOLDERS` and 16 to 64 lowercase hex digits; any other name is a
    ValueError. An object that is not there is an ObjectMissingError; whatever cannot be told apart from a failure of
    the place itself is a StorageError.
    """

    @property
    def location(self) -> str:
        """Where the objects are, for messages."""

    def list_objects(self, folder: str) -> list[ObjectInfo]:
        """Every object of `folder` in order of name; complete, or an error."""

    def exists(self, name: str) -> bool:
        """Whether the object is there; an error when that cannot be told."""

    def size(self, name: str) -> int:
        """The object's size in bytes."""

    def read(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
        """`size` bytes from `offset` (to the end, if None).

        Raises
        ------
        ObjectMissingError
            There is no such object.
        IntegrityError
            The object ends before `offset + size`; nothing was allocated for a range that cannot be.
        """

    def write(self, name: str, data: Buffer) -> None:
        """Store a small object at once; as `open_writer`, `write` and `commit`, with their errors.

        `config` has no content name and must go through `write_new` (ValueError).
        """

    def write_new(self, name: str, data: Buffer) -> None:
        """Store an object that must not be there yet; of several callers at once exactly one succeeds.

        Raises
        ------
        ObjectExistsError
            Somebody was first, even with the same bytes.
        """

    def open_writer(self, folder: str) -> ObjectWriter:
        """Begin an object of `folder` whose name is not known yet."""

    def delete(self, name: str) -> None:
        """Remove an object; on return the removal is durable. Needs no free space."""

    def spare_page_cache(self) -> None:
        """From now on, keep nothing of what is written in this machine's page cache, where others' data is to stay."""

    def free_size(self) -> int | None:
        """Bytes that can still be written, or None where that is unknown or unbounded."""

    def stale_temporaries(self) -> list[ObjectInfo]:
        """What interrupted writers left behind; never the temporary of a writer that is known to be alive."""

    def remove_temporary(self, name: str) -> bool:
        """Remove one of `stale_temporaries`; False if its writer turned out to be alive."""
