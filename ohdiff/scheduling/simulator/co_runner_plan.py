"""What a scenario says of a co-runner, checked; and the co-runner made from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from ..core import MS, SECOND, US
from .batching import BatchingServer, BatchingShape
from .co_runners import (
    CoRunnerModel,
    CoRunnerName,
    DutyCycle,
    RequestQueue,
    TrainingLoop,
    TrainingShape,
    poisson_arrivals,
)
from .toml_table import TomlTable
from .traces import (
    REQUEST_MODELS,
    DutyWindow,
    Request,
    generate_duty,
    generate_requests,
    load_duty,
    load_requests,
)


class CoRunnerKind(StrEnum):
    """The kinds that a scenario may name."""

    SERVER = "server"
    QUEUE = "queue"
    TRAINING = "training"
    DUTY = "duty"


@dataclass(frozen=True, slots=True)
class RequestSource:
    """A server's requests: a trace's file, or a model's name."""

    trace: str
    model: str
    speed: float
    requests_max: int
    requests_skipped: int


@dataclass(frozen=True, slots=True)
class QueueShape:
    """A queue's load: Poisson arrivals, and a service time; and its server's own times."""

    per_second: float
    service_ns: int
    is_service_random: bool
    wake_ns: int
    answer_ns: int


@dataclass(frozen=True, slots=True)
class DutySource:
    """A duty cycle: a trace's file with its columns, a list in the scenario, or generated when neither is given."""

    trace: str
    time_column: str
    duty_column: str
    windows: tuple[DutyWindow, ...]
    burst_ns: int


_Shape = tuple[BatchingShape, RequestSource] | QueueShape | TrainingShape | DutySource


@dataclass(frozen=True, slots=True)
class CoRunnerPlan:
    """One co-runner of a scenario.

    Parameters
    ----------
    weight : its part where a resource is short; 1 for an ordinary process.
    cores : how many cores it uses while it works, on a device "cpu"; elsewhere one resource is its own device's.
    """

    name: str
    device: str
    is_telling: bool
    report_ns: int
    weight: float
    cores: float
    shape: _Shape


def read_co_runner(table: TomlTable, devices: list[str]) -> CoRunnerPlan:
    """Check one [[co_runner]]."""
    kind = table.choice("kind", CoRunnerKind)
    name = table.text("name", kind.value)
    device = table.text("device", devices[-1])
    if device not in devices:
        raise table.error("device", f'is "{device}", and must be one of: {", ".join(devices)}')
    is_telling = table.flag("tells", default=False)
    report_ns = table.scaled("report_ms", 0, MS)
    weight = table.number("weight", 1.0, least=1e-3)
    cores = table.number("cores", 1.0, least=1e-3)
    shape = _SHAPES[kind](table)
    table.finish()
    return CoRunnerPlan(name, device, is_telling, report_ns, weight, cores, shape)


def _server(table: TomlTable) -> tuple[BatchingShape, RequestSource]:
    shape = BatchingShape(
        iteration_ns=table.scaled("iteration_ms", 8.0, MS, least=1e-3),
        prefill_token_ns=table.scaled("prefill_us_per_token", 30.0, US),
        decode_sequence_ns=table.scaled("decode_us_per_sequence", 40.0, US),
        pause_ns=table.scaled("pause_ms", 1.0, MS),
        chunk_tokens=table.whole("chunk_tokens", 2048, least=1),
        batch_max=table.whole("batch_max", 64, least=1),
    )
    trace, model = table.text("trace", ""), table.text("model", "")
    if bool(trace) == bool(model):
        raise table.error("trace", "or model must be given, and not both")
    if model and model not in REQUEST_MODELS:
        raise table.error("model", f'is "{model}", and must be one of: {", ".join(REQUEST_MODELS)}')
    source = RequestSource(
        trace,
        model,
        speed=table.number("speed", 1.0, least=1e-6),
        requests_max=table.whole("requests_max", 0),
        requests_skipped=table.whole("requests_skipped", 0),
    )
    return shape, source


def _queue(table: TomlTable) -> QueueShape:
    shape = QueueShape(
        table.number("per_s", least=1e-9),
        table.scaled("service_ms", None, MS, least=1e-6),
        table.flag("random_service", default=False),
        table.scaled("wake_us", 0, US),
        table.scaled("answer_us", 0, US),
    )
    if shape.per_second * (shape.service_ns + shape.answer_ns) >= SECOND:
        raise table.error("per_s", "times service_ms is a load of 1 or more: the queue would grow for ever")
    return shape


def _training(table: TomlTable) -> TrainingShape:
    return TrainingShape(
        compute_ns=table.scaled("compute_ms", None, MS, least=1e-3),
        compute_deviation=table.number("deviation", 0.02, most=2),
        exchange_ns=table.scaled("exchange_ms", 0, MS),
        pause_ns=table.scaled("pause_ms", 0, MS),
        steps_max=table.whole("steps", 0),
    )


def _duty(table: TomlTable) -> DutySource:
    windows: tuple[DutyWindow, ...] = ()
    if table.has("windows"):
        pairs = table.pairs("windows")
        if not all(second < third and 0 <= duty <= 100 for (second, duty), (third, _) in _neighbours(pairs)):
            raise table.error("windows", "must be [second, percent] in order of time, percent from 0 to 100")
        windows = tuple(DutyWindow(round(second * SECOND), round(duty * 10)) for second, duty in pairs)
        if windows[0].start_ns != 0:
            raise table.error("windows", "must start at second 0")
    source = DutySource(
        trace=table.text("trace", ""),
        time_column=table.text("time_column", "time_s"),
        duty_column=table.text("duty_column", "duty_pct"),
        windows=windows,
        burst_ns=table.scaled("burst_ms", 50, MS, least=1e-3),
    )
    if source.trace and windows:
        raise table.error("trace", "and windows cannot both be given")
    return source


def _neighbours(pairs: list[tuple[float, float]]) -> Iterator[tuple[tuple[float, float], tuple[float, float]]]:
    return zip(pairs, [*pairs[1:], (float("inf"), 0.0)], strict=True)


_SHAPES: dict[CoRunnerKind, Callable[[TomlTable], _Shape]] = {
    CoRunnerKind.SERVER: _server,
    CoRunnerKind.QUEUE: _queue,
    CoRunnerKind.TRAINING: _training,
    CoRunnerKind.DUTY: _duty,
}


def make_co_runner(plan: CoRunnerPlan, duration_ns: int, seed: int, data: Path) -> CoRunnerModel:
    """The co-runner of a plan.

    Parameters
    ----------
    duration_ns : how long generators give work.
    seed : of its own; the same seed gives the same requests, steps and pauses.
    data : the folder that relative paths of traces start from.
    """
    who = CoRunnerName(plan.name, plan.device, plan.is_telling, plan.report_ns)
    shape = plan.shape
    if isinstance(shape, tuple):
        return BatchingServer(who, shape[0], _requests(shape[1], duration_ns, seed, data))
    if isinstance(shape, QueueShape):
        arrivals = poisson_arrivals(
            shape.per_second, shape.service_ns, duration_ns, seed, is_service_random=shape.is_service_random
        )
        return RequestQueue(who, arrivals, shape.wake_ns, shape.answer_ns)
    if isinstance(shape, TrainingShape):
        return TrainingLoop(who, shape, seed)
    windows = _duty_windows(shape, duration_ns, seed, data)
    return DutyCycle(who, windows, shape.burst_ns, duration_ns, seed)


def _requests(source: RequestSource, duration_ns: int, seed: int, data: Path) -> Iterator[Request]:
    if source.model:
        return generate_requests(REQUEST_MODELS[source.model], duration_ns, seed, speed=source.speed)
    requests = load_requests(
        data / source.trace,
        requests_max=source.requests_max,
        requests_skipped=source.requests_skipped,
        speed=source.speed,
    )
    return iter(requests)


def _duty_windows(source: DutySource, duration_ns: int, seed: int, data: Path) -> list[DutyWindow]:
    if source.trace:
        return load_duty(data / source.trace, time_column=source.time_column, duty_column=source.duty_column)
    return list(source.windows) or generate_duty(duration_ns, seed)
