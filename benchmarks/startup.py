"""How long it takes until a model answers: making a session, its first run, and a whole process.

    python -m benchmarks.startup [--zoo DIR] [--models …] [--engines …] [--threads 2] [--repeats 3] [--json FILE]

Sessions. Every figure comes from a fresh process that has imported the engine and made and run a session of a tiny
model, so that imports are over. `cold` is a process whose caches are an empty folder (the environment variable
SARDONYX_CACHE), `warm` are those after it with the same folder; engines without such caches are only warm.
`sardonyx` makes every session from the model, `sardonyx-kept` from the engine that the cold process kept of it,
`sardonyx-compiled` from a file that `sardonyx compile` made, whose cold process is the first one that opens it. Of
these two, one more process is not counted, which finds the file whole once it has not changed for a while. The file
of the model is in the system's memory: it was read before. Our Python files are compiled to bytecode, as those of an
installed package are. Medians over `--repeats` processes.

Processes. ``python -c`` with the usual few lines (import, session, inputs from a file, one run, print), timed from
outside until the line is there; engines take turns, the median counts. `median` and `min` are with our cache filled and
engines found whole: `sardonyx` has its kernels then and no engine, `sardonyx-kept` its engine. `empty` are processes
each of which finds an empty cache and compiles all kernels, as in a new container; `ready` are the same where the
distribution `sardonyx-kernels` is installed, which brings kernels along. Ratios are onnxruntime's median over theirs.
"""

from __future__ import annotations

import compileall
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

import sardonyx
from benchmarks import isolated, machine, options, report
from benchmarks.engines import BASELINE, COMPILED, ENGINES, KEPT, OURS, CompiledAhead, OnnxRuntime
from benchmarks.tables import Column, Table
from benchmarks.turns import timed
from benchmarks.zoo import registry, test_data, tiny
from sardonyx.compiler.llvm import installed_packs
from sardonyx.compiler.llvm.target import host_target
from sardonyx.runtime.file_state import SETTLED_SECONDS

CACHE = "SARDONYX_CACHE"
# Engines whose files are found whole once they have not changed for so long, and those that have a cache.
_FROM_FILES, _SETTLED_SECONDS = frozenset({KEPT, COMPILED}), SETTLED_SECONDS + 0.1
_CACHED = frozenset(name for name in ENGINES if name.startswith(OURS))
# Those whose kernels a process with an empty cache has to come by.
_COMPILES = _CACHED - {COMPILED}
# Runs of which the shortest counts, at most; of long ones, as many as begin within so many seconds.
STEADY_RUNS = 5
STEADY_SECONDS = 0.5

SESSIONS = Table(
    (
        Column("model", "model", width=26),
        Column("engine", "engine", width=17),
        Column("thr", "threads", "d", 3),
        Column("cold s", "cold_session_s", ".3f", 7),
        Column("+ first run", "cold_first_s", ".3f", 11),
        Column("compiled", "cold_compiled", "d", 8),
        Column("warm s", "session_s", ".3f", 7),
        Column("+ first run", "first_s", ".3f", 11),
        Column("steady run", "steady_s", ".4f", 10),
        Column("ratio", "ratio", ".2f", 6),
    )
)

PROCESSES = Table(
    (
        Column("model", "model", width=26),
        Column("engine", "engine", width=17),
        Column("thr", "threads", "d", 3),
        Column("median s", "median_s", ".3f", 8),
        Column("min s", "min_s", ".3f", 8),
        Column("ratio", "ratio", ".2f", 6),
        Column("empty s", "empty_s", ".3f", 8),
        Column("ratio", "empty_ratio", ".2f", 6),
        Column("ready s", "ready_s", ".3f", 8),
        Column("ratio", "ready_ratio", ".2f", 6),
    )
)


@dataclass
class Session:
    """One engine's sessions of one model; `ratio` is onnxruntime's warm creation over this one's."""

    model: str
    engine: str
    threads: int
    error: str = ""
    cold_session_s: float = 0.0
    cold_first_s: float = 0.0
    cold_compiled: int | None = None  # kernels; None for engines without a cache
    session_s: float = 0.0
    first_s: float = 0.0
    steady_s: float = 0.0
    ratio: float = 0.0


@dataclass
class Process:
    """From the start of a process to its first result; with an empty cache 0 for engines that have none, and for those
    whose kernels are in the file, and with kernels ready where none are installed."""

    model: str
    engine: str
    threads: int
    error: str = ""
    median_s: float = 0.0
    min_s: float = 0.0
    ratio: float = 0.0
    empty_s: float = 0.0
    empty_ratio: float = 0.0
    ready_s: float = 0.0
    ready_ratio: float = 0.0


@dataclass(frozen=True)
class Start:
    """What one process measured."""

    session_s: float
    first_s: float
    steady_s: float
    compiled: int


def main() -> None:
    parser = options.parser("startup", __doc__)
    options.add_models(parser)
    options.add_engines(parser, (BASELINE, "openvino", OURS, KEPT, COMPILED))
    options.add_threads(parser, options.default_threads()[-1:])
    parser.add_argument("--repeats", type=int, default=3, help="processes for each figure; default: %(default)s")
    options.add_json(parser)
    chosen = parser.parse_args()
    models = options.built_models(parser, chosen.models, chosen.zoo)
    print(machine.line())
    compile_package()
    kept = report.Report(chosen.json)
    engines = tuple(report.versions(chosen.engines))
    kept.put("sessions", sessions(models, engines, chosen.threads, chosen.zoo, chosen.repeats))
    kept.put("processes", processes(models, engines, chosen.threads, chosen.zoo, chosen.repeats))


def compile_package() -> None:
    """Python's compiled form of our files, as installing a package makes it: also where the environment keeps Python
    from writing it, as some containers do, no start is to count it."""
    compileall.compile_dir(Path(sardonyx.__file__).parent, quiet=2, workers=0)


# Sessions


def sessions(
    models: Iterable[str], engines: Iterable[str], threads: Iterable[int], zoo: Path, repeats: int
) -> Iterator[Session]:
    """Rows of all models, each printed when it is there."""
    print(f"\nSessions\n\n{SESSIONS.head()}")
    for name in models:
        for count in threads:
            baseline = 0.0
            for engine in engines:
                row = session_row(name, engine, count, zoo, repeats)
                if engine == BASELINE:
                    baseline = row.session_s
                row.ratio = baseline / row.session_s if row.session_s else 0.0
                print(SESSIONS.line(asdict(row)), flush=True)
                yield row


def session_row(name: str, engine: str, threads: int, zoo: Path, repeats: int) -> Session:
    row = Session(name, engine, threads)
    with tempfile.TemporaryDirectory() as folder:
        warm_up = write_tiny(Path(folder))
        environment = {CACHE: str(Path(folder) / "kernels")}
        try:
            path = file_of(name, engine, threads, zoo, Path(folder), environment)
            start = partial(isolated.call, start_once, name, engine, path, threads, zoo, warm_up)
            if engine.startswith(OURS):
                cold: Start = start(environment=environment)
                row.cold_session_s, row.cold_first_s = cold.session_s, cold.first_s
                row.cold_compiled = cold.compiled
            if engine in _FROM_FILES:
                time.sleep(_SETTLED_SECONDS)
                start(environment=environment)
            warm: list[Start] = [start(environment=environment) for _ in range(repeats)]
        except Exception as error:  # an engine that fails on a model is a result, not the end of the benchmark
            row.error = isolated.reason(error)
            return row
    row.session_s, row.first_s, row.steady_s = (
        statistics.median(getattr(one, field) for one in warm) for field in ("session_s", "first_s", "steady_s")
    )
    return row


def file_of(name: str, engine: str, threads: int, zoo: Path, folder: Path, environment: dict[str, str]) -> Path:
    """The file that an engine's sessions are made of: the model, or what another process compiled of it in `folder`."""
    path, found = zoo / name / "model.onnx", ENGINES[engine]
    if isinstance(found, CompiledAhead):
        return isolated.call(found.compiled, registry.get(name), path, threads, folder, environment=environment)
    return path


def start_once(name: str, engine: str, path: Path, threads: int, zoo: Path, warm_up: Path) -> Start:
    """Make a session of a model and run it, in this process, after one of a tiny model."""
    model = registry.get(name)
    inputs, _ = test_data.load(zoo / name / "test_data_set_0")
    prepare(engine, threads, warm_up)
    before = compiled_kernels(engine)
    load: Callable[[], Callable] = partial(ENGINES[engine].load, model, path, threads, False)
    session_s, run = timed(load)
    first_s, _ = timed(partial(run, inputs))
    steady: list[float] = []
    while len(steady) < STEADY_RUNS and sum(steady) < STEADY_SECONDS:
        steady.append(timed(partial(run, inputs))[0])
    return Start(session_s, first_s, min(steady), compiled_kernels(engine) - before)


def prepare(engine: str, threads: int, warm_up: Path) -> None:
    """Import an engine with all that it imports when it is first used."""
    ENGINES[engine].warm_import()
    if not engine.startswith("torch"):
        model = registry.get("one-add")
        rows = {tensor.name: np.ones(tensor.sized({}), np.float32) for tensor in model.inputs}
        ENGINES[engine].load(model, warm_up, threads, False)(rows)


def write_tiny(folder: Path) -> Path:
    """A model of one node."""
    path = folder / "warm_up.onnx"
    tiny.build(registry.get("one-add"), path)
    return path


def compiled_kernels(engine: str) -> int:
    """How many kernels this process has compiled, rather than found in the cache."""
    if not engine.startswith(OURS):
        return 0
    from sardonyx.compiler.llvm.library import library

    return library().counts.compiled


# Processes

_ORT_SCRIPT = """
import sys, numpy
import {module} as ort
options = ort.SessionOptions()
options.intra_op_num_threads = int(sys.argv[3])
for key, value in {config}.items():
    options.add_session_config_entry(key, value)
session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
print(len(session.run(None, dict(numpy.load(sys.argv[2])))), flush=True)
"""

_OPENVINO_SCRIPT = """
import sys, numpy, openvino
settings = {"INFERENCE_NUM_THREADS": int(sys.argv[3]), "INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
compiled = openvino.Core().compile_model(sys.argv[1], "CPU", settings)
print(len(compiled(dict(numpy.load(sys.argv[2])))), flush=True)
"""


def script(engine: str) -> str | None:
    """The program that a user of the engine would write; None for an engine that does not read the file."""
    if engine == "openvino":
        return _OPENVINO_SCRIPT
    found = ENGINES[engine]
    return (
        _ORT_SCRIPT.format(module=found.module, config=dict(found.config)) if isinstance(found, OnnxRuntime) else None
    )


def processes(
    models: Iterable[str], engines: Iterable[str], threads: Iterable[int], zoo: Path, repeats: int
) -> Iterator[Process]:
    """Rows of all models, each printed when it is there."""
    print(f"\nWhole processes\n\n{PROCESSES.head()}")
    engines = [engine for engine in engines if script(engine) is not None]
    for name in models:
        for count in threads:
            try:
                rows = process_rows(name, engines, count, zoo, repeats)
            except Exception as error:  # a model that fails is a result, not the end of the benchmark
                rows = [Process(name, engine, count, isolated.reason(error)) for engine in engines]
            for row in rows:
                print(PROCESSES.line(asdict(row)), flush=True)
                yield row


def process_rows(name: str, engines: Iterable[str], threads: int, zoo: Path, repeats: int) -> list[Process]:
    rows = [Process(name, engine, threads) for engine in engines]
    taken: dict[str, list[float]] = {row.engine: [] for row in rows}
    empty: dict[tuple[str, str], list[float]] = {}
    origins = {
        "empty_s": installed_packs.OFF,
        **({"ready_s": os.environ.get(installed_packs.VARIABLE, "")} if has_packs() else {}),
    }
    with tempfile.TemporaryDirectory() as folder:
        inputs = Path(folder) / "inputs.npz"
        np.savez(inputs, **test_data.load(zoo / name / "test_data_set_0")[0])
        environment = {CACHE: str(Path(folder) / "kernels")}
        files: dict[str, Path] = {}
        for row in rows:
            try:
                files[row.engine] = file_of(name, row.engine, threads, zoo, Path(folder), environment)
            except Exception as error:  # of one engine
                row.error = isolated.reason(error)
        for turn in range(-2, repeats):  # the first one fills the caches, the second one finds engines whole
            if turn == -1 and _FROM_FILES.intersection(files):
                time.sleep(_SETTLED_SECONDS)
            for row in rows:
                if row.error or (turn < 0 and row.engine not in (_FROM_FILES if turn == -1 else _CACHED)):
                    continue
                arguments = [str(files[row.engine]), str(inputs), str(threads)]
                program = script(row.engine) or ""
                try:
                    seconds = until_answer(program, arguments, environment)
                    if turn >= 0 and row.engine in _COMPILES:
                        for figure, packs in origins.items():
                            took = with_empty_cache(program, arguments, packs)
                            empty.setdefault((row.engine, figure), []).append(took)
                except RuntimeError as error:
                    row.error = str(error)
                else:
                    taken[row.engine] += [seconds] if turn >= 0 else []
    baseline = statistics.median(taken[BASELINE]) if taken.get(BASELINE) else 0.0
    for row in rows:
        if taken[row.engine] and not row.error:
            row.median_s, row.min_s = statistics.median(taken[row.engine]), min(taken[row.engine])
            row.ratio = baseline / row.median_s
            for figure in origins:
                if several := empty.get((row.engine, figure)):
                    setattr(row, figure, statistics.median(several))
                    setattr(row, figure.replace("_s", "_ratio"), baseline / statistics.median(several))
    return rows


def has_packs() -> bool:
    """Whether kernels for this machine are installed."""
    return installed_packs.installed_pack(host_target()) is not None


def with_empty_cache(program: str, arguments: list[str], packs: str) -> float:
    """What `until_answer` gives in a process that has an empty cache, and kernels ready as SARDONYX_KERNELS says."""
    with tempfile.TemporaryDirectory() as folder:
        return until_answer(program, arguments, {CACHE: folder, installed_packs.VARIABLE: packs})


def until_answer(program: str, arguments: list[str], environment: dict[str, str]) -> float:
    """Seconds from the start of ``python -c program`` to its first line; RuntimeError if there is none."""
    began = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        seconds = time.perf_counter() - began
        _, complaint = process.communicate()
    if not line.strip():
        raise RuntimeError((complaint.strip().splitlines() or ["no answer"])[-1][:160])
    return seconds


if __name__ == "__main__":
    main()
