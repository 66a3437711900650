"""The simulated machine: its resources by number, and what our units and the co-runners take of them."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from ..core import SECOND, DeviceKind, Grant
from .co_runner_plan import CoRunnerPlan
from .resources import NICE_0_WEIGHT, NICE_WEIGHTS, Demand, RateTable
from .scenario import CPU, AcceleratorPlan, JobPlan, MachinePlan, MixPlan, Scenario
from .stream import UnitShape

# A byte is written to memory once when it is read and once more when it is copied to where it is worked on.
MEMORY_PASSES = 2


class Machine:
    """Demands of everything that may run on a scenario's machine.

    Attributes
    ----------
    rates : the table of demands.
    nothing : the number of a demand for nothing.
    cores : the number of the resource of all cores together.
    devices : names of the devices that our units may run on, with their kinds, sorted.
    """

    def __init__(self, plan: MachinePlan, nice: int) -> None:
        self.plan = plan
        self.rates = RateTable()
        self.nothing = self.rates.number(Demand(()))
        self.cores = 0
        self.devices = self._devices()
        self._nice_weight = NICE_WEIGHTS[nice] / NICE_0_WEIGHT
        self._accelerators = {each.name: each for each in plan.accelerators}
        names = ("cores", "memory", "disk", *(f"{each.name}.{part}" for each in plan.accelerators for part in _PARTS))
        self._resources = {name: number for number, name in enumerate(names)}
        self._units: dict[tuple[str, int, int, int], UnitShape] = {}

    def _devices(self) -> tuple[tuple[str, DeviceKind], ...]:
        devices = [(each.name, DeviceKind.SIMULATED) for each in self.plan.accelerators]
        if self.plan.has_cpu_device:
            devices.append((CPU, DeviceKind.CPU))
        return tuple(sorted(devices))

    def co_runner_demands(self, plan: CoRunnerPlan) -> tuple[int, ...]:
        """Demands of a co-runner's work, of its exchange, and of what it does elsewhere."""
        if plan.device == CPU:
            work = Demand(((self.cores, plan.cores / self.plan.cores),), plan.weight * plan.cores)
            exchange = Demand(((self._resources["memory"], 1.0),), plan.weight)
        else:
            work = Demand(((self._resources[f"{plan.device}.processors"], 1.0),), plan.weight)
            parts = (f"{plan.device}.bus", f"{plan.device}.copy")
            exchange = Demand(tuple((self._resources[part], 1.0) for part in parts), plan.weight)
        return self.rates.number(work), self.rates.number(exchange), self.nothing

    def device_rate(self, device: str, threads: int = 0) -> float:
        """Bytes a second that our pipeline does alone; on the CPU with so many threads, 0 for one on each core."""
        plan = self.plan
        host = min(plan.disk_rate, plan.memory_rate / MEMORY_PASSES)
        if device == CPU:
            return min((threads or plan.cores) * plan.core_rate, host)
        accelerator = self._accelerators[device]
        if accelerator.is_resident:
            return accelerator.kernel_rate
        return min(accelerator.kernel_rate, accelerator.copy_rate, accelerator.bus_rate, host)

    def unit_of(self, grant: Grant) -> UnitShape:
        """What a grant's units are like; a launch that others in flight hide delays the first one only."""
        key = (grant.device, grant.unit_ns, grant.depth, grant.threads)
        shape = self._units.get(key)
        if shape is None:
            shape = self._units[key] = self._unit_of(grant)
        return shape

    def _unit_of(self, grant: Grant) -> UnitShape:
        if grant.device == CPU:
            rate = self.device_rate(CPU, grant.threads)
            demand = self._cpu_demand(grant.threads, rate)
            return UnitShape(demand, demand, float(grant.unit_ns), 0.0, 0.0, rate / SECOND)
        accelerator = self._accelerators[grant.device]
        # The next launch begins when the unit ends that is `depth` before it, so that it is hidden by those between.
        launch_ns = max(0, accelerator.launch_ns - (grant.depth - 1) * grant.unit_ns) // grant.depth
        rate = self.device_rate(grant.device)
        return UnitShape(
            self._accelerator_demand(accelerator, rate),
            self._accelerator_demand(accelerator, rate * grant.unit_ns / (grant.unit_ns + launch_ns)),
            float(grant.unit_ns),
            float(accelerator.launch_ns),
            float(launch_ns),
            rate / SECOND,
        )

    def _cpu_demand(self, threads: int, rate: float) -> int:
        cores = rate / self.plan.core_rate / self.plan.cores
        return self.rates.number(Demand(((self.cores, cores), *self._host_parts(rate)), self._nice_weight * threads))

    def _accelerator_demand(self, accelerator: AcceleratorPlan, rate: float) -> int:
        resource = self._resources
        parts = [(resource[f"{accelerator.name}.processors"], rate / accelerator.kernel_rate)]
        if not accelerator.is_resident:
            parts.append((resource[f"{accelerator.name}.copy"], rate / accelerator.copy_rate))
            parts.append((resource[f"{accelerator.name}.bus"], rate / accelerator.bus_rate))
            parts.extend(self._host_parts(rate))
        return self.rates.number(Demand(tuple(parts)))

    def _host_parts(self, rate: float) -> Iterator[tuple[int, float]]:
        yield self._resources["memory"], rate * MEMORY_PASSES / self.plan.memory_rate
        yield self._resources["disk"], rate / self.plan.disk_rate


_PARTS = ("processors", "copy", "bus")


def all_jobs(scenario: Scenario) -> list[JobPlan]:
    """The jobs of a scenario with those of its mixes, by arrival."""
    jobs = list(scenario.jobs)
    for number, mix in enumerate(scenario.mixes):
        jobs.extend(_mixed(mix, Random(scenario.seed * 1000 + number)))  # noqa: S311 - a simulation, not a secret
    return sorted(jobs, key=lambda job: job.arrives_ns)


def _mixed(mix: MixPlan, random: Random) -> Iterator[JobPlan]:
    at = 0.0
    for _ in range(mix.count):
        at += random.expovariate(mix.per_second) * SECOND
        size = max(1, int(mix.median_bytes * random.lognormvariate(0.0, mix.deviation)))
        yield JobPlan(mix.job_class, int(at), size, predicted_milli=mix.predicted_milli)
