"""Whether the simulator says what real processes do on an emulated device.

Simulated is the same scenario with the same requests at the same times. What the simulator is told of this machine are
micro-benchmarks, each of one side alone, and how the device was told to take turns.

A p99 is that of the requests of all rounds together, and it is given twice: of all requests, and of those alone that
were served while the machine did not stand (stalls.py), where the simulator's of the same numbers are left out, too.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from benchmark.machine import describe_machine

from ohdiff.scheduling.core import MS, SECOND, US
from ohdiff.scheduling.emulated import QUANTUM_NS, SWITCH_NS
from ohdiff.scheduling.hint.device_hint import DeviceHint
from ohdiff.scheduling.policies.compose import Arbiter, PolicySettings
from ohdiff.scheduling.simulator.run import simulate
from ohdiff.scheduling.simulator.scenario import load_scenario

from .device import (
    DEVICE,
    PER_SECOND,
    RATE,
    SERVICE_NS,
    Times,
    pause,
    queue_of_requests,
    run_ours,
    served,
    times_of,
)
from .figures import quantile
from .stalls import STALL_NS, Stalls, untouched, witnessed


@dataclass(frozen=True, slots=True)
class Contender:
    """A policy that is judged.

    Parameters
    ----------
    settings, words : the same for the loop, and as keys of a scenario.
    launch : which of the calibrated times passes before its units.
    is_telling : whether the co-runner tells of its requests.
    """

    settings: PolicySettings
    words: str
    launch: str
    is_telling: bool = False


POLICIES = {
    "none": Contender(PolicySettings(arbiter=Arbiter.NONE), 'arbiter = "none"', "launch_us"),
    "none, 8 deep": Contender(
        PolicySettings(arbiter=Arbiter.NONE, depth=8), 'arbiter = "none"\ndepth = 8', "launch_us"
    ),
    "XSched-like, 8": Contender(
        PolicySettings(arbiter=Arbiter.XSCHED, depth=8, quiet_ns=0),
        'arbiter = "xsched"\ndepth = 8\nquiet_ms = 0',
        "launch_told_us",
        is_telling=True,
    ),
    "priority": Contender(
        PolicySettings(arbiter=Arbiter.PRIORITY), 'arbiter = "priority"', "launch_told_us", is_telling=True
    ),
    "stretch-probe": Contender(PolicySettings(arbiter=Arbiter.STRETCH), 'arbiter = "stretch"', "launch_short_us"),
}


@dataclass(slots=True)
class Round:
    """One policy's run on real processes, and the same in the simulator.

    Parameters
    ----------
    times : when each request came and when it was answered, by the monotonic clock.
    share : of the device's time, ours.
    models : the simulator's runs: how long each of the same requests took, and our share.
    """

    times: Times
    share: float
    models: list[tuple[list[int], float]] = field(default_factory=list)

    def real_ms(self, kept: Sequence[int]) -> list[float]:
        """Latencies of these requests."""
        return [(self.times[number][1] - self.times[number][0]) / MS for number in kept]

    def model_ms(self, kept: Sequence[int]) -> list[float]:
        """The same in all of the simulator's runs."""
        return [times[number] / MS for times, _ in self.models for number in kept]

    @property
    def model_share(self) -> float:
        """Our share in the simulator."""
        return statistics.fmean(share for _, share in self.models)

    @property
    def ended(self) -> range:
        """The requests that had been answered on both sides when time was up."""
        return range(min(len(self.times), *(len(times) for times, _ in self.models)))

    def unstalled(self, stalls: Stalls) -> list[int]:
        """Of these, the ones that no stall delayed."""
        return [number for number in untouched(self.times, stalls) if number in self.ended]


@dataclass(slots=True)
class Verdict:
    """A figure of all rounds together, and of each, on both sides."""

    real: list[float] = field(default_factory=list)
    model: list[float] = field(default_factory=list)

    def add(self, real: float, model: float) -> None:
        """The first is that of all rounds together."""
        self.real.append(real)
        self.model.append(model)

    def named(self, figure: str) -> dict[str, dict[str, float]]:
        """The three columns of a table."""
        errors = [model / real - 1 for real, model in zip(self.real, self.model, strict=True)]
        columns = {"real": self.real, "simulated": self.model, "error": errors}
        return {
            f"{kind} {figure}": {
                "whole": round(values[0], 4),
                "least": round(min(values[1:]), 4),
                "most": round(max(values[1:]), 4),
            }
            for kind, values in columns.items()
        }


# In the simulator our work begins at several times: whether a probe meets a request depends on it for seconds.
BEGINS_MS = (0.0, 3.1, 6.7)
FIGURES = ("share", "p50_ms", "p99_ms", "p99_unstalled_ms")


def against_simulator(seconds: float, rounds: int) -> dict[str, Any]:
    """The same scenarios on real processes and in the simulator, and how far they are apart."""
    found: dict[str, list[Round]] = {name: [] for name in POLICIES}
    with served() as folder:
        calibration = calibrated(folder)
        with witnessed() as stalls:
            for seed in range(1, rounds + 1):
                for name, contender in POLICIES.items():
                    found[name].append(measured(folder, contender, seconds, seed))
                print(f"device round {seed} of {rounds}", file=sys.stderr)
        for name, rounds_of_it in found.items():
            for seed, each in enumerate(rounds_of_it, 1):
                words = [scenario(POLICIES[name], calibration, seconds, seed, begins_ms) for begins_ms in BEGINS_MS]
                each.models = [simulated(folder / "scenario.toml", text) for text in words]
    rows = {name: judged(each, stalls) for name, each in found.items()}
    taus = {
        figure: kendall([(row[f"real {figure}"], row[f"simulated {figure}"]["whole"]) for row in rows.values()])
        for figure in FIGURES
    }
    date = describe_machine()["date"]
    return {"calibration": calibration, "policies": rows, "tau": taus, "stalls": _in_short(stalls), "date": date}


def _in_short(stalls: Stalls) -> dict[str, float]:
    lengths = [(ended - began) / MS for began, ended in stalls.windows]
    return {
        "count": len(lengths),
        "sum_ms": round(sum(lengths), 1),
        "most_ms": round(max(lengths, default=0.0), 1),
        "watched_s": round(stalls.watched_ns / SECOND, 1),
    }


def judged(rounds: list[Round], stalls: Stalls) -> dict[str, Any]:
    """Each figure of both sides, of all rounds together and by round, and the simulator's error."""
    share, mean = Verdict(), statistics.fmean
    share.add(mean(each.share for each in rounds), mean(each.model_share for each in rounds))
    for each in rounds:
        share.add(each.share, each.model_share)
    ended, unstalled = [each.ended for each in rounds], [each.unstalled(stalls) for each in rounds]
    verdicts = {
        "share": share,
        "p50_ms": _of_latencies(rounds, ended, 0.5),
        "p99_ms": _of_latencies(rounds, ended, 0.99),
        "p99_unstalled_ms": _of_latencies(rounds, unstalled, 0.99),
    }
    row: dict[str, Any] = {"requests": sum(map(len, ended)), "unstalled": sum(map(len, unstalled))}
    for figure, verdict in verdicts.items():
        row |= verdict.named(figure)
    return row


def _of_latencies(rounds: list[Round], kept: Sequence[Sequence[int]], part: float) -> Verdict:
    real = [each.real_ms(numbers) for each, numbers in zip(rounds, kept, strict=True)]
    model = [each.model_ms(numbers) for each, numbers in zip(rounds, kept, strict=True)]
    verdict = Verdict()
    verdict.add(quantile(list(chain(*real)), part), quantile(list(chain(*model)), part))
    for real_ms, model_ms in zip(real, model, strict=True):
        verdict.add(quantile(real_ms, part), quantile(model_ms, part))
    return verdict


def calibrated(folder: Path) -> dict[str, float]:
    """What a request takes besides its service, how late a sleeping server begins, and what passes before our units.

    Each is of one side alone. Units are launched later beside a co-runner that tells of itself, though it does nothing,
    as it is looked at each time; and sooner where they are short, as the loop has hardly gone to sleep. One of two
    short units in flight hides the other's launch, but for the times that the loop is late.
    """
    none = PolicySettings(arbiter=Arbiter.NONE)
    at_once_us, after_pauses_us = _requests_us(folder)
    launch_us = _launch_us(folder, none)
    short = PolicySettings(arbiter=Arbiter.NONE, unit_ns=none.stretch.short_ns // 2, depth=2)
    launch_short_us = _launch_us(folder, short)
    hint = DeviceHint(DEVICE, folder=str(folder / "runtime"))
    with hint.busy():
        pass
    launch_told_us = _launch_us(folder, none)
    hint.close()
    return {
        "request_us": round(at_once_us, 1),
        "wake_us": round(max(0.0, after_pauses_us - at_once_us), 1),
        "launch_us": launch_us,
        "launch_short_us": launch_short_us,
        "launch_told_us": launch_told_us,
    }


def _launch_us(folder: Path, settings: PolicySettings) -> float:
    """What a launch would have to take to leave the device idle as much as the loop leaves it, stalls apart."""
    uses = run_ours(folder, settings, lambda: pause(1.5)).uses
    pauses_ns = [max(0, later[0] - earlier[1]) for earlier, later in pairwise(uses)]
    idle_ns = statistics.fmean(pause_ns for pause_ns in pauses_ns if pause_ns < STALL_NS)
    return round((settings.depth * idle_ns + (settings.depth - 1) * settings.unit_ns) / 1e3, 1)


def _requests_us(folder: Path) -> tuple[float, float]:
    """What a request takes besides its service, in the mean: one that waited for another, and one after a pause."""
    times = times_of(queue_of_requests(folder, 5.0, 0, is_telling=False))
    behind = [later[1] - earlier[1] for earlier, later in pairwise(times) if later[0] < earlier[1]]
    fresh = [later[1] - later[0] for earlier, later in pairwise(times) if later[0] >= earlier[1]]
    return (_middle(behind) - SERVICE_NS) / 1e3, (_middle(fresh) - SERVICE_NS) / 1e3


def _middle(values: Sequence[int]) -> float:
    """The mean without the tenth that is least and the tenth that is most."""
    ordered = sorted(values)
    cut = len(ordered) // 10
    return statistics.fmean(ordered[cut : len(ordered) - cut])


def measured(folder: Path, contender: Contender, seconds: float, seed: int) -> Round:
    """A policy beside requests."""
    process = queue_of_requests(folder, seconds, seed, is_telling=contender.is_telling)
    times: Times = []
    work = run_ours(folder, contender.settings, lambda: times.extend(times_of(process)))
    return Round(times, work.done_ns / (work.uses[-1][1] - work.uses[0][0]))


def simulated(path: Path, words: str) -> tuple[list[int], float]:
    """How long each request took in the model, and our share."""
    path.write_text(words)
    latencies: list[int] = []
    result = simulate(load_scenario(path), times=lambda name, figures: latencies.extend(figures["latency"]))
    return latencies, result.devices[0].harvested_ns / result.simulated_ns


def scenario(contender: Contender, calibration: dict[str, float], seconds: float, seed: int, begins_ms: float) -> str:
    """What is measured, as a scenario."""
    return f"""
[scenario]
name = "emulated"
duration_s = {seconds}
seed = {seed}
[machine]
cores = 2
[[accelerator]]
name = "{DEVICE}"
kernel_gb_per_s = {RATE / 1e9}
launch_us = {max(0.0, calibration[contender.launch])}
slice_ms = {QUANTUM_NS / MS}
switch_us = {SWITCH_NS / US}
resident = true
[[co_runner]]
name = "queue"
kind = "queue"
device = "{DEVICE}"
per_s = {PER_SECOND}
service_ms = {SERVICE_NS / MS}
wake_us = {calibration["wake_us"]}
answer_us = {max(0.0, calibration["request_us"])}
tells = {str(contender.is_telling).lower()}
[[job]]
class = "scavenge"
endless = true
arrives_s = {begins_ms / 1000}
[policy]
{contender.words}
"""


def kendall(pairs: list[tuple[dict[str, float], float]]) -> float:
    """The rank correlation of real spreads and simulated values.

    Policies whose real rounds overlap have no order that could be kept; where only the simulator sees no difference,
    that is half a fault.
    """
    agreed = counted = 0
    for place, (real, model) in enumerate(pairs):
        for other_real, other_model in pairs[place + 1 :]:
            if real["least"] <= other_real["most"] and other_real["least"] <= real["most"]:
                continue
            counted += 1
            agreed += _sign(real["whole"] - other_real["whole"]) * _sign(model - other_model)
    return round(agreed / counted, 3) if counted else 1.0


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)
