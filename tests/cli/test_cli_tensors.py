"""diff --content names the tensors that changed, whichever sides are snapshots and folders."""

from __future__ import annotations

import array
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from conftest import records
from support.container_files import safetensors_with_header

Run = Callable[..., Result]
# Enough for a file that is cut along its tensors.
COUNT = 300_000


def model(last: float, *, extra: str = "old") -> bytes:
    """Two tensors of numbers, one of them large, and one that has another name for each `extra`."""
    tensors = {
        "layer.weight": ("F32", [100, COUNT // 100], array.array("f", [*[1.0] * (COUNT - 1), last]).tobytes()),
        "steps": ("I64", [2], struct.pack("<2q", 1, int(last))),
        extra: ("BF16", [1], b"\x80\x3f"),
    }
    header, data = {}, b""
    for name, (dtype, shape, part) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    return safetensors_with_header(header, data)


@pytest.fixture
def steps(run: Run, repository: Path, tmp_path: Path) -> Path:
    """A folder whose model is in a snapshot, and then changed, in a snapshot, too."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(model(1))
    assert run("snapshot", folder).exit_code == 0
    (folder / "model.safetensors").write_bytes(model(11, extra="new\x1b"))
    assert run("snapshot", folder).exit_code == 0
    return folder


def change_of(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    (change,) = records(result, "change")
    return change


def expected(name: str = "new\x1b") -> dict[str, Any]:
    tensor = {"dtype": "BF16", "shape": [1]}
    numbers = {"F32": {"dtype": "F32", "shape": [100, COUNT // 100]}, "I64": {"dtype": "I64", "shape": [2]}}
    moved = {"changed": 1, "count": COUNT, "unit": "element", "relative_of": "norm", "not_finite": 0}
    counted = {"changed": 1, "count": 2, "unit": "element", "relative_of": "count", "not_finite": 0}
    f32, i64 = ({"before": numbers[kind], "after": numbers[kind]} for kind in ("F32", "I64"))
    return {
        "format": "safetensors",
        "count": 3,
        "changes": [
            {"kind": "modified", "name": "layer.weight", **f32, **moved, "relative": pytest.approx(10 / COUNT**0.5)},
            {"kind": "modified", "name": "steps", **i64, **counted, "relative": 0.5},
            {"kind": "added", "name": name, "after": tensor},
            {"kind": "removed", "name": "old", "before": tensor},
        ],
    }


def test_tensors_of_two_snapshots_are_compared(run: Run, steps: Path) -> None:
    change = change_of(run("diff", "latest~1", "latest", "--content", "--json"))
    assert change["tensors"] == expected()
    assert change["ranges"]


def test_tensors_of_a_snapshot_and_a_folder_are_compared(run: Run, steps: Path) -> None:
    assert change_of(run("diff", "latest~1", steps, "--content", "--json"))["tensors"] == expected()


def test_tensors_of_two_folders_are_compared(run: Run, steps: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "model.safetensors").write_bytes(model(1))
    change = change_of(run("diff", tmp_path / "other", steps, "--content", "--json"))
    assert change["tensors"] == expected()


def test_each_tensor_has_its_line(run: Run, steps: Path) -> None:
    lines = run("diff", "latest~1", "latest", "--content").stdout.splitlines()
    assert lines[1:6] == [
        "     safetensors: 3 of 3 tensors differ, 1 was removed",
        f"       layer.weight: 1 of {COUNT:,} elements changed, relative change 0.0183",
        "       steps: 1 of 2 elements changed",
        "       new\\x1b: added, BF16 [1]",
        "       old: removed, BF16 [1]",
    ]


def test_a_model_of_which_only_the_notes_changed_shows_where(run: Run, steps: Path) -> None:
    data = (steps / "model.safetensors").read_bytes()
    header_size = int.from_bytes(data[:8], "little")
    noted = b'{"__metadata__":{"step":"12"},' + data[9 : 8 + header_size]
    (steps / "model.safetensors").write_bytes(struct.pack("<Q", len(noted)) + noted + data[8 + header_size :])
    lines = run("diff", "latest", steps, "--content").stdout.splitlines()
    assert lines[1] == "     safetensors: 0 of 3 tensors differ"
    assert lines[2].startswith("     bytes 0 to ")


def test_another_kind_of_element_is_told(run: Run, steps: Path) -> None:
    data = (steps / "model.safetensors").read_bytes().replace(b'"I64"', b'"U64"')
    (steps / "model.safetensors").write_bytes(data)
    assert "       steps: was I64 [2], is U64 [2]" in run("diff", "latest", steps, "--content").stdout.splitlines()


def test_a_file_that_is_no_container_any_more_shows_ranges(run: Run, steps: Path) -> None:
    (steps / "model.safetensors").write_bytes(os.urandom(200_000))
    change = change_of(run("diff", "latest", steps, "--content", "--json"))
    assert "tensors" not in change
    assert change["ranges"] == [[0, 200_000]]


def test_without_content_tensors_are_not_read(run: Run, steps: Path) -> None:
    change = change_of(run("diff", "latest~1", "latest", "--json"))
    assert "tensors" not in change
