"""The session's weight: lowered only where a backup has its session to itself, and given back."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.emulation import python

from ohdiff.scheduling.session_group import SessionGroup, is_alone

GROUP = Path("/proc/self/autogroup")
REPORT = """
import os, sys, threading
from pathlib import Path
from ohdiff.scheduling.core import JobClass
from ohdiff.scheduling.manners import Lowered
if "new" in sys.argv:
    os.setsid()
if "company" in sys.argv and os.fork() == 0:
    sys.stdin.read()
    os._exit(0)
group = Path("/proc/self/autogroup")
def nice():
    return int(group.read_text().split()[-1])
found = [nice()]
with Lowered(JobClass[sys.argv[1]]) as state:
    found.append(nice())
    state.press(True)
    found.append(nice())
    threading.Event().wait(0.2)
    state.press(False)
    found.append(nice())
    threading.Event().wait(0.2)
found.append(nice())
print(*found, flush=True)
"""
needs_groups = pytest.mark.skipif(not GROUP.exists(), reason="this kernel does not group by sessions")


def proc_of(path: Path, *processes: tuple[int, str, int, int, int]) -> Path:
    """A /proc with processes: number, name, parent, session, terminal."""
    for pid, name, parent, session, terminal in processes:
        (path / str(pid)).mkdir()
        (path / str(pid) / "stat").write_text(f"{pid} ({name}) S {parent} 7 {session} {terminal} -1 0\n")
    (path / "self").mkdir()
    (path / "self" / "autogroup").write_text("/autogroup-7 nice 0\n")
    return path


ME = os.getpid()
CRON, SHELL, OTHER = (1, "cron", 0, 1, 0), (2, "sh", 1, 2, 0), (3, "a) S 1 7 2 0 (b", 2, 2, 0)


def test_a_backup_that_cron_runs_has_its_session_to_itself(tmp_path: Path) -> None:
    assert is_alone(proc_of(tmp_path, CRON, SHELL, (ME, "ohdiff", 2, 2, 0)))


def test_whoever_shares_the_session_is_company(tmp_path: Path) -> None:
    assert not is_alone(proc_of(tmp_path, CRON, SHELL, OTHER, (ME, "ohdiff", 2, 2, 0)))


def test_a_session_with_a_terminal_is_not_ours(tmp_path: Path) -> None:
    assert not is_alone(proc_of(tmp_path, CRON, (2, "sh", 1, 2, 34816), (ME, "ohdiff", 2, 2, 34816)))


def test_other_sessions_do_not_matter(tmp_path: Path) -> None:
    assert is_alone(proc_of(tmp_path, CRON, (3, "job", 1, 3, 0), (ME, "ohdiff", 1, ME, 0)))


def test_a_session_that_was_niced_is_not_raised(tmp_path: Path) -> None:
    proc = proc_of(tmp_path, (ME, "ohdiff", 1, ME, 0))
    group = proc / "self" / "autogroup"
    group.write_text("/autogroup-7 nice 12\n")
    weight = SessionGroup(proc)
    for nice, expected in ((5, "12"), (19, "19"), (None, "12")):
        weight.set(nice)
        assert group.read_text() == expected


def test_where_there_are_no_groups_nothing_is_done(tmp_path: Path) -> None:
    SessionGroup(tmp_path).set(19)
    assert list(tmp_path.iterdir()) == []


def found_in(*arguments: str) -> list[int]:
    with python(REPORT, *arguments) as process:
        assert process.stdout is not None
        return [int(word) for word in process.stdout.readline().split()]


@needs_groups
def test_a_scavenger_lowers_its_own_session_while_it_is_not_pressed() -> None:
    assert found_in("SCAVENGE", "new") == [0, 19, 0, 19, 0]


@needs_groups
def test_others_are_not_lowered_and_company_is_left_alone() -> None:
    assert found_in("NORMAL", "new") == [0] * 5
    assert found_in("SCAVENGE", "new", "company") == [0] * 5
