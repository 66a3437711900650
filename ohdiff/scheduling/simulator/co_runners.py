"""Co-runners: a queue of requests, a training loop, and a duty cycle; each says when it works and how long alone.

A co-runner is a machine of phases. The engine calls `begin` when `next_ns` has come, lets the phase run as fast as
resources allow, and calls `end`. Work is nanoseconds alone on the device.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from .traces import DutyWindow

NEVER_NS = 1 << 62


@dataclass(frozen=True, slots=True)
class CoRunnerName:
    """A co-runner's name and device, whether it says BUSY and IDLE, and how often it reports steps, 0 for never."""

    name: str
    device: str
    is_telling: bool
    report_ns: int


class CoRunnerModel:
    """What all kinds share.

    Attributes
    ----------
    name, device, is_telling, report_ns : as in its CoRunnerName.
    next_ns : when it wants to begin its next phase; NEVER_NS while one runs, or when nothing is left.
    demand : the number of what the phase that was begun takes; the world sets `demands`.
    is_on_device : whether that phase takes its device's processors.
    figures : by name, what it measured of itself, in nanoseconds.
    """

    def __init__(self, who: CoRunnerName) -> None:
        self.name = who.name
        self.device = who.device
        self.is_telling = who.is_telling
        self.report_ns = who.report_ns
        self.next_ns = NEVER_NS
        self.demands: tuple[int, ...] = (0,)
        self.demand = 0
        self.is_on_device = True
        self.steps = 0
        self.step_total_ns = 0
        self.figures: dict[str, list[int]] = {}

    @property
    def is_exhausted(self) -> bool:
        """Whether nothing more will come, once no phase runs."""
        return self.next_ns >= NEVER_NS

    @property
    def is_endless(self) -> bool:
        """Whether it never ends by itself."""
        return False

    def begin(self, now_ns: int) -> float:
        """Begin the phase that is due; returns its work, 0 for none after all."""
        raise NotImplementedError

    def end(self, now_ns: int) -> None:
        """The phase has ended."""
        raise NotImplementedError

    def _step(self, took_ns: int) -> None:
        self.steps += 1
        self.step_total_ns += took_ns


class RequestQueue(CoRunnerModel):
    """One server, first come first served: an HTTP loop.

    Parameters
    ----------
    arrivals : (when, work) in order of time.
    wake_ns : how long after its arrival a request is begun that finds the server asleep.
    answer_ns : what a request takes after its work on the device, without it.
    """

    def __init__(
        self, who: CoRunnerName, arrivals: Iterator[tuple[int, float]], wake_ns: int = 0, answer_ns: int = 0
    ) -> None:
        super().__init__(who)
        self.figures = {"latency": []}
        self._wake_ns = wake_ns
        self._answer_ns = answer_ns
        self._arrivals = arrivals
        self._coming = next(arrivals, None)
        self._waiting: deque[tuple[int, float]] = deque()
        self._serving_ns = 0
        self._set_next(0)

    def begin(self, now_ns: int) -> float:
        """Serve the oldest request, or answer it."""
        self.next_ns = NEVER_NS
        if not self.is_on_device:
            self.demand = self.demands[2]
            return self._answer_ns
        self._take(now_ns)
        self._serving_ns, work = self._waiting.popleft()
        self.demand = self.demands[0]
        return work

    def end(self, now_ns: int) -> None:
        """Go on to the answer, or note how long it took since its arrival."""
        if self._answer_ns and self.is_on_device:
            self.is_on_device = False
            self.next_ns = now_ns
            return
        self.is_on_device = True
        self.figures["latency"].append(now_ns - self._serving_ns)
        self._step(now_ns - self._serving_ns)
        self._take(now_ns)
        self._set_next(now_ns)

    def _take(self, now_ns: int) -> None:
        while self._coming is not None and self._coming[0] <= now_ns:
            self._waiting.append(self._coming)
            self._coming = next(self._arrivals, None)

    def _set_next(self, now_ns: int) -> None:
        if self._waiting:
            self.next_ns = now_ns
        elif self._coming is not None:
            self.next_ns = self._coming[0] + self._wake_ns
        else:
            self.next_ns = NEVER_NS


def poisson_arrivals(
    per_second: float, service_ns: float, duration_ns: int, seed: int, *, is_service_random: bool
) -> Iterator[tuple[int, float]]:
    """Arrivals of a Poisson process, each with a fixed or an exponential service time."""
    random = Random(seed)  # noqa: S311 - a simulation, not a secret
    at = 0.0
    while True:
        at += random.expovariate(per_second) * 1e9
        if at >= duration_ns:
            return
        yield int(at), random.expovariate(1 / service_ns) if is_service_random else service_ns


@dataclass(frozen=True, slots=True)
class TrainingShape:
    """A training step: compute on the device, an exchange over its bus, and a pause for the next batch.

    `compute_deviation` is that of the logarithm of the compute time.
    """

    compute_ns: int
    compute_deviation: float
    exchange_ns: int
    pause_ns: int
    steps_max: int  # 0 for endless


class TrainingLoop(CoRunnerModel):
    """Steps one after another."""

    def __init__(self, who: CoRunnerName, shape: TrainingShape, seed: int) -> None:
        super().__init__(who)
        self.figures = {"step": []}
        self._shape = shape
        self._random = Random(seed)  # noqa: S311 - a simulation, not a secret
        self._is_exchanging = False
        self._started_ns = 0
        self.next_ns = 0

    @property
    def is_endless(self) -> bool:
        """Whether no number of steps was given."""
        return self._shape.steps_max == 0

    def begin(self, now_ns: int) -> float:
        """Compute, or exchange."""
        self.next_ns = NEVER_NS
        if self._is_exchanging:
            self.demand = self.demands[1]
            return self._shape.exchange_ns
        if self.steps:
            self.figures["step"].append(now_ns - self._started_ns)
        self._started_ns = now_ns
        self.demand = self.demands[0]
        return self._shape.compute_ns * self._random.lognormvariate(0.0, self._shape.compute_deviation)

    def end(self, now_ns: int) -> None:
        """Go on to the exchange, or to the pause."""
        if self._shape.exchange_ns and not self._is_exchanging:
            self._is_exchanging = True
            self.next_ns = now_ns
            return
        self._is_exchanging = False
        self._step(now_ns - self._started_ns)
        if self.steps != self._shape.steps_max:
            self.next_ns = now_ns + self._shape.pause_ns


class DutyCycle(CoRunnerModel):
    """Bursts of one length, with pauses that make the share of each window; pauses vary as the seed will."""

    def __init__(self, who: CoRunnerName, windows: Sequence[DutyWindow], burst_ns: int, end_ns: int, seed: int) -> None:
        super().__init__(who)
        self.figures = {"burst": []}
        self._windows = windows
        self._burst_ns = burst_ns
        self._end_ns = end_ns
        self._random = Random(seed)  # noqa: S311 - a simulation, not a secret
        self._window = 0
        self._started_ns = 0
        self._plan(0)

    def begin(self, now_ns: int) -> float:
        """One burst."""
        self.next_ns = NEVER_NS
        self._started_ns = now_ns
        self.demand = self.demands[0]
        return self._burst_ns

    def end(self, now_ns: int) -> None:
        """Note its time, and pause as the window says."""
        self.figures["burst"].append(now_ns - self._started_ns)
        self._step(now_ns - self._started_ns)
        self._plan(now_ns)

    def _plan(self, now_ns: int) -> None:
        """Set the next burst, in this window or in the next that has any."""
        at_ns = now_ns
        while True:
            while self._window + 1 < len(self._windows) and self._windows[self._window + 1].start_ns <= at_ns:
                self._window += 1
            duty_milli = self._windows[self._window].duty_milli
            window_end_ns = self._window_end_ns()
            if duty_milli > 0:
                pause_ns = self._burst_ns * (1000 - duty_milli) / duty_milli
                at_ns += int(pause_ns * self._random.uniform(0.5, 1.5))
            if duty_milli > 0 and at_ns < window_end_ns:
                break
            if window_end_ns >= self._end_ns:
                at_ns = NEVER_NS
                break
            at_ns = window_end_ns
        self.next_ns = at_ns if at_ns < self._end_ns else NEVER_NS

    def _window_end_ns(self) -> int:
        following = self._window + 1
        return self._windows[following].start_ns if following < len(self._windows) else self._end_ns
