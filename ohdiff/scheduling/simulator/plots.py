"""The results as charts; matplotlib is loaded only here, and only when a chart is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ohdiff.errors import UsageError

from .results import Comparison

_CHART_INCHES = (4.0, 2.6)
_COLOUR_P50, _COLOUR_P99, _COLOUR_HARVEST = "#2980b9", "#c0392b", "#27ae60"


def write_plot(path: Path, comparisons: Sequence[tuple[str, Comparison]]) -> None:
    """Write impact and harvest, a group of bars for each comparison; the suffix (png, svg, pdf) chooses the format.

    Raises
    ------
    UsageError : matplotlib is not installed, or does not know the suffix.
    """
    if find_spec("matplotlib") is None:
        raise UsageError("plots need matplotlib", hint="pip install matplotlib")
    figures = import_module("matplotlib.figure")
    width, height = _CHART_INCHES
    figure = figures.Figure(figsize=(2 * width, height + 0.25 * len(comparisons)), layout="constrained")
    if path.suffix[1:] not in figure.canvas.get_supported_filetypes():
        raise UsageError(f"{path}: plots cannot be written in this format", hint="name it .png, .svg or .pdf")
    impact, harvest = figure.subplots(1, 2)
    names = [name for name, _ in comparisons]
    _draw_impact(impact, names, [comparison for _, comparison in comparisons])
    _draw_harvest(harvest, names, [comparison for _, comparison in comparisons])
    figure.suptitle("simulated", fontsize=9)
    figure.savefig(path, dpi=120)


def _draw_impact(chart: Any, names: Sequence[str], comparisons: Sequence[Comparison]) -> None:
    rows = range(len(names))
    for offset, colour, quantile in ((-0.2, _COLOUR_P50, "p50"), (0.2, _COLOUR_P99, "p99")):
        losses = [100 * (_first_impact(each, quantile) - 1) for each in comparisons]
        bars = chart.barh([row + offset for row in rows], losses, height=0.38, color=colour, label=quantile)
        chart.bar_label(bars, fmt="{:.1f}", padding=3, fontsize=7)
    chart.set_yticks(list(rows), names, fontsize=7)
    chart.set_xscale("symlog", linthresh=1)
    chart.invert_yaxis()
    chart.margins(x=0.25)
    chart.legend(fontsize=7)
    chart.set_title("co-runner, % slower than alone", fontsize=9)


def _first_impact(comparison: Comparison, quantile: str) -> float:
    return next((float(getattr(impact, quantile)) for impact in comparison.impacts), 1.0)


def _draw_harvest(chart: Any, names: Sequence[str], comparisons: Sequence[Comparison]) -> None:
    shares = [next((100 * each.of_idle for each in comparison.harvests), 0.0) for comparison in comparisons]
    bars = chart.barh(range(len(names)), shares, color=_COLOUR_HARVEST)
    chart.bar_label(bars, fmt="{:.0f}", padding=3, fontsize=7)
    chart.set_yticks(range(len(names)), names, fontsize=7)
    chart.invert_yaxis()
    chart.margins(x=0.2)
    chart.set_title("ours, % of idle device time", fontsize=9)
