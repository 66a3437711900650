"""The simulated half of the scheduling experiments: every figure here is a model's, none was measured on a device.

    python bench/simulate_experiments.py --data DIR -o bench/results/NAME

DIR holds the Azure LLM traces. Writes NAME.json, NAME.md and charts NAME.impact.png and NAME.units.png. Each figure has
its spread over slices of a trace, or over seeds.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from benchmark.machine import describe_machine, machine_line

from ohdiff.scheduling.core import MS, SECOND, Decision, Grant, JobClass
from ohdiff.scheduling.pipeline import LinearTime, pipeline_ns, plan_groups
from ohdiff.scheduling.policies.compose import Arbiter, Order, PolicySettings
from ohdiff.scheduling.policies.placement import Where
from ohdiff.scheduling.simulator.co_runner_plan import CoRunnerPlan
from ohdiff.scheduling.simulator.plots import write_plot
from ohdiff.scheduling.simulator.results import Comparison, RunResult, compare, quantile
from ohdiff.scheduling.simulator.run import simulate, with_seed
from ohdiff.scheduling.simulator.scenario import JobPlan, Scenario, load_scenario

SCENARIOS = Path(__file__).parent / "scenarios"
Row = dict[str, Any]
GB = 1_000_000_000

# Arbiters by the names in the tables. XSched has 16 commands in flight with a sync after 8; TGS looks every 5 s. Where
# all pauses are used units are of 2 ms, as 1 ms is just a server's pause here, and units that fit it would seem free.
POLICIES: dict[str, dict[str, Any]] = {
    "none": {"arbiter": Arbiter.NONE},
    "nice only": {"arbiter": Arbiter.NONE, "nice": 19},
    "NVML 170 ms": {"arbiter": Arbiter.TELEMETRY},
    "NVML 1 s": {"arbiter": Arbiter.TELEMETRY},
    "XSched-like, 8": {"arbiter": Arbiter.XSCHED, "depth": 8, "quiet_ns": 0},
    "XSched-like, 16": {"arbiter": Arbiter.XSCHED, "depth": 16, "quiet_ns": 0},
    "TGS-like": {"arbiter": Arbiter.TGS},
    "AIMD": {"arbiter": Arbiter.RATE},
    "priority, no pause": {"arbiter": Arbiter.PRIORITY, "quiet_ns": 0, "beside_ns": 2 * MS},
    "priority (told)": {"arbiter": Arbiter.PRIORITY},
    "stretch-probe (untold)": {"arbiter": Arbiter.STRETCH},
}
# (requests in a slice, where the slices start)
SLICES = {
    "code-trace": (800, (0, 2500, 5000)),
    "conversation-trace": (400, (0, 6000, 12000)),
    "code-trace-slow": (500, (0, 2500, 5000)),
}
UNITS_MS, DEPTHS = (0.25, 0.5, 1, 2, 5, 10, 50), (1, 2, 8)


class Bench:
    """Runs scenarios over one folder of traces, and remembers the runs without jobs."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._alone: dict[str, RunResult] = {}

    def load(self, name: str) -> Scenario:
        return load_scenario(SCENARIOS / f"{name}.toml")

    def run(self, scenario: Scenario, recorder: Any = None) -> RunResult:
        return simulate(scenario, data=self._data, recorder=recorder)

    def compare(self, scenario: Scenario) -> Comparison:
        alone = replace(scenario.without_jobs(), settings=PolicySettings())
        key = repr(alone)
        if key not in self._alone:
            self._alone[key] = self.run(alone)
        return compare(self.run(scenario), self._alone[key])


def with_policy(scenario: Scenario, name: str, **changes: Any) -> Scenario:
    """The scenario under a policy of the table, with the signals that the policy needs."""
    settings = replace(scenario.settings, **{"nice": 0, **POLICIES[name], **changes})
    if "unit_ns" in changes:
        settings = replace(settings, beside_ns=settings.unit_ns * settings.depth)
    window_ns = {"NVML 170 ms": 170 * MS, "NVML 1 s": SECOND}.get(name, 0)
    machine = scenario.machine
    accelerators = tuple(replace(each, telemetry_ns=window_ns) for each in machine.accelerators)
    report_ns = {"TGS-like": 5 * SECOND, "AIMD": 100 * MS}.get(name, 0)
    tells = POLICIES[name]["arbiter"] in (Arbiter.PRIORITY, Arbiter.XSCHED, Arbiter.AUTO)
    co_runners = tuple(replace(each, is_telling=tells, report_ns=report_ns) for each in scenario.co_runners)
    machine = replace(machine, accelerators=accelerators)
    return replace(scenario, settings=settings, machine=machine, co_runners=co_runners)


def sliced(scenario: Scenario, start: int, count: int) -> Scenario:
    """The scenario over some requests of its trace."""
    return replace(scenario, co_runners=tuple(_slice(each, start, count) for each in scenario.co_runners))


def _slice(plan: CoRunnerPlan, start: int, count: int) -> CoRunnerPlan:
    if not isinstance(plan.shape, tuple):
        return plan
    shape, source = plan.shape
    return replace(plan, shape=(shape, replace(source, requests_skipped=start, requests_max=count)))


def spread(values: Iterable[float]) -> dict[str, float]:
    found = sorted(values)
    return {"median": statistics.median(found), "low": found[0], "high": found[-1]}


def impact_row(comparisons: Sequence[Comparison]) -> Row:
    """One row: the first co-runner's first figure, and our harvest on its device."""
    device = comparisons[0].run.co_runners[0].device
    harvests = [next(each for each in comparison.harvests if each.device == device) for comparison in comparisons]
    return {
        "figure": comparisons[0].impacts[0].figure,
        "mean": spread(each.impacts[0].mean for each in comparisons),
        "p50": spread(each.impacts[0].p50 for each in comparisons),
        "p99": spread(each.impacts[0].p99 for each in comparisons),
        "idle": spread(each.idle_share for each in harvests),
        "of idle": spread(each.of_idle for each in harvests),
        "yield p99 ms": _yields(comparisons),
    }


def _yields(comparisons: Sequence[Comparison]) -> dict[str, float] | None:
    """None where nobody ever met our units, or had to wait for them, as on a CPU."""
    met = [each.run.yields.p99 / MS for each in comparisons if each.run.yields.count]
    return spread(met) if met else None


def co_runner_impact(bench: Bench) -> tuple[list[Row], list[tuple[str, Comparison]]]:
    """E2: what each policy does to a co-runner, and what it gets."""
    rows, shown = [], []
    for name, (count, starts) in SLICES.items():
        for policy in POLICIES:
            scenario = with_policy(bench.load(name), policy)
            comparisons = [bench.compare(sliced(scenario, start, count)) for start in starts]
            rows.append({"scenario": name, "policy": policy, **impact_row(comparisons)})
            if name == "conversation-trace":
                shown.append((policy, comparisons[0]))
    for name in ("training", "http-on-cpu"):
        for policy in POLICIES if name == "training" else ("none", "nice only", "auto"):
            scenario = bench.load(name)
            scenario = with_policy(scenario, policy) if policy in POLICIES else scenario
            comparisons = [
                bench.compare(with_seed(replace(scenario, duration_ns=120 * SECOND), seed)) for seed in (1, 2, 3)
            ]
            rows.append({"scenario": name, "policy": policy, **impact_row(comparisons)})
    return rows, shown


def unit_sweep(bench: Bench) -> list[Row]:
    """E3: length of a unit and units in flight, told by the co-runner, with and without unused short pauses.

    With launches: without them, units that divide the server's pause exactly would seem free.
    """
    rows = []
    for quiet_ms in (0, 2):
        for unit_ms in UNITS_MS:
            for depth in DEPTHS:
                changes = {"unit_ns": int(unit_ms * MS), "depth": depth, "quiet_ns": quiet_ms * MS}
                scenario = with_launches(with_policy(bench.load("code-trace"), "priority (told)", **changes))
                comparisons = [bench.compare(sliced(scenario, start, 250)) for start in (0, 2500, 5000)]
                row = impact_row(comparisons)
                rows.append({"unit ms": unit_ms, "depth": depth, "pause ms": quiet_ms, **row})
    return rows


# (most in flight while somebody is suspected, for how long one is); 2 ms is what is in flight without any suspicion.
SUSPICIONS = ((2, 10), (1, 10), (0.5, 10), (0.28, 1), (0.28, 10), (0.28, 60))


def suspicion(bench: Bench) -> list[Row]:
    """What shorter units cost and save while a co-runner that tells nothing is suspected; launches take 30 us."""
    rows = []
    for name in ("duty-day", "untold-bursts", "code-trace", "conversation-trace"):
        for short_ms, calm_s in SUSPICIONS:
            scenario = with_policy(bench.load(name), "stretch-probe (untold)")
            limits = replace(scenario.settings.stretch, short_ns=int(short_ms * MS), calm_ns=calm_s * SECOND)
            scenario = replace(scenario, settings=replace(scenario.settings, stretch=limits))
            comparisons = [bench.compare(each) for each in _repeated(with_launches(scenario))]
            rows.append({"scenario": name, "short unit ms": short_ms, "calm s": calm_s, **impact_row(comparisons)})
    return rows


def _repeated(scenario: Scenario) -> list[Scenario]:
    """Slices of its trace, or seeds of at most an hour."""
    if scenario.name in SLICES:
        count, starts = SLICES[scenario.name]
        return [sliced(scenario, start, count) for start in starts]
    duration_ns = min(scenario.duration_ns, 3600 * SECOND)
    return [replace(with_seed(scenario, seed), duration_ns=duration_ns) for seed in (1, 2, 3)]


def with_launches(scenario: Scenario) -> Scenario:
    """The scenario with launches of 30 us, without which short units would seem to cost nothing."""
    accelerators = tuple(replace(each, launch_ns=30_000) for each in scenario.machine.accelerators)
    return replace(scenario, machine=replace(scenario.machine, accelerators=accelerators))


class Runs:
    """A recorder that keeps our runs, and which jobs had them."""

    def __init__(self) -> None:
        self.runs: list[tuple[int, int]] = []

    def busy(self, name: str, device: str, start_ns: int, end_ns: int) -> None:
        """Not of interest."""

    def ran(self, device: str, grant: Grant, start_ns: int, end_ns: int) -> None:
        self.runs.append((start_ns, end_ns))

    def decided(self, now_ns: int, decision: Decision) -> None:
        """Not of interest."""


STEP_START_NS, STEP_END_NS = 30 * SECOND, 60 * SECOND


def load_step(bench: Bench) -> list[Row]:
    """E4: a device is idle for 30 s, busy for 95 % for 30 s, and idle again."""
    rows = []
    for policy in POLICIES:
        scenario = with_policy(bench.load("load-step"), policy)
        found: list[tuple[float, float, float]] = []
        for seed in (1, 2, 3):
            recorder = Runs()
            bench.run(with_seed(scenario, seed), recorder)
            found.append(_step_figures(recorder.runs))
        within, later, resumed = zip(*found, strict=True)
        rows.append(
            {
                "policy": policy,
                "ours in the 1st s, ms": spread(within),
                "ours in the other 29 s, ms": spread(later),
                "resumed after, ms": spread(resumed),
            }
        )
    return rows


def _step_figures(runs: Sequence[tuple[int, int]]) -> tuple[float, float, float]:
    def inside(start_ns: int, end_ns: int) -> float:
        return sum(max(0, min(end, end_ns) - max(start, start_ns)) for start, end in runs) / MS

    resumed_ns = min(
        (max(start, STEP_END_NS) for start, end in runs if end > STEP_END_NS + 300 * MS), default=90 * SECOND
    )
    first_s = inside(STEP_START_NS, STEP_START_NS + SECOND)
    return first_s, inside(STEP_START_NS + SECOND, STEP_END_NS), (resumed_ns - STEP_END_NS) / MS


def several_jobs(bench: Bench) -> list[Row]:
    """E5: one job of 10 TB, 200 of a heavy tail, 50 restores."""
    rows = []
    for order in Order:
        scenario = bench.load("several-jobs")
        scenario = replace(scenario, settings=replace(scenario.settings, order=order))
        means, waits, normal, huge = [], [], [], []
        for seed in (1, 2, 3):
            run = bench.run(with_seed(scenario, seed))
            times = [(job, (job.took_ns or run.simulated_ns) / SECOND) for job in run.jobs]
            means.append(statistics.fmean(took for _, took in times))
            restores = sorted(took for job, took in times if job.job_class is JobClass.INTERACTIVE)
            waits.append(float(quantile([int(1000 * took) for took in restores], 0.99)))
            others = sorted(took for job, took in times if job.job_class is JobClass.NORMAL)
            normal.append(statistics.median(others))
            huge.append(others[-1])
        rows.append(
            {
                "order": order.value,
                "mean s": spread(means),
                "median of normal s": spread(normal),
                "longest s": spread(huge),
                "restore p99 ms": spread(waits),
            }
        )
    return rows


def deadlines(bench: Bench) -> list[Row]:
    """E6: more and more bytes for a window of ten minutes, under three caps of impact."""
    rows = []
    for impact_pct in (0, 3, 10):
        for size_tb in (0.5, 1.0, 1.5, 2.0, 3.0):
            scenario = bench.load("deadline")
            job = replace(scenario.jobs[0], size_bytes=int(size_tb * 1000 * GB), deadline_ns=600 * SECOND)
            settings = replace(scenario.settings, impact_milli_max=impact_pct * 10)
            scenario = replace(scenario, jobs=(job,), settings=settings, duration_ns=650 * SECOND)
            found = [bench.compare(with_seed(scenario, seed)) for seed in (1, 2, 3)]
            jobs = [comparison.run.jobs[0] for comparison in found]
            warned = [each.warned_ns / SECOND for each in jobs if each.warned_ns is not None]
            rows.append(
                {
                    "max impact %": impact_pct,
                    "TB": size_tb,
                    "missed of 3": sum(each.is_missed for each in jobs),
                    "said in advance of 3": len(warned),
                    "said at s": spread(warned) if warned else None,
                    "server p99": spread(_impact(each, "llm").p99 for each in found),
                    "cpu job p99": spread(_impact(each, "preprocessing").p99 for each in found),
                }
            )
    return rows


def _impact(comparison: Comparison, name: str) -> Any:
    return next(each for each in comparison.impacts if each.co_runner == name)


def placement(bench: Bench) -> list[Row]:
    """E7: the CPU, the accelerator, both, or by prediction, for more and more small files.

    The model knows no cost of small files on an accelerator, so that it is not asked what they would take there.
    """
    rows = []
    for small_pct in (0, 10, 50, 90):
        for where in (each for each in Where if each is not Where.ACCELERATOR or not small_pct):
            scenario = bench.load("placement")
            size_bytes = scenario.jobs[0].size_bytes // 2
            job: JobPlan = replace(scenario.jobs[0], size_bytes=size_bytes, small_bytes=size_bytes * small_pct // 100)
            settings = replace(scenario.settings, where=where)
            scenario = replace(scenario, jobs=(job,), settings=settings, duration_ns=150 * SECOND)
            runs = [bench.run(with_seed(scenario, seed)) for seed in (1, 2, 3)]
            times = [(run.jobs[0].took_ns or run.simulated_ns) / SECOND for run in runs]
            rows.append({"small files %": small_pct, "where": where.value, "took s": spread(times)})
    return rows


def pipelining() -> list[Row]:
    """E8: one group, groups of a buffer, groups by plan; 256 MiB in pieces of 1 MiB, and three buffers of 64 MiB."""
    size, piece, buffer = 256 << 20, 1 << 20, 64 << 20
    rows = []
    for name, copy, compute in (
        ("copy bound", LinearTime(10_000, 20), LinearTime(30_000, 5)),
        ("balanced", LinearTime(10_000, 20), LinearTime(30_000, 20)),
        ("compute bound", LinearTime(10_000, 20), LinearTime(30_000, 60)),
    ):
        fixed = [buffer] * (size // buffer)
        planned = plan_groups(size, piece, copy, compute, buffer)
        serial_ns = copy.of(size) + compute.of(size)
        bound_ns = max(copy.of(size), compute.of(size))
        rows.append(
            {
                "case": name,
                "no overlap ms": serial_ns / MS,
                "fixed groups ms": pipeline_ns(fixed, copy, compute) / MS,
                "planned ms": pipeline_ns(planned, copy, compute) / MS,
                "bound ms": bound_ns / MS,
                "first groups MiB": [group >> 20 for group in planned[:6]],
                "groups": len(planned),
            }
        )
    return rows


def whole_days(bench: Bench) -> list[Row]:
    """E11: days beside a device with the published duty cycle, and beside a server; and how long one takes."""
    rows = []
    for name in ("duty-day", "server-day"):
        seconds, comparisons = [], []
        for seed in (1, 2, 3) if name == "server-day" else (1, 2):
            scenario = with_seed(bench.load(name), seed)
            start = time.process_time()
            run = bench.run(scenario)
            seconds.append(time.process_time() - start)
            alone = bench.run(scenario.without_jobs())
            comparisons.append(compare(run, alone))
        rows.append({"scenario": name, "processor s for a day": spread(seconds), **impact_row(comparisons)})
    return rows


EXPERIMENTS: dict[str, tuple[str, Callable[[Bench], list[Row]]]] = {
    "impact": (
        "Co-runner impact and harvest by policy (chart: conversation-trace)",
        lambda bench: co_runner_impact(bench)[0],
    ),
    "units": ("Length of a unit and units in flight (code-trace, told)", unit_sweep),
    "suspicion": ("Shorter units while a co-runner that tells nothing is suspected", suspicion),
    "step": ("A step of load", load_step),
    "jobs": ("Several jobs of ours", several_jobs),
    "deadlines": ("Backup windows", deadlines),
    "placement": ("Placement", placement),
    "pipeline": ("Groups of copy and compute", lambda bench: pipelining()),
    "days": ("Whole days", whole_days),
}


def shown(value: Any) -> str:
    if isinstance(value, dict):
        median, low, high = (_number(value[key]) for key in ("median", "low", "high"))
        return median if low == high else f"{median} ({low}-{high})"
    return _number(value) if isinstance(value, float) else "" if value is None else str(value)


def _number(value: float) -> str:
    return f"{value:.3f}" if abs(value) < 10 else f"{value:,.1f}"


def table(rows: Sequence[Row]) -> list[str]:
    keys = list(rows[0])
    lines = ["| " + " | ".join(keys) + " |", "|" + "---|" * len(keys)]
    return [*lines, *("| " + " | ".join(shown(row[key]) for key in keys) + " |" for row in rows)]


def markdown(results: dict[str, Any]) -> str:
    lines = [
        "# Scheduling, simulated",
        "",
        "Every figure is that of a model: accelerators time-sliced as fluid shares, no switching costs, no disturbance",
        "in caches or memory beyond what a scenario names. None was measured on a device. Latencies are multiples of",
        'those of the same run without our jobs. "of idle" is device time of ours over the time that the device is',
        "idle without us, which passes 1 where we take time from others. Median (lowest-highest) over three slices of",
        "the trace, or over seeds.",
        "",
        f"Command: `{results['command']}`. Simulated on: {results['machine line']}.",
        "",
    ]
    for name, part in results["experiments"].items():
        lines += [f"## {part['title']}", "", *([f"![chart]({part['chart']})", ""] if part.get("chart") else [])]
        lines += [*table(part["rows"]), "", f"({name}, {part['seconds']:.0f} s of a processor, {part['date']})", ""]
    return "\n".join(lines)


def plot_units(path: Path, rows: Sequence[Row]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3), layout="constrained")
    charts = figure.subplots(1, 2, sharey=True)
    for chart, pause_ms in zip(charts, (0, 2), strict=True):
        for depth in DEPTHS:
            chosen = [row for row in rows if row["depth"] == depth and row["pause ms"] == pause_ms]
            losses = [100 * (row["p50"]["median"] - 1) for row in chosen]
            chart.plot([row["unit ms"] for row in chosen], losses, marker="o", label=f"{depth} in flight")
        chart.set_xscale("log")
        chart.set_yscale("symlog", linthresh=1)
        chart.set_xlabel("unit, ms")
        title = f"pauses under {pause_ms} ms unused" if pause_ms else "all pauses used"
        chart.set_title(f"simulated, {title}", fontsize=9)
        chart.legend(fontsize=7)
    charts[0].set_ylabel("co-runner p50, % slower")
    figure.savefig(path, dpi=120)


def run_experiment(name: str, bench: Bench, output: Path) -> dict[str, Any]:
    """One experiment's part of the results; its charts are written beside them."""
    start = time.process_time()
    title, experiment = EXPERIMENTS[name]
    charts = {"impact": ".impact.png", "units": ".units.png"}
    part: dict[str, Any] = {"title": title}
    if name in charts:
        part["chart"] = output.name + charts[name]
    chart = output.with_name(part.get("chart", output.name))
    if name == "impact":
        part["rows"], comparisons = co_runner_impact(bench)
        write_plot(chart, comparisons)
    else:
        part["rows"] = experiment(bench)
    if name == "units":
        plot_units(chart, part["rows"])
    return {**part, "seconds": time.process_time() - start, "date": describe_machine()["date"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the traces")
    parser.add_argument("-o", "--output", type=Path, required=True, help="results, without suffix")
    parser.add_argument("--only", action="append", choices=list(EXPERIMENTS), help="leave the others as they are")
    options = parser.parse_args()
    bench, machine = Bench(options.data), describe_machine()
    command = shlex.join(["python", "bench/simulate_experiments.py", "--data", "DIR", "-o", "NAME"])
    target = options.output.with_name(options.output.name + ".json")
    old = json.loads(target.read_text())["experiments"] if options.only and target.exists() else {}
    for name in options.only or EXPERIMENTS:
        old[name] = run_experiment(name, bench, options.output)
        print(f"{name}: {old[name]['seconds']:.0f} s", flush=True)
        results = {
            "simulated": True,
            "command": command,
            "machine": machine,
            "machine line": machine_line(machine),
            "experiments": {name: old[name] for name in EXPERIMENTS if name in old},
        }
        target.write_text(json.dumps(results, indent=1) + "\n")
        options.output.with_name(options.output.name + ".md").write_text(markdown(results))


if __name__ == "__main__":
    main()
