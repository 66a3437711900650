"""Policies by name: their settings, and the stages that each is made of, for the real loop and the simulator alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from ohdiff.errors import UsageError

from ..core import BESIDE_NS, QUIET_NS, UNIT_NS, UNITS_DEEP, Decision, DeviceView, Policy, View
from .deadline import Laxity, LaxityLimits
from .draft import Draft, Permit, Stage
from .placement import Placement, Where
from .pressure import CpuPressure
from .priority import StrictPriority
from .queues import ArrivalOrder, FeedbackQueues, QueueLimits
from .rate import TGS_LIMITS, RateLimits, ReportedRate
from .share import DeviceMemory, DeviceShare
from .stretch import StretchLimits, StretchProbe
from .telemetry import TelemetryWindows


class Arbiter(StrEnum):
    """How the use of a device is arbitrated with others; all but the first are for comparison, or parts of it."""

    AUTO = "auto"  # strict priority where co-runners tell, stretch-probe where they do not
    PRIORITY = "priority"
    STRETCH = "stretch"
    RATE = "rate"
    TELEMETRY = "telemetry"
    XSCHED = "xsched"  # strict priority without hysteresis; XSched has 8 or 16 units in flight besides
    TGS = "tgs"  # the rate's control with TGS' period and constants
    NONE = "none"


class Order(StrEnum):
    """How our own jobs share a device."""

    ARRIVAL = "arrival"
    FEEDBACK = "feedback"
    SKIP_JOIN = "skip-join"


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """What a policy is made of; the head of a decision log carries it, so that a replay builds the same policy.

    Parameters
    ----------
    arbiter, order, where : the choices.
    unit_ns, depth : length of a unit, and units in flight.
    beside_ns, quiet_ns : the most work in flight beside a co-runner that says what it does, and which of its pauses are
        left unused.
    impact_milli_max : --max-impact, for windows that run out and for interactive jobs.
    share_milli : --device-share.
    nice : the niceness of our threads on the CPU; what the driver sets, not what is decided.
    """

    arbiter: Arbiter = Arbiter.AUTO
    order: Order = Order.SKIP_JOIN
    where: Where = Where.AUTO
    unit_ns: int = UNIT_NS
    depth: int = UNITS_DEEP
    beside_ns: int = BESIDE_NS
    quiet_ns: int = QUIET_NS
    impact_milli_max: int = 100
    share_milli: int = 1000
    nice: int = 19
    queues: QueueLimits = field(default_factory=QueueLimits)
    stretch: StretchLimits = field(default_factory=StretchLimits)
    rate: RateLimits = field(default_factory=RateLimits)
    laxity: LaxityLimits = field(default_factory=LaxityLimits)

    def __post_init__(self) -> None:
        ranges = {
            "unit_ns": (self.unit_ns, 1, None),
            "depth": (self.depth, 1, None),
            "beside_ns": (self.beside_ns, 1, None),
            "quiet_ns": (self.quiet_ns, 0, None),
            "impact_milli_max": (self.impact_milli_max, 0, 1000),
            "share_milli": (self.share_milli, 1, 1000),
            "nice": (self.nice, 0, 19),
        }
        for name, (value, least, most) in ranges.items():
            if value < least or (most is not None and value > most):
                raise UsageError(f"{name} is {value}: it must be {least} or more, and not above {most or 'any limit'}")


class StagedPolicy:
    """Runs stages one after another over one draft; the last choose jobs."""

    def __init__(self, permit: Permit, stages: Sequence[Stage]) -> None:
        self._permit = permit
        self._stages = tuple(stages)

    def decide(self, now_ns: int, view: View) -> Decision:
        """What shall hold from now on: everything that no stage refused."""
        usable = [device for device in view.devices if device.is_usable] if view.jobs else []
        draft = Draft(view, {device.device: self._permit_of(device) for device in usable})
        for stage in self._stages:
            stage.apply(now_ns, view, draft)
        return draft.decision()

    def _permit_of(self, device: DeviceView) -> Permit:
        is_single = device.threads_max == self._permit.threads
        return self._permit if is_single else self._permit._replace(threads=device.threads_max)


def build_policy(settings: PolicySettings) -> Policy:
    """The policy that these settings describe: arbiters, laxity, owner's limits, placement, choice of a job."""
    stages: list[Stage] = [
        *_arbiters(settings),
        Laxity(_laxity(settings)),
        DeviceShare(settings.share_milli),
        DeviceMemory(),
        Placement(settings.where),
        _order(settings),
    ]
    return StagedPolicy(Permit(settings.unit_ns, settings.depth), stages)


def _laxity(settings: PolicySettings) -> LaxityLimits:
    old = settings.laxity
    return LaxityLimits(old.scavenge_milli_min, old.capped_milli_min, old.capped_duty_milli, settings.impact_milli_max)


def _arbiters(settings: PolicySettings) -> list[Stage]:
    strict = StrictPriority(settings.quiet_ns, settings.beside_ns)
    stretch = StretchProbe(settings.stretch)
    arbiters: dict[Arbiter, list[Stage]] = {
        Arbiter.AUTO: [strict, stretch, CpuPressure()],
        Arbiter.PRIORITY: [strict, CpuPressure()],
        Arbiter.STRETCH: [StretchProbe(settings.stretch, is_hint_heard=False), CpuPressure()],
        Arbiter.RATE: [ReportedRate(settings.rate), CpuPressure()],
        Arbiter.TELEMETRY: [TelemetryWindows(), CpuPressure()],
        Arbiter.XSCHED: [StrictPriority(0, settings.unit_ns * settings.depth)],
        Arbiter.TGS: [ReportedRate(TGS_LIMITS)],
        Arbiter.NONE: [],
    }
    return arbiters[settings.arbiter]


def _order(settings: PolicySettings) -> Stage:
    if settings.order is Order.ARRIVAL:
        return ArrivalOrder()
    limits = settings.queues
    is_skipping = settings.order is Order.SKIP_JOIN
    return FeedbackQueues(
        QueueLimits(limits.quantum_ns, limits.levels, limits.starved_ns, limits.credits_max, is_skipping)
    )
