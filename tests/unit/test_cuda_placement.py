"""Where "auto" computes: on the device only where a measured profile says that it pays, and always with a reason."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
from support import fake_cupy

from ohdiff.chunking.cuda.engine import CudaEngine
from ohdiff.chunking.cuda.monitor import use_of
from ohdiff.chunking.cuda.placement import DeviceProfile, judge
from ohdiff.chunking.engine import Accelerator, EngineChoice, select_engine
from ohdiff.chunking.rule import ChunkingRule
from ohdiff.operations.calibration import measure_profile

RULE = ChunkingRule.from_key(bytes(32), avg_size=32768)
FAST = DeviceProfile("Fake Device", "sm_90", 12080, 16, 50e9, 20e9, 45e9, 900e9, 2e9, 12e9)


def choose(profile: DeviceProfile | None, threads: int = 4, **options: object) -> EngineChoice:
    return select_engine("auto", "auto", RULE, bytes(32), Accelerator(profile, threads, **options))  # type: ignore[arg-type]


def test_a_device_pays_only_where_it_is_clearly_faster_than_the_threads_beside_it() -> None:
    assert judge(FAST, threads=4).pays
    # Memory ends what threads add: 16 of them are worth 12 GB/s, not 32.
    assert judge(FAST, threads=16).pays
    assert not judge(replace(FAST, cpu_rate_all=19e9), threads=16).pays
    assert not judge(replace(FAST, pageable_rate=8e9), threads=4).pays
    assert not judge(replace(FAST, copy_rate=8e9), threads=4).pays
    assert "20.0 GB/s on Fake Device, 8.0 GB/s on 4 CPU threads" in judge(FAST, threads=4).reason


def test_without_a_profile_the_device_is_not_even_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    choice = choose(None)
    assert choice.engine.name == "cpu"
    assert "no CUDA device was measured on this machine (ohdiff calibrate does)" in choice.reason


def test_a_profile_that_predicts_a_gain_takes_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cupy.install(monkeypatch)
    choice = choose(FAST)
    assert choice.engine.name == "cuda"
    assert "measured faster" in choice.reason
    assert choose(replace(FAST, pageable_rate=1e9)).engine.name == "cpu"


@pytest.mark.parametrize("profile", [replace(FAST, device="Another"), replace(FAST, driver_version=12010)])
def test_a_profile_of_another_device_or_driver_does_not_count(
    monkeypatch: pytest.MonkeyPatch, profile: DeviceProfile
) -> None:
    fake_cupy.install(monkeypatch)
    choice = choose(profile)
    assert choice.engine.name == "cpu"
    assert "the profile is of another device or driver" in choice.reason


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"driver_version": 0}, "there is no NVIDIA driver"),
        ({"wrong_kernel": "ohdiff_hash_trees"}, "not what the CPU finds"),
        ({"compile_log": "error: x"}, "does not compile"),
    ],
)
def test_a_device_that_cannot_run_leaves_the_cpu_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, attributes: dict[str, object], reason: str
) -> None:
    fake_cupy.install(monkeypatch, **attributes)
    choice = choose(FAST)
    assert choice.engine.name == "cpu"
    assert reason in choice.reason


def test_a_demanded_cpu_kernel_demands_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cupy.install(monkeypatch)
    choice = select_engine("auto", "scalar", RULE, bytes(32), Accelerator(FAST, 4))
    assert (choice.engine.name, choice.engine.kernel) == ("cpu", "scalar")


def test_what_went_wrong_in_a_run_is_part_of_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = fake_cupy.install(monkeypatch)
    choice = choose(FAST)
    assert "the CPU did the rest" not in choice.reason
    machine.is_dead = True
    choice.engine.cut_stream(bytes(100_000), True)
    assert "Fake Device failed: cudaErrorIllegalAddress" in choice.reason
    assert "the CPU did the rest (1 calls), with the same result" in choice.reason


def test_profiles_survive_being_stored_and_nothing_else_passes_for_one() -> None:
    fields = FAST.as_fields()
    assert DeviceProfile.of_fields(fields) == FAST
    for wrong in (None, [], "x", {}, {**fields, "version": 1}, {**fields, "copy_rate": "fast"}, {"version": 2}):
        assert DeviceProfile.of_fields(wrong) is None


def test_measuring_gives_every_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cupy.install(monkeypatch)
    profile = measure_profile(CudaEngine(RULE, bytes(32)), 2, 1 << 20)
    assert (profile.device, profile.processors) == ("Fake Device", 2)
    rates = [profile.copy_rate, profile.pageable_rate, profile.pinned_rate, profile.resident_rate]
    assert all(rate > 0 for rate in [*rates, profile.cpu_rate, profile.cpu_rate_all])


def test_without_the_management_library_nobody_knows_who_uses_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert use_of("0000:00:00.0") is None
