"""The picture of `sardonyx quantize`: sizes and times before and after, and the layers with most error.

A page of HTML needs nothing; a PNG is drawn by matplotlib, which the user installs.
"""

from __future__ import annotations

import html
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from sardonyx.cli.failure import UsageError
from sardonyx.cli.quantize_summary import Summary
from sardonyx.runtime.files.opening import replacing

_MOST_LAYERS = 15
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 50em; color: #222; background: #fff }
h2 { font-size: 1em; margin: 1.6em 0 .4em }
.row { display: grid; grid-template-columns: 16em 1fr 7em; gap: .6em; align-items: center }
.row span:first-child { overflow: hidden; text-overflow: ellipsis; white-space: nowrap }
.bar { height: 1.1em; border-radius: 3px; background: #8899aa; min-width: 2px }
.after .bar { background: #d9622b }
.number { text-align: right; font-variant-numeric: tabular-nums }
"""


class _Bar(NamedTuple):
    label: str
    value: float
    text: str
    is_after: bool


def check(path: Path) -> None:
    """UsageError for a picture of another kind, or one that needs a package that is not there."""
    if path.suffix not in (".html", ".png"):
        raise UsageError(f"--chart {path}: expected a name that ends in .html or .png")
    if path.suffix == ".png" and importlib.util.find_spec("matplotlib") is None:
        raise UsageError("--chart: a PNG needs matplotlib (pip install matplotlib); .html needs nothing")


def write(path: Path, summary: Summary) -> None:
    """Write the picture; OSError where that fails."""
    groups = _groups(summary)
    if path.suffix == ".png":
        _write_png(path, summary, groups)
        return
    with replacing(path) as file:
        file.write(_page(summary, groups).encode())


def _groups(summary: Summary) -> list[tuple[str, list[_Bar]]]:
    """The bars under each heading."""
    sizes = [size / 1e6 for size in summary.sizes]
    times = [seconds * 1e3 for seconds in summary.seconds]
    layers = [
        _Bar(f"{one.op_type} {one.node}".strip() or one.name, one.relative, f"{one.relative:.2e}", True)
        for one in summary.layers[:_MOST_LAYERS]
        if one.relative < float("inf")
    ]
    groups = [("Weights, MB", _pair(sizes, "{:,.2f}")), ("Time of a run, ms", _pair(times, "{:,.3f}"))]
    return [*groups, ("Relative error, worst layers first", layers)] if layers else groups


def _pair(values: Sequence[float], form: str) -> list[_Bar]:
    names = ("before", "after")
    return [_Bar(name, value, form.format(value), name == "after") for name, value in zip(names, values, strict=True)]


def _page(summary: Summary, groups: Sequence[tuple[str, Sequence[_Bar]]]) -> str:
    title = html.escape(f"{summary.model.name}, quantised")
    parts = [f"<!doctype html><meta charset=utf-8><title>{title}</title><style>{_STYLE}</style><h1>{title}</h1>"]
    for heading, bars in groups:
        parts.append(f"<h2>{html.escape(heading)}</h2>")
        longest = max((bar.value for bar in bars), default=0.0) or 1.0
        for bar in bars:
            label = html.escape(bar.label)
            kind = "row after" if bar.is_after else "row"
            parts.append(
                f'<div class="{kind}"><span title="{label}">{label}</span>'
                f'<div class="bar" style="width:{bar.value / longest:.1%}"></div>'
                f'<span class="number">{html.escape(bar.text)}</span></div>'
            )
    return "\n".join(parts) + "\n"


def _write_png(path: Path, summary: Summary, groups: Sequence[tuple[str, Sequence[_Bar]]]) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    heights = [len(bars) + 1.2 for _, bars in groups]
    figure = Figure(figsize=(8, 0.32 * sum(heights) + 0.6), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    figure.suptitle(f"{summary.model.name}, quantised")
    axes = figure.subplots(len(groups), 1, gridspec_kw={"height_ratios": heights})
    for axis, (heading, bars) in zip(axes, groups, strict=True):
        places = range(len(bars) - 1, -1, -1)
        colours = ["#d9622b" if bar.is_after else "#8899aa" for bar in bars]
        drawn = axis.barh(places, [bar.value for bar in bars], color=colours)
        axis.bar_label(drawn, [f" {bar.text}" for bar in bars])
        axis.set_yticks(list(places), [bar.label[:40] for bar in bars])
        axis.set_title(heading, loc="left", fontsize="medium")
        axis.margins(x=0.15)
        axis.spines[["top", "right"]].set_visible(False)
    with replacing(path) as file:
        canvas.print_figure(file, format="png", dpi=120)
