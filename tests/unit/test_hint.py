"""The cooperative hint, from Python and from C: what a job says is seen, ends with it, and never harms it."""

from __future__ import annotations

import os
import shutil
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ohdiff import clock
from ohdiff.scheduling import shared_page
from ohdiff.scheduling.core import MS, SECOND, Activity, CoRunner
from ohdiff.scheduling.hint import device_hint
from ohdiff.scheduling.hint.device_hint import DeviceHint
from ohdiff.scheduling.shared_page import PAGE_SIZE, SLOT_COUNT, SharedPage
from ohdiff.scheduling.signals import CoRunnerSignals

HINT_FOLDER = Path(device_hint.__file__).parent
PATIENCE_NS = 60 * SECOND


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "runtime"


@pytest.fixture
def page(folder: Path) -> Iterator[SharedPage]:
    found = SharedPage.in_folder(folder, "cpu")
    yield found
    found.close()


@pytest.fixture
def hint(folder: Path) -> Iterator[DeviceHint]:
    made = DeviceHint("cpu", folder=str(folder))
    yield made
    made.close()


def seen(page: SharedPage, now_ns: int | None = None) -> tuple[CoRunner, ...]:
    return CoRunnerSignals("cpu", [page]).read(clock.monotonic_ns() if now_ns is None else now_ns)


def wait_until_true(condition: Callable[[], object]) -> None:
    until_ns = clock.monotonic_ns() + PATIENCE_NS
    while not condition():
        assert clock.monotonic_ns() < until_ns
        threading.Event().wait(0.002)


def test_the_layouts_agree() -> None:
    names = ("PAGE_SIZE", "SLOT_SIZE", "MAGIC", "VERSION")
    assert [getattr(device_hint, name) for name in names] == [getattr(shared_page, name) for name in names]
    assert device_hint._SLOT.format == shared_page._SLOT.format
    assert device_hint.CO_RUNNER == shared_page.Kind.CO_RUNNER


def test_a_job_is_busy_in_its_steps_and_idle_between(hint: DeviceHint, page: SharedPage) -> None:
    assert hint.problem == ""
    assert [each.activity for each in seen(page)] == [Activity.IDLE]
    with hint.busy():
        assert [each.activity for each in seen(page)] == [Activity.BUSY]
    assert [(each.activity, each.steps) for each in seen(page)] == [(Activity.IDLE, 1)]


def test_a_step_that_fails_is_over_too(hint: DeviceHint, page: SharedPage) -> None:
    with pytest.raises(ZeroDivisionError), hint.busy():
        _ = 1 / 0
    assert [each.activity for each in seen(page)] == [Activity.IDLE]


def test_steps_of_many_threads_overlap(hint: DeviceHint, page: SharedPage) -> None:
    other = hint.busy()
    with hint.busy():
        thread = threading.Thread(target=other.__enter__)
        thread.start()
        thread.join()
    # The other thread's step is still open.
    assert [(each.activity, each.steps) for each in seen(page)] == [(Activity.BUSY, 1)]


def test_the_time_of_recent_steps_is_told(hint: DeviceHint, page: SharedPage) -> None:
    signals = CoRunnerSignals("cpu", [page])
    assert [each.step_ns for each in signals.read(clock.monotonic_ns())] == [0]
    before_ns = clock.monotonic_ns()
    for _ in range(4):
        with hint.busy():
            threading.Event().wait(0.002)
    took_ns = clock.monotonic_ns() - before_ns
    (told,) = signals.read(clock.monotonic_ns())
    assert told.steps == 4
    assert 2 * MS <= told.step_ns <= took_ns // 4


def test_a_step_that_does_not_end_is_busy_no_more(folder: Path, page: SharedPage) -> None:
    hint = DeviceHint("cpu", step_seconds_max=5.0, folder=str(folder))
    with hint.busy():
        now_ns = clock.monotonic_ns()
        assert [each.activity for each in seen(page, now_ns + 4 * SECOND)] == [Activity.BUSY]
        assert [each.activity for each in seen(page, now_ns + 6 * SECOND)] == [Activity.UNKNOWN]
    hint.close()


def test_a_job_that_ended_is_not_seen(hint: DeviceHint, page: SharedPage) -> None:
    with hint.busy():
        hint.close()
        assert seen(page) == ()


def test_devices_are_told_apart(hint: DeviceHint, folder: Path) -> None:
    other = SharedPage.in_folder(folder, "gpu-1")
    with hint.busy():
        assert seen(other) == ()
    other.close()


UUID = "0a1b2c3d-0000-1111-2222-0123456789ab"


@pytest.mark.parametrize("written", [f"GPU-{UUID}", UUID, UUID.upper(), f"GPU-{UUID.upper()}"])
def test_a_device_is_the_same_however_its_uuid_is_written(folder: Path, written: str) -> None:
    page = SharedPage.in_folder(folder, f"GPU-{UUID}")
    hint = DeviceHint(written, folder=str(folder))
    with hint.busy():
        assert [each.activity for each in seen(page)] == [Activity.BUSY]
    hint.close()
    page.close()


def test_a_full_page_is_said_and_harms_nothing(folder: Path) -> None:
    hints = [DeviceHint("cpu", folder=str(folder)) for _ in range(SLOT_COUNT + 1)]
    assert [each.problem for each in hints[:-1]] == [""] * SLOT_COUNT
    assert "taken" in hints[-1].problem
    with hints[-1].busy():
        pass
    for each in hints:
        each.close()


@pytest.mark.parametrize("damage", ["version", "mode", "link", "name", "no folder"])
def test_what_cannot_be_trusted_is_not_used(tmp_path: Path, damage: str) -> None:
    folder, device = tmp_path / "runtime", "cpu"
    folder.mkdir(mode=0o700)
    page = folder / "cpu.page"
    match damage:
        case "version":
            page.write_bytes(device_hint.MAGIC + struct.pack("<I", 99))
            page.chmod(0o600)
        case "mode":
            folder.chmod(0o777)
        case "link":
            page.symlink_to(tmp_path / "elsewhere")
        case "name":
            device = "../cpu"
        case "no folder":
            folder = tmp_path / "missing" / "runtime"
    hint = DeviceHint(device, folder=str(folder))
    assert hint.problem
    with hint.busy():
        pass
    assert not (tmp_path / "elsewhere").exists()


def test_rubbish_in_the_page_is_written_over(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    (folder / "cpu.page").write_bytes(os.urandom(100))
    (folder / "cpu.page").chmod(0o600)
    hint = DeviceHint("cpu", folder=str(folder))
    page = SharedPage.in_folder(folder, "cpu")
    assert hint.problem == ""
    assert len(seen(page)) == 1
    assert (folder / "cpu.page").stat().st_size == PAGE_SIZE
    hint.close()
    page.close()


JOB = """
import sys, time
sys.path.insert(0, sys.argv[1])
import device_hint
with device_hint.device_busy("cpu"):
    print(device_hint.problem("cpu"), flush=True)
    time.sleep(600)
"""

FORKING_JOB = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
import device_hint
step = device_hint.device_busy("cpu")
step.__enter__()
child = os.fork()
if child == 0:
    time.sleep(600)
print(child, flush=True)
time.sleep(600)
"""


def job(script: str, folder: Path) -> subprocess.Popen[str]:
    """A job that knows of ohdiff nothing but the one file."""
    environment = {"PATH": os.environ["PATH"], "OHDIFF_RUNTIME_DIR": str(folder)}
    command = [sys.executable, "-I", "-c", script, str(HINT_FOLDER)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def test_a_killed_job_is_not_seen_any_more(folder: Path, page: SharedPage) -> None:
    with job(JOB, folder) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "\n"
        assert [each.activity for each in seen(page)] == [Activity.BUSY]
        process.kill()
    wait_until_true(lambda: seen(page) == ())


def test_a_killed_jobs_forked_child_does_not_keep_it_busy(folder: Path, page: SharedPage) -> None:
    with job(FORKING_JOB, folder) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        assert [each.activity for each in seen(page)] == [Activity.BUSY]
        process.kill()
        process.wait()
        wait_until_true(lambda: seen(page) == ())
        os.kill(child, signal.SIGKILL)


C_JOB = """
#include "ohdiff_hint.h"
int main(void) {
  struct ohdiff_hint hint;
  struct ohdiff_hint device;
  int problem = ohdiff_hint_open(&hint, "cpu", 10.0);
  if (ohdiff_hint_open(&device, "0A1B2C3D-0000-1111-2222-0123456789AB", 10.0)) return 2;
  ohdiff_hint_close(&device);
  char line[8];
  uint64_t began;
  printf("%d\\n", problem);
  for (int step = 0; step < 3; ++step) {
    ohdiff_hint_begin(&hint);
    ohdiff_hint_end(&hint);
  }
  began = ohdiff_hint_begin(&hint);
  fflush(stdout);
  if (!fgets(line, sizeof line, stdin)) return 1;
  ohdiff_hint_end_of(&hint, began);
  printf("done\\n");
  fflush(stdout);
  if (!fgets(line, sizeof line, stdin)) return 1;
  ohdiff_hint_close(&hint);
  return 0;
}
"""

COMPILERS = [("cc", "-std=c99"), ("c++", "-std=c++11")]


@pytest.mark.parametrize(("compiler", "standard"), COMPILERS)
def test_the_header_says_the_same_from_c(
    compiler: str, standard: str, tmp_path: Path, folder: Path, page: SharedPage
) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler} here")
    source = tmp_path / ("job.c" if compiler == "cc" else "job.cpp")
    source.write_text(("#define _POSIX_C_SOURCE 200809L\n" if compiler == "cc" else "") + C_JOB)
    warnings = ["-Wall", "-Wextra", "-Werror", standard]
    subprocess.run([compiler, *warnings, "-I", HINT_FOLDER, source, "-o", tmp_path / "job"], check=True)
    environment = {"OHDIFF_RUNTIME_DIR": str(folder)}
    with subprocess.Popen(
        [tmp_path / "job"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "0\n"
        assert [(each.activity, each.steps) for each in seen(page)] == [(Activity.BUSY, 3)]
        assert (folder / f"GPU-{UUID}.page").exists()
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "done\n"
        assert [(each.activity, each.steps) for each in seen(page)] == [(Activity.IDLE, 4)]
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.wait() == 0
    assert seen(page) == ()


def test_the_meeting_place_is_the_users_runtime_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("OHDIFF_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert device_hint.runtime_folder() == f"{tmp_path}/ohdiff"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "missing"))
    assert device_hint.runtime_folder() == f"/dev/shm/ohdiff-{os.geteuid()}"
    monkeypatch.setenv("OHDIFF_RUNTIME_DIR", "/somewhere")
    assert device_hint.runtime_folder() == "/somewhere"
