"""Interrupts and broken pipes: in order, with the right code, and without harm."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from conftest import records

Run = Callable[..., Result]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_snapshot_keeps_what_it_has_read(
    repository: Path, run: Run, tmp_path: Path, number: signal.Signals
) -> None:
    large = tmp_path / "large"
    large.mkdir()
    for name in "abcdefgh":
        (large / name).write_bytes(os.urandom(3 << 20))
    # The signal comes when everything has been read and nothing is committed.
    program = (
        "import os\n"
        "from ohdiff.cli.main import main\n"
        "from ohdiff.operations.snapshot_files import FileTaker\n"
        "finish = FileTaker.finish\n"
        "def stop(self):\n"
        "    finish(self)\n"
        f"    os.kill(os.getpid(), {int(number)})\n"
        "FileTaker.finish = stop\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "snapshot", large], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 130
    assert "are kept" in done.stderr
    assert records(run("snapshots", "--json"), "snapshot") == []
    assert run("check", "--read-data").exit_code == 0
    (summary,) = records(run("snapshot", large, "--json"), "summary")
    assert summary["data_added"] < 1 << 20


def test_a_reader_that_has_seen_enough_ends_the_output_silently(stored: Path) -> None:
    command = f"{sys.executable} -m ohdiff find '*' --json | true"
    done = subprocess.run(["sh", "-c", command], capture_output=True, check=False)
    assert done.stderr == b""


def test_a_reader_that_leaves_a_dump_ends_it_silently(stored: Path, source: Path) -> None:
    command = f"{sys.executable} -m ohdiff dump latest | true"
    done = subprocess.run(["sh", "-c", command], capture_output=True, check=False)
    assert done.stderr == b""


def test_a_terminal_gets_no_binary_data_and_a_progress_bar(stored: Path, source: Path) -> None:
    import pty

    def on_terminal(*arguments: str) -> tuple[int, bytes]:
        leader, follower = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-m", "ohdiff", *arguments], stdout=follower, stderr=follower, stdin=follower
        )
        os.close(follower)
        shown = b""
        try:
            while part := os.read(leader, 65536):
                shown += part
        except OSError:
            pass
        os.close(leader)
        return process.wait(), shown

    code, shown = on_terminal("dump", "latest")
    assert code == 2
    assert b"garble" in shown
    code, shown = on_terminal("dump", f"latest:{source}/sub/data.bin")
    assert code == 2
    code, shown = on_terminal("dump", f"latest:{source}/notes.txt")
    assert (code, shown) == (0, b"one\r\ntwo\r\nthree\r\n")
    code, shown = on_terminal("snapshot", str(source), "--force")
    assert code == 0
    assert b"saved" in shown
