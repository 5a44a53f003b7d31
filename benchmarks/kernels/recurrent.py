"""Recurrent layers against onnxruntime: sessions of one layer, interleaved in one process.

    python -m benchmarks.kernels.recurrent [--threads 1] [--only LSTM]

Times are the best of many runs in turns, so they hold for weights that lie in the caches where they fit there; `reads`
is the rate at which the loop reads the recurrent weights, were the whole time spent in it.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
Run = Callable[[], list[Any]]
SECONDS = 0.6  # for each case, both engines together


@dataclass(frozen=True)
class Case:
    """A layer whose input is as wide as its hidden state."""

    kind: str
    hidden: int
    steps: int
    batch: int = 1
    directions: int = 1

    @property
    def name(self) -> str:
        ways = "" if self.directions == 1 else ", both directions"
        return f"{self.kind} hidden {self.hidden}, sequence {self.steps}, batch {self.batch}{ways}"

    @property
    def recurrent_bytes(self) -> int:
        """The bytes of R that the loop reads in all steps."""
        return 4 * self.steps * self.directions * GATES[self.kind] * self.hidden**2

    def model(self) -> bytes:
        rng = np.random.default_rng(0)
        rows = GATES[self.kind] * self.hidden
        shapes = {
            "w": (self.directions, rows, self.hidden),
            "r": (self.directions, rows, self.hidden),
            "b": (self.directions, 2 * rows),
        }
        bound = self.hidden**-0.5
        weights = [
            numpy_helper.from_array(rng.uniform(-bound, bound, shape).astype(np.float32), name)
            for name, shape in shapes.items()
        ]
        attributes: dict[str, object] = {"hidden_size": self.hidden}
        if self.directions == 2:
            attributes["direction"] = "bidirectional"
        if self.kind == "GRU":
            attributes["linear_before_reset"] = 1
        node = helper.make_node(self.kind, ["x", *shapes], ["y", "h"], **attributes)
        float32 = onnx.TensorProto.FLOAT
        graph = helper.make_graph(
            [node],
            "layer",
            [helper.make_tensor_value_info("x", float32, (self.steps, self.batch, self.hidden))],
            [helper.make_tensor_value_info(name, float32, None) for name in ("y", "h")],
            weights,
        )
        return bytes(
            helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10).SerializeToString()
        )


def cases() -> Iterator[Case]:
    """The LSTM of the sizes that the engine is measured by, then other layers, batches and directions."""
    for hidden, steps in itertools.product((128, 1024), (1, 16, 200)):
        yield Case("LSTM", hidden, steps)
    yield Case("GRU", 256, 50)
    yield Case("RNN", 256, 50)
    yield Case("LSTM", 256, 50, batch=8)
    yield Case("LSTM", 256, 50, directions=2)
    yield Case("LSTM", 512, 50, batch=32)


def _runners(case: Case, threads: int) -> list[Run]:
    """A run of the layer on Sardonyx and one on onnxruntime."""
    made: list[Run] = []
    x = np.random.default_rng(1).standard_normal((case.steps, case.batch, case.hidden)).astype(np.float32)
    model = case.model()
    for name in ("sardonyx", "onnxruntime"):
        engine = importlib.import_module(name)
        options = engine.SessionOptions()
        options.intra_op_num_threads = threads
        session = engine.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        made.append(functools.partial(session.run, None, {"x": x}))
    return made


def _best(runners: Sequence[Run]) -> list[float]:
    """The shortest run of each, in seconds, in turns of a few runs."""
    best = [float("inf")] * len(runners)
    for runner in runners:
        runner()
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        for index, runner in enumerate(runners):
            for _ in range(4):
                began = time.perf_counter()
                runner()
                best[index] = min(best[index], time.perf_counter() - began)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    options = parser.parse_args()
    print(f"{options.threads} thread(s)")
    print(f"{'layer':58} {'ours us':>9} {'ORT us':>9} {'ratio':>6} {'reads GB/s':>10} {'difference':>10}")
    for case in cases():
        if options.only not in case.name:
            continue
        runners = _runners(case, options.threads)
        (ours, *_), (theirs, *_) = (runner() for runner in runners)
        mine, other = _best(runners)
        rate = case.recurrent_bytes / mine / 1e9
        apart = np.abs(ours - theirs).max()
        print(f"{case.name:58} {mine * 1e6:9.1f} {other * 1e6:9.1f} {other / mine:6.2f} {rate:10.1f} {apart:10.1e}")


if __name__ == "__main__":
    main()
