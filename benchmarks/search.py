"""What the search for a target keeps of the speed that full quantisation gains.

    python -m benchmarks.search [--cosine 0.995] [--json FILE]

The model is MiniLM with its real weights, the data are the sentences of `benchmarks.accuracy`: the search sees half of
those that are judged, and `cosine` is that of the other half. `base` quantises all that the mode quantises by default
(in static mode without the rule that leaves weak signals in float), which is the full gain; `found` is what the search
gives. `kept` is the share of the time that `base` saves against float32 which `found` saves, all in turns.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import sardonyx
from benchmarks import machine, options, report
from benchmarks.accuracy.embeddings import TASK
from benchmarks.accuracy.task import Array, Feeds, default_folder
from benchmarks.tables import Column, Table
from sardonyx.quantization.search.evaluation import Evaluator
from sardonyx.quantization.search.recipe import preset
from sardonyx.quantization.search.search import Search, Target
from sardonyx.quantization.search.speed import medians
from sardonyx.quantization.search.work import work_of

TABLE = Table(
    (
        Column("mode", "mode", width=8),
        Column("evaluations", "evaluations", "d", 11),
        Column("in float", "in_float", "d", 8),
        Column("float32 ms", "float_ms", ".2f", 10),
        Column("base ms", "base_ms", ".2f", 8),
        Column("base cosine", "base_cosine", ".4f", 11),
        Column("found ms", "found_ms", ".2f", 8),
        Column("found cosine", "found_cosine", ".4f", 12),
        Column("kept", "kept", ".2f", 5),
    )
)


def main() -> None:
    parser = options.parser("search", __doc__)
    logging.getLogger("sardonyx").setLevel(logging.ERROR)
    parser.add_argument("--cosine", type=float, default=0.995, metavar="NUMBER", help="default: %(default)s")
    options.add_json(parser)
    chosen = parser.parse_args()
    print(f"{machine.line()}\n\n{TABLE.head()}")
    report.Report(chosen.json).put("search", measure(chosen.cosine))


def measure(cosine: float) -> Iterator[dict[str, Any]]:
    """A row for each mode, printed when it is there."""
    model, data = TASK.model(default_folder()), TASK.data()
    seen, other = data.test[::2], data.test[1::2]
    for mode in ("dynamic", "static"):
        with tempfile.TemporaryDirectory() as folder:
            row = _searched(mode, model, data.calibration, seen, other, cosine, Path(folder))
        print(TABLE.line(row), flush=True)
        yield row


def _searched(
    mode: str,
    model: Path,
    calibration: Sequence[Feeds],
    seen: Sequence[Feeds],
    other: Sequence[Feeds],
    cosine: float,
    folder: Path,
) -> dict[str, Any]:
    reference, other_reference = _answers(model, seen), _answers(model, other)

    def metric(session: sardonyx.InferenceSession) -> float:
        return TASK.judge([session.run(None, dict(one))[0] for one in seen], reference, None)

    evaluator = Evaluator(model, seen, calibration, folder, metric=metric)
    recipe = preset(None, mode == "static")
    names = [one.name for one in evaluator.report(recipe).nodes.values() if one.is_quantized]
    result = Search(evaluator, Target(metric=cosine), work_of(model, seen[0], names)).run(recipe)
    evaluations = evaluator.count
    full = recipe.with_changes(options={**recipe.options, "MinimumSignalToNoise": 0}) if recipe.is_static else recipe
    files = [folder / "base.onnx", folder / "found.onnx"]
    for one, path in zip((full, result.recipe), files, strict=True):
        evaluator.apply(one, path)
    times = medians([model, *files], other[0], sardonyx.SessionOptions())
    cosines = [TASK.judge(_answers(path, other), other_reference, None) for path in files]
    return {
        "mode": mode,
        "evaluations": evaluations,
        "in_float": len(result.recipe.kept_float),
        "float_ms": 1e3 * times[0],
        "base_ms": 1e3 * times[1],
        "base_cosine": cosines[0],
        "found_ms": 1e3 * times[2],
        "found_cosine": cosines[1],
        "kept": (times[0] - times[2]) / (times[0] - times[1]),
    }


def _answers(model: Path, feeds: Sequence[Feeds]) -> list[Array]:
    session = sardonyx.InferenceSession(str(model))
    return [session.run(None, dict(one))[0] for one in feeds]


if __name__ == "__main__":
    main()
