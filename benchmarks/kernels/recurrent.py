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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from benchmarks.turns import Budget, take_turns

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
BUDGET = Budget(seconds=0.3, turn_seconds=0.05)


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


def best(model: bytes, feeds: dict[str, np.ndarray], threads: int) -> tuple[list[float], list[list[np.ndarray]]]:
    """The shortest run of a model on Sardonyx and on onnxruntime, in seconds, and their outputs."""
    runners: dict[str, Callable[[], Any]] = {}
    for name in ("sardonyx", "onnxruntime"):
        engine = importlib.import_module(name)
        options = engine.SessionOptions()
        options.intra_op_num_threads = threads
        session = engine.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        runners[name] = functools.partial(session.run, None, feeds)
    outputs = [runner() for runner in runners.values()]
    return [min(taken) for taken in take_turns(runners, BUDGET).values()], outputs


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
        x = np.random.default_rng(1).standard_normal((case.steps, case.batch, case.hidden)).astype(np.float32)
        (mine, other), ((ours, *_), (theirs, *_)) = best(case.model(), {"x": x}, options.threads)
        rate = case.recurrent_bytes / mine / 1e9
        apart = np.abs(ours - theirs).max()
        print(f"{case.name:58} {mine * 1e6:9.1f} {other * 1e6:9.1f} {other / mine:6.2f} {rate:10.1f} {apart:10.1e}")


if __name__ == "__main__":
    main()
