"""Measure inference engines on the models of the zoo, side by side.

    python -m benchmarks.compare [--zoo DIR] [--models …] [--engines …] [--threads 1,2] [--seconds S | --runs N]
                                 [--static] [--batch N] [--json FILE]

How a figure comes about. A fresh process takes one model at one number of threads and makes a session of every
engine in it. Then the engines take turns (`turns.py`), so slow changes of the machine hit all of them alike; another
process on the same cores does not, see benchmarks/README.md.

`ratio` is the median of onnxruntime over that of the engine: above 1 is faster than onnxruntime. `best` is the same
against the quicker one of onnxruntime and OpenVINO in float32. `fma` is the share of the measured peak of float32
multiply-adds, `read` that of the measured bandwidth if every weight, input and output is moved once. `max rel`
compares the outputs with those of onnxruntime (largest difference over largest magnitude).
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks import isolated, machine, options, report, work
from benchmarks.engines import BASELINE, BEST_OF, ENGINES
from benchmarks.floors import Floors
from benchmarks.tables import Column, Table, geomean
from benchmarks.turns import Budget, difference, take_turns
from benchmarks.zoo import registry, test_data
from benchmarks.zoo.inputs import make_inputs
from benchmarks.zoo.registry import B as BATCH

TABLE = Table(
    (
        Column("model", "model", width=26),
        Column("engine", "engine", width=13),
        Column("thr", "threads", "d", 3),
        Column("median ms", "median_ms", ".3f", 9),
        Column("min ms", "min_ms", ".3f", 9),
        Column("ratio", "ratio", ".2f", 5),
        Column("best", "best_ratio", ".2f", 5),
        Column("GFLOP/s", "gflops", ".1f", 7),
        Column("fma", "fma_share", ".0%", 5),
        Column("GB/s", "gbytes", ".1f", 6),
        Column("read", "read_share", ".0%", 5),
        Column("max rel", "max_rel", ".0e", 7),
        Column("runs", "runs", "d", 6),
    )
)


@dataclass
class Timing:
    """One engine on one model. 0 where there is no such figure."""

    model: str
    engine: str
    threads: int
    error: str = ""  # why there are no figures
    median_ms: float = 0.0
    min_ms: float = 0.0
    runs: int = 0
    ratio: float = 0.0
    min_ratio: float = 0.0
    best_ratio: float = 0.0
    gflops: float = 0.0
    fma_share: float = 0.0
    gbytes: float = 0.0
    read_share: float = 0.0
    max_abs: float = 0.0
    max_rel: float = 0.0


@dataclass(frozen=True)
class Settings:
    zoo: Path
    engines: tuple[str, ...]
    budget: Budget
    static: bool = False
    batch: int = 1
    one_thread_pool_only: tuple[str, ...] = ()  # engines that take part with the first number of threads alone

    def of_thread_pool(self, is_first: bool) -> Settings:
        """The settings for one number of threads."""
        if is_first:
            return self
        return replace(self, engines=tuple(name for name in self.engines if name not in self.one_thread_pool_only))


Measure = Callable[[str, int, Settings], tuple[list[Timing], work.Work | None]]


def main() -> None:
    parser = options.parser("compare", __doc__)
    options.add_models(parser)
    options.add_engines(parser)
    options.add_threads(parser)
    add_budget(parser)
    options.add_json(parser)
    chosen = parser.parse_args()
    models = options.built_models(parser, chosen.models, chosen.zoo)
    print(machine.line())
    kept = report.Report(chosen.json)
    found = report.versions(chosen.engines)
    kept.data["versions"] = found
    print(", ".join(f"{engine} {version}" for engine, version in found.items()))
    settings = Settings(chosen.zoo, tuple(found), Budget(chosen.seconds, chosen.runs), chosen.static, chosen.batch)
    part = "models" if chosen.batch == 1 else f"batch-{chosen.batch}"
    models = tuple(name for name in models if chosen.batch == 1 or BATCH in registry.get(name).sizes)
    ceilings = report.ceilings(kept, chosen.threads)
    rows = measure_all(models, chosen.threads, settings, ceilings)
    kept.put(part, rows, {"seconds": chosen.seconds, "runs": chosen.runs, "static": chosen.static})
    print(means(kept.rows(part)))


def add_budget(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=3.0, help="timed seconds for each engine")
    parser.add_argument("--runs", type=int, default=0, help="at least so many timed runs, in place of --seconds")
    parser.add_argument("--static", action="store_true", help="fix symbolic dimensions when loading, in all engines")
    parser.add_argument("--batch", type=int, default=1, metavar="N", help="examples in a run (default: 1)")


def measure_all(
    models: Iterable[str], threads: Sequence[int], settings: Settings, ceilings: Floors
) -> Iterator[Timing]:
    """Rows of all models, each printed when it is there."""
    print(TABLE.head())
    for name in models:
        for count in threads:
            rows, todo = measure_apart(name, count, settings.of_thread_pool(count == threads[0]))
            for row in rows:
                if todo is not None and not row.error:
                    rate(row, todo, ceilings)
                print(TABLE.line(asdict(row)), flush=True)
                yield row


def measure(name: str, threads: int, settings: Settings) -> tuple[list[Timing], work.Work]:
    """All engines on one model, in this process."""
    model = registry.get(name)
    folder = settings.zoo / name
    inputs, expected = test_data.load(folder / "test_data_set_0")
    if settings.batch != 1:
        model = replace(model, sizes={**model.sizes, BATCH: settings.batch})
        inputs = make_inputs(model)
    rows = measure_model(model, folder / "model.onnx", inputs, threads, settings)
    return rows, work.of_model(folder, inputs, expected, settings.batch)


def measure_model(
    model: registry.Model, path: Path, inputs: Mapping[str, np.ndarray], threads: int, settings: Settings
) -> list[Timing]:
    """All engines on the model in a file, in this process."""
    rows = [Timing(model.name, engine, threads) for engine in settings.engines]
    runners: dict[str, Callable[[], list[np.ndarray]]] = {}
    outputs: dict[str, list[np.ndarray]] = {}
    for row in rows:
        try:
            ENGINES[row.engine].warm_import()
            run = ENGINES[row.engine].load(model, path, threads, settings.static)
            outputs[row.engine] = [np.array(value) for value in run(inputs)]
        except Exception as error:  # an engine that fails on a model is a result, not the end of the benchmark
            row.error = isolated.reason(error)
            continue
        runners[row.engine] = partial(run, inputs)
    samples = take_turns(runners, settings.budget)
    fill(rows, samples)
    for row in rows:
        if BASELINE in outputs and row.engine in outputs:
            # The last run counts as much as the first: many came between them.
            last = runners[row.engine]()
            found = [difference(one, outputs[BASELINE]) for one in (outputs[row.engine], last)]
            row.max_abs, row.max_rel = (max(figures) for figures in zip(*found, strict=True))
    return rows


def measure_apart(
    name: str, threads: int, settings: Settings, how: Measure = measure
) -> tuple[list[Timing], work.Work | None]:
    """All engines on one model, in a fresh process. If that fails, the engines that live alone are measured again."""
    try:
        return isolated.call(how, name, threads, settings)
    except Exception as error:  # a model that fails is a result, not the end of the benchmark
        if len(settings.engines) == 1:
            return [Timing(name, settings.engines[0], threads, error=isolated.reason(error))], None
    dead, alive = [], []
    for engine in settings.engines:
        alone = replace(settings, engines=(engine,), budget=Budget(runs=1, turn_seconds=0.0))
        rows, _ = measure_apart(name, threads, alone, how)
        if rows[0].error:
            dead += rows
        else:
            alive.append(engine)
    if not alive:
        return dead, None
    try:
        rows, todo = isolated.call(how, name, threads, replace(settings, engines=tuple(alive)))
    except Exception as error:
        together = f"together, {isolated.reason(error)}"
        return dead + [Timing(name, engine, threads, error=together) for engine in alive], None
    return rows + dead, todo


def fill(rows: Iterable[Timing], samples: Mapping[str, list[float]]) -> None:
    """Put times and the ratios to the peers into the rows of one model."""
    peers = [statistics.median(samples[engine]) for engine in BEST_OF if engine in samples]
    for row in rows:
        taken = samples.get(row.engine)
        if not taken:
            continue
        median = statistics.median(taken)
        row.runs, row.median_ms, row.min_ms = len(taken), median * 1e3, min(taken) * 1e3
        if BASELINE in samples:
            row.ratio = statistics.median(samples[BASELINE]) / median
            row.min_ratio = min(samples[BASELINE]) / min(taken)
        if len(peers) == len(BEST_OF):
            row.best_ratio = min(peers) / median


def rate(row: Timing, todo: work.Work, ceilings: Floors) -> None:
    """Set a row's time against the machine's ceilings."""
    seconds = row.median_ms / 1e3
    row.gflops = todo.flops / seconds / 1e9
    row.fma_share = todo.flops / seconds / ceilings.flops(row.threads)
    row.gbytes = todo.nbytes / seconds / 1e9
    row.read_share = todo.nbytes / seconds / ceilings.bandwidth(row.threads, todo.nbytes)


def means(rows: Iterable[Mapping]) -> str:
    """The geometric means of the ratios, a table for each number of threads and engine.

    Models that only add are left out: they show what a run costs beside the arithmetic.
    """
    figures = {"ratio": "to onnxruntime", "best_ratio": "to the best of both"}
    return geometric_means((row for row in rows if row["gflops"]), figures)


def geometric_means(rows: Iterable[Mapping], figures: Mapping[str, str]) -> str:
    """The means of some figures, each with its title, a line for each number of threads and engine."""
    rows = list(rows)
    table = Table(
        (
            Column("engine", "engine", width=13),
            Column("thr", "threads", "d", 3),
            Column("models", "models", "d", 6),
            *(Column(title, key, ".2f", len(title)) for key, title in figures.items()),
        )
    )
    lines = []
    for threads in sorted({row["threads"] for row in rows}):
        for engine in dict.fromkeys(row["engine"] for row in rows):
            of = [row for row in rows if (row["engine"], row["threads"]) == (engine, threads)]
            found = {key: geomean(row[key] for row in of) for key in figures}
            lines.append({"engine": engine, "threads": threads, "models": len(of), **found})
    return f"\nGeometric means of the ratios\n\n{table.text(lines)}"


if __name__ == "__main__":
    main()
