"""What a run came to: co-runners' times, device time and bytes of ours, what became of jobs; and against no jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..core import JobClass
from ..policies.compose import PolicySettings


@dataclass(frozen=True, slots=True)
class Spread:
    """Many times in short; nanoseconds."""

    count: int
    mean: float
    p50: int
    p99: int
    most: int


@dataclass(frozen=True, slots=True)
class CoRunnerResult:
    """A co-runner's figures by name, as "latency" or "step", how long it was at work, and on how much of its device."""

    name: str
    device: str
    steps: int
    busy_ns: int
    figures: dict[str, Spread]
    device_share: float = 1.0


@dataclass(frozen=True, slots=True)
class DeviceResult:
    """What our units had of a device: time as it would take alone without launches, and plain bytes."""

    device: str
    harvested_ns: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class JobResult:
    """What became of a job; `ended_ns` is None for one that had not ended with the run.

    Parameters
    ----------
    size_bytes : 0 for an endless one.
    warned_ns, warned_late_ns : when it was said first that its window would be missed, and by how much.
    """

    job: int
    job_class: JobClass
    arrived_ns: int
    size_bytes: int
    ended_ns: int | None
    deadline_ns: int | None
    warned_ns: int | None
    warned_late_ns: int

    @property
    def took_ns(self) -> int | None:
        """From arrival to end."""
        return None if self.ended_ns is None else self.ended_ns - self.arrived_ns

    @property
    def is_missed(self) -> bool:
        """Whether its window was missed, or has been by the end of the run."""
        return self.deadline_ns is not None and (self.ended_ns is None or self.ended_ns > self.deadline_ns)


@dataclass(frozen=True, slots=True)
class RunResult:
    """One run of a scenario. All its times are simulated ones.

    Parameters
    ----------
    yields : for each time that a co-runner began while we were on its device, how long our units stayed.
    """

    scenario: str
    seed: int
    settings: PolicySettings
    simulated_ns: int
    decisions: int
    events: int
    co_runners: tuple[CoRunnerResult, ...]
    devices: tuple[DeviceResult, ...]
    jobs: tuple[JobResult, ...]
    yields: Spread


@dataclass(frozen=True, slots=True)
class Impact:
    """One figure of a co-runner against the same run without our jobs; 1 for no impact."""

    co_runner: str
    figure: str
    mean: float
    p50: float
    p99: float


@dataclass(frozen=True, slots=True)
class Harvest:
    """Device time that we had, as a share of the time that the device is idle without us."""

    device: str
    idle_share: float
    of_idle: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """A run, and what it changed for others."""

    run: RunResult
    impacts: tuple[Impact, ...]
    harvests: tuple[Harvest, ...]


def spread_of(times: Sequence[int]) -> Spread:
    """Zeros for none."""
    if not times:
        return Spread(0, 0.0, 0, 0, 0)
    ordered = sorted(times)
    return Spread(
        len(ordered), sum(ordered) / len(ordered), quantile(ordered, 0.5), quantile(ordered, 0.99), ordered[-1]
    )


def quantile(ordered: Sequence[int], part: float) -> int:
    """The element that stands at this part of a sorted sequence."""
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def compare(run: RunResult, alone: RunResult) -> Comparison:
    """Set a run against the one without jobs."""
    others = {each.name: each for each in alone.co_runners}
    impacts = [
        Impact(each.name, figure, *_ratios(spread, others[each.name].figures[figure]))
        for each in run.co_runners
        for figure, spread in each.figures.items()
    ]
    return Comparison(run, tuple(impacts), tuple(_harvest(device, run, alone) for device in run.devices))


def _ratios(spread: Spread, alone: Spread) -> tuple[float, float, float]:
    pairs = ((spread.mean, alone.mean), (spread.p50, alone.p50), (spread.p99, alone.p99))
    mean, p50, p99 = (now / before if before else 1.0 for now, before in pairs)
    return mean, p50, p99


def _harvest(device: DeviceResult, run: RunResult, alone: RunResult) -> Harvest:
    busy_ns = sum(each.busy_ns * each.device_share for each in alone.co_runners if each.device == device.device)
    idle_share = max(0.0, 1.0 - busy_ns / max(1, alone.simulated_ns))
    harvested_share = device.harvested_ns / max(1, run.simulated_ns)
    return Harvest(device.device, idle_share, harvested_share / idle_share if idle_share else 0.0)
