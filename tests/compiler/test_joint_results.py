"""Results of Concats along channels: their parts are written to their places, and read there by whatever can."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

import sardonyx as ort
from sardonyx.api.explaining.explanation import explain
from sardonyx.compiler.bound_step import Buffer, Tensor
from sardonyx.compiler.joint_results import Rooms, Slice

Array = np.ndarray[Any, Any]
F32 = np.dtype(np.float32)

WEIGHTS = {
    **{f"one{index}": (32, 16, 1, 1) for index in range(4)},
    **{f"three{index}": (32, 32, 3, 3) for index in range(4)},
    "narrow": (16, 32, 1, 1),
    "narrow16": (16, 16, 1, 1),
    "wide": (24, 64, 1, 1),
    "wide52": (24, 52, 1, 1),
    "wider": (24, 96, 1, 1),
    "grow": (32, 20, 2, 2),
    "bias": (20,),
}
NUMBERS: dict[str, Array] = {
    "scales": np.array([1, 1, 2, 2], np.float32),
    "ones": np.ones(64, np.float32),
    **{name: np.array([number]) for name, number in (("zero", 0), ("channel", 1), ("half", 16))},
}


def model_of(body: str, outputs: str = "float[n, 24, h, w] y") -> onnx.ModelProto:
    head = '<ir_version: 9, opset_import: ["" : 18]> g'
    model = onnx.parser.parse_model(f"{head} (float[n, 16, h, w] x) => ({outputs}) {{ {body} }}")
    rng = np.random.default_rng(4)
    tensors = {name: rng.standard_normal(shape).astype(np.float32) / 6 for name, shape in WEIGHTS.items()} | NUMBERS
    read = {name for node in model.graph.node for name in node.input}
    for name in sorted(read & tensors.keys()):
        model.graph.initializer.append(numpy_helper.from_array(tensors[name], name))
    return model


def session(model: onnx.ModelProto, **entries: str) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    for name, value in entries.items():
        options.add_session_config_entry(f"sardonyx.cpu.{name}", value)
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def image(*shape: int) -> dict[str, Array]:
    return {"x": np.random.default_rng(10).standard_normal(shape).astype(np.float32)}


def copies(model: onnx.ModelProto, feeds: dict[str, Array]) -> list[str]:
    """The nodes for which something is copied."""
    rows = explain(session(model, batch_items="0"), feeds).rows
    return [node for row in rows if "copy" in row.kernel for node in row.operators]


# Bodies, and how many copies their Concats need.
BODIES = {
    "two results of one kernel": (
        "a = Conv(x, one0) b = Conv(x, one1) d = Mul(a, b) c = Concat<axis = 1>(b, d) y = Conv(c, wide)",
        0,
    ),
    "two products": ("a = Conv(x, one0) b = Conv(x, one1) c = Concat<axis = 1>(a, b) y = Conv(c, wide)", 0),
    "a negative axis": ("a = Conv(x, one0) b = Conv(x, one1) c = Concat<axis = -3>(a, b) y = Conv(c, wide)", 0),
    "a chain beside it": (
        """a = Conv(x, one0) b = Conv<pads = [1, 1, 1, 1]>(a, three0) d = Add(a, b) e = Relu(d) f = Conv(x, one1)
           c = Concat<axis = 1>(e, f) y = Conv(c, wide)""",
        0,
    ),
    "pools of pools": (
        """a = Conv(x, one0) b = MaxPool<kernel_shape = [5, 5], pads = [2, 2, 2, 2]>(a)
           d = MaxPool<kernel_shape = [5, 5], pads = [2, 2, 2, 2]>(b) c = Concat<axis = 1>(a, b, d)
           y = Conv(c, wider)""",
        0,
    ),
    "a loop of its own": (
        """a = Conv(x, one0) s = Slice(a, zero, half, channel) d = Exp(s) b = Conv(d, one1) e = Conv(x, narrow16)
           c = Concat<axis = 1>(d, b, e) y = Conv(c, wide)""",
        0,
    ),
    "a part that goes on": (
        """a = Conv(x, one0) b = Conv(x, one1) c = Concat<axis = 1>(b, a) d = Conv(c, wide)
           e = Conv<pads = [1, 1, 1, 1]>(a, three0) f = Conv(e, narrow) g = Conv(f, one2)
           i = Concat<axis = 1>(g, e) j = Conv(i, wide) y = Add(d, j)""",
        0,
    ),
    "a Concat of Concats": (
        """a = Conv(x, one0) b = Conv(x, one1) c = Concat<axis = 1>(a, b) d = Conv(x, one2)
           e = Concat<axis = 1>(d, c) y = Conv(e, wider)""",
        0,
    ),
    "dense": (
        """a = Conv(x, one0) b = Conv<pads = [1, 1, 1, 1]>(a, three0) c = Concat<axis = 1>(a, b) d = Relu(c)
           e = Conv(d, wide) f = Conv(x, one1) i = Concat<axis = 1>(a, b, f) j = Conv(i, wider) y = Add(e, j)""",
        0,
    ),
    "normalized in between": (
        """a = Conv(x, one0) b = Conv<pads = [1, 1, 1, 1]>(a, three0) c = Concat<axis = 1>(a, b)
           n = BatchNormalization(c, ones, ones, ones, ones) d = Relu(n) e = Conv(d, wide) f = Conv(x, one1)
           i = Concat<axis = 1>(c, f) j = Conv(i, wider) y = Add(e, j)""",
        0,
    ),
    "resized": (
        """p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(x) a = Conv(p, one0)
           b = Resize<coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">(a, , scales)
           d = Conv(x, one1) c = Concat<axis = 1>(d, b) y = Conv(c, wide)""",
        0,
    ),
    "grown": (
        """p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(x) a = Conv(p, one0)
           b = ConvTranspose<kernel_shape = [2, 2], strides = [2, 2]>(a, grow, bias) d = Conv(x, one1)
           r = Tanh(b) c = Concat<axis = 1>(d, r) y = Conv(c, wide52)""",
        0,
    ),
    "twice the same": ("a = Conv(x, one0) c = Concat<axis = 1>(a, a) y = Conv(c, wide)", 2),
    "an input": ("a = Conv(x, one0) k = Concat<axis = 1>(a, x, x) y = Conv(k, wide)", 2),
    "read by a view": (
        """a = Conv(x, one0) b = Conv(x, one1) t = Transpose<perm = [0, 1, 3, 2]>(a) s = ReduceSum<keepdims = 1>(t)
           c = Concat<axis = 1>(a, b) d = Conv(c, wide) y = Add(d, s)""",
        1,
    ),
}


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("shape", [(1, 16, 14, 12), (2, 16, 10, 18), (1, 16, 40, 44)])
def test_parts_are_not_copied_and_results_are_those_of_numpy(name: str, shape: tuple[int, ...]) -> None:
    body, copied = BODIES[name]
    model, feeds = model_of(body), image(*shape)
    (expected,) = session(model, kernels="numpy").run(None, feeds)
    for items in ("0", "1"):
        (found,) = session(model, batch_items=items).run(None, feeds)
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * np.abs(expected).max())
    assert copies(model, feeds).count("Concat") == copied


def test_what_leaves_the_model_is_no_slice() -> None:
    model = model_of(
        "a = Conv(x, one0) b = Conv(x, one1) c = Concat<axis = 1>(a, b) y = Conv(c, wide)",
        "float[n, 24, h, w] y, float[n, 32, h, w] a",
    )
    feeds = image(1, 16, 9, 11)
    results, by_numpy = session(model).run(None, feeds), session(model, kernels="numpy").run(None, feeds)
    for found, expected in zip(results, by_numpy, strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_sizes_that_come_again_and_others() -> None:
    model = model_of(BODIES["dense"][0])
    made, by_numpy = session(model), session(model, kernels="numpy")
    for shape in [(1, 16, 8, 8), (1, 16, 12, 8), (2, 16, 8, 8), (1, 16, 8, 8), (3, 16, 5, 7)]:
        feeds = image(*shape)
        (found,), (expected,) = made.run(None, feeds), by_numpy.run(None, feeds)
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


def test_a_slice_is_told_from_what_looks_like_one() -> None:
    one, shape = Slice(7, 16, 48), (2, 5, 4, 32)

    def placed(nbytes: int, strides: Sequence[int], offset: int) -> Tensor:
        return Tensor(F32, (2, 32, 5, 4), tuple(strides), Buffer(nbytes), offset)

    strides = (5 * 4 * 48, 1, 4 * 48, 48)
    assert one.nbytes(F32, shape) == 2 * 5 * 4 * 48 * 4
    assert one.holds(placed(7680, strides, 64))
    assert not one.holds(placed(7680, strides, 0))
    assert not one.holds(placed(7684, strides, 64))
    assert not one.holds(placed(7680, (640, 1, 128, 32), 64))


def test_parts_of_other_sizes_than_the_first_keep_their_memory() -> None:
    rooms = Rooms({1: Slice(3, 0, 8), 2: Slice(3, 4, 8)})
    first, second, third = (Buffer(nbytes) for nbytes in (192, 192, 384))
    rooms.take([1], [Tensor(F32, (2, 4, 3), (24, 1, 8), first)])
    rooms.take([2], [Tensor(F32, (4, 4, 3), (24, 1, 8), third, 16)])
    assert (rooms.memory(Slice(3, 0, 8)), third.home) == (first, None)
    rooms.take([2], [Tensor(F32, (2, 4, 3), (24, 1, 8), second, 16)])
    assert second.settled() == (first, 0)
