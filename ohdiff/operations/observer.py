"""What a long operation tells while it runs. The cli implements it; library users may, too."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from ohdiff.errors import OhdiffError


@dataclass(slots=True)
class Progress:
    """Counts so far, updated in place; totals are 0 while they are not known. Sizes in bytes."""

    files_done: int = 0
    bytes_done: int = 0
    total_files: int = 0
    total_bytes: int = 0
    errors: int = 0
    engine: str = ""
    current: list[bytes] = field(default_factory=list)


class Observer(Protocol):
    """Told of progress, of single items, and of entries that failed while the rest went on."""

    wants_items: bool
    """Whether `item` should be called; building paths for a million files costs time."""

    def progress(self, progress: Progress) -> None:
        """Called often; showing it ten times a second is enough."""

    def item(self, action: str, path: bytes) -> None:
        """One entry: action is new, changed, unchanged, restored, skipped, deleted, ..."""

    def error(self, error: OhdiffError) -> None:
        """One entry failed; the operation goes on and counts it."""

    def note(self, message: str) -> None:
        """Something worth saying once."""


class Silent:
    """An observer that says nothing."""

    wants_items = False

    def progress(self, progress: Progress) -> None:
        """Ignored."""

    def item(self, action: str, path: bytes) -> None:
        """Ignored."""

    def error(self, error: OhdiffError) -> None:
        """Ignored."""

    def note(self, message: str) -> None:
        """Ignored."""
