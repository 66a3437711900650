"""Scenarios for the simulator's tests, made from small tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ohdiff.scheduling.simulator.scenario import Scenario, parse_scenario


def scenario(
    *co_runners: dict[str, Any],
    jobs: tuple[dict[str, Any], ...] = ({"endless": True},),
    seconds: float = 10,
    seed: int = 1,
    machine: dict[str, Any] | None = None,
    accelerator: dict[str, Any] | None = None,
    mixes: tuple[dict[str, Any], ...] = (),
    **policy: Any,
) -> Scenario:
    """One accelerator with our data on it and nothing lost between units, unless told otherwise."""
    device = {"name": "gpu0", "resident": True, "launch_us": 0, **(accelerator or {})}
    values = {
        "scenario": {"name": "test", "seed": seed, "duration_s": seconds},
        "machine": machine or {},
        "accelerator": [device] if accelerator is None or accelerator else [],
        "co_runner": list(co_runners),
        "job": list(jobs),
        "job_mix": list(mixes),
        "policy": policy,
    }
    return parse_scenario(values, Path())


def cpu_scenario(*co_runners: dict[str, Any], cores: int = 2, **more: Any) -> Scenario:
    """No accelerator."""
    return scenario(*co_runners, machine={"cores": cores}, accelerator={}, **more)
