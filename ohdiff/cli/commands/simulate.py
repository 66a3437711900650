"""ohdiff simulate: what a backup would do to the jobs beside it, and they to it; and the replay of decisions."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import msgspec

from ohdiff.errors import EXIT_FAILED, OhdiffError, UsageError
from ohdiff.scheduling.decision_log import DecisionLog, replay
from ohdiff.scheduling.policies.compose import Arbiter
from ohdiff.scheduling.simulator.perfetto import TraceRecorder
from ohdiff.scheduling.simulator.plots import write_plot
from ohdiff.scheduling.simulator.results import Comparison, JobResult, RunResult, Spread, compare
from ohdiff.scheduling.simulator.run import simulate, with_seed
from ohdiff.scheduling.simulator.scenario import Scenario, load_scenario

from ..shared import Output, shared
from ..text import format_size

_FILE = click.Path(dir_okay=False, path_type=Path)
_NS = 1e-9


@click.command("simulate")
@click.argument("scenario_file", metavar="[SCENARIO]", required=False, type=_FILE)
@click.option(
    "--replay", "replay_file", type=_FILE, metavar="LOG", help="Make a log's decisions again and compare them."
)
@click.option("--seed", type=click.IntRange(0), help="Other chances than the scenario's.")
@click.option(
    "--policy", type=click.Choice([each.value for each in Arbiter]), help="Another arbiter than the scenario's."
)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Where the traces lie; the scenario's folder by default.",
)
@click.option("--log", "log_file", type=_FILE, metavar="FILE", help="Write every decision, to be replayed.")
@click.option("--perfetto", "trace_file", type=_FILE, metavar="FILE", help="Write a trace for ui.perfetto.dev.")
@click.option("--plot", "plot_file", type=_FILE, metavar="FILE", help="Write a chart: .png, .svg or .pdf.")
@shared()
def simulate_command(
    output: Output,
    scenario_file: Path | None,
    replay_file: Path | None,
    seed: int | None,
    policy: str | None,
    data: Path | None,
    log_file: Path | None,
    trace_file: Path | None,
    plot_file: Path | None,
) -> int | None:
    """Run the scheduling policies of ohdiff over a simulated machine.

    SCENARIO is a TOML file that names the machine, the jobs beside us, our own jobs and the policy. It is run with our
    jobs and without, and both are compared. All times in the results are simulated ones. With --replay, the decisions
    of a log, real or simulated, are made again from what was seen then; they must be the same, byte for byte.
    """
    if (scenario_file is None) == (replay_file is None):
        raise UsageError("name a scenario, or a log with --replay", hint="ohdiff simulate SCENARIO.toml")
    if replay_file is not None:
        return _replay(output, replay_file)
    assert scenario_file is not None
    scenario = _chosen(load_scenario(scenario_file), seed, policy)
    recorder = TraceRecorder() if trace_file is not None else None
    run = _run(scenario, data, log_file, recorder)
    comparison = compare(run, simulate(scenario.without_jobs(), data=data))
    if recorder is not None and trace_file is not None:
        _write(trace_file, msgspec.json.encode(recorder.trace()))
        if recorder.left_out:
            output.warning(f"{trace_file} is full: {recorder.left_out:,} events were left out")
    if plot_file is not None:
        write_plot(plot_file, [(scenario.settings.arbiter.value, comparison)])
    _report(output, comparison)
    return None


def _chosen(scenario: Scenario, seed: int | None, policy: str | None) -> Scenario:
    if seed is not None:
        scenario = with_seed(scenario, seed)
    if policy is not None:
        scenario = replace(scenario, settings=replace(scenario.settings, arbiter=Arbiter(policy)))
    return scenario


def _run(scenario: Scenario, data: Path | None, log_file: Path | None, recorder: TraceRecorder | None) -> RunResult:
    with ExitStack() as stack:
        log = None
        if log_file is not None:
            file = stack.enter_context(_opened(log_file))
            log = DecisionLog(file.write, scenario.settings, "simulator").record
        return simulate(scenario, data=data, log=log, recorder=recorder)


def _opened(path: Path) -> Any:
    try:
        return path.open("wb")
    except OSError as error:
        raise OhdiffError(f"{path}: {error.strerror}", item=str(path)) from error


def _write(path: Path, content: bytes) -> None:
    with _opened(path) as file:
        file.write(content)


def _replay(output: Output, path: Path) -> int | None:
    try:
        with path.open("rb") as file:
            result = replay(file)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", item=str(path)) from error
    difference = result.difference
    fields: dict[str, Any] = {"decisions": result.decisions, "driver": result.driver, "is_same": difference is None}
    if difference is None:
        output.summary([f"{result.decisions:,} decisions of {result.driver}, all the same"], **fields)
        return None
    expected, found = difference.expected.decode(errors="replace"), difference.found.decode(errors="replace")
    output.summary(
        [
            f"after {result.decisions:,} decisions of {result.driver} that are the same, line {difference.line} is not",
            f"in the log: {expected.rstrip()}",
            f"now:        {found.rstrip()}",
        ],
        **fields,
        line=difference.line,
        expected=expected,
        found=found,
    )
    return EXIT_FAILED


def _report(output: Output, comparison: Comparison) -> None:
    run = comparison.run
    output.line(
        f"simulated: {run.scenario}, {run.simulated_ns * _NS:,.1f} s, seed {run.seed}, "
        f"policy {run.settings.arbiter}, {run.decisions:,} decisions"
    )
    if run.co_runners:
        output.line()
        header = ("co-runner", "figure", "count", "mean", "p50", "p99", "mean x", "p50 x", "p99 x")
        output.table(header, list(_co_runner_rows(comparison)))
    output.line()
    output.table(("device", "bytes", "device time", "idle without us", "of idle"), list(_device_rows(comparison)))
    if any(job.size_bytes for job in run.jobs):
        output.line()
        output.table(("job", "class", "arrived", "size", "took", "window"), [_job_row(job) for job in run.jobs])
    if run.yields.count:
        output.line()
        output.line(f"our units stayed {_ms(run.yields.p50)} (p50) and {_ms(run.yields.p99)} (p99) in others' way")
    output.record("summary", is_simulated=True, **msgspec.to_builtins(comparison))


def _co_runner_rows(comparison: Comparison) -> list[tuple[str, ...]]:
    impacts = {(impact.co_runner, impact.figure): impact for impact in comparison.impacts}
    rows = []
    for co_runner in comparison.run.co_runners:
        for name, spread in co_runner.figures.items():
            impact = impacts[co_runner.name, name]
            ratios = (f"{ratio:.3f}" for ratio in (impact.mean, impact.p50, impact.p99))
            rows.append((co_runner.name, name, f"{spread.count:,}", *_times(spread), *ratios))
    return rows


def _times(spread: Spread) -> tuple[str, str, str]:
    return _ms(spread.mean), _ms(spread.p50), _ms(spread.p99)


def _device_rows(comparison: Comparison) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for device, harvest in zip(comparison.run.devices, comparison.harvests, strict=True):
        shares = (f"{harvest.idle_share:.1%}", f"{harvest.of_idle:.1%}")
        rows.append((device.device, format_size(device.size_bytes), f"{device.harvested_ns * _NS:,.1f} s", *shares))
    return rows


def _job_row(job: JobResult) -> tuple[str, ...]:
    took = "not ended" if job.took_ns is None else f"{job.took_ns * _NS:,.1f} s"
    size = format_size(job.size_bytes) if job.size_bytes else "endless"
    return (str(job.job), job.job_class.name.lower(), f"{job.arrived_ns * _NS:,.1f} s", size, took, _window(job))


def _window(job: JobResult) -> str:
    if job.deadline_ns is None:
        return ""
    word = "missed" if job.is_missed else "kept"
    return word if job.warned_ns is None else f"{word}, said at {job.warned_ns * _NS:,.1f} s"


def _ms(time_ns: float) -> str:
    return f"{time_ns / 1e6:,.2f} ms"
