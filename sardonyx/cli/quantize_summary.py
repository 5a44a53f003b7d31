"""What `sardonyx quantize` tells of a quantised model."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sardonyx.cli.console import console, number_table, plain_table, say
from sardonyx.quantization.report import QuantizationReport
from sardonyx.quantization.search.comparison import Deviation
from sardonyx.quantization.search.search import Result

_MOST_LAYERS = 10
_MOST_NAMES = 3


@dataclass(frozen=True)
class Summary:
    """A quantised model: what was done, how far it is from the float one, how long both run (medians, in seconds)."""

    model: Path
    target: Path
    result: Result
    report: QuantizationReport
    outputs: Sequence[Deviation]
    layers: Sequence[Deviation]
    seconds: tuple[float, ...]
    evaluations: int

    @property
    def sizes(self) -> tuple[int, int]:
        """Bytes of the weights before and after."""
        return self.report.bytes_before, self.report.bytes_after

    @property
    def growth(self) -> int:
        """Bytes by which the file is larger than the float model's; 0 where it is not, or weights lie elsewhere."""
        before, after = self.model.stat().st_size, self.target.stat().st_size
        return max(after - before, 0) if before >= self.sizes[0] else 0

    def content(self) -> dict[str, Any]:
        """The summary for a program."""
        return {
            "model": str(self.model),
            "output": str(self.target),
            "recipe": dataclasses.asdict(self.result.recipe),
            "reached": self.result.is_reached,
            "evaluations": self.evaluations,
            "error": _finite(self.result.verdict.error),
            "metric": self.result.verdict.metric,
            "weight_bytes": {"before": self.sizes[0], "after": self.sizes[1]},
            "file_growth": self.growth,
            "seconds": {"before": self.seconds[0], "after": self.seconds[1]},
            "nodes": [
                {"name": one.name, "op_type": one.op_type, "how": one.how or None, "reason": one.reason or None}
                for one in self.report.nodes.values()
            ],
            "notes": list(self.report.notes),
            "outputs": [_row(one) for one in self.outputs],
            "layers": [_row(one) for one in self.layers],
        }


def show(summary: Summary) -> None:
    """Print a summary."""
    out = console()
    report, (before, after) = summary.report, summary.sizes
    table = plain_table("quantised", "nodes")
    for (kind, how), count in _counted((one.op_type, one.how) for one in report.nodes.values() if one.is_quantized):
        table.add_row(f"{kind}: {how}", str(count))
    out.print(table)
    left = [one for one in report.nodes.values() if not one.is_quantized]
    if left:
        table = plain_table("left in float", "nodes", "as")
        for (kind, reason), count in _counted((one.op_type, one.reason) for one in left):
            names = [one.name for one in left if (one.op_type, one.reason) == (kind, reason)]
            shown = ", ".join(name for name in names[:_MOST_NAMES] if name)
            table.add_row(
                f"{kind} {'(' + shown + ')' if kind and count <= _MOST_NAMES and shown else ''}".strip(),
                str(count),
                reason,
            )
        out.print(table)
    for text in report.notes:
        say(out, f"note  {text}")
    _deviations("output", summary.outputs)
    _deviations("layer, worst first", summary.layers[:_MOST_LAYERS])
    share = f" ({after / before:.0%})" if before else ""
    say(out, f"weights   {before / 1e6:,.2f} MB before, {after / 1e6:,.2f} MB after{share}")
    if summary.growth:
        say(
            out,
            f"note  the file is {summary.growth / 1e3:,.1f} kB larger than the float model: nodes and scales add more "
            "than its weights save",
        )
    slow, fast = summary.seconds
    say(out, f"a run     {slow * 1e3:,.3f} ms before, {fast * 1e3:,.3f} ms after: {slow / fast:.2f} times as fast")
    recipe = summary.result.recipe
    kept = f", {len(recipe.kept_float)} nodes kept in float" if recipe.kept_float else ""
    calibrated = f", ranges by {recipe.calibration}" if recipe.calibration else ""
    smoothed = f", SmoothQuant {recipe.options['SmoothQuantAlpha']}" if recipe.options.get("SmoothQuant") else ""
    per = "channel" if recipe.per_channel else "tensor"
    say(out, f"recipe    {recipe.weights} weights per {per}{calibrated}{smoothed}{kept}")
    if summary.evaluations > 1:
        say(out, f"search    {summary.evaluations} evaluations")
    say(out, f"written   {summary.target}")


def _counted(pairs: Any) -> list[tuple[tuple[str, str], int]]:
    return collections.Counter(pairs).most_common()


def _deviations(heading: str, rows: Sequence[Deviation]) -> None:
    if not rows:
        return
    table = number_table(heading, "relative error", "dB", "largest")
    for one in rows:
        label = f"{one.op_type} {one.node or one.name}".strip() if one.op_type else one.name
        decibels = f"{one.decibels:.1f}" if math.isfinite(one.decibels) else "exact" if one.relative == 0 else "none"
        table.add_row(label, f"{one.relative:.2e}", decibels, f"{one.largest:.3g}")
    console().print(table)


def _row(one: Deviation) -> dict[str, Any]:
    return {
        "name": one.name,
        "node": one.node or None,
        "op_type": one.op_type or None,
        "relative": _finite(one.relative),
        "largest": _finite(one.largest),
    }


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
