"""An object of local storage in the making: a held temporary file that is published whole, or removed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from types import TracebackType
from typing import Self

from .contract import Buffer
from .names import check_in_folder
from .temporary import TemporaryFile


class LocalWriter:
    """An object in the making, in a held temporary file; see `ObjectWriter`."""

    def __init__(
        self,
        temporary: TemporaryFile,
        folder: str,
        publish: Callable[[TemporaryFile, str], None],
        reporting: Callable[[str, str], AbstractContextManager[None]],
    ) -> None:
        self._temporary = temporary
        self._folder = folder
        self._publish = publish
        self._reporting = reporting
        self._is_finished = False

    @property
    def size(self) -> int:
        return self._temporary.size

    def write(self, buffer: Buffer) -> None:
        self._check_unfinished()
        with self._aborting_on_error(), self._reporting("write to", self._folder):
            self._temporary.write(buffer)

    def commit(self, name: str) -> None:
        check_in_folder(name, self._folder)
        self.finish(name, lambda temporary: self._publish(temporary, name))

    def finish(self, name: str, publish: Callable[[TemporaryFile], None]) -> None:
        """Make the bytes durable and publish them; for `LocalStorage`."""
        self._check_unfinished()
        with self._aborting_on_error(), self._reporting("write", name):
            self._temporary.finish()
            publish(self._temporary)
            self._is_finished = True
            self._temporary.close()

    def abort(self) -> None:
        if self._is_finished:
            return
        self._is_finished = True
        # An abort often follows an error, which must stay the one that is seen; what is left is a stale temporary.
        with suppress(OSError):
            self._temporary.remove()
        with suppress(OSError):
            self._temporary.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.abort()

    def _check_unfinished(self) -> None:
        if self._is_finished:
            raise ValueError("this object was already committed or aborted")

    @contextmanager
    def _aborting_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.abort()
            raise
