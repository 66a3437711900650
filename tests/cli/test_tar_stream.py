"""Tar streams: everything that PAX can say comes back, as GNU tar reads it."""

from __future__ import annotations

import io
import os
import shutil
import stat
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

Run = Callable[..., Result]
Shell = Callable[..., subprocess.CompletedProcess[bytes]]


def test_holes_become_zeros_and_times_stay_exact(repository: Path, run: Run, shell: Shell, tmp_path: Path) -> None:
    folder = tmp_path / "f"
    folder.mkdir()
    with (folder / "sparse").open("wb") as file:
        file.seek(3 << 20)
        file.write(b"middle")
        file.truncate(5 << 20)
    (folder / "old").write_text("old")
    os.utime(folder / "old", ns=(0, -1_500_000_001))
    os.mkfifo(folder / "fifo")
    run("snapshot", folder)
    dumped = shell("dump", f"latest:{folder}").stdout
    with tarfile.open(fileobj=io.BytesIO(dumped)) as archive:
        sparse = archive.extractfile("sparse")
        assert sparse is not None
        assert sparse.read() == bytes(3 << 20) + b"middle" + bytes((2 << 20) - 6)
        assert archive.getmember("old").pax_headers["mtime"] == "-1.500000001"
        assert archive.getmember("fifo").isfifo()


@pytest.mark.skipif(shutil.which("tar") is None, reason="no tar program")
def test_the_tar_program_unpacks_a_dump_to_an_equal_folder(
    stored: Path, shell: Shell, source: Path, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    dumped = shell("dump", f"latest:{source}").stdout
    subprocess.run(["tar", "xf", "-", "-C", tmp_path / "out"], input=dumped, check=True)
    subprocess.run(["diff", "-r", "--no-dereference", source, tmp_path / "out"], check=True)
    notes, same = (tmp_path / "out" / name for name in ("notes.txt", "sub/same.txt"))
    assert notes.stat().st_ino == same.stat().st_ino
    assert notes.stat().st_mtime_ns == (source / "notes.txt").stat().st_mtime_ns
    assert stat.S_IMODE(notes.stat().st_mode) == stat.S_IMODE((source / "notes.txt").stat().st_mode)


def test_extended_attributes_are_in_the_archive(repository: Path, run: Run, shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    try:
        os.setxattr(path, "user.bytes", b"a\xff\0b")
    except OSError:
        pytest.skip("this file system has no extended attributes")
    run("snapshot", path)
    dumped = shell("dump", f"latest:{tmp_path}").stdout
    with tarfile.open(fileobj=io.BytesIO(dumped), errors="surrogateescape") as archive:
        value = archive.getmember("file").pax_headers["SCHILY.xattr.user.bytes"]
    assert value.encode(errors="surrogateescape") == b"a\xff\0b"


def test_sockets_are_left_out_and_named(repository: Path, run: Run, shell: Shell, tmp_path: Path) -> None:
    import socket

    folder = tmp_path / "s"
    folder.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
    run("snapshot", folder)
    done = shell("dump", f"latest:{folder}")
    assert b"is a socket" in done.stderr
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        assert archive.getnames() == []
