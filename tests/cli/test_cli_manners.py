"""--priority and its like: the same snapshot, made when others leave room for it."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import Result
from conftest import Home
from support.emulation import python

from ohdiff import clock
from ohdiff.cli.manners import parse_deadline
from ohdiff.errors import UsageError
from ohdiff.repository.repository import Repository
from ohdiff.repository.snapshots import SnapshotList, read_snapshots
from ohdiff.scheduling.core import SECOND, JobClass
from ohdiff.scheduling.governor import CPU
from ohdiff.scheduling.page_cache import cached_pages, drop
from ohdiff.scheduling.presence import Presence

Run = Callable[..., Result]


def in_a_thread(run: Run, *command: object) -> Result:
    """Run it where a scheduling class that cannot be left again does no harm to other tests."""
    done: list[Result] = []
    thread = threading.Thread(target=lambda: done.append(run(*command)))
    thread.start()
    thread.join()
    return done[0]


@pytest.fixture
def large(source: Path) -> Path:
    """A source with a file that is read alone, and some small ones."""
    (source / "large").write_bytes(os.urandom(12 << 20))
    for number in range(50):
        (source / f"small {number}").write_bytes(os.urandom(5000))
    return source


@pytest.mark.parametrize("priority", ["scavenge", "normal", "interactive"])
def test_the_snapshot_is_the_same_whatever_its_priority(
    run: Run, home: Home, large: Path, tmp_path: Path, priority: str
) -> None:
    # Scavenging on a machine that others keep busy may take as long as they please; a deadline ends that.
    assert in_a_thread(run, "snapshot", large, "--priority", priority, "--deadline", "1s").exit_code == 0
    assert run("restore", f"latest:{large}", "--target", tmp_path / "out").exit_code == 0
    compared = subprocess.run(["diff", "-r", large, tmp_path / "out"], capture_output=True, check=False)
    assert compared.returncode == 0


def test_a_snapshot_waits_for_the_restore(run: Run, home: Home, large: Path) -> None:
    done: list[Result] = []
    thread = threading.Thread(target=lambda: done.append(run("snapshot", large)))
    with Presence(CPU, JobClass.INTERACTIVE, home.path / "ohdiff"):
        thread.start()
        thread.join(1.0)
        assert done == []
    thread.join(120)
    assert [result.exit_code for result in done] == [0]


BUSY_JOB = """
import sys
from ohdiff.scheduling.hint.device_hint import DeviceHint
hint = DeviceHint("machine", step_seconds_max=600, folder=sys.argv[1])
with hint.busy():
    print("busy", flush=True)
    sys.stdin.read()
"""


def test_a_busy_job_is_waited_for_without_an_end(home: Home, run: Run, large: Path) -> None:
    assert run("snapshot", large).exit_code == 0
    command = [sys.executable, "-m", "ohdiff", "snapshot", str(large), "--priority", "scavenge", "--force"]
    with busy_job(home), subprocess.Popen(command, env={**os.environ, **home.variables}) as waiting:
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(3)
        waiting.kill()


def test_a_busy_job_is_waited_for_until_the_deadline_is_near(run: Run, home: Home, large: Path) -> None:
    began_ns = clock.monotonic_ns()
    with busy_job(home):
        result = in_a_thread(run, "snapshot", large, "--priority", "scavenge", "--deadline", "16s")
    assert result.exit_code == 0
    # A quarter of the window is left when it may begin to take its share.
    assert clock.monotonic_ns() - began_ns > 8 * SECOND


@contextmanager
def busy_job(home: Home) -> Iterator[None]:
    """A process that says that it needs the machine."""
    with python(BUSY_JOB, str(home.path / "ohdiff")) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == "busy\n"
        yield


@pytest.mark.parametrize("has_parent", [True, False])
def test_a_window_is_said_to_be_missed_only_when_there_is_too_much_to_do(
    run: Run, home: Home, large: Path, has_parent: bool
) -> None:
    if has_parent:
        assert run("snapshot", large).exit_code == 0
    with open(large / "huge", "wb") as file:
        file.truncate(1 << 40)
    short = ("snapshot", large, "--priority", "scavenge", "--exclude", "huge", "--deadline", "1m", "--dry-run")
    assert "deadline" not in in_a_thread(run, *short).stderr


@pytest.fixture
def cold(large: Path) -> list[Path]:
    """The files of the source, with nothing of them in the page cache; some are read alone, some in batches."""
    (large / "model.safetensors").write_bytes(safetensors(3 << 20))
    paths = [path for path in large.rglob("*") if path.is_file() and not path.is_symlink()]
    for path in paths:
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            drop(file.fileno())
    if any(pages_of(path) for path in paths):
        pytest.skip("this file system keeps files in memory, or the system does not count cached pages")
    return paths


def safetensors(size: int) -> bytes:
    header = json.dumps({"t": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}}).encode()
    return len(header).to_bytes(8, "little") + header + os.urandom(size)


def pages_of(path: Path) -> int:
    with open(path, "rb") as file:
        return cached_pages(file.fileno())


def test_a_scavenging_snapshot_leaves_the_page_cache_as_it_was(
    run: Run, home: Home, large: Path, cold: list[Path]
) -> None:
    for path in cold[::4]:
        path.read_bytes()
    before = {path: pages_of(path) for path in cold}
    assert in_a_thread(run, "snapshot", large, "--priority", "scavenge", "--deadline", "1s").exit_code == 0
    assert {path: pages_of(path) for path in cold} == before


def test_everything_is_lowered_but_the_command_whose_output_is_stored(
    run: Run, home: Home, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def read(repository: Repository) -> SnapshotList:
        seen.append(own_class())
        return read_snapshots(repository)

    monkeypatch.setattr("ohdiff.cli.commands.snapshot.read_snapshots", read)
    assert in_a_thread(run, "snapshot", source, "--priority", "scavenge").exit_code == 0
    monkeypatch.undo()
    program = f"{sys.executable} -c 'import os; print(os.sched_getscheduler(0))'"
    stored = in_a_thread(
        run, "snapshot", "--priority", "scavenge", "--stdin-filename", "class", "--command", "--", *shlex.split(program)
    )
    assert stored.exit_code == 0
    assert run("cat", "file", "latest:/class").stdout.strip() == str(own_class())
    assert seen == [os.SCHED_IDLE]


def own_class() -> int:
    return os.sched_getscheduler(0)


def test_a_runtime_folder_that_cannot_be_trusted_is_said_to_scavengers_only(run: Run, home: Home, source: Path) -> None:
    (home.path / "ohdiff").mkdir()
    os.chmod(home.path / "ohdiff", 0o777)
    assert "given way" not in run("snapshot", source).stderr
    scavenging = ("snapshot", source, "--priority", "scavenge", "--deadline", "1s")
    assert "given way" in in_a_thread(run, *scavenging).stderr
    assert run("restore", f"latest:{source}", "--target", home.path / "out").exit_code == 0


@pytest.mark.parametrize(
    ("text", "seconds"), [("6h", 21600), ("1h30m", 5400), ("45min", 2700), ("90s", 90), ("2h0m5s", 7205)]
)
def test_durations_are_deadlines(text: str, seconds: int) -> None:
    left_ns = parse_deadline(text) - clock.monotonic_ns()
    assert (seconds - 5) * SECOND < left_ns <= seconds * SECOND


def test_times_are_deadlines() -> None:
    at = clock.now_ns() // SECOND + 3600
    left_ns = parse_deadline(f"@{at}") - clock.monotonic_ns()
    assert 3590 * SECOND < left_ns < 3610 * SECOND


@pytest.mark.parametrize("text", ["", "soon", "2001-01-01", "0s", "h"])
def test_what_is_no_time_to_come_is_no_deadline(text: str) -> None:
    with pytest.raises(UsageError):
        parse_deadline(text)


def test_a_bad_deadline_is_wrong_usage(run: Run, home: Home, source: Path) -> None:
    assert run("snapshot", source, "--deadline", "yesterday").exit_code == 2
