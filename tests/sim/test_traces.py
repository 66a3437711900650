"""Traces: what the loaders read and refuse, and that the generators have the figures that they were fitted to."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean, pvariance

import pytest

from ohdiff.errors import UsageError
from ohdiff.scheduling.core import SECOND
from ohdiff.scheduling.simulator.traces import (
    AZURE_CODE,
    AZURE_CONVERSATION,
    DutyWindow,
    Request,
    RequestModel,
    generate_duty,
    generate_requests,
    load_duty,
    load_requests,
)

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
2023-11-16 18:17:05,110,27
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "trace.csv"
    path.write_text(text)
    return path


def test_an_azure_trace_starts_at_its_first_request(tmp_path: Path) -> None:
    assert load_requests(write(tmp_path, AZURE)) == [
        Request(0, 4808, 10),
        Request(52_000_000, 3180, 8),
        Request(1_020_040_000, 110, 27),
    ]


def test_a_trace_can_be_cut_and_sped_up(tmp_path: Path) -> None:
    path = write(tmp_path, AZURE)
    assert load_requests(path, requests_max=1) == [Request(0, 4808, 10)]
    assert load_requests(path, requests_skipped=1, speed=2.0)[1].arrived_ns == 484_020_000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("TIMESTAMP,ContextTokens\n", "no column GeneratedTokens"),
        ("", "no column TIMESTAMP"),
        (AZURE.replace("3180", "many"), "line 3"),
        (AZURE.replace("2023-11-16 18:17:05", "noon"), "line 4"),
        (AZURE.splitlines()[0] + "\n", "holds no request"),
        (AZURE.replace(",27", ""), "line 4"),
    ],
)
def test_what_is_no_trace_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_requests(write(tmp_path, text))


def test_a_missing_trace_is_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere") as caught:
        load_requests(tmp_path / "nowhere.csv")
    assert "--data" in caught.value.hint


def test_a_duty_cycle_is_read_by_its_columns(tmp_path: Path) -> None:
    path = write(tmp_path, "at,pod,busy\n100,a,0\n157,a,12.5\n214,a,100\n")
    windows = load_duty(path, time_column="at", duty_column="busy")
    assert windows == [DutyWindow(0, 0), DutyWindow(57 * SECOND, 125), DutyWindow(114 * SECOND, 1000)]


@pytest.mark.parametrize(
    "text", ["time_s,duty_pct\n0,101\n", "time_s,duty_pct\n0,x\n", "time_s\n0\n", "time_s,duty_pct\n"]
)
def test_a_bad_duty_cycle_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError):
        load_duty(write(tmp_path, text), time_column="time_s", duty_column="duty_pct")


def counts(requests: list[Request], window_s: int, hours: int) -> list[int]:
    found = [0] * (hours * 3600 // window_s)
    for request in requests:
        found[request.arrived_ns // (window_s * SECOND)] += 1
    return found


# Relative variance of counts beyond that of a Poisson process, in windows of 1, 10 and 60 s, and mean tokens.
AZURE_CODE_FIGURES = ((4.75, 2.77, 1.10), 2048, 27.9)
AZURE_CONVERSATION_FIGURES = ((0.070, 0.052, 0.046), 1155, 211.1)


@pytest.mark.parametrize(
    ("model", "figures"), [(AZURE_CODE, AZURE_CODE_FIGURES), (AZURE_CONVERSATION, AZURE_CONVERSATION_FIGURES)]
)
def test_generated_requests_have_the_traces_rate_bursts_and_lengths(
    model: RequestModel, figures: tuple[tuple[float, float, float], float, float]
) -> None:
    hours = 24
    requests = list(generate_requests(model, hours * 3600 * SECOND, seed=3))
    assert len(requests) / (hours * 3600) == pytest.approx(model.per_second, rel=0.08)
    for window_s, variance in zip((1, 10, 60), figures[0], strict=True):
        found = counts(requests, window_s, hours)
        mean = fmean(found)
        assert (pvariance(found) - mean) / mean**2 == pytest.approx(variance, rel=0.25)
    assert fmean(request.context_tokens for request in requests) == pytest.approx(figures[1], rel=0.2)
    assert fmean(request.generated_tokens for request in requests) == pytest.approx(figures[2], rel=0.2)


def test_generated_requests_come_in_order_and_are_their_seeds_own() -> None:
    first, again, other = (list(generate_requests(AZURE_CODE, 600 * SECOND, seed=seed)) for seed in (1, 1, 2))
    assert first == again != other
    assert [request.arrived_ns for request in first] == sorted(request.arrived_ns for request in first)


def test_a_generated_duty_cycle_has_the_published_figures() -> None:
    windows = generate_duty(60 * 86_400 * SECOND, seed=5)
    duties = [window.duty_milli for window in windows]
    assert duties.count(0) / len(duties) == pytest.approx(0.668, abs=0.04)
    assert fmean(duties) / 10 == pytest.approx(7.0, rel=0.12)
    runs = sorted(len(run) for run in "".join("0" if duty == 0 else " " for duty in duties).split())
    assert runs[len(runs) // 2] == 2
    assert runs[len(runs) * 9 // 10] == pytest.approx(14, abs=2)
    assert runs[len(runs) * 99 // 100] == pytest.approx(71, rel=0.25)
