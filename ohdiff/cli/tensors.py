"""Tensors that differ, as lines and as JSON fields."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ohdiff.chunking.containers import Tensor
from ohdiff.operations.diff_tensors import Movement, TensorChange, TensorsCompared

from .text import shown


def tensor_lines(found: TensorsCompared) -> Iterator[str]:
    """A line for all, and one for each that differs."""
    removed = sum(change.kind == "removed" for change in found.changes)
    yield f"{found.format}: {len(found.changes) - removed:,} of {found.count:,} tensors differ" + (
        f", {removed:,} {'was' if removed == 1 else 'were'} removed" if removed else ""
    )
    for change in found.changes:
        yield f"  {_name(change.name)}: {_what(change)}"


def tensors_fields(found: TensorsCompared) -> dict[str, Any]:
    """The same for programs."""
    return {"format": found.format, "count": found.count, "changes": [_fields(change) for change in found.changes]}


def _name(name: str) -> str:
    return shown(name.encode(errors="backslashreplace"))


def _what(change: TensorChange) -> str:
    before = "" if change.before is None else _type(change.before)
    after = "" if change.after is None else _type(change.after)
    if change.movement is not None:
        return _moved(change.movement)
    return {"added": f"added, {after}", "removed": f"removed, {before}"}.get(change.kind, f"was {before}, is {after}")


def _type(tensor: Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}"


def _moved(movement: Movement) -> str:
    what = "elements" if movement.is_numeric else "bytes"
    text = f"{movement.changed:,} of {movement.count:,} {what} changed"
    if movement.has_norm and movement.relative is not None:
        text += f", relative change {movement.relative:.3g}"
    return text + (f", {movement.not_finite:,} are not finite" if movement.not_finite else "")


def _fields(change: TensorChange) -> dict[str, Any]:
    fields: dict[str, Any] = {"kind": change.kind, "name": change.name}
    for side, tensor in (("before", change.before), ("after", change.after)):
        if tensor is not None:
            fields[side] = {"dtype": tensor.dtype, "shape": tensor.shape}
    movement = change.movement
    if movement is not None:
        fields |= {
            "changed": movement.changed,
            "count": movement.count,
            "unit": "element" if movement.is_numeric else "byte",
            "relative": movement.relative,
            "relative_of": "norm" if movement.has_norm else "count",
            "not_finite": movement.not_finite,
        }
    return fields
