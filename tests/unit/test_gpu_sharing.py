"""The measurement of a job beside us on a device: what is made of its times, and a run of it on a stand-in."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from support import fake_cupy

from ohdiff.scheduling.core import MS, JobClass

SCRIPT = Path(__file__).resolve().parents[2] / "bench" / "gpu_sharing.py"
NAME = "GPU-01020304-0506-0708-090a-0b0c0d0e0f10"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_sharing", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "gpu_sharing", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "RESIDENT_BYTES", 1 << 20)
    return module


def test_what_is_made_of_the_times(script: ModuleType) -> None:
    requests = [(0, 1 * MS, 5 * MS), (10 * MS, 10 * MS, 14 * MS)]
    units = [(0, 2 * MS), (12 * MS, 13 * MS), (20 * MS, 21 * MS)]
    run = script.Beside(requests, units, 3000, 1.0)
    assert run.latency_ms(50) == 5
    assert run.latency_ms(0) == 4
    assert run.yield_ms(99) == 1
    assert run.yield_ms(0) == 0
    assert run.units_in_requests() == 1


@pytest.mark.parametrize("kind", ["telling", "silent"])
def test_a_job_runs_beside_us(script: ModuleType, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    fake_cupy.install(monkeypatch)
    run = script.beside(JobClass.SCAVENGE, kind, 0.6, work=NAME)
    assert len(run.requests) >= 40
    assert run.units
    assert run.size_bytes > 0
    alone = script.beside(None, kind, 0.2, work=NAME)
    assert (alone.units, alone.size_bytes) == ([], 0)
