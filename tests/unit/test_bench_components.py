"""The component bench in small: every component must run and be counted right. Times are never judged."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ohdiff.chunking.cpu import available_kernels

BENCH = Path(__file__).parents[2] / "bench"
sys.path.insert(0, str(BENCH))

from benchmark.component_cases import Case, random_sample, read_sample  # noqa: E402
from components import measure  # noqa: E402

ONCE = {"memory copy", "page-cache read", "encrypt", "decrypt"}


def components(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCH / "components.py"), "--size", "1", "--repeats", "2", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A whole run on random bytes and on a folder of two files; the JSON and the table that it gives."""
    folder = tmp_path_factory.mktemp("components")
    data = folder / "texts"
    data.mkdir()
    (data / "a").write_text("some text that repeats itself\n" * 3000)
    (data / "b").write_text("other text, shorter\n" * 1000)
    done = components("--index-entries", "3000", "--data", str(data), "--json", str(folder / "report.json"))
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return found | {"table": done.stdout}


@pytest.mark.parametrize("sample", ["random", "texts"])
def test_every_kernel_that_runs_here_is_timed_on_every_sample(report: dict[str, Any], sample: str) -> None:
    for component in ("scan", "features"):
        timed = [
            each["variant"] for each in report["results"] if (each["component"], each["sample"]) == (component, sample)
        ]
        assert timed == available_kernels()


def test_what_does_not_care_about_bytes_is_timed_once(report: dict[str, Any]) -> None:
    of_random = {each["component"] for each in report["results"] if each["sample"] == "random"}
    of_texts = {each["component"] for each in report["results"] if each["sample"] == "texts"}
    assert of_random - of_texts == ONCE
    assert of_texts == {"scan", "features", "hash", "compress", "decompress"}


def test_every_speed_lies_within_its_range(report: dict[str, Any]) -> None:
    for each in report["results"]:
        speed = each["gigabytes_per_second"]
        assert 0 < speed["low"] <= speed["median"] <= speed["high"]
        assert each["gigabytes_per_cpu_second"]["median"] > 0
        assert each["size_bytes"] == {"random": 1 << 20, "texts": 110_000}[each["sample"]]


def test_the_index_is_looked_up_and_found(report: dict[str, Any]) -> None:
    assert report["index"]["entries"] == 3000
    assert report["index"]["found/s"] > 0


def test_the_table_has_a_row_for_each_result_and_figure(report: dict[str, Any]) -> None:
    rows = [line for line in report["table"].splitlines() if line.startswith("| ")]
    assert len(rows) == len(report["results"]) + len(report["index"]) + 2


def test_the_index_can_be_left_out() -> None:
    done = components("--index-entries", "0")
    assert done.returncode == 0, done.stderr
    assert "index" not in done.stdout


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--data", "/no/such/file"], "no such file"),
        (["--data", "/dev/null"], "no bytes"),
        (["--repeats", "0"], "at least 1"),
    ],
)
def test_a_bench_that_cannot_run_says_why(options: list[str], words: str) -> None:
    done = components(*options)
    assert done.returncode == 2
    assert words in done.stderr


def test_cases_take_turns_after_a_pass_that_does_not_count() -> None:
    order: list[str] = []
    cases = [Case("x", name, "", 1, partial(order.append, name)) for name in "ab"]
    results = measure(cases, repeats=2)
    assert order == ["a", "b"] * 3
    assert [result.variant for result in results] == ["a", "b"]


def test_a_folder_is_read_file_by_file_up_to_a_size(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"1" * 10)
    (tmp_path / "two").write_bytes(b"2" * 10)
    whole, part = read_sample(tmp_path, 100), read_sample(tmp_path, 15)
    assert (whole.data, whole.ends) == (b"1" * 10 + b"2" * 10, (10, 20))
    assert (part.data, part.ends) == (b"1" * 10 + b"2" * 5, (10, 15))


def test_the_random_sample_is_the_same_every_time() -> None:
    assert random_sample(1000) == random_sample(1000)
