"""Counting a source ahead of a snapshot: its files, its bytes, and what of them will have to be read.

A file that has not changed its ctime since the parent snapshot began is not read by the walk, so that the work of a
snapshot is known without a look at the parent: what changed, and a little for each file that is only looked at.
"""

from __future__ import annotations

import stat
import threading
from collections.abc import Sequence
from typing import Final

from ohdiff.filesystem import DirectoryHandle, EntryColumns, read_entries
from ohdiff.scheduling.window import Work

from .source_rules import DirectoryRules

_NAMES_PER_CALL = 4096
# A file that is only looked at takes about as long as reading, cutting and storing so many bytes.
LOOK_COST_BYTES: Final = 4096


class SourceEstimate:
    """Counts in its own thread until it is done or stopped; entries that cannot be read count nothing.

    Parameters
    ----------
    settled_ns, settled_paths : files at or below these paths with a ctime before that time will not be read.
    files_likely : how many files are to be expected, as the parent has; 0 for unknown.

    Attributes
    ----------
    files, size : regular files and their bytes, so far.
    read_size : the bytes of those that will be read.
    data_size : the same without what may be holes, or is held compressed.
    is_complete : whether everything was counted.
    """

    def __init__(
        self,
        paths: Sequence[bytes],
        rules: DirectoryRules,
        *,
        one_file_system: bool,
        settled_ns: int = 0,
        settled_paths: Sequence[bytes] = (),
        files_likely: int = 0,
    ) -> None:
        self._paths = paths
        self._rules = rules
        self._one_file_system = one_file_system
        self._settled_ns = settled_ns
        self._settled_paths = settled_paths
        self._settled_here_ns = 0
        self._files_likely = files_likely
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="estimate", daemon=True)
        self.files = 0
        self.size = 0
        self.read_size = 0
        self.data_size = 0
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

    def work(self, files_done: int) -> Work:
        """What a snapshot has to do in all that has dealt with so many files; what it has read is not taken off.

        While it counts, the rest of the source is taken to be like what was counted, up to the parent's files.
        """
        looks = LOOK_COST_BYTES * max(0, self.files - files_done)
        likely = self.read_size + looks
        if not self.is_complete and 0 < self.files < self._files_likely:
            likely = likely * self._files_likely // self.files
        return Work(self.data_size + looks, likely)

    def _run(self) -> None:
        for path in self._paths:
            self._settled_here_ns = self._settled_ns if _is_at_or_below(path, self._settled_paths) else 0
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
                self._add(found, 0)
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
                    self._add(entries, row)
                elif stat.S_ISDIR(entries.modes[row]):
                    if self._one_file_system and entries.devices[row] != device:
                        continue
                    below.append((entries.names[row], rules))
        return [(handle.open_child(name), path + b"/" + name, inner) for name, inner in below]

    def _add(self, entries: EntryColumns, row: int) -> None:
        size = entries.sizes[row]
        self.files += 1
        self.size += size
        if entries.ctimes_ns[row] >= self._settled_here_ns:
            self.read_size += size
            self.data_size += min(size, entries.blocks512[row] * 512)


def _is_at_or_below(path: bytes, above: Sequence[bytes]) -> bool:
    return any(path == each or path.startswith(each.rstrip(b"/") + b"/") for each in above)
