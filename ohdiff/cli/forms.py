"""How blocks are stored, as a table for people and as JSON fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ohdiff.operations.statistics import Form, Tally

from .text import format_size

HEADER: Final = ("stored", "plain", "takes", "ratio", "depth")
_CODECS: Final = {"raw": "as it is", "zstd": "compressed", "delta": "delta of similar chunks"}


def form_label(form: Form) -> str:
    """A form in words."""
    if form.codec != "numbers":
        return _CODECS.get(form.codec, form.codec)
    return f"numbers, {form.transform}" + (f", {form.cast}" if form.cast else "")


def tally_row(label: str, tally: Tally) -> tuple[str, str, str, str, str]:
    """A row under HEADER."""
    depth = str(tally.depth) if tally.depth else ""
    return label, format_size(tally.plain_size), format_size(tally.stored_size), f"{tally.ratio:.2f}", depth


def form_rows(forms: Mapping[Form, Tally]) -> list[tuple[str, str, str, str, str]]:
    """A row for each form."""
    return [tally_row(form_label(form), tally) for form, tally in forms.items()]


def tally_fields(tally: Tally) -> dict[str, Any]:
    """Sizes for programs."""
    return {
        "count": tally.count,
        "plain_size": tally.plain_size,
        "stored_size": round(tally.stored_size),
        "ratio": tally.ratio,
        "depth": tally.depth,
    }


def forms_fields(forms: Mapping[Form, Tally]) -> list[dict[str, Any]]:
    """Each form for programs."""
    return [form._asdict() | tally_fields(tally) for form, tally in forms.items()]
