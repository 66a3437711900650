"""Requests and duty cycles: from the files of public traces, or from generators that were fitted to them.

Azure: the LLM inference traces 2023 of Azure/AzurePublicDataset (CC-BY-4.0; Patel et al., Splitwise, ISCA'24), 8,819
requests to a code service and 19,366 to a conversation service in one hour. Duty: any CSV of a time and a percentage;
the generator follows the published figures of Alibaba's cluster-trace-v2026-GenAI (143 pods, a sample every 57 s).
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from math import ceil, log
from pathlib import Path
from random import Random
from typing import IO

from ohdiff.errors import UsageError

from ..core import SECOND

_AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_FRACTION_DIGITS = 9


@dataclass(frozen=True, slots=True)
class Request:
    """One request to an inference server."""

    arrived_ns: int
    context_tokens: int
    generated_tokens: int


@dataclass(frozen=True, slots=True)
class DutyWindow:
    """From `start_ns` on, a device is busy for this share of time."""

    start_ns: int
    duty_milli: int


@dataclass(frozen=True, slots=True)
class RequestModel:
    """A fit to a trace of requests.

    Arrivals are Poisson with a rate that is a product of two gamma variables, one for each minute and one for each five
    seconds: the variance of counts in 1, 10 and 60 s then fits the trace's. Tokens are log-normal.

    Parameters
    ----------
    per_second : mean rate.
    minute_variance, moment_variance : relative variances of the two factors.
    context, generated : mean and deviation of the logarithm, and the largest.
    """

    per_second: float
    minute_variance: float
    moment_variance: float
    context: tuple[float, float, int]
    generated: tuple[float, float, int]


# Counts in 1, 10 and 60 s have a relative variance of 4.75, 2.77, 1.10 in the trace and of 4.75, 2.75, 1.08 in the fit.
AZURE_CODE = RequestModel(2.567, 0.75, 2.29, (6.999, 1.360, 7437), (2.788, 0.847, 1899))
# 0.070, 0.052, 0.046 against 0.066, 0.055, 0.047.
AZURE_CONVERSATION = RequestModel(5.531, 0.045, 0.02, (6.633, 0.985, 14050), (5.019, 0.859, 1000))
REQUEST_MODELS = {"azure-code": AZURE_CODE, "azure-conversation": AZURE_CONVERSATION}
MINUTE_S, MOMENT_S = 60, 5

DUTY_SAMPLE_NS = 57 * SECOND
# Runs of samples at exactly 0: median 2, ninth decile 14, 99th percentile 71; a log-normal fits with 2, 14 and 68.
IDLE_RUN_LOG_MEAN, IDLE_RUN_LOG_DEVIATION = log(2), 1.518
# With 66.8 % of the samples at 0 and idle runs of 6.8 samples in the mean, busy runs are 3.4 samples long.
BUSY_RUN_MEAN = 3.4
# A mean of 7.0 % over all samples is one of 21 % over the busy ones; the shape, exponential, is a guess.
BUSY_DUTY_MILLI_MEAN = 212


def load_requests(path: Path, *, requests_max: int = 0, requests_skipped: int = 0, speed: float = 1.0) -> list[Request]:
    """Read an Azure LLM trace.

    Parameters
    ----------
    path : the CSV file.
    requests_max : only so many, 0 for all.
    requests_skipped : so many at the start are left out, and time begins with the next.
    speed : above 1 the requests come faster than in the trace.
    """
    requests: list[Request] = []
    with _opened(path) as file:
        reader = csv.DictReader(file)
        _check_columns(path, reader.fieldnames, _AZURE_COLUMNS)
        first_ns = None
        for row in islice(reader, requests_skipped, None):
            arrived_ns = _parsed(path, reader.line_num, row)
            first_ns = arrived_ns[0] if first_ns is None else first_ns
            since_ns = int((arrived_ns[0] - first_ns) / speed)
            requests.append(Request(since_ns, max(1, arrived_ns[1]), max(1, arrived_ns[2])))
            if len(requests) == requests_max:
                break
    if not requests:
        raise UsageError(f"{path} holds no request")
    return sorted(requests, key=lambda request: request.arrived_ns)


def _parsed(path: Path, line: int, row: dict[str, str]) -> tuple[int, int, int]:
    try:
        return _timestamp_ns(row["TIMESTAMP"]), int(row["ContextTokens"]), int(row["GeneratedTokens"])
    except (ValueError, TypeError, AttributeError) as error:
        raise UsageError(f"{path}, line {line}: this is no request: {error}") from error


def _timestamp_ns(text: str) -> int:
    """Nanoseconds of "2023-11-16 18:17:03.9799600", whose seven digits are more than datetime reads."""
    whole, _, fraction = text.partition(".")
    seconds = int(datetime.fromisoformat(whole).replace(tzinfo=UTC).timestamp())
    return seconds * SECOND + int((fraction or "0")[:_FRACTION_DIGITS].ljust(_FRACTION_DIGITS, "0"))


def load_duty(path: Path, *, time_column: str, duty_column: str) -> list[DutyWindow]:
    """Read a duty cycle: a column of seconds, and one of percent, each value holding until the next row."""
    windows: list[DutyWindow] = []
    with _opened(path) as file:
        reader = csv.DictReader(file)
        _check_columns(path, reader.fieldnames, (time_column, duty_column))
        for row in reader:
            try:
                window = DutyWindow(round(float(row[time_column]) * SECOND), round(float(row[duty_column]) * 10))
            except (ValueError, TypeError) as error:
                raise UsageError(f"{path}, line {reader.line_num}: this is no sample: {error}") from error
            if not 0 <= window.duty_milli <= 1000:
                raise UsageError(f"{path}, line {reader.line_num}: a duty is between 0 and 100 percent")
            windows.append(window)
    if not windows:
        raise UsageError(f"{path} holds no sample")
    windows.sort(key=lambda window: window.start_ns)
    return [DutyWindow(window.start_ns - windows[0].start_ns, window.duty_milli) for window in windows]


def _opened(path: Path) -> IO[str]:
    try:
        return path.open(newline="", encoding="utf-8-sig", errors="replace")
    except OSError as error:
        hint = "name the folder of the traces with --data"
        raise UsageError(f"{path}: {error.strerror}", hint=hint, item=str(path)) from error


def _check_columns(path: Path, found: object, wanted: tuple[str, ...]) -> None:
    names = list(found) if isinstance(found, list) else []
    missing = [name for name in wanted if name not in names]
    if missing:
        raise UsageError(f"{path} has no column {missing[0]}", hint=f"it has: {', '.join(names) or 'none'}")


def generate_requests(model: RequestModel, duration_ns: int, seed: int, *, speed: float = 1.0) -> Iterator[Request]:
    """Requests in order of arrival, for so long; `speed` above 1 makes more of them."""
    random = Random(seed)  # noqa: S311 - a simulation, not a secret
    minute_rate = moment_rate = 1.0
    for second in range(ceil(duration_ns / SECOND)):
        if second % MINUTE_S == 0:
            minute_rate = _gamma(random, model.minute_variance)
        if second % MOMENT_S == 0:
            moment_rate = _gamma(random, model.moment_variance)
        rate = model.per_second * speed * minute_rate * moment_rate
        for arrived_ns in _poisson_second(random, second * SECOND, rate):
            if arrived_ns < duration_ns:
                yield Request(arrived_ns, _tokens(random, model.context), _tokens(random, model.generated))


def _gamma(random: Random, variance: float) -> float:
    """A gamma variable with mean 1 and this variance."""
    return random.gammavariate(1 / variance, variance)


def _poisson_second(random: Random, start_ns: int, rate: float) -> Iterator[int]:
    """Arrivals within one second; memoryless, so that each second may begin afresh."""
    if rate <= 0:
        return
    at = random.expovariate(rate)
    while at < 1:
        yield start_ns + int(at * SECOND)
        at += random.expovariate(rate)


def _tokens(random: Random, shape: tuple[float, float, int]) -> int:
    mean, deviation, most = shape
    return min(most, max(1, round(random.lognormvariate(mean, deviation))))


def generate_duty(duration_ns: int, seed: int) -> list[DutyWindow]:
    """A duty cycle like those of the published figures: long pauses, and short busy times of a fifth."""
    random = Random(seed)  # noqa: S311 - a simulation, not a secret
    windows: list[DutyWindow] = []
    samples = ceil(duration_ns / DUTY_SAMPLE_NS)
    while len(windows) < samples:
        idle = max(1, round(random.lognormvariate(IDLE_RUN_LOG_MEAN, IDLE_RUN_LOG_DEVIATION)))
        busy = max(1, ceil(log(1 - random.random()) / log(1 - 1 / BUSY_RUN_MEAN)))
        duties = [0] * idle + [_busy_duty(random) for _ in range(busy)]
        for duty_milli in duties:
            windows.append(DutyWindow(len(windows) * DUTY_SAMPLE_NS, duty_milli))
    return windows[:samples]


def _busy_duty(random: Random) -> int:
    return min(1000, max(1, round(random.expovariate(1 / BUSY_DUTY_MILLI_MEAN))))
