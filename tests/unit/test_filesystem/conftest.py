"""Real directories on the disk and in memory, and the means to be an ordinary user for a while."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from ohdiff.filesystem import DirectoryHandle

MEMORY = Path("/dev/shm")
NOBODY = 65534


@pytest.fixture(params=["disk", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """An empty directory that anyone may use, on the file system of temporary files and on a tmpfs."""
    if request.param == "disk":
        tmp_path.chmod(0o777)
        yield tmp_path
        return
    if not MEMORY.is_dir():
        pytest.skip("this system has no /dev/shm")
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)


@pytest.fixture
def directory(place: Path) -> Iterator[DirectoryHandle]:
    with DirectoryHandle.open_root(place) as handle:
        yield handle


@contextmanager
def _as_ordinary_user() -> Iterator[int]:
    if os.geteuid() != 0:
        yield os.geteuid()
        return
    groups, group = os.getgroups(), os.getegid()
    os.setgroups([])
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield NOBODY
    finally:
        os.seteuid(0)
        os.setegid(group)
        os.setgroups(groups)


@pytest.fixture
def ordinary_user() -> Callable[[], AbstractContextManager[int]]:
    """A context in which system calls are those of a user without privileges, whose id it gives."""
    return _as_ordinary_user


@pytest.fixture
def needs_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may do this")


@pytest.fixture
def user_xattrs(place: Path) -> None:
    """Skips where the file system keeps no user xattrs (tmpfs before Linux 6.6)."""
    probe = place / "probe"
    probe.touch()
    try:
        os.setxattr(probe, "user.probe", b"1")
    except OSError as error:
        pytest.skip(f"no user xattrs on this file system: {error}")
    finally:
        probe.unlink()


@pytest.fixture
def acls(place: Path) -> None:
    """Skips where the file system keeps no POSIX ACLs."""
    probe = place / "probe"
    probe.touch()
    try:
        os.setxattr(probe, "system.posix_acl_access", acl(user=1))
    except OSError as error:
        pytest.skip(f"no ACLs on this file system: {error}")
    finally:
        probe.unlink()


def acl(*, user: int) -> bytes:
    """The kernel's form of u::rw-,u:USER:rwx,g::r--,m::rwx,o::--- (version 2; tag, permissions, id of each entry)."""
    entries = [(0x01, 6, -1), (0x02, 7, user), (0x04, 4, -1), (0x10, 7, -1), (0x20, 0, -1)]
    packed = b"".join(
        tag.to_bytes(2, "little") + permissions.to_bytes(2, "little") + (who % 2**32).to_bytes(4, "little")
        for tag, permissions, who in entries
    )
    return (2).to_bytes(4, "little") + packed


@pytest.fixture
def acl_of() -> Callable[..., bytes]:
    return acl
