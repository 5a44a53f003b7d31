"""Bound runs allocate nothing: counted in Python's memory, in that of C's allocator, and in pages of the system."""

from __future__ import annotations

import ctypes
import gc
import itertools
import resource
import tracemalloc
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx as ort

HIDDEN, HEADS, TOKENS, WORDS = 48, 4, 20, 100
RUNS = 200


def encoder(layers: int = 2) -> bytes:
    """A small encoder of sentences: embeddings, attention, normalisation and GELU, then the mean over the tokens."""
    rng = np.random.default_rng(4)
    nodes: list[onnx.NodeProto] = []
    tensors: list[onnx.TensorProto] = []
    numbers = itertools.count()

    def tensor(array: Any) -> str:
        name = f"c{next(numbers)}"
        tensors.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def weights(*shape: int) -> str:
        return tensor((rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32))

    def node(kind: str, inputs: Sequence[str], **attributes: Any) -> str:
        name = f"v{next(numbers)}"
        nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def linear(x: str, size: int, width: int) -> str:
        return node("Add", [node("MatMul", [x, weights(size, width)]), weights(width)])

    def heads(x: str, order: Sequence[int]) -> str:
        split = node("Reshape", [x, tensor([0, 0, HEADS, HIDDEN // HEADS])])
        return node("Transpose", [split], perm=list(order))

    def normalized(x: str) -> str:
        ones = tensor(np.ones(HIDDEN, np.float32))
        return node("LayerNormalization", [x, ones, weights(HIDDEN)], axis=-1, epsilon=1e-5)

    x = normalized(node("Gather", [weights(WORDS, HIDDEN), "ids"]))
    for _ in range(layers):
        q, k, v = (linear(x, HIDDEN, HIDDEN) for _ in range(3))
        scores = node("MatMul", [heads(q, (0, 2, 1, 3)), heads(k, (0, 2, 3, 1))])
        scaled = node("Softmax", [node("Mul", [scores, tensor(np.float32(0.25))])], axis=-1)
        mixed = node("Transpose", [node("MatMul", [scaled, heads(v, (0, 2, 1, 3))])], perm=[0, 2, 1, 3])
        attended = linear(node("Reshape", [mixed, tensor([0, 0, HIDDEN])]), HIDDEN, HIDDEN)
        x = normalized(node("Add", [x, attended]))
        inner = node("Erf", [node("Mul", [linear(x, HIDDEN, 2 * HIDDEN), tensor(np.float32(0.7))])])
        x = normalized(node("Add", [x, linear(inner, 2 * HIDDEN, HIDDEN)]))
    nodes.append(helper.make_node("ReduceMean", [x], ["sentence"], axes=[1], keepdims=0))
    nodes.append(helper.make_node("Identity", [x], ["states"]))
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "encoder",
        [info("ids", TensorProto.INT64, ["batch", "tokens"])],
        [
            info("sentence", TensorProto.FLOAT, ["batch", HIDDEN]),
            info("states", TensorProto.FLOAT, ["batch", "tokens", HIDDEN]),
        ],
        tensors,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()


class Bound:
    """A session and its binding to arrays of the test's."""

    def __init__(self, threads: int) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        self.session = ort.InferenceSession(encoder(), options)
        self.ids = np.random.default_rng(1).integers(0, WORDS, (2, TOKENS))
        self.results = [np.zeros((2, HIDDEN), np.float32), np.zeros((2, TOKENS, HIDDEN), np.float32)]
        self.binding = self.session.io_binding()
        self.binding.bind_input("ids", "cpu", 0, np.int64, self.ids.shape, self.ids.ctypes.data)
        for name, array in zip(("sentence", "states"), self.results, strict=True):
            self.binding.bind_output(name, "cpu", 0, np.float32, array.shape, array.ctypes.data)
        self.run(3)

    def run(self, count: int) -> None:
        run, binding = self.session.run_with_iobinding, self.binding
        for _ in itertools.repeat(None, count):
            run(binding)


@pytest.fixture(params=[1, 2])
def bound(request: pytest.FixtureRequest) -> Iterator[Bound]:
    made = Bound(request.param)
    gc.collect()
    gc.disable()
    yield made
    gc.enable()


def test_bound_runs_write_what_ordinary_ones_give(bound: Bound) -> None:
    for seed in (2, 3):
        bound.ids[...] = np.random.default_rng(seed).integers(0, WORDS, bound.ids.shape)
        bound.run(1)
        for result, expected in zip(bound.results, bound.session.run(None, {"ids": bound.ids}), strict=True):
            np.testing.assert_array_equal(result, expected)


def test_bound_runs_take_no_memory_of_python(bound: Bound) -> None:
    bound.run(RUNS)
    tracemalloc.start()
    try:
        bound.run(1)
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        bound.run(RUNS)
        after, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before <= 64  # the object that `get_traced_memory` gives
    assert most - before <= 512  # one call's frame, which is gone when the next one begins


def test_bound_runs_take_no_memory_of_c(bound: Bound) -> None:
    usage = _usage_of_c()
    bound.run(RUNS)
    found = [usage()]
    for _ in range(5):  # threads of earlier tests may end meanwhile
        bound.run(RUNS)
        found.append(usage())
    assert any(before == after for before, after in itertools.pairwise(found))


def test_bound_runs_touch_no_new_pages(bound: Bound) -> None:
    found = []
    for _ in range(5):  # the system may take pages away, and a thread may need some of its own
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        bound.run(RUNS)
        found.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    assert min(found) < RUNS // 10


def test_bound_runs_leave_the_lanes_of_the_session_as_they_are(bound: Bound) -> None:
    before = bound.session.memory_report()
    bound.run(RUNS)
    after = bound.session.memory_report()
    assert after.execution_contexts == before.execution_contexts
    assert after.plans == before.plans
    assert after.results == before.results


def _usage_of_c() -> Any:
    """A function that tells what the allocator of C has given out; the test is skipped where it does not say."""
    try:
        mallinfo = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError):
        pytest.skip("the C library does not tell")

    class Info(ctypes.Structure):
        _fields_ = tuple(
            (name, ctypes.c_size_t)
            for name in (
                "arena", "ordblks", "smblks", "hblks", "hblkhd",
                "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
            )
        )  # fmt: skip

    mallinfo.restype = Info

    def usage() -> tuple[int, int, int]:
        info = mallinfo()
        return info.uordblks, info.hblkhd, info.arena

    usage()
    return usage
