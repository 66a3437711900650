"""The results as bars: a row of charts for each corpus, one for each phase and one for the repository's size."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmark.report import MB, Results, Spread, Summary, summarize
from benchmark.rounds import PHASES

CHART_WIDTH, CHART_HEIGHT = 3.0, 2.4  # inches
COLOURS = {"ohdiff": "#c0392b"}
COLOUR_OF_OTHERS = "#7f8c8d"


def is_plotting_possible() -> bool:
    return find_spec("matplotlib") is not None


def write_plot(path: Path, results: Results) -> None:
    """Write the charts to `path`, whose suffix (png, svg, pdf) chooses the format."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    summaries = summarize(results)
    corpora = list(dict.fromkeys(summary.corpus for summary in summaries))
    phases = [phase for phase in PHASES if any(summary.phase == phase for summary in summaries)]
    if not corpora:
        return
    columns = len(phases) + 1
    figure = Figure(figsize=(CHART_WIDTH * columns, CHART_HEIGHT * len(corpora)), layout="constrained")
    FigureCanvasAgg(figure)
    charts = figure.subplots(len(corpora), columns, squeeze=False)
    for row, corpus in zip(charts, corpora, strict=True):
        _draw_corpus(row, corpus, phases, [summary for summary in summaries if summary.corpus == corpus])
    figure.savefig(path, dpi=120)


def _draw_corpus(charts: Sequence[Any], corpus: str, phases: Sequence[str], summaries: Sequence[Summary]) -> None:
    for chart, phase in zip(charts, phases, strict=False):
        chosen = [summary for summary in summaries if summary.phase == phase]
        tools = [summary.tool for summary in chosen]
        _draw_bars(chart, f"{corpus}: {phase}, s", tools, [summary.wall_seconds for summary in chosen])
    sizes = {summary.tool: _scaled(summary.stored_bytes, 1 / MB) for summary in summaries}  # the last phase stays
    _draw_bars(charts[-1], f"{corpus}: repository, MB", list(sizes), list(sizes.values()))


def _scaled(figure: Spread, factor: float) -> Spread:
    return Spread(figure.median * factor, figure.low * factor, figure.high * factor)


def _draw_bars(chart: Any, title: str, tools: Sequence[str], figures: Sequence[Spread]) -> None:
    if not tools:
        chart.set_axis_off()
        return
    medians = [figure.median for figure in figures]
    below = [figure.median - figure.low for figure in figures]
    above = [figure.high - figure.median for figure in figures]
    colours = [COLOURS.get(tool, COLOUR_OF_OTHERS) for tool in tools]
    bars = chart.barh(tools, medians, xerr=(below, above), color=colours, error_kw={"capsize": 2, "linewidth": 0.8})
    chart.bar_label(bars, fmt="{:.3g}", padding=3, fontsize=7)
    chart.invert_yaxis()
    chart.margins(x=0.2)
    chart.set_title(title, fontsize=9)
    chart.tick_params(labelsize=7)
