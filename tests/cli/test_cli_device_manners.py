"""The manners of a snapshot on a device that it shares: the same options, an MPS daemon, and a log that is replayed."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from conftest import Home
from support import fake_cupy
from support.fake_cupy import Machine

from ohdiff.cli.device_sharing import find_mps, use_mps
from ohdiff.scheduling.core import JobClass
from ohdiff.scheduling.hint.device_hint import DeviceHint

Run = Callable[..., Result]
NAME = "GPU-01020304-0506-0708-090a-0b0c0d0e0f10"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return fake_cupy.install(monkeypatch)


@pytest.fixture
def large(source: Path) -> Path:
    """A source with a file that is read alone, and some small ones."""
    (source / "large").write_bytes(os.urandom(5 << 20))
    for number in range(50):
        (source / f"small {number}").write_bytes(os.urandom(5000))
    return source


@pytest.fixture(autouse=True)
def no_daemon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty folder where CUDA would look for one."""
    folder = tmp_path / "mps"
    folder.mkdir()
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(folder))
    for name in ("CUDA_MPS_CLIENT_PRIORITY", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"):
        # Set and removed, so that what a command sets goes when the test is over.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return folder


@pytest.mark.parametrize("priority", ["scavenge", "normal", "interactive"])
def test_the_snapshot_is_the_same_and_its_decisions_are_replayed(
    run: Run, home: Home, machine: Machine, large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, priority: str
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    monkeypatch.setenv("OHDIFF_DECISION_LOG", str(logs))
    options = ("--engine", "cuda", "--priority", priority, "--deadline", "20s", "--json")
    done = run("snapshot", large, *options)
    assert done.exit_code == 0, done.output
    assert run("restore", f"latest:{large}", "--target", tmp_path / "out").exit_code == 0
    compared = subprocess.run(["diff", "-r", large, tmp_path / "out"], capture_output=True, check=False)
    assert compared.returncode == 0
    assert sorted(log.name for log in logs.iterdir()) == [f"{NAME}.log", "cpu.log"]
    for log in logs.iterdir():
        replayed = run("simulate", "--replay", log)
        assert replayed.exit_code == 0, replayed.output
    head = json.loads((logs / f"{NAME}.log").read_text().splitlines()[0])
    assert (head["driver"], head["settings"]["arbiter"]) == ("cuda", "auto" if priority == "scavenge" else "xsched")


def test_a_busy_device_is_left_alone_and_the_cpu_does_the_work(
    run: Run, home: Home, machine: Machine, large: Path
) -> None:
    hint = DeviceHint(NAME, step_seconds_max=600, folder=str(home.path / "ohdiff"))
    with hint.busy():
        done = run("snapshot", large, "--engine", "cuda", "--priority", "scavenge", "--deadline", "20s", "--json")
    hint.close()
    assert done.exit_code == 0, done.output
    summary = json.loads(done.stdout.splitlines()[-1])
    assert "while others needed the device" in summary["engine_reason"]


def test_a_share_of_the_device_is_a_share_of_both(run: Run, home: Home, machine: Machine, source: Path) -> None:
    (source / "file").write_bytes(os.urandom(300_000))
    done = run("snapshot", source, "--engine", "cuda", "--device-share", "50")
    assert done.exit_code == 0, done.output


def daemon(folder: Path, process_id: int | str = os.getpid()) -> None:
    (folder / "nvidia-cuda-mps-control.pid").write_text(f"{process_id}\n")


def test_with_an_mps_daemon_we_come_second(no_daemon: Path) -> None:
    daemon(no_daemon)
    said = use_mps(JobClass.SCAVENGE)
    assert said is not None
    assert os.environ["CUDA_MPS_CLIENT_PRIORITY"] == "1"
    assert os.environ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25" in said


def test_what_the_user_has_set_stays(no_daemon: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon(no_daemon)
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "60")
    monkeypatch.setenv("CUDA_MPS_CLIENT_PRIORITY", "0")
    use_mps(JobClass.SCAVENGE)
    assert os.environ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "60"
    assert os.environ["CUDA_MPS_CLIENT_PRIORITY"] == "0"


def test_who_does_not_scavenge_takes_all_that_is_free(no_daemon: Path) -> None:
    daemon(no_daemon)
    use_mps(JobClass.NORMAL)
    assert os.environ["CUDA_MPS_CLIENT_PRIORITY"] == "1"
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in os.environ


@pytest.mark.parametrize("content", [None, "", "nobody", "0", "-1", "99999999999"])
def test_without_a_daemon_nothing_is_set(no_daemon: Path, content: str | None) -> None:
    if content is not None:
        daemon(no_daemon, content)
    assert find_mps() is None
    assert use_mps(JobClass.SCAVENGE) is None
    assert "CUDA_MPS_CLIENT_PRIORITY" not in os.environ


def test_the_snapshot_and_devices_say_so(run: Run, home: Home, machine: Machine, source: Path, no_daemon: Path) -> None:
    daemon(no_daemon)
    (source / "file").write_bytes(b"content")
    done = run("snapshot", source, "--engine", "cuda")
    assert "shared by an MPS daemon: CUDA_MPS_CLIENT_PRIORITY=1" in done.output
    assert f"shared by an MPS daemon, process {os.getpid()}" in run("devices").output
    assert NAME in run("devices").output
