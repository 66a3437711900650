"""ohdiff simulate as a user runs it: table, JSON, log and replay, trace, chart, and its errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ohdiff.cli.main import cli
from ohdiff.errors import EXIT_FAILED, EXIT_USAGE

SCENARIO = """
[scenario]
name = "small"
duration_s = 5
[[accelerator]]
name = "gpu0"
resident = true
[[co_runner]]
name = "llm"
kind = "server"
tells = true
trace = "trace.csv"
[[job]]
class = "scavenge"
size_gb = 500
deadline_s = 4
"""
TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:17:0{second}.5000000,{500 + second},{20 + second}\n" for second in range(4)
)
Run = Callable[..., Result]


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    """A small scenario whose trace lies beside it."""
    (tmp_path / "trace.csv").write_text(TRACE)
    path = tmp_path / "small.toml"
    path.write_text(SCENARIO)
    return path


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["simulate", *map(str, arguments)])


def parsed(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    (line,) = result.stdout.splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


def test_the_table_says_simulated_and_names_all(scenario: Path) -> None:
    result = run(scenario)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("simulated: small, ")
    for word in ("llm", "latency", "first token", "gpu0", "p99 x", "of idle", "scavenge", "kept"):
        assert word in result.stdout


def test_json_is_one_summary_that_says_that_it_is_simulated(scenario: Path) -> None:
    summary = parsed(run(scenario, "--json"))
    assert summary["message_type"] == "summary"
    assert summary["is_simulated"] is True
    assert summary["run"]["co_runners"][0]["figures"]["latency"]["count"] == 4
    assert summary["harvests"][0]["device"] == "gpu0"


def test_the_same_seed_gives_the_same_bytes(scenario: Path) -> None:
    assert run(scenario, "--json").stdout == run(scenario, "--json").stdout


def test_a_policy_given_on_the_line_is_used(scenario: Path) -> None:
    assert parsed(run(scenario, "--json", "--policy", "none"))["run"]["settings"]["arbiter"] == "none"
    assert run(scenario, "--policy", "wrong").exit_code == EXIT_USAGE


def test_traces_are_looked_for_where_data_says(scenario: Path, tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    assert run(scenario, "--data", folder).exit_code == EXIT_USAGE
    (tmp_path / "trace.csv").rename(folder / "trace.csv")
    assert run(scenario, "--data", folder).exit_code == 0
    missing = run(scenario)
    assert missing.exit_code == EXIT_USAGE
    assert "--data" in missing.stderr


def test_a_log_replays_the_same_and_a_changed_one_does_not(scenario: Path, tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    run(scenario, "--log", log)
    replayed = run("--replay", log)
    assert replayed.exit_code == 0, replayed.output
    assert "all the same" in replayed.stdout
    decisions = len(log.read_bytes().splitlines()) - 1
    assert parsed(run("--replay", log, "--json"))["decisions"] == decisions
    log.write_bytes(log.read_bytes().replace(b'"depth":2,"gap_ns":0', b'"depth":2,"gap_ns":7'))
    changed = run("--replay", log)
    assert changed.exit_code == EXIT_FAILED
    # The first decision, before the server has been quiet for long enough, grants nothing that could be changed.
    assert "line 3 is not" in changed.stdout


def check_event(event: dict[str, Any]) -> None:
    """What the Trace Event Format asks of the kinds that are used."""
    assert event["ph"] in ("X", "i", "C", "M")
    assert isinstance(event["pid"], int)
    assert isinstance(event["tid"], int)
    assert isinstance(event["name"], str)
    if event["ph"] == "M":
        assert event["name"] in ("process_name", "thread_name")
        assert isinstance(event["args"]["name"], str)
        return
    assert event["ts"] >= 0
    if event["ph"] == "X":
        assert event["dur"] >= 0
    if event["ph"] == "i":
        assert event["s"] in ("g", "p", "t")
    if event["ph"] == "C":
        assert event["args"]
        assert all(isinstance(value, int | float) for value in event["args"].values())


def test_the_trace_follows_the_trace_event_format(scenario: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    assert run(scenario, "--perfetto", path).exit_code == 0
    trace = json.loads(path.read_bytes())
    for event in trace["traceEvents"]:
        check_event(event)
    names = {event["args"]["name"] for event in trace["traceEvents"] if event["ph"] == "M"}
    assert {"gpu0", "llm", "ohdiff", "policy", "decisions"} <= names
    slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    lines: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in slices:
        lines.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    assert len(lines) == 2
    for spans in lines.values():
        spans.sort()
        # A viewer nests what overlaps on one line; nothing here does.
        assert all(end <= start + 1e-6 for (_, end), (start, _) in pairwise(spans))


def test_a_chart_is_written_where_matplotlib_is(scenario: Path, tmp_path: Path) -> None:
    path = tmp_path / "chart.svg"
    result = run(scenario, "--plot", path)
    if find_spec("matplotlib") is None:
        assert result.exit_code == EXIT_USAGE
        assert "pip install matplotlib" in result.stderr
        return
    assert result.exit_code == 0, result.output
    assert b"<svg" in path.read_bytes()
    assert run(scenario, "--plot", tmp_path / "chart.xyz").exit_code == EXIT_USAGE


@pytest.mark.parametrize("arguments", [(), ("a.toml", "--replay", "b.log"), ("nowhere.toml",), ("--replay", "nowhere")])
def test_wrong_usage_is_said_so(arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert result.exit_code == EXIT_USAGE
    assert result.stderr.startswith("ohdiff: ")


def test_a_bad_scenario_is_refused_with_its_key(scenario: Path) -> None:
    scenario.write_text(SCENARIO.replace("size_gb = 500", "size_gb = -1"))
    result = run(scenario)
    assert result.exit_code == EXIT_USAGE
    assert "job[0].size_gb" in result.stderr


def test_a_log_that_cannot_be_written_is_an_error(scenario: Path, tmp_path: Path) -> None:
    assert run(scenario, "--log", tmp_path / "no" / "such" / "folder").exit_code == EXIT_FAILED
