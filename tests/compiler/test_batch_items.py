"""Batches that go through a segment in rounds of a few items, and those that must not."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

import sardonyx as ort
from sardonyx.api.explanation import explain
from sardonyx.compiler.native_steps import BoundSegment
from sardonyx.runtime.native_segment import NativeSegment

KEY = "sardonyx.cpu.batch_items"


def model(body: str, weights: dict[str, np.ndarray] | None = None, dims: str = "n, 4, 9, 7", out: str = "y") -> bytes:
    """A model of one input x; `body` makes `out`."""
    text = f'<ir_version: 9, opset_import: ["" : 18]> g (float[{dims}] x) => (float[] {out}) {{ {body} }}'
    made = onnx.parser.parse_model(text)
    made.graph.output[0].type.tensor_type.ClearField("shape")
    for name, array in (weights or {}).items():
        made.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return made.SerializeToString()


def session(made: bytes, items: str, threads: int = 1) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry(KEY, items)
    return ort.InferenceSession(made, options)


def rounds_of(one: ort.InferenceSession, shape: tuple[int, ...]) -> int:
    """In how many rounds the session's only segment does an input of this shape."""
    (segment,) = [step.call for step in one._sess.plan.steps if isinstance(step.call, NativeSegment)]
    source = segment.plan_for((shape,)).source
    assert isinstance(source, BoundSegment)
    return source.bound.rounds


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


WEIGHTS = {"w": draw(6, 4, 3, 3), "b": draw(6), "d": draw(6, 1, 3, 3), "m": draw(6, 5)}
NETWORK = """
    a = Conv<pads=[1,1,1,1]>(x, w, b) c = Relu(a) e = Conv<group=6, pads=[1,1,1,1]>(c, d) f = Add(e, c)
    p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(f) q = Concat<axis=1>(p, p)
    axes = Constant<value_ints=[1]>() half = Constant<value_ints=[6,6]>() s, t = Split<axis=1>(q, half) u = Mul(s, t)
    g = GlobalAveragePool(u) h = Flatten(g) z = MatMul(h, m) y = Sigmoid(z)
"""
ROWS = """
    shape = Shape(x) zero = Constant<value_int=0>() n0 = Gather(shape, zero) first = Constant<value_ints=[0]>()
    rows = Unsqueeze(n0, first) rest = Constant<value_ints=[4,-1]>() to = Concat<axis=0>(rows, rest)
    r = Reshape(x, to) t = Transpose<perm=[0,2,1]>(r) u = Relu(t) y = Softmax<axis=-1>(u)
"""


@pytest.mark.parametrize("batch", range(1, 10))
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("body", [NETWORK, ROWS])
def test_rounds_compute_what_the_whole_batch_does(body: str, threads: int, batch: int) -> None:
    made = model(body, WEIGHTS if body == NETWORK else None)
    x = draw(batch, 4, 9, 7)
    (whole,) = session(made, "0").run(None, {"x": x})
    for items in (1, 2, 3, 9):
        parts = session(made, str(items), threads)
        (found,) = parts.run(None, {"x": x})
        np.testing.assert_allclose(found, whole, rtol=2e-6, atol=2e-6)
        few = max(n for n in range(1, min(batch, items) + 1) if batch % n == 0)
        assert rounds_of(parts, x.shape) == batch // few
        np.testing.assert_array_equal(parts.run(None, {"x": x})[0], found)


def test_a_round_has_the_bits_of_a_run_of_its_items() -> None:
    one = session(model(NETWORK, WEIGHTS), "1")
    x = draw(5, 4, 9, 7)
    (found,) = one.run(None, {"x": x})
    alone = [one.run(None, {"x": x[n : n + 1]})[0] for n in range(5)]
    np.testing.assert_array_equal(found, np.concatenate(alone))


MIXING = {
    "mean over items": "axes = Constant<value_ints=[0]>() y = ReduceMean(x, axes)",
    "softmax over items": "y = Softmax<axis=0>(x)",
    "items are joined": "y = Concat<axis=0>(x, x)",
    "items become channels": "to = Constant<value_ints=[1,-1,9,7]>() r = Reshape(x, to) y = Relu(r)",
    "items are exchanged": "y0 = Transpose<perm=[1,0,2,3]>(x) y = Relu(y0)",
    "items are left out": """a = Constant<value_ints=[0]>() s = Constant<value_ints=[1]>()
        e = Constant<value_ints=[9]>()
        r = Slice(x, s, e, a) y = Relu(r)""",
    "items in reverse": """a = Constant<value_ints=[0]>() s = Constant<value_ints=[-1]>()
        e = Constant<value_ints=[-99]>()
        b = Constant<value_ints=[-1]>() r = Slice(x, s, e, a, b) y = Relu(r)""",
    "the number of items is a factor": """shape = Shape(x) zero = Constant<value_int=0>() n0 = Gather(shape, zero)
        f = Cast<to=1>(n0) y = Mul(x, f)""",
    "an operand for each item": "y = Add(x, each)",
    "items are summed up": "a = Constant<value_int=0>() y = CumSum(x, a)",
    "places count through the batch": "v, i = MaxPool<kernel_shape=[2,2]>(x) j = Cast<to=1>(i) y = Add(v, j)",
    "statistics of the batch": """s = Constant<value_floats=[1.0,1.0,1.0,1.0]>() y, m, v =
        BatchNormalization<training_mode=1>(x, s, s, s, s)""",
}


@pytest.mark.parametrize("what", MIXING)
@pytest.mark.parametrize("batch", [2, 4])
def test_batches_whose_items_depend_on_each_other_stay_whole(what: str, batch: int) -> None:
    made = model(MIXING[what], {"each": draw(batch, 1, 1, 1)})
    x = draw(batch, 4, 9, 7)
    (whole,) = session(made, "0").run(None, {"x": x})
    parts = session(made, "1")
    np.testing.assert_array_equal(parts.run(None, {"x": x})[0], whole)
    segments = [step.call for step in parts._sess.plan.steps if isinstance(step.call, NativeSegment)]
    assert all(ready.source.bound.rounds == 1 for one in segments for ready in one._plans.values())


def test_a_fixed_batch_is_divided_too() -> None:
    made = model(NETWORK, WEIGHTS, "6, 4, 9, 7")
    x = draw(6, 4, 9, 7)
    parts = session(made, "2")
    np.testing.assert_allclose(parts.run(None, {"x": x})[0], session(made, "0").run(None, {"x": x})[0], rtol=2e-6)
    assert rounds_of(parts, x.shape) == 3


def test_large_maps_are_divided_and_small_ones_are_not() -> None:
    body = "a = Add(x, x) b = MaxPool<kernel_shape=[3,3], pads=[1,1,1,1]>(a) c = Mul(b, a) y = GlobalAveragePool(c)"
    one = session(model(body, dims="n, c, h, k"), "auto")
    assert rounds_of(one, (4, 4, 9, 7)) == 1
    caches = one._sess.plan.steps[0].call.plan_for(((1, 4, 9, 7),)).source.segment.library.target.caches
    side = 1 + int((caches.l3 / 4 / 16 / 2) ** 0.5)
    assert rounds_of(one, (16, 2, side, side)) > 1


def test_an_explanation_counts_all_rounds_and_says_why() -> None:
    made, x = model(NETWORK, WEIGHTS), draw(6, 4, 9, 7)
    told = []
    for items in ("0", "2"):
        rows = explain(session(made, items), {"x": x}, runs=2).rows
        assert all(row.measured_us is not None for row in rows if row.kind == "native")
        told.append(rows)
    whole, parts = told
    assert len(parts) == len(whole)
    assert all("2 of 6 items at a time" in row.detail for row in parts)
    assert sum(row.flops for row in parts) == pytest.approx(sum(row.flops for row in whole))


def test_an_unknown_number_of_items_is_refused() -> None:
    with pytest.raises(Exception, match="batch_items"):
        session(model("y = Relu(x)"), "some")
