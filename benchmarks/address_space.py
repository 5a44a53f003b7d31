"""What becomes of a session where address space is scarce (RLIMIT_AS, `ulimit -v`), ours and onnxruntime's.

    python -m benchmarks.address_space [--zoo DIR] [--models small,…] [--engines onnxruntime,sardonyx] [--threads 1,2,8]
                                       [--limits MB,…] [--extra MB,…] [--caches cold,warm] [--json FILE]

Every figure is a process of its own (`benchmarks.scarce_program`): it imports the engine, makes a session, runs it, and
runs it for other sizes. `limits` hold from its beginning on; `extra` are limits of so many MB above what the process
has when it comes to a stage. `cold` begins with an empty cache, `warm` with the kernels and engines of earlier
sessions. `engine` begins from a file that was compiled ahead for the first run's sizes. How it ended, a letter each:

    r   right results                 t   an error of the engine's own classes, and right once the limit is lifted
    n   NumPy cannot be imported      x   such an error, and not right then
    b   another error                 A   the process was ended by a signal
    w   wrong results                 h   no end within a minute

The model `small` is two products and a Softmax; others are those of the zoo. Behind the letters, of a run without a
limit: the most address space (VmPeak) and memory (VmHWM) in MB. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks import machine, options, report
from benchmarks.engines import BASELINE, OURS
from benchmarks.scarce_program import STAGES
from benchmarks.zoo import test_data

SMALL = "small"
LIMITS = (120, 160, 200, 250, 300, 350, 400, 450, 500, 600, 700, 800, 900, 1000)
EXTRA = (1, 8, 32, 64, 128, 256)
CACHES = ("cold", "warm", "engine")
SECONDS = 60
_MB = 1 << 20
_LETTERS = {"right": "r", "wrong": "w", "bare": "b"}
_SETTLED_SECONDS = 2.2


@dataclass(frozen=True)
class Model:
    """A model's file, and inputs and outputs of two sizes as `scarce_program` takes them."""

    name: str
    path: str
    data: str


@dataclass
class Row:
    """How the processes of one kind ended, by their limits; `peak_mb` and `memory_mb` of one without."""

    model: str
    engine: str
    threads: int
    cache: str
    at: str
    ends: dict[int, str]
    errors: dict[int, str]
    peak_mb: float = 0.0
    memory_mb: float = 0.0


def main() -> None:
    parser = options.parser("address_space", __doc__)
    options.add_models(parser)
    parser.set_defaults(models=(SMALL,))
    options.add_engines(parser, (BASELINE, OURS))
    options.add_threads(parser, (1, 2, 8))
    parser.add_argument("--limits", type=_numbers, default=LIMITS, metavar="MB,…")
    parser.add_argument("--extra", type=_numbers, default=(), metavar="MB,…", help="for example 1,8,32,64,128,256")
    parser.add_argument("--caches", type=options.names, default=CACHES[:2], help=f"of {','.join(CACHES)}")
    parser.add_argument("--errors", action="store_true", help="print what the errors say")
    options.add_json(parser)
    chosen = parser.parse_args()
    print(machine.line())
    kept = report.Report(chosen.json)
    with tempfile.TemporaryDirectory() as folder:
        models = [prepared(name, chosen.zoo, Path(folder)) for name in chosen.models]
        kept.put("address_space", rows(models, chosen, Path(folder)))


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(one) for one in options.names(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"numbers of MB with commas between them are wanted, not {text!r}") from error


def rows(models: Sequence[Model], chosen: argparse.Namespace, folder: Path) -> Iterator[Row]:
    counts: dict[tuple[str, str], Counter[str]] = {}
    for model in models:
        for engine in chosen.engines:
            for threads in chosen.threads:
                for cache in chosen.caches if engine == OURS else ("cold",):
                    with Prepared(model, engine, threads, cache, folder) as start:
                        stages = [("start", chosen.limits), *((stage, chosen.extra) for stage in STAGES[2:])]
                        for at, limits in stages:
                            if limits:
                                row = one_row(start, at, limits)
                                counts.setdefault((engine, at), Counter()).update(row.ends.values())
                                show(row, chosen.errors)
                                yield row
    print()
    for (engine, at), found in counts.items():
        print(f"{engine}, limit from {at}: {dict(sorted(found.items()))} of {found.total()}")


class Prepared:
    """What processes of one kind start with; inside, the caches are filled where they are warm."""

    def __init__(self, model: Model, engine: str, threads: int, cache: str, folder: Path) -> None:
        self.model, self.engine, self.threads, self.cache = model, engine, threads, cache
        self._folder = folder
        self._held = tempfile.TemporaryDirectory(dir=folder)

    def __enter__(self) -> Prepared:
        self.home = Path(self._held.name)
        self.path = self.model.path
        if self.cache == "engine":
            self.path = str(self.home / "model.engine")
            done = subprocess.run(
                [sys.executable, "-c", _COMPILE, self.model.path, self.path, self.model.data, str(self.threads)],
                capture_output=True, text=True, check=False, env={**os.environ, "SARDONYX_CACHE": "off"},
            )  # fmt: skip
            if done.returncode:
                raise RuntimeError(done.stderr)
            time.sleep(_SETTLED_SECONDS)
            self.one("numpy", 1 << 60)  # finds the file whole
        elif self.cache == "warm":
            self.one("numpy", 1 << 60)
            time.sleep(_SETTLED_SECONDS)
            self.one("numpy", 1 << 60)
        return self

    def __exit__(self, *_: object) -> None:
        self._held.cleanup()

    def one(self, at: str, nbytes: int) -> dict:
        """How one process ended."""
        with tempfile.TemporaryDirectory(dir=self.home) as fresh:
            cache = fresh if self.cache == "cold" else str(self.home / "cache")
            asked = {
                "engine": self.engine, "model": self.path, "data": self.model.data, "threads": self.threads,
                "at": at, "bytes": nbytes, "config": _CONFIG if self.cache == "engine" else {},
            }  # fmt: skip
            return ended(asked, {"SARDONYX_CACHE": cache})


# The engine files are our own, made a moment ago.
_CONFIG = {"sardonyx.engine_trusted": "1"}

_COMPILE = """
import sys
import numpy as np
import sardonyx as ort
from sardonyx.api.engines.engine_compiler import compile_engine
model, path, data, threads = sys.argv[1:]
options = ort.SessionOptions()
options.intra_op_num_threads = int(threads)
with np.load(data) as given:
    shapes = {key[:-2]: given[key].shape for key in given if key.endswith(":0")}
names = {item.name: item.shape for item in ort.InferenceSession(model).get_inputs()}
sizes = {dim: size for name, dims in names.items() for dim, size in zip(dims, shapes[name]) if isinstance(dim, str)}
compile_engine(model, path, options, None, sizes)
"""


def ended(asked: Mapping[str, object], environment: Mapping[str, str]) -> dict:
    """What `scarce_program` said; `{"outcome": "signal" or "hang"}` where it said nothing."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.scarce_program", json.dumps(asked)],
            capture_output=True, text=True, timeout=SECONDS, check=False, env={**os.environ, **environment},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"outcome": "hang"}
    last = done.stdout.strip().rpartition("\n")[2]
    if done.returncode == 0 and last.startswith("{"):
        return json.loads(last)
    kind = "signal" if done.returncode < 0 else "bare"
    return {"outcome": kind, "stage": last, "error": f"exit code {done.returncode}: {done.stderr[-300:]}"}


def letter(found: Mapping[str, object]) -> str:
    """The letter of an end."""
    if found.get("stage") == "numpy":
        return "n"
    kind = found["outcome"]
    if kind == "typed":
        return "t" if found.get("recovers") else "x"
    return _LETTERS.get(str(kind)) or ("A" if kind == "signal" else "h")


def one_row(start: Prepared, at: str, limits: Sequence[int]) -> Row:
    row = Row(start.model.name, start.engine, start.threads, start.cache, at, {}, {})
    free = start.one("numpy", 1 << 60)
    row.peak_mb, row.memory_mb = free.get("VmPeak", 0.0), free.get("VmHWM", 0.0)
    for size in limits:
        found = start.one("numpy", size * _MB) if at == "start" else start.one(at, -size * _MB)
        row.ends[size] = letter(found)
        if found["outcome"] != "right":
            row.errors[size] = f"{found.get('stage')}: {found.get('error', '')} {found.get('second', '')}"
    return row


def show(row: Row, with_errors: bool) -> None:
    ends = " ".join(f"{size}{end}" for size, end in row.ends.items())
    print(
        f"{row.model:12} {row.engine:11} {row.threads} threads {row.cache:6} {row.at:8} {ends}"
        f"   VmPeak {row.peak_mb:.0f}, VmHWM {row.memory_mb:.0f}",
        flush=True,
    )
    if with_errors:
        for size, error in row.errors.items():
            print(f"    {size:5} {row.ends[size]}  {' '.join(error.split())[:400]}")


def prepared(name: str, zoo: Path, folder: Path) -> Model:
    """A model with data of two sizes."""
    data = folder / f"{name}.npz"
    if name == SMALL:
        path = folder / "small.onnx"
        write_small(path, data)
        return Model(name, str(path), str(data))
    arrays: dict[str, np.ndarray] = {}
    for number in "01":
        inputs, outputs = test_data.load(zoo / name / f"test_data_set_{number}")
        arrays |= {f"{key}:{number}": value for key, value in inputs.items()}
        arrays |= {f"{index}={number}": value for index, value in enumerate(outputs.values())}
    np.savez(data, **arrays)
    return Model(name, str(zoo / name / "model.onnx"), str(data))


def write_small(path: Path, data: Path) -> None:
    """Two products, a Relu between them and a Softmax behind, with 2 MB of weights; for 3 lines, and for 70."""
    import onnx
    from onnx import helper, numpy_helper

    random = np.random.default_rng(0)
    first, second = (random.standard_normal(size).astype(np.float32) / 16 for size in ((256, 1024), (1024, 256)))
    nodes = [("MatMul", "x first a"), ("Relu", "a b"), ("MatMul", "b second c"), ("Softmax", "c y")]
    graph = helper.make_graph(
        [helper.make_node(kind, names.split()[:-1], names.split()[-1:]) for kind, names in nodes],
        SMALL,
        [helper.make_tensor_value_info("x", 1, ["n", 256])],
        [helper.make_tensor_value_info("y", 1, ["n", 256])],
        [numpy_helper.from_array(first, "first"), numpy_helper.from_array(second, "second")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), path)
    arrays: dict[str, np.ndarray] = {}
    for number, count in (("0", 3), ("1", 70)):
        x = random.standard_normal((count, 256)).astype(np.float32)
        scores = np.maximum(x.astype(np.float64) @ first, 0) @ second
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        arrays |= {f"x:{number}": x, f"0={number}": powers / powers.sum(-1, keepdims=True)}
    np.savez(data, **arrays)


if __name__ == "__main__":
    main()
