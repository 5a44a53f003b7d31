"""How much memory an engine needs for a model.

    python -m benchmarks.memory [--zoo DIR] [--models …] [--engines …] [--threads 2] [--json FILE]

A fresh process for each engine and model imports the engine, makes and runs a session of a tiny model (so that what
is imported on first use is there), and counts from what it holds then: `loading` is the most while the session is
made, `running` the most while it runs, `steady` what stays after that; `second` is what another session of the same
model adds to that, once it has run. Pages of a mapped file count where they have been touched. `ratio` is the engine's
`running` over onnxruntime's: below 1 needs less. Linux only.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import isolated, machine, options, report
from benchmarks.engines import BASELINE, ENGINES, OURS
from benchmarks.startup import prepare, write_tiny
from benchmarks.tables import Column, Table
from benchmarks.zoo import registry, test_data

# Runs, at most, and the seconds within which they begin: what a run holds does not depend on how many there are.
RUNS = 5
RUN_SECONDS = 1.0
SMALLEST_MB = 1.0  # below it a ratio says nothing

TABLE = Table(
    (
        Column("model", "model", width=26),
        Column("engine", "engine", width=11),
        Column("thr", "threads", "d", 3),
        Column("import MB", "base_mb", ".0f", 9),
        Column("loading MB", "loading_mb", ".1f", 10),
        Column("running MB", "running_mb", ".1f", 10),
        Column("steady MB", "steady_mb", ".1f", 9),
        Column("second MB", "second_mb", ".1f", 9),
        Column("ratio", "ratio", ".2f", 6),
    )
)


@dataclass
class Memory:
    """One engine on one model; all but the base are above the base."""

    model: str
    engine: str
    threads: int
    error: str = ""
    base_mb: float = 0.0
    loading_mb: float = 0.0
    running_mb: float = 0.0
    steady_mb: float = 0.0
    second_mb: float = 0.0
    ratio: float = 0.0


def main() -> None:
    parser = options.parser("memory", __doc__)
    options.add_models(parser)
    options.add_engines(parser, (BASELINE, "openvino", "torch", OURS))
    options.add_threads(parser, options.default_threads()[-1:])
    options.add_json(parser)
    chosen = parser.parse_args()
    models = options.built_models(parser, chosen.models, chosen.zoo)
    print(machine.line())
    kept = report.Report(chosen.json)
    engines = tuple(report.versions(chosen.engines))
    kept.put("memory", measure_all(models, engines, chosen.threads, chosen.zoo))


def measure_all(models: Iterable[str], engines: Iterable[str], threads: Iterable[int], zoo: Path) -> Iterator[Memory]:
    """Rows of all models, each printed when it is there."""
    print(f"\nMemory\n\n{TABLE.head()}")
    with tempfile.TemporaryDirectory() as folder:
        warm_up = write_tiny(Path(folder))
        for name in models:
            for count in threads:
                baseline = 0.0
                for engine in engines:
                    try:
                        row = isolated.call(measure, name, engine, count, zoo, warm_up)
                    except Exception as error:  # a model that fails is a result, not the end of the benchmark
                        row = Memory(name, engine, count, error=isolated.reason(error))
                    if engine == BASELINE:
                        baseline = row.running_mb
                    row.ratio = row.running_mb / baseline if baseline > SMALLEST_MB else 0.0
                    print(TABLE.line(asdict(row)), flush=True)
                    yield row


def measure(name: str, engine: str, threads: int, zoo: Path, warm_up: Path) -> Memory:
    """One engine on one model, in this process."""
    model = registry.get(name)
    folder = zoo / name
    inputs, _ = test_data.load(folder / "test_data_set_0")
    row = Memory(name, engine, threads)
    try:
        prepare(engine, threads, warm_up)
        row.base_mb = machine.resident_mb("VmRSS")
        machine.reset_peak()
        run = ENGINES[engine].load(model, folder / "model.onnx", threads, False)
        row.loading_mb = machine.resident_mb("VmHWM") - row.base_mb
        machine.reset_peak()
        began = time.perf_counter()
        for _ in range(RUNS):
            run(inputs)
            if time.perf_counter() - began > RUN_SECONDS:
                break
        row.running_mb = machine.resident_mb("VmHWM") - row.base_mb
        row.steady_mb = machine.resident_mb("VmRSS") - row.base_mb
        second = ENGINES[engine].load(model, folder / "model.onnx", threads, False)
        second(inputs)
        row.second_mb = machine.resident_mb("VmRSS") - row.base_mb - row.steady_mb
    except Exception as error:  # an engine that fails on a model is a result, not the end of the benchmark
        row.error = isolated.reason(error)
    return row


if __name__ == "__main__":
    main()
