"""Where the time goes from the start of a process to the first result of a model.

    python -m benchmarks.phases [--zoo DIR] [--models …] [--cache kernels] [--threads 2] [--repeats 9] [--json FILE]

Each process imports NumPy and the engine, makes a session, reads the inputs from a file and runs once. A signal comes
to it every half of a millisecond, and what Python is doing then stands for the time since the last one: the innermost
of the phases that are on the stack. That adds some per cent, evenly, where a profiler would double what calls much.
With `--cache kernels`, all kernels are in the cache and no engine is kept; with `empty`, neither is. Threads beside the
main one, which compile and pack, are seen only where it waits for them. Medians over `--repeats` processes, in
milliseconds; `whole` is from outside, until the result is there, and so has the interpreter's own start.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from benchmarks import machine, options, report
from benchmarks.startup import CACHE, compile_package
from benchmarks.tables import Column, Table
from benchmarks.zoo import test_data

# Every so many seconds a signal.
_EVERY = 0.0005

# Phases by the functions, as file and name, during which they last: the innermost counts.
FUNCTIONS = {
    "load": (("graph/load.py", "load_model"),),
    "check": (("ops/framework/check.py", "check_model"),),
    "infer": (("ops/framework/inference.py", "infer_model"),),
    "rewrite": (("passes/pipeline.py", "apply"),),
    "lower": (("compiler/lowering.py", "classify"), ("compiler/segment_build.py", "build_segment")),
    "bind": (("compiler/segment.py", "bind"),),
    "pack": (("compiler/shared_constants.py", "make"),),
    "text": (("compiler/llvm/library.py", "_begun"),),
    "LLVM": (("compiler/llvm/library.py", "finish"), ("compiler/llvm/library.py", "wait")),
    "cache": (("compiler/llvm/library.py", "_found"),),
    "run": (("runtime/executor.py", "execute"),),
}
# Imports, by the package that is imported: NumPy's are those of any program, others what onnx and Python bring along.
IMPORTS = {
    "numpy": "NumPy",
    "sardonyx": "Sardonyx",
    "onnx": "onnx",
    "onnx_ir": "onnx",
    "google": "onnx",
    "ml_dtypes": "onnx",
}
OTHERS = "others"
REST = "rest"
PHASES = ("NumPy", "onnx", "Sardonyx", OTHERS, *FUNCTIONS, REST)

TABLE = Table(
    (
        Column("model", "model", width=20),
        *(Column(phase, phase, ".0f", max(4, len(phase))) for phase in PHASES),
        Column("whole", "whole", ".0f", 6),
    )
)

_PROGRAM = """
import json, signal, sys, time
functions = {(file, name): phase for phase, found in json.loads(sys.argv[4]).items() for file, name in found}
imports, others, rest = json.loads(sys.argv[5])
spent, last = {}, time.perf_counter()

def look(number, frame):
    global last
    phase, package = rest, None
    while frame is not None:
        code = frame.f_code
        if code.co_name == "_find_and_load" and "importlib" in code.co_filename:
            package = frame.f_locals["name"].partition(".")[0]
            # What Python brings belongs to who asks for it.
            phase = imports.get(package, others)
            if package in imports:
                break
        elif package is None:
            path = code.co_filename.replace("\\\\", "/").rpartition("/sardonyx/")[2]
            if (path, code.co_name) in functions:
                phase = functions[path, code.co_name]
                break
        frame = frame.f_back
    now = time.perf_counter()
    spent[phase] = spent.get(phase, 0.0) + now - last
    last = now

signal.signal(signal.SIGALRM, look)
signal.setitimer(signal.ITIMER_REAL, float(sys.argv[6]), float(sys.argv[6]))
import numpy
import sardonyx as ort
options = ort.SessionOptions()
options.intra_op_num_threads = int(sys.argv[3])
session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
session.run(None, dict(numpy.load(sys.argv[2])))
signal.setitimer(signal.ITIMER_REAL, 0)
print(json.dumps(spent), flush=True)
"""


def main() -> None:
    parser = options.parser("phases", __doc__)
    options.add_models(parser)
    options.add_threads(parser, options.default_threads()[-1:])
    parser.add_argument("--cache", choices=("kernels", "empty"), default="kernels", help="default: %(default)s")
    parser.add_argument("--repeats", type=int, default=9, help="processes for each model; default: %(default)s")
    options.add_json(parser)
    chosen = parser.parse_args()
    models = options.built_models(parser, chosen.models, chosen.zoo)
    print(machine.line())
    compile_package()
    report.Report(chosen.json).put("phases", phases(models, chosen))


def phases(models: Iterable[str], chosen: argparse.Namespace) -> Iterator[Mapping[str, object]]:
    """A row for each model and number of threads, printed when it is there."""
    print(f"\n{TABLE.head()}")
    for model in models:
        for threads in chosen.threads:
            with tempfile.TemporaryDirectory() as folder:
                row = {"model": model, "threads": threads, "cache": chosen.cache}
                row |= measured(Path(folder), chosen.zoo / model, threads, chosen.cache, chosen.repeats)
            print(TABLE.line(row), flush=True)
            yield row


def measured(folder: Path, model: Path, threads: int, cache: str, repeats: int) -> dict[str, float]:
    """Milliseconds of each phase, the median of so many processes; `folder` is for their caches."""
    inputs = folder / "inputs.npz"
    np.savez(inputs, **test_data.load(model / "test_data_set_0")[0])
    found: list[dict[str, float]] = []
    for number in range(repeats + (cache == "kernels")):
        kernels = folder / (f"cache{number}" if cache == "empty" else "cache")
        for engine in kernels.rglob("*.engine"):
            engine.unlink()
        one = process(model / "model.onnx", inputs, threads, kernels)
        if number or cache == "empty":
            found.append(one)
    return {phase: statistics.median(one.get(phase, 0.0) for one in found) for phase in (*PHASES, "whole")}


def process(model: Path, inputs: Path, threads: int, cache: Path) -> dict[str, float]:
    """Milliseconds of each phase of one process."""
    given = [model, inputs, threads, json.dumps(FUNCTIONS), json.dumps([IMPORTS, OTHERS, REST]), _EVERY]
    began = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, *map(str, given)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, CACHE: str(cache)},
    ) as running:
        assert running.stdout is not None
        line = running.stdout.readline()
        whole = time.perf_counter() - began
    return {phase: 1000 * seconds for phase, seconds in {**json.loads(line), "whole": whole}.items()}


if __name__ == "__main__":
    main()
