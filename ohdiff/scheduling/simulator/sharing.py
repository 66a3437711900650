"""How what runs shares the machine between two events: fair rates, or turns on devices that are shared in slices."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from .co_runners import NEVER_NS
from .presence import Presence
from .scenario import CPU
from .slices import TimeSlices
from .stream import STRETCHED_RATE, Stream
from .world import Machine


class Sharing:
    """Sets the rates of co-runners and of our streams.

    Parameters
    ----------
    machine : resources and demands.
    presences, streams : all that may run.

    Attributes
    ----------
    others_cores : how many cores co-runners use.
    is_short : whether cores are short, and somebody on them gets less than it wants.
    """

    def __init__(self, machine: Machine, presences: Sequence[Presence], streams: Sequence[Stream]) -> None:
        self.others_cores = 0.0
        self.is_short = False
        self._machine = machine
        self._presences = presences
        self._streams = streams
        self._by_device = {stream.device: stream for stream in streams}
        self._has_cpu_device = machine.plan.has_cpu_device
        self._slices = {
            plan.name: TimeSlices(plan.slice_ns, plan.switch_ns) for plan in machine.plan.accelerators if plan.slice_ns
        }

    @property
    def next_ns(self) -> int:
        """When a turn ends by itself."""
        soonest = NEVER_NS
        for slices in self._slices.values():
            soonest = min(soonest, slices.next_ns)
        return soonest

    def set_rates(self, now_ns: int) -> None:
        """Give everybody who is at work, and each stream of ours that flows, its rate from now on."""
        busy = [presence for presence in self._presences if presence.is_busy]
        flowing = [stream for stream in self._streams if stream.is_flowing]
        for stream in flowing:
            stream.meet(has_company=is_anybody_on(stream.device, busy))
        waiting = self._waiting(now_ns, busy, flowing) if self._slices else ()
        machine = self._machine
        numbers = [machine.nothing if waiting and each in waiting else each.model.demand for each in busy]
        numbers += [machine.nothing if waiting and each in waiting else self._demand_of(each) for each in flowing]
        rates = machine.rates.rates(tuple(numbers))
        for presence, rate in zip(busy, rates, strict=False):
            presence.rate = rate
        for stream, rate in zip(flowing, rates[len(busy) :], strict=True):
            stream.rate = rate
        for each in waiting:
            each.rate = 0.0
        if self._has_cpu_device:
            self._set_host_load(busy, flowing)

    def _waiting(self, now_ns: int, busy: list[Presence], flowing: list[Stream]) -> list[Presence | Stream]:
        """Those whose work waits for a turn on a device that is shared in slices."""
        everyone: list[Presence | Stream] = [*busy, *flowing]
        waiting: list[Presence | Stream] = []
        for device, slices in self._slices.items():
            ready: dict[Hashable, int] = dict.fromkeys(
                (each for each in busy if each.model.device == device and each.model.is_on_device), 0
            )
            stream = self._by_device[device]
            if stream in flowing and stream.demand is not None:
                ready[stream] = stream.work_since_ns(now_ns)
            owner = slices.owner(now_ns, ready)
            waiting.extend(each for each in everyone if each in ready and each is not owner)
        return waiting

    def _demand_of(self, stream: Stream) -> int:
        demand = stream.demand
        return self._machine.nothing if demand is None else demand

    def _set_host_load(self, busy: list[Presence], flowing: list[Stream]) -> None:
        table, cores = self._machine.rates, self._machine.cores
        shares = [presence.rate * table.share_of(presence.model.demand, cores) for presence in busy]
        self.others_cores = sum(shares) * self._machine.plan.cores
        shares.extend(stream.rate * table.share_of(self._demand_of(stream), cores) for stream in flowing)
        on_cores = [presence.rate for presence in busy if presence.model.device == CPU]
        on_cores.extend(stream.rate for stream in flowing if stream.device == CPU)
        # Whoever waits for a disk or for memory does not wait for a core.
        self.is_short = sum(shares) > STRETCHED_RATE and any(rate < STRETCHED_RATE for rate in on_cores)


def is_anybody_on(device: str, presences: Sequence[Presence]) -> bool:
    """Whether a co-runner is at work there."""
    return device in [each.model.device for each in presences if each.is_busy]
