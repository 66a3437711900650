"""Leaving out checkpoints that are still being written: whole folders, told with the reasons.

A wrapper around the other rules, so that the walk knows nothing of it. Whether a folder is whole is judged by its names
and its index of shards (chunking/containers/shards.py), when the folder above is listed. A folder that the user names
is in the snapshot whatever it holds; of such a one only the files are left out.
"""

from __future__ import annotations

import os
import stat
from typing import Final

from ohdiff.chunking.containers.shards import (
    INDEX_SIZE_BYTES_MAX,
    is_temporary_name,
    looks_like_checkpoint,
    missing_of_checkpoint,
)
from ohdiff.filesystem import DirectoryHandle, EntryColumns, read_entries

from .source_rules import DirectoryRules

_EMPTY_INDEX: Final = b'{"weight_map":{}}'


class CompleteRules:
    """The rules before a given path is entered.

    Parameters
    ----------
    rules : what else is left out.

    Attributes
    ----------
    left_out : folders that are no whole checkpoints, and why, in the order in which they were met.
    """

    def __init__(self, rules: DirectoryRules) -> None:
        self.rules = rules
        self.left_out: dict[bytes, list[str]] = {}

    def enter(self, handle: DirectoryHandle, path: bytes, names: list[bytes]) -> _Inside:
        """The rules inside a given path."""
        reasons = reasons_of(handle, path.rpartition(b"/")[2], names)
        if reasons:
            self.left_out[path] = reasons
        return _Inside(self, self.rules.enter(handle, path, names), handle, has_files=not reasons)

    def kept_names(self, names: list[bytes]) -> list[bytes]:
        """All of them: no directory has been entered."""
        return names

    def kept_rows(self, path: bytes, entries: EntryColumns) -> list[int] | None:
        """All of them: no directory has been entered."""
        return None


class _Inside:
    """The rules inside one directory; the handle is that of the directory, and need be open only while it is listed."""

    def __init__(
        self, above: CompleteRules, rules: DirectoryRules, handle: DirectoryHandle, *, has_files: bool = True
    ) -> None:
        self._above = above
        self._rules = rules
        self._handle = handle
        self._has_files = has_files

    def enter(self, handle: DirectoryHandle, path: bytes, names: list[bytes]) -> _Inside:
        """The rules inside a sub-directory, which was judged before."""
        return _Inside(self._above, self._rules.enter(handle, path, names), handle)

    def kept_names(self, names: list[bytes]) -> list[bytes]:
        """As the other rules have it."""
        return self._rules.kept_names(names)

    def kept_rows(self, path: bytes, entries: EntryColumns) -> list[int] | None:
        """The rows that the other rules keep, without folders of incomplete checkpoints."""
        rows = self._rules.kept_rows(path, entries)
        every = range(len(entries)) if rows is None else rows
        kept = [row for row in every if self._is_kept(path, entries.names[row], entries.modes[row])]
        return rows if len(kept) == len(every) else kept

    def _is_kept(self, path: bytes, name: bytes, mode: int) -> bool:
        if not stat.S_ISDIR(mode):
            return self._has_files
        reasons = _reasons_below(self._handle, name)
        if reasons:
            self._above.left_out[path + b"/" + name] = reasons
        return not reasons


def reasons_of(handle: DirectoryHandle, name: bytes, names: list[bytes]) -> list[str]:
    """Why a folder is no whole checkpoint; nothing for one that is, or that is none, or that cannot be looked into.

    Parameters
    ----------
    name : of the folder.
    names : of everything in it. Folders in it count for nothing: they are judged by themselves.
    """
    if not looks_like_checkpoint(names):
        return []
    try:
        found = read_entries(handle, names, with_xattrs=False)
        files = [name for name, mode in zip(found.names, found.modes, strict=True) if not stat.S_ISDIR(mode)]
        reasons = missing_of_checkpoint(files, lambda index: _read_start(handle, index))
    except OSError:
        # The snapshot itself meets the same error, and reports it.
        return []
    if looks_like_checkpoint(files) and is_temporary_name(name):
        reasons.insert(0, "its name is a temporary one")
    return reasons


def _reasons_below(handle: DirectoryHandle, name: bytes) -> list[str]:
    try:
        with handle.open_child(name) as child:
            return reasons_of(child, name, child.names())
    except OSError:
        return []


def _read_start(handle: DirectoryHandle, name: bytes) -> bytes:
    """The index, as far as it takes to see that it is too large; a link, or what cannot be read, names nothing."""
    try:
        fd = handle.open_file(name)
    except OSError:
        return _EMPTY_INDEX
    with os.fdopen(fd, "rb") as file:
        return file.read(INDEX_SIZE_BYTES_MAX + 1)
