"""The commands that look at accelerators, and snapshots that use one, on a device that is none."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support import fake_cupy, fake_kvikio, fake_nvcomp
from support.fake_cupy import Machine
from support.sources import text_bytes

from ohdiff.chunking.cuda import direct
from ohdiff.cli import engines
from ohdiff.cli.commands.calibrate import calibrate
from ohdiff.cli.group import LazyGroup
from ohdiff.errors import EXIT_DEVICE
from ohdiff.operations import calibration

Run = Callable[..., Result]


class NvmlError(Exception):
    """As the library's."""


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A stand-in for a device."""
    return fake_cupy.install(monkeypatch)


@pytest.fixture
def run_calibrate(home: object) -> Run:
    """Runs the command as the group runs any."""

    def call(*arguments: str) -> Result:
        group = LazyGroup("ohdiff")
        group.get_command = lambda *_: calibrate  # type: ignore[method-assign]
        return CliRunner().invoke(group, ["calibrate", *arguments])

    return call


def management_library(user_memory: int | None) -> SimpleNamespace:
    user = SimpleNamespace(pid=os.getpid(), usedGpuMemory=user_memory)
    return SimpleNamespace(
        NVMLError=NvmlError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetHandleByPciBusId=lambda bus_id: bus_id,
        nvmlDeviceGetUtilizationRates=lambda _: SimpleNamespace(gpu=37, memory=4),
        nvmlDeviceGetComputeRunningProcesses=lambda _: [user],
        nvmlDeviceGetGraphicsRunningProcesses=lambda _: [user],
    )


def records(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_devices_shows_what_is_there_and_who_uses_it(
    run: Run, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", management_library(5 << 20))
    cpu, cuda = records(run("devices", "--json"))
    assert (cpu["name"], cpu["is_usable"]) == ("cpu", True)
    assert (cuda["model"], cuda["architecture"], cuda["is_usable"]) == ("Fake Device", "sm_90", True)
    assert (cuda["memory_total"], cuda["memory_free"]) == (1 << 30, 1 << 30)
    assert (cuda["driver_version"], cuda["runtime_version"]) == ("12.8", "12.4")
    assert cuda["busy_percent"] == 37
    assert [(user["pid"], user["memory"]) for user in cuda["users"]] == [(os.getpid(), 5 << 20)]
    text = run("devices").stdout
    assert "Fake Device, sm_90; 1.00 GiB of 1.00 GiB free" in text
    assert "busy 37 % of the time; used by" in text
    assert "5.00 MiB" in text
    monkeypatch.setitem(sys.modules, "pynvml", management_library(None))
    assert "unknown memory" in run("devices").stdout


def test_devices_does_without_the_management_library(
    run: Run, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    _, cuda = records(run("devices", "--json"))
    assert (cuda["is_usable"], cuda["users"], cuda["busy_percent"]) == (True, None, None)
    assert "pip install nvidia-ml-py" in run("devices").stdout

    def refuse() -> None:
        raise NvmlError

    library = management_library(1)
    library.nvmlInit = refuse
    monkeypatch.setitem(sys.modules, "pynvml", library)
    _, cuda = records(run("devices", "--json"))
    assert cuda["users"] is None


def test_devices_says_why_there_is_none(run: Run, machine: Machine) -> None:
    machine.driver_version = 11040
    _, cuda = records(run("devices", "--json"))
    assert cuda["is_usable"] is False
    assert "driver is too old" in cuda["reason"]
    assert "computes on the CPU only" in run("devices").stdout


def test_calibrate_measures_and_auto_decides_by_it(run: Run, run_calibrate: Run, machine: Machine) -> None:
    assert engines.stored_profile() is None
    (summary,) = records(run_calibrate("--sample", "1M", "--json"))
    assert summary["device"] == "Fake Device"
    assert Path(summary["path"]).is_file()
    profile = engines.stored_profile()
    assert profile is not None
    assert profile.copy_rate == summary["copy_rate"]
    assert summary["pays"] == ("measured faster" in summary["reason"])
    assert "cut on the device: measured" in run_calibrate("--sample", "1M").stdout
    engines.store_profile(replace(profile, pageable_rate=1.0))
    cpu, _ = records(run("devices", "--json"))
    assert "engine cpu: measured no faster on the device" in cpu["reason"]
    engines.store_profile(replace(profile, copy_rate=2e12, pageable_rate=1e12))
    cpu, _ = records(run("devices", "--json"))
    assert "engine cuda: measured faster" in cpu["reason"]
    Path(summary["path"]).write_text("{}")
    assert engines.stored_profile() is None


def test_calibrate_without_a_device_is_exit_40(run_calibrate: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    result = run_calibrate()
    assert result.exit_code == EXIT_DEVICE
    assert "CuPy is not installed" in result.output


def filled(folder: Path) -> Path:
    from blake3 import blake3

    folder.mkdir()
    for number, size in enumerate((0, 1, 100, 70_000, 5_000_000)):
        (folder / f"file{number}").write_bytes(blake3(b"%d" % number).digest(length=size))
    return folder


def test_a_snapshot_by_the_device_is_that_of_the_cpu(run: Run, machine: Machine, tmp_path: Path) -> None:
    source = filled(tmp_path / "source")
    first = records(run("snapshot", source, "--engine", "cuda", "--json"))[-1]
    assert first["engine"] == "cuda/sm_90"
    assert "checked against the CPU" in first["engine_reason"]
    again = records(run("snapshot", source, "--engine", "cpu", "--force", "--json"))[-1]
    assert again["engine"].startswith("cpu/")
    assert again["data_added"] < 2000
    assert run("check", "--read-data").exit_code == 0


def test_a_device_that_dies_in_a_snapshot_changes_nothing_but_the_summary(
    run: Run, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = filled(tmp_path / "source")
    run("snapshot", source, "--engine", "cpu")
    launches = len(machine.launches)
    run("devices", "--engine", "cuda")
    # The launch after those of the self-check.
    machine.failing_launches = frozenset([2 * len(machine.launches) - launches + 5])
    result = run("snapshot", source, "--engine", "cuda", "--force")
    assert result.exit_code == 0
    assert "the CPU did the rest" in result.stdout
    assert run("check", "--read-data").exit_code == 0


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"driver_version": 0}, "no NVIDIA driver"),
        ({"compile_log": "select.cu(3): error: nonsense"}, "nonsense"),
        ({"wrong_kernel": "ohdiff_hash_trees"}, "not what the CPU finds"),
    ],
)
def test_a_demand_that_cannot_be_met_stores_nothing(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, attributes: dict[str, object], reason: str
) -> None:
    fake_cupy.install(monkeypatch, **attributes)
    source = filled(tmp_path / "source")
    result = run("snapshot", source, "--engine", "cuda")
    assert result.exit_code == EXIT_DEVICE
    assert reason in result.output
    assert "snapshot_id" not in run("snapshots", "--json").stdout


def test_the_ceiling_of_device_memory_is_an_option(
    run: Run, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OHDIFF_DEVICE_MEMORY", "24M")
    assert run("snapshot", filled(tmp_path / "source"), "--engine", "cuda").exit_code == 0
    assert 0 < machine.memory_peak <= 24 << 20
    monkeypatch.setenv("OHDIFF_DEVICE_MEMORY", "much")
    assert run("devices").exit_code == 2


def texts(folder: Path) -> Path:
    folder.mkdir()
    for number in range(2):
        (folder / f"text{number}").write_bytes(text_bytes(1_300_000, number))
    return folder


def test_blocks_are_compressed_on_a_device_where_that_is_demanded(
    run: Run, machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library = fake_nvcomp.install(monkeypatch, machine)
    source = texts(tmp_path / "source")
    summary = records(run("snapshot", source, "--compress-on", "device", "--engine", "cuda", "--json"))[-1]
    assert "compression on Fake Device, nvCOMP 6.0: as demanded" in summary["compression_reason"]
    assert sum(library.batches[1:]) >= 1
    # A quarter of what is free, for both together.
    assert machine.memory_peak <= machine.memory_total // 4
    assert "each frame decoded by the CPU" in run("snapshot", source, "--compress-on", "device", "--force").stdout
    assert run("check", "--read-data").exit_code == 0
    summary = records(run("snapshot", source, "--compress-on", "cpu", "--json"))[-1]
    assert summary["compression_reason"] == "compression on the CPU: as demanded"
    assert (
        records(run("snapshot", source, "--compression", "none", "--json"))[-1]["compression_reason"]
        == "no compression"
    )


def test_a_device_that_dies_while_it_compresses_changes_nothing_but_the_summary(
    run: Run, machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_nvcomp.install(monkeypatch, machine, failing_batches=frozenset([1]))
    result = run("snapshot", texts(tmp_path / "source"), "--compress-on", "device")
    assert result.exit_code == 0
    assert "the CPU compressed the rest" in result.stdout
    assert run("check", "--read-data").exit_code == 0


def test_compression_on_a_device_that_cannot_is_exit_40_and_stores_nothing(
    run: Run, machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = texts(tmp_path / "source")
    fake_nvcomp.remove(monkeypatch)
    result = run("snapshot", source, "--compress-on", "device")
    assert result.exit_code == EXIT_DEVICE
    assert "nvCOMP is not installed" in result.output
    fake_nvcomp.install(monkeypatch, machine, bad_batches=frozenset([0]))
    assert "does not decode to its block" in run("snapshot", source, "--compress-on", "device").output
    assert run("snapshot", source, "--compress-on", "moon").exit_code == 2
    assert "snapshot_id" not in run("snapshots", "--json").stdout


def test_calibrate_measures_compression_where_there_is_a_library_for_it(
    run: Run, run_calibrate: Run, machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(calibration, "sample_blocks", lambda count: [text_bytes(1 << 20, each) for each in range(2)])
    fake_nvcomp.remove(monkeypatch)
    (summary,) = records(run_calibrate("--sample", "1M", "--json"))
    assert (summary["compress_rate"], summary["compression_pays"]) == (0, False)
    assert summary["compression_reason"] == "nvCOMP is not installed"
    fake_nvcomp.install(monkeypatch, machine)
    (summary,) = records(run_calibrate("--sample", "1M", "--json"))
    assert summary["compress_rate"] > 0
    # The stand-in compresses at level 1, which is larger than may be.
    assert summary["compress_size"] > 1
    assert "measured" in summary["compression_reason"]
    assert "compressed on the device: measured" in run_calibrate("--sample", "1M").stdout
    profile = engines.stored_profile()
    assert profile is not None
    source = texts(tmp_path / "source")
    for size, where in ((1.0, "compression on Fake Device"), (2.0, "compression on the CPU: measured too large")):
        engines.store_profile(replace(profile, compress_rate=1e12, compress_size=size))
        summary = records(run("snapshot", source, "--force", "--json"))[-1]
        assert where in summary["compression_reason"]
    engines.store_profile(replace(profile, compress_rate=1e12, compress_size=1.0))
    summary = records(run("snapshot", source, "--force", "--priority", "scavenge", "--json"))[-1]
    assert "takes no more of a device" in summary["compression_reason"]


def test_devices_shows_what_is_installed_beside(run: Run, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvcomp.remove(monkeypatch)
    storage = fake_kvikio.install(monkeypatch, machine, has_gds=False)
    extras = records(run("devices", "--json"))[1]["extras"]
    assert extras["nvcomp"] == {"is_usable": False, "state": "nvCOMP is not installed"}
    assert not extras["kvikio"]["is_usable"]
    assert "kvikio not used: GPUDirect Storage is not there: the kernel has no nvidia-fs" in run("devices").stdout
    storage.has_gds = True
    fake_nvcomp.install(monkeypatch, machine)
    assert records(run("devices", "--json"))[1]["extras"]["kvikio"] == {"is_usable": True, "state": "26.10"}
    text = run("devices").stdout
    assert "nvCOMP 6.0, compresses blocks" in text
    assert "kvikio 26.10, reads files past the CPU" in text


def test_a_snapshot_by_the_device_reads_large_files_past_the_cpu(
    run: Run, machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(direct, "WINDOW_BYTES", 1 << 20)
    storage = fake_kvikio.install(monkeypatch, machine)
    source = filled(tmp_path / "source")
    summary = records(run("snapshot", source, "--engine", "cuda", "--json"))[-1]
    assert summary["direct_reason"] == "0.0 GB were read past the CPU"
    assert len(storage.reads) == 5
    assert "were read past the CPU" in run("snapshot", source, "--engine", "cuda", "--force").stdout
    reads = len(storage.reads)
    summary = records(run("snapshot", source, "--engine", "cpu", "--force", "--json"))[-1]
    assert (summary["direct_reason"], summary["data_added"] < 2000) == (None, True)
    assert len(storage.reads) == reads
    assert run("check", "--read-data").exit_code == 0
