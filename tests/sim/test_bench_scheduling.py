"""The real scheduling bench in small: what needs no quiet machine must run and count right; no time is judged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench"
sys.path.insert(0, str(BENCH))

from real_scheduling.judge import FIGURES, POLICIES, kendall  # noqa: E402
from real_scheduling.stalls import Stalls, untouched, witnessed  # noqa: E402


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a quick run of all but the slow parts wrote."""
    out = tmp_path_factory.mktemp("bench") / "report"
    parts = ("faults", "handover", "recovery", "yields", "simulator")
    command = [sys.executable, str(BENCH / "scheduling_real.py"), "--quick", "--out", str(out), "--only", *parts]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert out.with_suffix(".md").read_text() == done.stdout.rstrip("\n") + "\n"
    found: dict[str, Any] = json.loads(out.with_suffix(".json").read_text())
    return found


def test_faults_are_counted_and_nothing_is_wrong(results: dict[str, Any]) -> None:
    found = results["faults"]
    assert found["kills"] + found["stops"] + found["device_errors"] + found["device_deaths"] >= 100
    assert [found[name] for name in ("wrong", "missing", "twice", "overlaps", "stuck")] == [0] * 5


def test_leases_change_hands(results: dict[str, Any]) -> None:
    assert results["handover"]["count"] == 100
    assert 0 < results["handover"]["p50_ms"] <= results["handover"]["p99_ms"]
    assert results["recovery"]["two_holders_or_none"] == 0


def test_yields_are_of_the_units_that_ran(results: dict[str, Any]) -> None:
    assert results["yields"]["count"] == 60
    assert 0 < results["yields"]["unit_ms"] <= 2


def test_every_policy_is_measured_and_simulated(results: dict[str, Any]) -> None:
    rows = results["simulator"]["policies"]
    assert list(rows) == list(POLICIES)
    for row in rows.values():
        for figure in FIGURES:
            real, model, error = (row[f"{kind} {figure}"]["whole"] for kind in ("real", "simulated", "error"))
            assert real > 0
            assert error == pytest.approx(model / real - 1, abs=0.02)


@pytest.mark.parametrize(
    ("pairs", "tau"),
    [
        ([((1, 1), 10), ((2, 2), 20), ((3, 3), 30)], 1.0),
        ([((1, 1), 30), ((2, 2), 20), ((3, 3), 10)], -1.0),
        ([((1, 1), 10), ((2, 2), 30), ((3, 3), 20)], 0.333),
        ([((1, 1.5), 30), ((1.4, 2), 10), ((3, 3), 40)], 1.0),
        ([((1, 1), 10), ((2, 2), 10), ((3, 3), 30)], 0.667),
        ([((1, 3), 10), ((2, 4), 20)], 1.0),
    ],
)
def test_kendalls_tau_counts_the_pairs_whose_order_is_kept(
    pairs: list[tuple[tuple[float, float], float]], tau: float
) -> None:
    spreads = [({"least": least, "most": most, "whole": (least + most) / 2}, model) for (least, most), model in pairs]
    assert kendall(spreads) == tau


@pytest.mark.parametrize(
    ("windows", "kept"),
    [
        ([], [0, 1, 2, 3]),
        ([(12, 13)], [2, 3]),
        ([(5, 6)], [2, 3]),
        ([(15, 31)], [0, 1]),
        ([(10, 12), (45, 46)], []),
        ([(22, 29), (60, 70)], [0, 1, 2, 3]),
    ],
)
def test_requests_that_queue_behind_one_another_stand_or_fall_together(
    windows: list[tuple[int, int]], kept: list[int]
) -> None:
    times = [(0, 10), (8, 15), (30, 40), (39, 50)]
    assert untouched(times, Stalls(windows)) == kept


def test_witnesses_say_what_they_saw() -> None:
    with witnessed() as stalls:
        pass
    assert stalls.watched_ns > 0
    assert all(began < ended for began, ended in stalls.windows)
