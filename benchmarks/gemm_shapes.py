"""Matrix products of random shapes, as users get them: sessions of one MatMul.

    python -m benchmarks.gemm_shapes [--count 200] [--threads 1,2] [--variable] [--json FILE]

M, N and K are drawn from 1 to 4096, evenly on a logarithmic scale, with a fixed seed. The right matrix is a weight
(`--variable`: an input), M stays symbolic. onnxruntime and Sardonyx take turns; in a turn a loop of some milliseconds
is timed as a whole. The figures are medians and minima, `ratio` is onnxruntime's time over ours: above 1 is faster.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from benchmarks import floors, isolated, machine, options, report
from benchmarks.engines import BASELINE, ENGINES, OURS, OnnxRuntime
from benchmarks.tables import Column, Table, geomean
from benchmarks.turns import Budget, difference, looped, take_turns, timed

LARGEST = 4096
LARGE = 512
SEED = 200
LOOP_SECONDS = 0.005
WORST = 10
TOLERANCE = 1e-4  # of the largest value

TABLE = Table(
    (
        Column("m", "m", "d", 5),
        Column("n", "n", "d", 5),
        Column("k", "k", "d", 5),
        Column("thr", "threads", "d", 3),
        Column("onnxruntime us", "peer_us", ".1f", 14),
        Column("ours us", "ours_us", ".1f", 10),
        Column("GFLOP/s", "gflops", ".1f", 7),
        Column("fma", "fma_share", ".0%", 5),
        Column("ratio", "ratio", ".2f", 6),
        Column("of minima", "min_ratio", ".2f", 9),
        Column("max rel", "max_rel", ".0e", 7),
    )
)


@dataclass
class Product:
    """One shape on both engines."""

    m: int
    n: int
    k: int
    threads: int
    error: str = ""
    peer_us: float = 0.0
    ours_us: float = 0.0
    gflops: float = 0.0
    fma_share: float = 0.0
    ratio: float = 0.0
    min_ratio: float = 0.0
    max_rel: float = 0.0


def main() -> None:
    parser = options.parser("gemm_shapes", __doc__)
    parser.add_argument("--count", type=int, default=200, help="shapes; default: %(default)s")
    parser.add_argument("--variable", action="store_true", help="the right matrix is an input too")
    parser.add_argument("--turns", type=int, default=7, help="turns of each engine; default: %(default)s")
    options.add_threads(parser, (1,))
    options.add_json(parser)
    chosen = parser.parse_args()
    print(machine.line())
    kept = report.Report(chosen.json)
    part = "gemm_variable" if chosen.variable else "gemm"
    rows = measure_all(
        chosen.count, chosen.threads, chosen.variable, chosen.turns, report.ceilings(kept, chosen.threads)
    )
    kept.put(part, rows, {"turns": chosen.turns, "variable": chosen.variable})
    print(summary(kept.rows(part)))


def shapes(count: int) -> list[tuple[int, int, int]]:
    """M, N and K of `count` products."""
    drawn = np.exp(np.random.default_rng(SEED).uniform(0.0, np.log(LARGEST), (count, 3)))
    return [(m, n, k) for m, n, k in np.clip(np.rint(drawn), 1, LARGEST).astype(int).tolist()]


def model(n: int, k: int, variable: bool) -> bytes:
    """A model of one MatMul: rows x k times k x n."""
    right = np.random.default_rng(n * k).standard_normal((k, n), dtype=np.float32)
    inputs = [helper.make_tensor_value_info("a", TensorProto.FLOAT, ["rows", k])]
    weights = [numpy_helper.from_array(right, "b")]
    if variable:
        inputs.append(helper.make_tensor_value_info("b", TensorProto.FLOAT, [k, n]))
        weights = []
    output = helper.make_tensor_value_info("c", TensorProto.FLOAT, ["rows", n])
    graph = helper.make_graph([helper.make_node("MatMul", ["a", "b"], ["c"])], "product", inputs, [output], weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(made.SerializeToString())


def measure_all(
    count: int, threads: Iterable[int], variable: bool, turns: int, ceilings: floors.Floors
) -> Iterator[Product]:
    """Rows of all shapes, each printed when it is there; a process for every number of threads."""
    print(f"\nMatrix products\n\n{TABLE.head()}")
    for thread_pool in threads:
        for part in range(0, count, 20):
            chosen = shapes(count)[part : part + 20]
            for row in measure_apart(chosen, thread_pool, variable, turns):
                if not row.error:
                    row.fma_share = row.gflops * 1e9 / ceilings.flops(thread_pool)
                print(TABLE.line(asdict(row)), flush=True)
                yield row


def measure_apart(chosen: Sequence[tuple[int, int, int]], threads: int, variable: bool, turns: int) -> list[Product]:
    """Some shapes, in a fresh process; each in one of its own if that fails."""
    try:
        return isolated.call(measure, chosen, threads, variable, turns)
    except Exception as error:  # a shape that fails is a result, not the end of the benchmark
        if len(chosen) == 1:
            return [Product(*chosen[0], threads, isolated.reason(error))]
    return [row for shape in chosen for row in measure_apart([shape], threads, variable, turns)]


def measure(chosen: Iterable[tuple[int, int, int]], threads: int, variable: bool, turns: int) -> list[Product]:
    """Both engines on some shapes, in this process."""
    rows = [Product(m, n, k, threads) for m, n, k in chosen]
    for row in rows:
        try:
            measure_product(row, variable, turns)
        except Exception as error:  # an engine that fails is a result, not the end of the benchmark
            row.error = f"{row.m} x {row.n} x {row.k}: {isolated.reason(error)}"
    return rows


def measure_product(row: Product, variable: bool, turns: int) -> None:
    rng = np.random.default_rng(row.m)
    feeds = {"a": rng.standard_normal((row.m, row.k), dtype=np.float32)}
    if variable:
        feeds["b"] = rng.standard_normal((row.k, row.n), dtype=np.float32)
    text = model(row.n, row.k, variable)
    calls, outputs = {}, {}
    for name in (BASELINE, OURS):
        engine = ENGINES[name]
        assert isinstance(engine, OnnxRuntime)
        calls[name] = partial(engine.session(text, row.threads).run, None, feeds)
        outputs[name] = calls[name]()
    _, row.max_rel = difference(outputs[OURS], outputs[BASELINE])
    if row.max_rel > TOLERANCE:
        raise ValueError(f"the results differ by {row.max_rel:.1e} of the largest value")
    # Short products are timed in loops, the same for both.
    slower = max(timed(call)[0] for call in calls.values())
    count = max(1, round(LOOP_SECONDS / slower))
    pause = 0.0 if row.threads == 1 else 0.05
    budget = Budget(runs=turns, turn_seconds=0.0, pause_seconds=pause)
    taken = take_turns({name: looped(call, count) for name, call in calls.items()}, budget)
    # What was timed computes: other numbers give other results, exactly twice as large.
    feeds["a"] *= 2
    twice = difference(calls[OURS](), [2 * value for value in outputs[OURS]])
    if twice != (0.0, 0.0):
        raise ValueError("twice the left matrix does not give twice the product")
    medians = {name: statistics.median(found) / count for name, found in taken.items()}
    row.peer_us, row.ours_us = medians[BASELINE] * 1e6, medians[OURS] * 1e6
    row.gflops = 2e-9 * row.m * row.n * row.k / medians[OURS]
    row.ratio = medians[BASELINE] / medians[OURS]
    row.min_ratio = min(taken[BASELINE]) / min(taken[OURS])


def summary(rows: Iterable[dict]) -> str:
    """The geometric means and the worst shapes, for each number of threads."""
    rows = list(rows)
    lines = []
    for threads in sorted({row["threads"] for row in rows}):
        good = [row for row in rows if row["threads"] == threads and not row["error"]]
        behind = sum(row["min_ratio"] < 1 for row in good)
        failed = sum(1 for row in rows if row["threads"] == threads and row["error"])
        large = [row["fma_share"] for row in good if min(row["m"], row["n"], row["k"]) >= LARGE]
        share = f", share of the peak from {LARGE} cubed on {min(large):.0%} to {max(large):.0%}" if large else ""
        lines.append(
            f"\n{threads} threads, {len(good)} shapes: geometric mean {geomean(row['ratio'] for row in good):.3f} "
            f"(of minima {geomean(row['min_ratio'] for row in good):.3f}), {behind} behind by their minima, "
            f"{failed} failed{share}. The worst:\n"
        )
        lines.append(TABLE.text(sorted(good, key=lambda row: row["min_ratio"])[:WORST]))
    return "\n".join(lines)


if __name__ == "__main__":
    main()
