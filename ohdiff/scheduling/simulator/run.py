"""Runs a scenario, with its jobs or without, and gathers the results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ..core import SECOND, Decision, View
from ..policies.compose import build_policy
from .co_runner_plan import make_co_runner
from .co_runners import CoRunnerModel
from .engine import Engine
from .presence import Presence
from .recorder import Recorder
from .results import (
    Comparison,
    CoRunnerResult,
    DeviceResult,
    JobResult,
    RunResult,
    compare,
    spread_of,
)
from .scenario import CPU, Scenario
from .sim_job import SimJob
from .world import Machine, all_jobs


def simulate(
    scenario: Scenario,
    *,
    data: Path | None = None,
    log: Callable[[int, View, Decision], None] | None = None,
    recorder: Recorder | None = None,
    times: Callable[[str, Mapping[str, Sequence[int]]], None] | None = None,
) -> RunResult:
    """Run a scenario once.

    Parameters
    ----------
    data : the folder that relative paths of traces start from; the scenario's own where it is None.
    log : called with each decision.
    recorder : sees every phase and run; it makes the run slower.
    times : called at the end with each co-runner's name and all that it measured of itself, one by one, in nanoseconds.

    Raises
    ------
    UsageError : a trace cannot be read.
    """
    machine = Machine(scenario.machine, scenario.settings.nice)
    models = _co_runners(scenario, machine, scenario.folder if data is None else data)
    rate = max(machine.device_rate(device) for device, _ in machine.devices) / SECOND
    jobs = [SimJob(number, plan, rate) for number, plan in enumerate(all_jobs(scenario), 1)]
    engine = Engine(machine, models, jobs, build_policy(scenario.settings), log=log, recorder=recorder)
    engine.run(scenario.duration_ns)
    if times is not None:
        for model in models:
            times(model.name, model.figures)
    return _result(scenario, machine, engine, jobs)


def simulate_impact(scenario: Scenario, *, data: Path | None = None) -> Comparison:
    """Run a scenario with its jobs and without."""
    return compare(simulate(scenario, data=data), simulate(scenario.without_jobs(), data=data))


def with_seed(scenario: Scenario, seed: int) -> Scenario:
    """The same scenario with other chances."""
    return replace(scenario, seed=seed)


def _co_runners(scenario: Scenario, machine: Machine, data: Path) -> list[CoRunnerModel]:
    models = []
    for number, plan in enumerate(scenario.co_runners):
        model = make_co_runner(plan, scenario.duration_ns, scenario.seed * 100 + number, data)
        model.demands = machine.co_runner_demands(plan)
        models.append(model)
    return models


def _result(scenario: Scenario, machine: Machine, engine: Engine, jobs: list[SimJob]) -> RunResult:
    devices = []
    for device, stream in sorted(engine.streams.items()):
        harvested_ns = int(stream.bytes_done / machine.device_rate(device) * SECOND)
        devices.append(DeviceResult(device, harvested_ns, int(stream.bytes_done)))
    return RunResult(
        scenario.name,
        scenario.seed,
        scenario.settings,
        engine.now_ns,
        engine.decisions,
        engine.events,
        tuple(_co_runner_result(presence, machine) for presence in engine.presences),
        tuple(devices),
        tuple(map(_job_result, jobs)),
        spread_of(engine.yields_ns),
    )


def _co_runner_result(presence: Presence, machine: Machine) -> CoRunnerResult:
    model = presence.model
    figures = {name: spread_of(times) for name, times in model.figures.items()}
    share = min(1.0, machine.rates.share_of(model.demands[0], machine.cores)) if model.device == CPU else 1.0
    return CoRunnerResult(model.name, model.device, model.steps, presence.busy_ns, figures, share)


def _job_result(job: SimJob) -> JobResult:
    plan = job.plan
    return JobResult(
        job.number,
        plan.job_class,
        plan.arrives_ns,
        plan.size_bytes,
        job.ended_ns,
        plan.deadline_ns,
        job.warned_ns,
        job.warned_late_ns,
    )
