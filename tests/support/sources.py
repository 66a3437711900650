"""Builders of real source trees; `build_zoo` has one of every kind of entry that a backup meets."""

from __future__ import annotations

import os
import random
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

BEFORE_1970_NS = -(10**9) * 86_400 * 365 * 40 + 123_456_789


def random_bytes(size: int, seed: int = 0) -> bytes:
    """The same bytes for the same seed; they do not compress."""
    return random.Random(seed).randbytes(size)


def text_bytes(size: int, seed: int = 0) -> bytes:
    """Bytes that compress about as text does, without repeats that would dedup."""
    dice = random.Random(seed)
    words = [bytes(dice.choices(b"etaoinshrdlu", k=dice.randint(2, 9))) for _ in range(500)]
    return b" ".join(dice.choices(words, k=size // 3 + 1))[:size]


def write(path: Path, data: bytes = b"") -> Path:
    """Write a file, making the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def write_sparse(path: Path, size: int, pieces: dict[int, bytes]) -> Path:
    """A file with holes everywhere but at `pieces` (offset -> bytes)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for offset, data in pieces.items():
            file.seek(offset)
            file.write(data)
        file.truncate(size)
    return path


def build_zoo(root: Path) -> Path:
    """One of every kind of entry, small; entries that this user or file system cannot make are left out."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "empty folder").mkdir()
    write(root / "zero")
    write(root / "one", b"1")
    write(root / "text" / "poem.txt", text_bytes(30_000, 1))
    write(root / "text" / "copy.txt", text_bytes(30_000, 1))
    write(root / "binary", random_bytes(700_000, 2))
    for number in range(40):
        write(root / "many" / f"{number:03}", text_bytes(number * 37, number))
    write_sparse(root / "sparse", 3 << 20, {64 << 10: random_bytes(20_000, 3), 2 << 20: random_bytes(4096, 4)})
    write_sparse(root / "all hole", 1 << 20, {})
    os.link(root / "binary", root / "text" / "hard link")
    os.link(root / "zero", root / "zero link")
    (root / "to file").symlink_to("text/poem.txt")
    (root / "to folder").symlink_to("text")
    (root / "dangling").symlink_to("nowhere at all")
    os.symlink(b"\xff\xfe not text", bytes(root) + b"/odd target")
    os.mkfifo(root / "fifo")
    _make_socket(root / "socket")
    write_bytes_name(root, b"not utf-8 \xff\xfe", b"x")
    write_bytes_name(root, b"n" * 255, b"y")
    write_bytes_name(root, b"new\nline", b"z")
    (root / "folder with mode").mkdir()
    write(root / "setuid", b"#!").chmod(0o4755)
    (root / "folder with mode").chmod(0o2751)
    with suppress(OSError):
        os.setxattr(root / "one", "user.note", b"\0binary\xff")
        os.setxattr(root / "one", "user.empty", b"")
        os.setxattr(root / "empty folder", "user.folder", b"1")
    if os.geteuid() == 0:
        with suppress(OSError):
            os.mknod(root / "device", stat.S_IFCHR | 0o640, os.makedev(1, 3))
        os.chown(root / "one", 12_345, 54_321)
        os.chown(root / "dangling", 12_345, 54_321, follow_symlinks=False)
    os.utime(root / "one", ns=(0, BEFORE_1970_NS))
    os.utime(root / "dangling", ns=(1, 1_000_000_001), follow_symlinks=False)
    os.utime(root / "empty folder", ns=(1, 2_000_000_002))
    return root


def write_bytes_name(folder: Path, name: bytes, data: bytes) -> bytes:
    """A file whose name need not be text."""
    path = bytes(folder) + b"/" + name
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    os.write(fd, data)
    os.close(fd)
    return path


def build_deep(root: Path, levels: int) -> None:
    """A chain of folders, with a file in the last one; deeper than any one path may be long."""
    root.mkdir(parents=True, exist_ok=True)
    fd = os.open(root, os.O_RDONLY)
    for level in range(levels):
        name = f"level {level}"
        os.mkdir(name, dir_fd=fd)
        below = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    file = os.open("bottom", os.O_WRONLY | os.O_CREAT, 0o600, dir_fd=fd)
    os.write(file, b"deep")
    os.close(file)
    os.close(fd)


@contextmanager
def as_ordinary_user() -> Iterator[None]:
    """Be a user whom permissions hold back; the tests may run as root."""
    if os.geteuid() != 0:
        yield
        return
    os.setegid(65534)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


def mutate(root: Path, seed: int) -> None:
    """A few random edits of a tree: new, changed, truncated, replaced, removed, renamed entries."""
    dice = random.Random(seed)
    edits: list[Callable[[Path], object]] = [
        lambda path: write(path.with_name(f"new {seed}"), random_bytes(dice.randint(0, 90_000), seed)),
        lambda path: path.write_bytes(path.read_bytes()[: dice.randint(0, 100)]),
        lambda path: path.write_bytes(random_bytes(50, seed) + path.read_bytes()),
        lambda path: path.rename(path.with_name(f"moved {seed}")),
        lambda path: path.unlink(),
        lambda path: (path.unlink(), path.mkdir()),
        lambda path: os.utime(path, ns=(0, seed)),
        lambda path: path.chmod(0o600 + dice.randint(0, 63)),
    ]
    files = sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    for path in dice.sample(files, min(len(files), 4)):
        dice.choice(edits)(path)


def _make_socket(path: Path) -> None:
    # A path to bind to may be 107 bytes long only; relative to the folder it always fits.
    here = os.open(".", os.O_RDONLY)
    try:
        os.chdir(path.parent)
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.fchdir(here)
        os.close(here)
