"""What a call costs beside the arithmetic: one tiny operator, and a hundred in a chain.

    python -m benchmarks.small [--threads 1] [--turns 40] [--json FILE]

`run`: ``session.run(None, feeds)`` of a model of one Add of sixteen numbers. `bound`: the same by
``run_with_iobinding`` with inputs and output bound once (OpenVINO: a request whose tensors are set). `chain`: a
hundred Adds, one after the other, by ``run``. The engines take turns; in a turn one loop of so many calls as fill
20 ms is timed as a whole, and its time divided by the calls is one sample.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import isolated, machine, options, report
from benchmarks.engines import BASELINE, ENGINES, OURS, OnnxRuntime, OpenVino
from benchmarks.tables import Column, Table
from benchmarks.turns import Budget, looped, take_turns, timed
from benchmarks.zoo import registry, tiny

LOOP_SECONDS = 0.02
_KEPT: list[Any] = []  # bindings hold addresses: the arrays behind them must live as long as the process
MODELS = {"run": "one-add", "bound": "one-add", "chain": "chain-100-add"}

TABLE = Table(
    (
        Column("call", "call", width=6),
        Column("engine", "engine", width=11),
        Column("thr", "threads", "d", 3),
        Column("median us", "median_us", ".2f", 9),
        Column("min us", "min_us", ".2f", 9),
        Column("ratio", "ratio", ".2f", 6),
        Column("of minima", "min_ratio", ".2f", 9),
        Column("calls", "calls", "d", 9),
    )
)


@dataclass
class Call:
    """Microseconds of one call; the ratios are onnxruntime's time over this one."""

    call: str
    engine: str
    threads: int
    error: str = ""
    median_us: float = 0.0
    min_us: float = 0.0
    ratio: float = 0.0
    min_ratio: float = 0.0
    calls: int = 0


def main() -> None:
    parser = options.parser("small", __doc__)
    options.add_engines(parser, (BASELINE, "openvino", OURS))
    options.add_threads(parser, (1,))
    parser.add_argument("--turns", type=int, default=40, help="default: %(default)s")
    options.add_json(parser)
    chosen = parser.parse_args()
    print(machine.line())
    kept = report.Report(chosen.json)
    engines = tuple(report.versions(chosen.engines))
    kept.put("small", measure_all(engines, chosen.threads, chosen.turns), {"turns": chosen.turns})


def measure_all(engines: Iterable[str], threads: Iterable[int], turns: int) -> Iterator[Call]:
    """Rows of all calls, each printed when it is there."""
    print(f"\nSmall calls\n\n{TABLE.head()}")
    engines = [engine for engine in engines if isinstance(ENGINES[engine], OnnxRuntime | OpenVino)]
    for call in MODELS:
        for count in threads:
            try:
                rows = isolated.call(measure, call, engines, count, turns)
            except Exception as error:  # a failure is a result, not the end of the benchmark
                rows = [Call(call, engine, count, isolated.reason(error)) for engine in engines]
            for row in rows:
                print(TABLE.line(asdict(row)), flush=True)
                yield row


def measure(call: str, engines: Iterable[str], threads: int, turns: int) -> list[Call]:
    """All engines on one kind of call, in this process."""
    rows = [Call(call, engine, threads) for engine in engines]
    runners: dict[str, Callable[[], None]] = {}
    loops: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        model = registry.get(MODELS[call])
        path = Path(folder) / "model.onnx"
        tiny.build(model, path)
        for row in rows:
            try:
                function = callable_of(row.engine, call, path, threads)
                loops[row.engine] = fitting_loop(function)
            except Exception as error:  # an engine that fails is a result, not the end of the benchmark
                row.error = isolated.reason(error)
                continue
            runners[row.engine] = looped(function, loops[row.engine])
    taken = take_turns(runners, Budget(runs=turns, turn_seconds=0.0, pause_seconds=0.05))
    samples = {engine: [sample / loops[engine] * 1e6 for sample in found] for engine, found in taken.items()}
    for row in rows:
        if row.engine in samples:
            of = samples[row.engine]
            row.median_us, row.min_us, row.calls = statistics.median(of), min(of), len(of) * loops[row.engine]
            if BASELINE in samples:
                row.ratio = statistics.median(samples[BASELINE]) / row.median_us
                row.min_ratio = min(samples[BASELINE]) / row.min_us
    return rows


def callable_of(engine: str, call: str, path: Path, threads: int) -> Callable[[], Any]:
    """What is timed: nothing stands between the loop and the engine's own function.

    ValueError where it does not compute, also when the numbers behind it have changed.
    """
    rng = np.random.default_rng(1)
    feeds = {name: rng.standard_normal((1, 16), dtype=np.float32) for name in ("x", "y")}
    result = np.zeros((1, 16), np.float32)
    _KEPT.append((feeds, result))
    make = openvino_call if isinstance(ENGINES[engine], OpenVino) else onnxruntime_call
    function = make(ENGINES[engine], call, path, threads, feeds, result)
    for _ in range(2):
        found = function()
        expected = feeds["x"] + (tiny.CHAIN_LENGTH if call == "chain" else 1) * feeds["y"]
        if not np.allclose(result if call == "bound" else found[0], expected, rtol=1e-4, atol=1e-4):
            raise ValueError(f"{engine} does not give the sum")
        feeds["x"] += 1
    return function


def openvino_call(
    engine: OpenVino, call: str, path: Path, threads: int, feeds: dict[str, np.ndarray], result: np.ndarray
) -> Callable[[], Any]:
    request = engine.request(path, threads)
    if call != "bound":
        return partial(request.infer, feeds, share_inputs=True)
    import openvino

    for name, value in {**feeds, "sum": result}.items():
        request.set_tensor(name, openvino.Tensor(value, shared_memory=True))
    return request.infer


def onnxruntime_call(
    engine: OnnxRuntime, call: str, path: Path, threads: int, feeds: dict[str, np.ndarray], result: np.ndarray
) -> Callable[[], Any]:
    session = engine.session(path, threads)
    if call != "bound":
        return partial(session.run, None, feeds)
    binding = session.io_binding()
    for name, value in feeds.items():
        binding.bind_input(name, "cpu", 0, value.dtype, value.shape, value.ctypes.data)
    binding.bind_output("sum", "cpu", 0, result.dtype, result.shape, result.ctypes.data)
    return partial(session.run_with_iobinding, binding)


def fitting_loop(function: Callable[[], Any]) -> int:
    """How many calls take about `LOOP_SECONDS`."""
    count = 16
    while (seconds := timed(looped(function, count))[0]) < LOOP_SECONDS / 4:
        count *= 2
    return max(1, round(count * LOOP_SECONDS / seconds))


if __name__ == "__main__":
    main()
