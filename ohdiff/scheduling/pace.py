"""What long operations ask at the borders of their units; a governor answers, or nobody does."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager, nullcontext
from typing import Final, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Pace(Protocol):
    """Says when a unit may run.

    Attributes
    ----------
    leaves_page_cache : whether files should be read without leaving them in the page cache.
    """

    @property
    def leaves_page_cache(self) -> bool: ...

    def unit(self, size_bytes: int = 0) -> AbstractContextManager[None]:
        """Open while a unit of about so many bytes runs; entering it may take as long as others need the machine.

        A thread must not wait in it for another thread that needs a unit.
        """
        ...


class Unpaced:
    """Everything may run at once."""

    leaves_page_cache = False

    def unit(self, size_bytes: int = 0) -> AbstractContextManager[None]:
        """Never waits."""
        return nullcontext()


UNPACED: Final = Unpaced()


class PacedExecutor(Executor):
    """Runs every call as one unit, in the threads of another executor, which its owner shuts down.

    Parameters
    ----------
    inner : its threads run the calls; they must not wait for each other.
    """

    def __init__(self, inner: Executor, pace: Pace) -> None:
        self._inner = inner
        self._pace = pace

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Have it called."""
        return self._inner.submit(lambda: self._run(fn, *args, **kwargs))

    def _run(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        with self._pace.unit():
            return fn(*args, **kwargs)
