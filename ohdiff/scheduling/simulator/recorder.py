"""Who may look on while a run goes."""

from __future__ import annotations

from typing import Protocol

from ..core import Decision, Grant


class Recorder(Protocol):
    """Sees what happened when; for a trace to look at."""

    def busy(self, name: str, device: str, start_ns: int, end_ns: int) -> None:
        """A co-runner's phase."""
        ...

    def ran(self, device: str, grant: Grant, start_ns: int, end_ns: int) -> None:
        """Our units, one after another."""
        ...

    def decided(self, now_ns: int, decision: Decision) -> None:
        """A decision."""
        ...
