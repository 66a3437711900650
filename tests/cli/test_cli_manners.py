"""--priority and its like: the same snapshot, made when others leave room for it."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from conftest import Home

from ohdiff import clock
from ohdiff.cli.manners import parse_deadline
from ohdiff.errors import UsageError
from ohdiff.scheduling.core import SECOND, JobClass
from ohdiff.scheduling.governor import CPU
from ohdiff.scheduling.hint.device_hint import DeviceHint
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


def test_a_scavenging_snapshot_waits_for_a_busy_job(run: Run, home: Home, large: Path) -> None:
    hint = DeviceHint("machine", folder=str(home.path / "ohdiff"))
    done: list[Result] = []
    command = ("snapshot", large, "--priority", "scavenge")
    thread = threading.Thread(target=lambda: done.append(run(*command)))
    with hint.busy():
        thread.start()
        thread.join(1.0)
        assert done == []
    thread.join(120)
    hint.close()
    assert [result.exit_code for result in done] == [0]


def test_a_scavenging_snapshot_leaves_the_page_cache_as_it_was(run: Run, home: Home, large: Path) -> None:
    with open(large / "large", "rb") as file:
        os.fsync(file.fileno())
        drop(file.fileno())
        if cached_pages(file.fileno()) != 0:
            pytest.skip("this file system keeps files in memory, or the system does not count cached pages")
        assert in_a_thread(run, "snapshot", large, "--priority", "scavenge", "--deadline", "1s").exit_code == 0
        assert cached_pages(file.fileno()) == 0
        file.read()
        again = ("snapshot", large, "--priority", "scavenge", "--deadline", "1s", "--force")
        assert in_a_thread(run, *again).exit_code == 0
        assert cached_pages(file.fileno()) > 0


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
