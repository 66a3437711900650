"""Is a restored tree what was backed up? Names, types, bytes, modes, times and link targets, told apart.

The top folder itself is not judged: tools disagree on whether it belongs to a backup. Times are judged to the second
and to the nanosecond separately, because some formats keep whole seconds only.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

READ_SIZE = 1 << 20
EXAMPLES_MAX = 5
NANOSECONDS = 1_000_000_000
LOST_CONTENT = frozenset({"missing", "extra", "type", "content", "link"})


@dataclass(slots=True)
class Differences:
    """How many entries differ in each aspect, and the first few paths."""

    counts: dict[str, int] = field(default_factory=dict)
    examples: list[str] = field(default_factory=list)

    def add(self, aspect: str, path: str) -> None:
        self.counts[aspect] = self.counts.get(aspect, 0) + 1
        if len(self.examples) < EXAMPLES_MAX:
            self.examples.append(f"{aspect}: {path}")

    @property
    def is_content_lost(self) -> bool:
        return not LOST_CONTENT.isdisjoint(self.counts)


def compare_trees(expected: Path, actual: Path) -> Differences:
    """Everything in which the tree under `actual` differs from the one under `expected`."""
    differences = Differences()
    if not actual.is_dir():
        differences.add("missing", ".")
        return differences
    folders = [""]
    while folders:
        folders.extend(_compare_folder(str(expected), str(actual), folders.pop(), differences))
    return differences


def _compare_folder(expected: str, actual: str, folder: str, differences: Differences) -> list[str]:
    """Compare the entries of one folder; returns the folders in it that both trees have."""
    ours, theirs = _entries(f"{expected}/{folder}"), _entries(f"{actual}/{folder}")
    for name in ours.keys() - theirs.keys():
        differences.add("missing", f"{folder}{name}")
    for name in theirs.keys() - ours.keys():
        differences.add("extra", f"{folder}{name}")
    common = sorted(ours.keys() & theirs.keys())
    for name in common:
        for aspect in _differing_aspects(ours[name], theirs[name]):
            differences.add(aspect, f"{folder}{name}")
    both = (name for name in common if _is_folder(ours[name]) and _is_folder(theirs[name]))
    return [f"{folder}{name}/" for name in both]


def _entries(folder: str) -> dict[str, os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return {entry.name: entry for entry in entries}


def _is_folder(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False)


def _differing_aspects(ours: os.DirEntry[str], theirs: os.DirEntry[str]) -> list[str]:
    our_status, their_status = ours.stat(follow_symlinks=False), theirs.stat(follow_symlinks=False)
    kind = stat.S_IFMT(our_status.st_mode)
    if kind != stat.S_IFMT(their_status.st_mode):
        return ["type"]
    aspects = []
    if kind == stat.S_IFLNK and os.readlink(ours.path) != os.readlink(theirs.path):  # noqa: PTH115 a byte-exact target
        aspects.append("link")
    if kind == stat.S_IFREG and not _is_same_content(ours.path, theirs.path, our_status, their_status):
        aspects.append("content")
    if our_status.st_mode != their_status.st_mode:
        aspects.append("mode")
    if our_status.st_mtime_ns // NANOSECONDS != their_status.st_mtime_ns // NANOSECONDS:
        aspects.append("mtime")
    elif our_status.st_mtime_ns != their_status.st_mtime_ns:
        aspects.append("mtime fraction")
    return aspects


def _is_same_content(ours: str, theirs: str, our_status: os.stat_result, their_status: os.stat_result) -> bool:
    if our_status.st_size != their_status.st_size:
        return False
    with open(ours, "rb", buffering=0) as our_file, open(theirs, "rb", buffering=0) as their_file:
        while block := our_file.read(READ_SIZE):
            if block != their_file.read(READ_SIZE):
                return False
        return not their_file.read(1)
