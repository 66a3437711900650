"""The contract of exclude rules, and the rule that keeps everything."""

from __future__ import annotations

from typing import Protocol

from ohdiff.filesystem import DirectoryHandle, EntryColumns


class DirectoryRules(Protocol):
    """What is kept of one directory and below it."""

    def enter(self, handle: DirectoryHandle, path: bytes, names: list[bytes]) -> DirectoryRules:
        """The rules inside the directory at `path`, which holds `names`; they may be read from files in it."""

    def kept_names(self, names: list[bytes]) -> list[bytes]:
        """Those names that may be kept; called once for a directory, before anything of it is looked at."""

    def kept_rows(self, path: bytes, entries: EntryColumns) -> list[int] | None:
        """The rows to keep of some entries of the directory at `path`, or None for all."""


class KeepAll:
    """Excludes nothing."""

    def enter(self, handle: DirectoryHandle, path: bytes, names: list[bytes]) -> DirectoryRules:
        """Itself."""
        return self

    def kept_names(self, names: list[bytes]) -> list[bytes]:
        """All of them."""
        return names

    def kept_rows(self, path: bytes, entries: EntryColumns) -> list[int] | None:
        """All of them."""
        return None
