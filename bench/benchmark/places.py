"""Where a bench run keeps repositories, working copies and restored trees, and when it removes them.

ext4 does not reuse inodes freed within the last minutes, so that creating many files soon after removing many costs
0.1 to 0.6 ms of kernel time each. So copies and restores go to a file system in memory when they fit, where things are
removed at once, and on any other nothing is removed before the run ends.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from types import TracebackType

MEMORY_FOLDER = Path("/dev/shm")
MEMORY_KINDS = frozenset({"tmpfs", "ramfs"})
# A working copy and one restored tree at a time, and a little to spare.
ROOM_FACTOR = 2.2
# Of the memory that is free, this much may become files; the rest is for the tools and the page cache.
MEMORY_SHARE_MAX = 0.7


class Places:
    """New folders: `work` for what tools keep, `copies` of the corpora, `restores`; a context that removes them.

    Parameters
    ----------
    work_parent : where `work` is made.
    copies_parent : where `copies` is made; None: where `restores` is, in memory if there is room.
    tree_room_bytes : the room that the largest tree of the run needs.
    """

    def __init__(self, work_parent: Path, copies_parent: Path | None, tree_room_bytes: int) -> None:
        self._made: list[Path] = []
        fits = is_room_in_memory(int(tree_room_bytes * ROOM_FACTOR))
        scratch_parent = MEMORY_FOLDER if fits else work_parent
        self.work = self._make(work_parent, "repositories")
        self.copies = self._make(copies_parent or scratch_parent, "copies")
        self.restores = self._make(scratch_parent, "restores")

    def discard(self, folder: Path) -> None:
        """Remove now where that costs later runs nothing; else leave it to the end."""
        if file_system_of(folder) in MEMORY_KINDS:
            shutil.rmtree(folder)

    def describe(self) -> dict[str, str]:
        """Each place and its file system, in words."""
        places = {"repositories": self.work, "working copies": self.copies, "restores": self.restores}
        return {name: f"{folder.parent} ({file_system_of(folder)})" for name, folder in places.items()}

    def __enter__(self) -> Places:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for folder in self._made:
            shutil.rmtree(folder, ignore_errors=True)

    def _make(self, parent: Path, purpose: str) -> Path:
        folder = Path(tempfile.mkdtemp(prefix=f"bench-{purpose}-", dir=parent)).resolve()
        self._made.append(folder)
        return folder


def is_room_in_memory(size: int) -> bool:
    """Whether /dev/shm is a file system in memory with `size` bytes to spare, in itself and in the machine."""
    if not MEMORY_FOLDER.is_dir() or file_system_of(MEMORY_FOLDER) not in MEMORY_KINDS:
        return False
    available = memory_figures().get("MemAvailable", 0)
    return size < shutil.disk_usage(MEMORY_FOLDER).free and size < available * MEMORY_SHARE_MAX


def file_system_of(folder: Path) -> str:
    """The kind of the file system that `folder` is on, such as ext4; "?" where there is no /proc/mounts."""
    try:
        lines = Path("/proc/mounts").read_text().splitlines()
    except FileNotFoundError:
        return "?"
    best = (0, "?")
    for line in lines:
        _, point, kind = line.split()[:3]
        if folder.resolve().is_relative_to(point) and len(point) >= best[0]:
            best = (len(point), kind)
    return best[1]


def memory_figures() -> dict[str, int]:
    """/proc/meminfo in bytes; empty where there is none."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except FileNotFoundError:
        return {}
    pairs = (line.split(":") for line in lines if line.endswith(" kB"))
    return {name: int(figure.split()[0]) * 1024 for name, figure in pairs}
