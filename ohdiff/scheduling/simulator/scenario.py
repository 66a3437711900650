"""A scenario: the machine, who else works on it, our jobs, and the policy; read from a TOML file.

Every key's name ends in its unit. docs/scheduling.md has the whole list.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ohdiff.errors import UsageError

from ..core import MS, SECOND, US, JobClass
from ..policies.compose import Arbiter, Order, PolicySettings
from ..policies.placement import Where
from .co_runner_plan import CoRunnerPlan, read_co_runner
from .toml_table import TomlTable

GB = 1_000_000_000
CPU = "cpu"
_POLICY_KEYS = (
    *("arbiter", "order", "where", "unit_ms", "depth", "beside_ms", "quiet_ms", "max_impact_pct", "device_share_pct"),
    *("nice", "quantum_ms", "starved_s", "probe_ms", "pause_min_ms", "pause_max_ms", "short_ms", "calm_s"),
)
_CLASSES = {each.name.lower(): each for each in JobClass}


@dataclass(frozen=True, slots=True)
class AcceleratorPlan:
    """One accelerator; rates in bytes a second.

    Parameters
    ----------
    kernel_rate, copy_rate, bus_rate : of our kernels on bytes in device memory, of each copy engine, of the bus.
    launch_ns : from when a unit may be submitted to its start, but for what units in flight hide of it.
    slice_ns, switch_ns : length of a turn where several are busy, and what passes between two; 0 for fair shares.
    is_resident : whether our bytes lie in device memory already.
    telemetry_ns : length of the vendor's window, 0 for no telemetry.
    is_per_process : whether the vendor tells others' work from ours.
    """

    name: str
    kernel_rate: int
    copy_rate: int
    bus_rate: int
    launch_ns: int
    slice_ns: int
    switch_ns: int
    is_resident: bool
    telemetry_ns: int
    is_per_process: bool


@dataclass(frozen=True, slots=True)
class MachinePlan:
    """The host, and its accelerators; rates in bytes a second."""

    cores: int
    core_rate: int
    memory_rate: int
    disk_rate: int
    has_cpu_device: bool
    accelerators: tuple[AcceleratorPlan, ...]


@dataclass(frozen=True, slots=True)
class JobPlan:
    """One of our jobs; `size_bytes` is 0 for endless, `predicted_milli` how right its scan was, 0 for no prediction."""

    job_class: JobClass
    arrives_ns: int
    size_bytes: int
    small_bytes: int = 0
    deadline_ns: int | None = None
    predicted_milli: int = 1000
    device: str = ""


@dataclass(frozen=True, slots=True)
class MixPlan:
    """Many jobs with Poisson arrivals and log-normal sizes."""

    count: int
    job_class: JobClass
    per_second: float
    median_bytes: float
    deviation: float
    predicted_milli: int


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything that a run is made of, but for the traces' files."""

    name: str
    seed: int
    duration_ns: int
    machine: MachinePlan
    co_runners: tuple[CoRunnerPlan, ...]
    jobs: tuple[JobPlan, ...]
    mixes: tuple[MixPlan, ...]
    settings: PolicySettings
    folder: Path

    def without_jobs(self) -> Scenario:
        """The same machine and co-runners alone: what impact is measured against."""
        return replace(self, jobs=(), mixes=())


def load_scenario(path: Path) -> Scenario:
    """Read a scenario's file.

    Raises
    ------
    UsageError : it cannot be read, or a key is missing, unknown or out of bounds; `item` names the key.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", item=str(path)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not TOML: {error}", item=str(path)) from error
    try:
        return parse_scenario(values, path.parent)
    except UsageError as error:
        raise UsageError(f"{path}: {error.message}", hint=error.hint, item=error.item) from error


def parse_scenario(values: dict[str, Any], folder: Path) -> Scenario:
    """Check and convert what tomllib gave; `folder` is where relative paths of traces start."""
    top = TomlTable(values)
    head = top.table("scenario")
    name = head.text("name")
    seed = head.whole("seed", 1)
    duration_ns = head.scaled("duration_s", None, SECOND, least=1e-6)
    head.finish(("name", "seed", "duration_s"))
    machine = _machine(top)
    devices = [CPU, *(each.name for each in machine.accelerators)]
    co_runners = tuple(read_co_runner(table, devices) for table in top.tables("co_runner"))
    names = [each.name for each in co_runners]
    if len(set(names)) < len(names):
        raise UsageError("two co-runners have the same name", item="co_runner")
    jobs = tuple(_job(table, devices) for table in top.tables("job"))
    mixes = tuple(_mix(table) for table in top.tables("job_mix"))
    settings = _policy(top.table("policy"))
    top.finish(("scenario", "machine", "accelerator", "co_runner", "job", "job_mix", "policy"))
    return Scenario(name, seed, duration_ns, machine, co_runners, jobs, mixes, settings, folder)


def _machine(top: TomlTable) -> MachinePlan:
    host = top.table("machine")
    accelerators = tuple(map(_accelerator, top.tables("accelerator")))
    names = [each.name for each in accelerators]
    if len(set(names)) < len(names) or CPU in names:
        raise UsageError(f'accelerators need names of their own, and "{CPU}" is taken', item="accelerator")
    machine = MachinePlan(
        cores=host.whole("cores", 8, least=1, most=4096),
        core_rate=host.scaled("gb_per_s_per_core", 1.5, GB, least=1e-6),
        memory_rate=host.scaled("memory_gb_per_s", 100, GB, least=1e-3),
        disk_rate=host.scaled("disk_gb_per_s", 5, GB, least=1e-6),
        has_cpu_device=host.flag("use_cpu", default=not accelerators),
        accelerators=accelerators,
    )
    host.finish(("cores", "gb_per_s_per_core", "memory_gb_per_s", "disk_gb_per_s", "use_cpu"))
    if not machine.has_cpu_device and not accelerators:
        raise UsageError("there is no device", hint="set machine.use_cpu, or add an [[accelerator]]", item="machine")
    return machine


def _accelerator(table: TomlTable) -> AcceleratorPlan:
    plan = AcceleratorPlan(
        name=table.text("name"),
        kernel_rate=table.scaled("kernel_gb_per_s", 1000, GB, least=1e-6),
        copy_rate=table.scaled("copy_gb_per_s", 50, GB, least=1e-6),
        bus_rate=table.scaled("bus_gb_per_s", 60, GB, least=1e-6),
        launch_ns=table.scaled("launch_us", 30, US),
        slice_ns=table.scaled("slice_ms", 0, MS),
        switch_ns=table.scaled("switch_us", 0, US),
        is_resident=table.flag("resident", default=False),
        telemetry_ns=table.scaled("telemetry_window_ms", 0, MS),
        is_per_process=table.flag("telemetry_per_process", default=True),
    )
    table.finish(
        (
            "name",
            "kernel_gb_per_s",
            "copy_gb_per_s",
            "bus_gb_per_s",
            "launch_us",
            "slice_ms",
            "switch_us",
            "resident",
            "telemetry_window_ms",
            "telemetry_per_process",
        )
    )
    return plan


def _job(table: TomlTable, devices: list[str]) -> JobPlan:
    arrives_ns = table.scaled("arrives_s", 0, SECOND)
    is_endless = table.flag("endless", default=False)
    size_bytes = 0 if is_endless else table.scaled("size_gb", None, GB, least=1e-9)
    small_milli = table.scaled("small_files_pct", 0, 10)
    deadline_ns = table.scaled("deadline_s", None, SECOND, least=1e-6) if table.has("deadline_s") else None
    job_class = _job_class(table)
    predicted_milli = table.scaled("predicted_pct", 100, 10)
    device = table.text("device", "")
    if small_milli > 1000:
        raise table.error("small_files_pct", "must be at most 100")
    if device and device not in devices:
        raise table.error("device", f'is "{device}", and must be one of: {", ".join(devices)}')
    if deadline_ns is not None and (is_endless or deadline_ns <= arrives_ns):
        raise table.error("deadline_s", "needs a job that ends, and must come after its arrival")
    table.finish(
        (
            "class",
            "arrives_s",
            "endless",
            "size_gb",
            "small_files_pct",
            "deadline_s",
            "predicted_pct",
            "device",
        )
    )
    small_bytes = size_bytes * small_milli // 1000
    return JobPlan(job_class, arrives_ns, size_bytes, small_bytes, deadline_ns, predicted_milli, device)


def _job_class(table: TomlTable) -> JobClass:
    word = table.text("class", "normal")
    if word not in _CLASSES:
        raise table.error("class", f'is "{word}", and must be one of: {", ".join(_CLASSES)}')
    return _CLASSES[word]


def _mix(table: TomlTable) -> MixPlan:
    mix = MixPlan(
        count=table.whole("count", least=1, most=1_000_000),
        job_class=_job_class(table),
        per_second=table.number("per_s", least=1e-9),
        median_bytes=table.number("median_gb", least=1e-9) * GB,
        deviation=table.number("deviation", 1.5, most=5),
        predicted_milli=table.scaled("predicted_pct", 100, 10),
    )
    table.finish(("count", "class", "per_s", "median_gb", "deviation", "predicted_pct"))
    return mix


def _policy(table: TomlTable) -> PolicySettings:
    default = PolicySettings()
    settings = PolicySettings(
        arbiter=table.choice("arbiter", Arbiter, default.arbiter),
        order=table.choice("order", Order, default.order),
        where=table.choice("where", Where, default.where),
        unit_ns=table.scaled("unit_ms", default.unit_ns / MS, MS, least=1e-3),
        depth=table.whole("depth", default.depth, least=1, most=1024),
        beside_ns=table.scaled("beside_ms", default.beside_ns / MS, MS, least=1e-3),
        quiet_ns=table.scaled("quiet_ms", default.quiet_ns / MS, MS),
        impact_milli_max=table.scaled("max_impact_pct", default.impact_milli_max / 10, 10),
        share_milli=table.scaled("device_share_pct", default.share_milli / 10, 10),
        nice=table.whole("nice", default.nice, most=19),
        queues=replace(
            default.queues,
            quantum_ns=table.scaled("quantum_ms", default.queues.quantum_ns / MS, MS, least=1),
            starved_ns=table.scaled("starved_s", default.queues.starved_ns / SECOND, SECOND, least=1e-3),
        ),
        stretch=replace(
            default.stretch,
            probe_ns=table.scaled("probe_ms", default.stretch.probe_ns / MS, MS, least=1e-3),
            pause_ns_min=table.scaled("pause_min_ms", default.stretch.pause_ns_min / MS, MS, least=1e-3),
            pause_ns_max=table.scaled("pause_max_ms", default.stretch.pause_ns_max / MS, MS, least=1e-3),
            short_ns=table.scaled("short_ms", default.stretch.short_ns / MS, MS, least=1e-3),
            calm_ns=table.scaled("calm_s", default.stretch.calm_ns / SECOND, SECOND),
        ),
    )
    table.finish(_POLICY_KEYS)
    return settings
