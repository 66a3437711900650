"""Counting files and bytes of a source ahead of a snapshot, so that progress can say how much is left."""

from __future__ import annotations

import stat
import threading
from collections.abc import Sequence

from ohdiff.filesystem import DirectoryHandle, read_entries

from .source_rules import DirectoryRules

_NAMES_PER_CALL = 4096


class SourceEstimate:
    """Counts in its own thread until it is done or stopped; entries that cannot be read count nothing.

    Attributes
    ----------
    files, size : regular files and their bytes, so far.
    is_complete : whether everything was counted.
    """

    def __init__(self, paths: Sequence[bytes], rules: DirectoryRules, *, one_file_system: bool) -> None:
        self._paths = paths
        self._rules = rules
        self._one_file_system = one_file_system
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="estimate", daemon=True)
        self.files = 0
        self.size = 0
        self.is_complete = False

    def __enter__(self) -> SourceEstimate:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def join(self) -> None:
        """Wait until everything is counted."""
        self._thread.join()

    def _run(self) -> None:
        for path in self._paths:
            self._count_path(path)
        self.is_complete = not self._stopped.is_set()

    def _count_path(self, path: bytes) -> None:
        above, _, name = path.rpartition(b"/")
        try:
            parent = DirectoryHandle.open_root(above or b"/")
            found = read_entries(parent, [name] if name else [b"."], with_xattrs=False)
            if not found.names:
                return
            if not stat.S_ISDIR(found.modes[0]):
                self._add(found.sizes[0])
                return
            self._count_folder(parent.open_child(name) if name else parent, path.rstrip(b"/"), found.devices[0])
        except OSError:
            return

    def _count_folder(self, handle: DirectoryHandle, path: bytes, device: int) -> None:
        stack = [(handle, path, self._rules)]
        while stack and not self._stopped.is_set():
            handle, path, rules = stack.pop()
            try:
                stack += self._count_entries(handle, path, rules, device)
            except OSError:
                continue

    def _count_entries(
        self, handle: DirectoryHandle, path: bytes, rules: DirectoryRules, device: int
    ) -> list[tuple[DirectoryHandle, bytes, DirectoryRules]]:
        """Count the files of one folder; returns the folders in it."""
        names = handle.names()
        rules = rules.enter(handle, path, names)
        names = rules.kept_names(names)
        below = []
        for start in range(0, len(names), _NAMES_PER_CALL):
            entries = read_entries(handle, names[start : start + _NAMES_PER_CALL], with_xattrs=False)
            kept = rules.kept_rows(path, entries)
            for row in range(len(entries)) if kept is None else kept:
                if stat.S_ISREG(entries.modes[row]):
                    self._add(entries.sizes[row])
                elif stat.S_ISDIR(entries.modes[row]):
                    if self._one_file_system and entries.devices[row] != device:
                        continue
                    below.append((entries.names[row], rules))
        return [(handle.open_child(name), path + b"/" + name, inner) for name, inner in below]

    def _add(self, size: int) -> None:
        self.files += 1
        self.size += size
