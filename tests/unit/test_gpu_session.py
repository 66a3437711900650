"""The script of a GPU session, where there is no device, and its steps on a stand-in for one."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest
from support import fake_cupy, fake_nvcomp
from support.sources import text_bytes

SCRIPT = Path(__file__).resolve().parents[2] / "bench" / "gpu_session.py"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module, with little data and few repeats."""
    spec = importlib.util.spec_from_file_location("gpu_session", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "gpu_session", module)
    spec.loader.exec_module(module)
    for name, value in {
        "KERNEL_DATA_BYTES": 1 << 20,
        "FILE_DATA_BYTES": 1 << 20,
        "TENSOR_BYTES": 1 << 20,
        "TENSORS_BYTES": 4 << 20,
        "ROUNDS": 1,
        "LAUNCHES": 1,
    }.items():
        monkeypatch.setattr(module, name, value)
    return module


def test_without_a_device_it_says_so_and_ends_with_40(tmp_path: Path) -> None:
    if any(path.exists() for path in (Path("/proc/driver/nvidia/version"), Path("/dev/dxg"))):
        pytest.skip("there is a driver")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--output", str(tmp_path / "results")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 40
    assert "no GPU session: there is no NVIDIA driver" in done.stderr
    assert "nothing was measured" in done.stderr
    assert not (tmp_path / "results").exists()


def test_every_step_runs_on_a_device(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    from ohdiff.operations import calibration

    fake_cupy.install(monkeypatch)
    monkeypatch.setattr(calibration.measure_profile, "__defaults__", (1 << 20,))
    session = script.Session(time.monotonic() + 600)
    session.step("self-check", 0, script.self_check)
    session.step("kernels", 0, lambda: script.kernel_rates(session))
    session.step("memory", 0, lambda: script.memory_rates(session))
    session.step("tensors", 0, lambda: script.tensor_snapshots(session))
    assert not session.has_failed, session.steps
    figures = {what: value for what, value, _, _ in session.figures}
    for what in ("candidates", "BLAKE3, leaves and trees", "features", "cut and hashed from pinned memory"):
        assert figures[what] > 0
    assert figures["copied down meanwhile"] == 0


def test_the_optional_libraries_are_measured_where_they_are(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from ohdiff.operations import calibration

    machine = fake_cupy.install(monkeypatch)
    fake_nvcomp.remove(monkeypatch)
    monkeypatch.setitem(sys.modules, "kvikio", None)
    session = script.Session(time.monotonic() + 600)
    assert script.compression_rates(session) == "not measured: nvCOMP is not installed"
    assert script.compressed_snapshots(session, tmp_path) == "not measured: nvCOMP is not installed"
    assert script.encoded_tensors(session) == "not measured: nvCOMP is not installed"
    assert script.direct_snapshots(session, tmp_path) == "not measured: kvikio is not installed"
    assert session.figures == []
    fake_nvcomp.install(monkeypatch, machine)
    monkeypatch.setattr(script, "NOISE_BYTES", 1 << 20)
    monkeypatch.setattr(calibration, "sample_blocks", lambda count: [text_bytes(1 << 20, each) for each in range(2)])
    assert "measured" in script.compression_rates(session)
    figures = {what: value for what, value, _, _ in session.figures}
    assert figures["blocks compressed by nvCOMP"] > 0
    assert figures["blocks in a batch"] >= 1


def test_what_fails_or_finds_no_time_is_written_down_with_the_rest(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    session = script.Session(time.monotonic() + 600)

    def fail() -> str:
        raise RuntimeError("the sky fell")

    session.step("files", 0, fail)
    session.step("long", 1e6, fail)
    session.figure("candidates", 1.5, "GB/s", "0.5 of the copy rate")
    assert session.has_failed
    described = {"name": "Fake Device", "architecture": "sm_90", "driver_version": 12080}
    script.write_results(session, described, tmp_path)
    (results,) = [json.loads(path.read_text()) for path in tmp_path.glob("*.json")]
    assert results["figures"] == [["candidates", 1.5, "GB/s", "0.5 of the copy rate"]]
    assert "FAILED: RuntimeError: the sky fell" in results["steps"][0][1]
    assert results["steps"][1][1].startswith("not done: 1000000 s wanted")
    (report,) = [path.read_text() for path in tmp_path.glob("*.md")]
    assert "| candidates | 1.5 | GB/s | 0.5 of the copy rate |" in report
