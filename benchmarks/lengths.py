"""What a new sequence length costs: sixty-four of them, one after the other, on a warm session of MiniLM.

    python -m benchmarks.lengths [--zoo DIR] [--model minilm-l6] [--engines …] [--threads 1,2] [--json FILE]

The session has run at the model's usual length. Then every length comes, in a seeded order: a run at the usual length
to wake the engine up, the first run at the new length, and some more of it, whose median is the steady time. `extra`
is the first run less the steady one. A second pass over the same lengths shows what is remembered of them. The
engines take turns at every length.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks import isolated, machine, options, report
from benchmarks.engines import BASELINE, ENGINES, OURS
from benchmarks.tables import Column, Table
from benchmarks.turns import timed
from benchmarks.zoo import inputs, registry

COUNT = 64
LONGEST = 256
DIMENSION = "sequence_length"
STEADY_RUNS = 5
PAUSE_SECONDS = 0.1  # until the threads of the engine before have stopped spinning, where it has any

TABLE = Table(
    (
        Column("model", "model", width=10),
        Column("engine", "engine", width=11),
        Column("thr", "threads", "d", 3),
        Column("pass", "turn", "d", 4),
        Column("extra ms: median", "extra_median_ms", ".3f", 16),
        Column("90 %", "extra_90_ms", ".3f", 8),
        Column("most", "extra_most_ms", ".3f", 8),
        Column("first runs, sum ms", "first_sum_ms", ".1f", 18),
        Column("steady, sum ms", "steady_sum_ms", ".1f", 14),
    )
)


@dataclass
class Pass:
    """One engine's pass over all lengths."""

    model: str
    engine: str
    threads: int
    turn: int
    error: str = ""
    extra_median_ms: float = 0.0
    extra_90_ms: float = 0.0
    extra_most_ms: float = 0.0
    first_sum_ms: float = 0.0
    steady_sum_ms: float = 0.0
    lengths: list[int] = field(default_factory=list)
    first_ms: list[float] = field(default_factory=list)
    steady_ms: list[float] = field(default_factory=list)


def main() -> None:
    parser = options.parser("lengths", __doc__)
    options.add_zoo(parser)
    parser.add_argument("--model", default="minilm-l6", help=f"with a dimension {DIMENSION}; default: %(default)s")
    parser.add_argument("--count", type=int, default=COUNT, help="lengths; default: %(default)s")
    options.add_engines(parser, (BASELINE, "openvino", OURS))
    options.add_threads(parser)
    options.add_json(parser)
    chosen = parser.parse_args()
    (model,) = options.built_models(parser, [chosen.model], chosen.zoo)
    print(machine.line())
    kept = report.Report(chosen.json)
    engines = tuple(report.versions(chosen.engines))
    kept.put("lengths", measure_all(model, engines, chosen.threads, chosen.zoo, chosen.count))


def measure_all(
    model: str, engines: Iterable[str], threads: Iterable[int], zoo: Path, count: int = COUNT
) -> Iterator[Pass]:
    """Rows of both passes of every engine."""
    print(f"\nNew sequence lengths\n\n{TABLE.head()}")
    for thread_pool in threads:
        try:
            rows = isolated.call(measure, model, tuple(engines), thread_pool, zoo, count)
        except Exception as error:  # a failure is a result, not the end of the benchmark
            rows = [
                Pass(model, engine, thread_pool, turn, isolated.reason(error)) for turn in (1, 2) for engine in engines
            ]
        for row in rows:
            print(TABLE.line(asdict(row)), flush=True)
            yield row


def chosen_lengths(count: int, usual: int) -> list[int]:
    """Different lengths up to `LONGEST` in a fixed random order, without the usual one."""
    candidates = np.array([length for length in range(1, LONGEST + 1) if length != usual])
    return [int(length) for length in np.random.default_rng(64).choice(candidates, count, replace=False)]


def measure(name: str, engines: Iterable[str], threads: int, zoo: Path, count: int) -> list[Pass]:
    """All engines, in this process."""
    model = registry.get(name)
    usual = inputs.make_inputs(model)
    lengths = chosen_lengths(count, model.sizes[DIMENSION])
    runs: dict[str, Callable] = {}
    errors: dict[str, str] = {}
    for engine in engines:
        try:
            ENGINES[engine].warm_import()
            runs[engine] = ENGINES[engine].load(model, zoo / name / "model.onnx", threads, False)
            for _ in range(STEADY_RUNS):
                runs[engine](usual)
        except Exception as error:  # an engine that fails is a result, not the end of the benchmark
            errors[engine] = isolated.reason(error)
            runs.pop(engine, None)
    rows = [Pass(name, engine, threads, turn, errors.get(engine, "")) for turn in (1, 2) for engine in engines]
    for row_turn in (1, 2):
        of_turn = {row.engine: row for row in rows if row.turn == row_turn and not row.error}
        for length in lengths:
            feeds = inputs.make_inputs(model, {DIMENSION: length})
            for engine, row in of_turn.items():
                time.sleep(PAUSE_SECONDS if threads > 1 else 0.0)
                runs[engine](usual)
                row.lengths.append(length)
                row.first_ms.append(timed(partial(runs[engine], feeds))[0] * 1e3)
                steady = [timed(partial(runs[engine], feeds))[0] for _ in range(STEADY_RUNS)]
                row.steady_ms.append(statistics.median(steady) * 1e3)
    for row in rows:
        summarise(row)
    return rows


def summarise(row: Pass) -> None:
    """Fill in the figures that follow from the times."""
    if row.error or not row.lengths:
        return
    extra = sorted(first - steady for first, steady in zip(row.first_ms, row.steady_ms, strict=True))
    row.extra_median_ms = statistics.median(extra)
    row.extra_90_ms = extra[min(len(extra) - 1, int(0.9 * len(extra)))]
    row.extra_most_ms = extra[-1]
    row.first_sum_ms, row.steady_sum_ms = sum(row.first_ms), sum(row.steady_ms)


if __name__ == "__main__":
    main()
