"""Corpora: a folder as version 1, and another as version 2; counting, copying, updating and warming them.

Corpora are only read. Tools back up a working copy, which becomes version 2 in place with only changed files touched,
as a folder in use does.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PAGE_SIZE = 4096
INODE_SIZE = 1024  # what tmpfs and ext4 keep for an entry besides its data, rounded up
READ_SIZE = 1 << 20


@dataclass(frozen=True, slots=True)
class Corpus:
    """A name and one or two roots."""

    name: str
    v1: Path
    v2: Path | None = None

    def roots(self) -> list[Path]:
        return [self.v1] if self.v2 is None else [self.v1, self.v2]


@dataclass(frozen=True, slots=True)
class TreeSize:
    """What a tree holds; `room_bytes` is what a copy of it needs."""

    files: int
    folders: int
    links: int
    content_bytes: int
    room_bytes: int


def parse_corpus(text: str) -> Corpus:
    """`NAME=V1[:V2]` as a corpus; ValueError says what is wrong with it."""
    name, separator, roots = text.partition("=")
    if not separator or not name or "/" in name:
        raise ValueError(f"{text!r} is not NAME=V1[:V2]")
    first, _, second = roots.partition(":")
    v1, v2 = Path(first).absolute(), Path(second).absolute() if second else None
    for root in (v1, v2):
        if root is not None and not root.is_dir():
            raise ValueError(f"{root}: no such folder")
    return Corpus(name, v1, v2)


def measure_tree(root: Path) -> TreeSize:
    """Count what is under `root`, which does not count itself."""
    files = folders = links = content = room = 0
    for entry in walk(root):
        if entry.is_dir(follow_symlinks=False):
            folders += 1
        elif entry.is_symlink():
            links += 1
        elif entry.is_file(follow_symlinks=False):
            files += 1
            size = entry.stat(follow_symlinks=False).st_size
            content += size
            room += -(-size // PAGE_SIZE) * PAGE_SIZE
    return TreeSize(files, folders, links, content, room + (files + folders + links) * INODE_SIZE)


def stored_bytes(folder: Path) -> int:
    """The sum of the sizes of all files under `folder`."""
    return measure_tree(folder).content_bytes


def walk(root: Path) -> Iterator[os.DirEntry[str]]:
    """Every entry under `root`, links not followed."""
    folders = [str(root)]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                yield entry


def copy_tree(source: Path, target: Path) -> None:
    """A copy with all metadata, by cp, which is far faster than Python at many small files."""
    subprocess.run(["cp", "-a", "--", str(source), str(target)], check=True)


def update_tree(source: Path, target: Path) -> None:
    """Turn `target` into `source` and touch only what differs in content, mode or kind."""
    options = ("-rlp", "--checksum", "--delete")
    subprocess.run(["rsync", *options, "--", f"{source}/", f"{target}/"], check=True)


def is_updating_possible() -> bool:
    return shutil.which("rsync") is not None


def warm(root: Path) -> None:
    """Read every byte under `root` once, so that no tool is the first to meet a cold page cache."""
    buffer = bytearray(READ_SIZE)
    for entry in walk(root):
        if entry.is_file(follow_symlinks=False):
            with open(entry.path, "rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass
