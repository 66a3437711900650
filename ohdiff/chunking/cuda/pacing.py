"""What the engine asks before each unit of work on a device, and whom it tells of its end; a driver answers, or nobody.

A unit is a batch: its upload, its kernels, and its results. The driver is passed in; it is not known here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol


class DeviceRefusedError(Exception):
    """The device is not to be had for now, and the CPU can do the call as well."""


class DeviceTurn(Protocol):
    """Leave to run one unit.

    Attributes
    ----------
    size_bytes : what the unit should have at most.
    """

    @property
    def size_bytes(self) -> int: ...

    def submit(self, size_bytes: int) -> None:
        """The host's part is done: everything is copied to where the device takes it from, and kernels follow."""

    def end(self, *, is_ok: bool = True) -> None:
        """The results have come, or the device failed; without `submit` there was no unit. Once is enough."""


class DevicePace(Protocol):
    """Says when a unit may start, and how long it may be."""

    def wait(self, *, is_movable: bool) -> bool:
        """Return when units may start, before anything is taken for them; False to leave the work to the CPU."""
        ...

    def turn(self, kind: str, size_max: int, *, may_wait: bool, is_movable: bool) -> DeviceTurn | None:
        """Leave to start one unit.

        Parameters
        ----------
        kind : what is done with the bytes, and where they lie: units of one kind and size take about the same time.
        size_max : what there is room for.
        may_wait : whether to wait for it; who has a unit in flight must not, since it may be that one's end that is
            waited for.
        is_movable : the CPU can do the same, so that waiting has an end.

        Returns
        -------
        None for "not now"; never when it may wait and cannot be moved.
        """
        ...

    def lose(self) -> None:
        """The device failed, and is not used any more."""


@dataclass(frozen=True, slots=True)
class _Always:
    size_bytes: int

    def submit(self, size_bytes: int) -> None:
        """Nobody listens."""

    def end(self, *, is_ok: bool = True) -> None:
        """Nobody listens."""


class Unpaced:
    """Every unit may start at once, and be as large as there is room for."""

    def wait(self, *, is_movable: bool) -> bool:
        """At once."""
        return True

    def turn(self, kind: str, size_max: int, *, may_wait: bool, is_movable: bool) -> DeviceTurn | None:
        """Never refused."""
        return _Always(size_max)

    def lose(self) -> None:
        """Nobody listens."""


UNPACED: Final = Unpaced()
