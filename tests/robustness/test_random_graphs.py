"""Whole sessions of random graphs against onnxruntime without optimizations."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

import sardonyx
from tests.robustness.random_graph import Array
from tests.robustness.random_steps import random_graph

# Seeds of a test, of which each makes a graph of another size; batches one after the other.
_SEEDS, _NODES, _BATCHES = 20, (4, 10, 25, 60), (2, 5, 1, 2)
_LEVELS = (
    *[sardonyx.GraphOptimizationLevel.ORT_ENABLE_ALL] * 5,
    sardonyx.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    sardonyx.GraphOptimizationLevel.ORT_DISABLE_ALL,
)
_TOLERANCE = 5e-4  # relative to the largest element: nodes enlarge what roundings differ by


@pytest.mark.parametrize("first", range(0, 5 * _SEEDS, _SEEDS))
def test_graphs_give_what_onnxruntime_gives(first: int) -> None:
    compared = sum(_compare(seed) for seed in range(first, first + _SEEDS))
    assert compared > 0.8 * _SEEDS


def _compare(seed: int) -> bool:
    """Compare runs of a graph, with changing batches and bound; whether onnxruntime could run it."""
    graph = random_graph(seed, _NODES[seed % len(_NODES)])
    outputs = graph.outputs()
    model = graph.model(outputs).SerializeToString()
    feeds = {batch: graph.feeds(batch) for batch in _BATCHES}
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    try:
        peer = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        expected = {batch: peer.run(outputs, feed) for batch, feed in feeds.items()}
    except Exception:  # whatever it raises: the graph is no example
        return False
    own = sardonyx.SessionOptions()
    own.intra_op_num_threads = 1 + seed % 2
    own.graph_optimization_level = _LEVELS[seed % len(_LEVELS)]
    session = sardonyx.InferenceSession(model, own, providers=["CPUExecutionProvider"])
    for batch in _BATCHES:
        found = session.run(outputs, feeds[batch])
        _assert_alike(dict(zip(outputs, found, strict=True)), expected[batch], f"seed {seed}, batch {batch}")
    batch = _BATCHES[1]
    binding = session.io_binding()
    for name, array in feeds[batch].items():
        binding.bind_cpu_input(name, array)
    memory = {name: np.full_like(array, np.nan) for name, array in zip(outputs, expected[batch], strict=True)}
    for name, array in memory.items():
        binding.bind_output(name, "cpu", 0, np.float32, array.shape, array.ctypes.data)
    session.run_with_iobinding(binding)
    _assert_alike(memory, expected[batch], f"seed {seed}, bound")
    return True


def _assert_alike(found: dict[str, Array], expected: list[Array], where: str) -> None:
    for (name, array), other in zip(found.items(), expected, strict=True):
        assert (array.shape, array.dtype) == (other.shape, other.dtype), f"{where}, {name}"
        finite = np.isfinite(other)
        largest = max(1.0, float(np.abs(other, where=finite, out=np.zeros_like(other)).max(initial=0)))
        np.testing.assert_allclose(array, other, rtol=0, atol=_TOLERANCE * largest, err_msg=f"{where}, {name}")
