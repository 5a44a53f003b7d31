"""The speed-ups of a report as a picture.

    python -m benchmarks.plot FILE.json FILE.png

One panel for each number of threads, one group of bars for each model, one bar for each engine: how many times as
fast as onnxruntime. Models that only add are left out. Needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import machine, options
from benchmarks.engines import BASELINE

# The same engine has the same colour in every picture; ours stands out.
COLOURS = {
    "sardonyx": "#8c2d04",
    "sardonyx-bf16": "#fdae6b",
    "openvino": "#4a7fb5",
    "openvino-bf16": "#a6c8e4",
    "torch": "#9e9e9e",
    "torch-compile": "#cfcfcf",
}


def main() -> None:
    parser = options.parser("plot", __doc__)
    parser.add_argument("report", type=Path, metavar="FILE.json")
    parser.add_argument("picture", type=Path, metavar="FILE.png")
    chosen: argparse.Namespace = parser.parse_args()
    draw(json.loads(chosen.report.read_text()), chosen.picture)


def draw(data: Mapping[str, Any], path: Path) -> None:
    """Write the picture of a report; ValueError where it has no timed models."""
    rows = [row for row in data.get("models", {}).get("rows", []) if row["ratio"] and row["gflops"]]
    if not rows:
        raise ValueError("the report has no speed-ups of models to draw; `python -m benchmarks.compare` measures them")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    threads = sorted({row["threads"] for row in rows})
    figure, panels = pyplot.subplots(
        len(threads), 1, figsize=(13, 1.2 + 3.6 * len(threads)), squeeze=False, layout="constrained"
    )
    for count, panel in zip(threads, panels[:, 0], strict=True):
        _panel(panel, [row for row in rows if row["threads"] == count])
        panel.set_title(f"{count} thread{'s' if count > 1 else ''}", loc="left", fontsize=10)
    panels[0, 0].legend(ncols=len(COLOURS), fontsize=8, frameon=False, loc="upper right", bbox_to_anchor=(1, 1.14))
    measured_on = textwrap.fill(machine.line(data["machine"]), 160)
    figure.suptitle(f"Speed-up over onnxruntime, medians, batch 1\n{measured_on}", fontsize=8)
    figure.savefig(path, dpi=120, metadata={"Software": None})
    pyplot.close(figure)


def _panel(panel: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    """The bars of one number of threads."""
    models = list(dict.fromkeys(row["model"] for row in rows))
    engines = [name for name in COLOURS if any(row["engine"] == name for row in rows)]
    width = 0.82 / max(1, len(engines))
    for place, engine in enumerate(engines):
        found = {row["model"]: row["ratio"] for row in rows if row["engine"] == engine}
        at = [index - 0.41 + (place + 0.5) * width for index, model in enumerate(models) if model in found]
        heights = [found[model] for model in models if model in found]
        bars = panel.bar(at, heights, width, label=engine, color=COLOURS[engine])
        if engine.startswith("sardonyx"):
            panel.bar_label(bars, fmt="%.2f", fontsize=6, rotation=90, padding=2)
    panel.axhline(1.0, color="black", linewidth=0.8)
    panel.set_ylabel(f"times {BASELINE}", fontsize=8)
    panel.set_xticks(range(len(models)), models, rotation=25, ha="right", fontsize=8)
    panel.margins(x=0.01, y=0.12)
    panel.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    main()
