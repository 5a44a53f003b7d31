"""What the knobs of a session do: one of them turned, beside a session as it comes, here and in onnxruntime.

    python -m benchmarks.knobs [--zoo DIR] [--models …] [--engines …] [--threads 2] [--only NAME] [--seconds S]
                               [--json FILE]

A fresh process for each knob and engine holds two sessions, which take turns: `effect` is the median run with the knob
turned over that without, so that 1.20 says that turning it costs a fifth. `spread` is the 99th percentile of the turned
runs over their median. `session` is the time that making the turned session took, with filled caches and without stored
engines. `MB` is what that session and its first runs add to the memory of a process of their own. docs/tuning.md says
what each knob is for.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import isolated, machine, options, report, startup
from benchmarks.engines import BASELINE, OURS, OnnxRuntime
from benchmarks.tables import Column, Table
from benchmarks.turns import Budget, difference, take_turns, timed
from benchmarks.zoo import test_data

MODELS = ("minilm-l6",)
RUNS = 3  # of a session whose memory is counted

_WITHOUT_ENGINES = {"sardonyx.engine_cache": "0"}  # onnxruntime keeps keys that it does not know, and ignores them


@dataclass(frozen=True)
class Knob:
    """What is turned.

    properties  of the session options; an enumeration's value is written as ``Enumeration.MEMBER``
    config      session config entries
    run         run config entries
    bound       whether inputs and outputs are bound
    ours        whether onnxruntime has no such knob
    """

    name: str
    properties: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, str] = field(default_factory=dict)
    run: Mapping[str, str] = field(default_factory=dict)
    bound: bool = False
    ours: bool = False


KNOBS = (
    Knob("as it comes"),
    Knob("ORT_DISABLE_ALL", {"graph_optimization_level": "GraphOptimizationLevel.ORT_DISABLE_ALL"}),
    Knob("ORT_ENABLE_BASIC", {"graph_optimization_level": "GraphOptimizationLevel.ORT_ENABLE_BASIC"}),
    Knob("ORT_ENABLE_EXTENDED", {"graph_optimization_level": "GraphOptimizationLevel.ORT_ENABLE_EXTENDED"}),
    Knob("ORT_ENABLE_LAYOUT", {"graph_optimization_level": "GraphOptimizationLevel.ORT_ENABLE_LAYOUT"}),
    Knob("intra_op_num_threads = 1", {"intra_op_num_threads": 1}),
    Knob("allow_spinning = 0", config={"session.intra_op.allow_spinning": "0"}),
    Knob("force_spinning_stop", config={"session.force_spinning_stop": "1"}),
    Knob("dynamic_block_base = 4", config={"session.dynamic_block_base": "4"}),
    Knob(
        "ORT_PARALLEL, 2 inter-op",
        {"execution_mode": "ExecutionMode.ORT_PARALLEL", "inter_op_num_threads": 2},
    ),
    Knob("enable_cpu_mem_arena = False", {"enable_cpu_mem_arena": False}),
    Knob("enable_mem_pattern = False", {"enable_mem_pattern": False}),
    Knob("enable_mem_reuse = False", {"enable_mem_reuse": False}),
    Knob("disable_prepacking", config={"session.disable_prepacking": "1"}),
    Knob("arena shrinkage", run={"memory.enable_memory_arena_shrinkage": "cpu:0"}),
    Knob("set_denormal_as_zero", config={"session.set_denormal_as_zero": "1"}),
    Knob("I/O binding", bound=True),
    Knob("bfloat16 products", config={"sardonyx.cpu.precision": "bfloat16"}, ours=True),
)

TABLE = Table(
    (
        Column("knob", "knob", width=30),
        Column("model", "model", width=12),
        Column("engine", "engine", width=11),
        Column("thr", "threads", "d", 3),
        Column("median ms", "median_ms", ".3f", 9),
        Column("effect", "effect", ".2f", 6),
        Column("of minima", "min_effect", ".2f", 9),
        Column("spread", "spread", ".2f", 6),
        Column("session ms", "session_ms", ".0f", 10),
        Column("MB", "memory_mb", ".1f", 6),
        Column("max rel", "max_rel", ".0e", 7),
    )
)


@dataclass
class Effect:
    """One knob on one model in one engine."""

    knob: str
    model: str
    engine: str
    threads: int
    error: str = ""
    median_ms: float = 0.0
    effect: float = 0.0
    min_effect: float = 0.0
    spread: float = 0.0
    session_ms: float = 0.0
    memory_mb: float = 0.0
    max_rel: float = 0.0


def main() -> None:
    parser = options.parser("knobs", __doc__)
    options.add_models(parser)
    options.add_engines(parser, (BASELINE, OURS))
    options.add_threads(parser, options.default_threads()[-1:])
    parser.add_argument("--seconds", type=float, default=1.0, help="timed seconds of each; default: %(default)s")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="knobs to turn; default: all")
    options.add_json(parser)
    chosen = parser.parse_args()
    for name in chosen.only:
        if name not in {one.name for one in KNOBS}:
            parser.error(f"there is no knob {name!r}; there are {', '.join(one.name for one in KNOBS)}")
    built = options.built_models(parser, chosen.models, chosen.zoo)
    models = chosen.models or [name for name in MODELS if name in built]
    knobs = [one for one in KNOBS if not chosen.only or one.name in chosen.only]
    print(machine.line())
    kept = report.Report(chosen.json)
    engines = tuple(report.versions(chosen.engines))
    rows = measure_all(knobs, models, engines, chosen.threads, chosen.zoo, Budget(chosen.seconds))
    kept.put("knobs", rows, {"seconds": chosen.seconds})


def measure_all(
    knobs: Sequence[Knob],
    models: Iterable[str],
    engines: Sequence[str],
    threads: Iterable[int],
    zoo: Path,
    budget: Budget,
) -> Iterator[Effect]:
    """Rows of all knobs, each printed when it is there."""
    print(f"\nKnobs\n\n{TABLE.head()}")
    counts = tuple(threads)
    for model in models:
        for thread_pool in counts:
            for knob in knobs:
                for engine in engines:
                    if knob.ours and engine != OURS:
                        continue
                    row = measure_apart(knob, model, engine, thread_pool, zoo, budget)
                    print(TABLE.line(asdict(row)), flush=True)
                    yield row


def measure_apart(knob: Knob, model: str, engine: str, threads: int, zoo: Path, budget: Budget) -> Effect:
    """One knob in fresh processes: one that holds its session alone, and one that holds both."""
    row = Effect(knob.name, model, engine, threads)
    try:
        with tempfile.TemporaryDirectory() as folder:
            warm_up = startup.write_tiny(Path(folder))
            row.memory_mb = isolated.call(memory, knob, model, engine, threads, zoo, warm_up)
            return isolated.call(measure, row, knob, zoo, budget, warm_up)
    except Exception as error:  # what fails is a result, not the end of the benchmark
        row.error = isolated.reason(error)
        return row


def memory(knob: Knob, model: str, engine: str, threads: int, zoo: Path, warm_up: Path) -> float:
    """Megabytes of a session and its runs, in this process."""
    feeds, _ = test_data.load(zoo / model / "test_data_set_0")
    startup.prepare(engine, threads, warm_up)
    before = machine.resident_mb("VmRSS")
    run = runner(knob, zoo / model / "model.onnx", engine, threads, feeds)
    for _ in range(RUNS):
        run()
    return machine.resident_mb("VmRSS") - before


def measure(row: Effect, knob: Knob, zoo: Path, budget: Budget, warm_up: Path) -> Effect:
    """The row with its figures, in this process."""
    feeds, _ = test_data.load(zoo / row.model / "test_data_set_0")
    path = zoo / row.model / "model.onnx"
    startup.prepare(row.engine, row.threads, warm_up)
    seconds, turned = timed(partial(runner, knob, path, row.engine, row.threads, feeds))
    row.session_ms = seconds * 1e3
    runners = {"plain": runner(KNOBS[0], path, row.engine, row.threads, feeds), "turned": turned}
    outputs = {which: [np.array(value) for value in run()] for which, run in runners.items()}
    samples = take_turns(runners, budget)
    row.median_ms = statistics.median(samples["turned"]) * 1e3
    row.effect = row.median_ms / (statistics.median(samples["plain"]) * 1e3)
    row.min_effect = min(samples["turned"]) / min(samples["plain"])
    row.spread = float(np.quantile(samples["turned"], 0.99)) * 1e3 / row.median_ms
    _, row.max_rel = difference(outputs["turned"], outputs["plain"])
    return row


def runner(
    knob: Knob, path: Path, engine: str, threads: int, feeds: Mapping[str, np.ndarray]
) -> Callable[[], Sequence[np.ndarray]]:
    """What runs a session whose knob is turned."""
    ort = OnnxRuntime(engine).module_itself()
    session_options = ort.SessionOptions()
    session_options.intra_op_num_threads = threads
    for key, value in {**_WITHOUT_ENGINES, **knob.config}.items():
        session_options.add_session_config_entry(key, value)
    for name, value in knob.properties.items():
        setattr(session_options, name, member(ort, value))
    session = ort.InferenceSession(str(path), session_options, providers=["CPUExecutionProvider"])
    if knob.bound:
        return bound(ort, session, feeds)
    run_options = None
    if knob.run:
        run_options = ort.RunOptions()
        for key, value in knob.run.items():
            run_options.add_run_config_entry(key, value)
    return partial(session.run, None, dict(feeds), run_options)


def member(ort: Any, value: Any) -> Any:
    """A value of a property; ``Enumeration.MEMBER`` is looked up in the module."""
    if not isinstance(value, str):
        return value
    enumeration, _, name = value.partition(".")
    return getattr(getattr(ort, enumeration), name)


def bound(ort: Any, session: Any, feeds: Mapping[str, np.ndarray]) -> Callable[[], Sequence[np.ndarray]]:
    """Runs with inputs and outputs that were bound once."""
    binding = session.io_binding()
    for name, value in feeds.items():
        binding.bind_cpu_input(name, value)
    outputs = session.run(None, dict(feeds))
    values = [ort.OrtValue.ortvalue_from_numpy(value) for value in outputs]
    for output, value in zip(session.get_outputs(), values, strict=True):
        binding.bind_ortvalue_output(output.name, value)

    def run() -> Sequence[np.ndarray]:
        session.run_with_iobinding(binding)
        return [value.numpy() for value in values]

    return run


if __name__ == "__main__":
    main()
