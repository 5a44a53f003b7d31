"""Batches that go through a segment in rounds of a few items, and those that must not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import onnx
import onnx.parser
import pytest

import sardonyx as ort
from sardonyx.api.explaining.explanation import explain
from sardonyx.compiler.batches import batch_rounds
from sardonyx.compiler.batches.batch_choice import Load, Part
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.native_steps import BoundSegment
from sardonyx.runtime.native.native_segment import NativeSegment

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


def rounds_of(one: ort.InferenceSession, shape: tuple[int, ...]) -> list[int]:
    """In how many rounds the session's only segment does an input of this shape, stretch by stretch."""
    (segment,) = [step.call for step in one._sess.plan.steps if isinstance(step.call, NativeSegment)]
    source = segment.plan_for((shape,)).source
    assert isinstance(source, BoundSegment)
    bound = source.bound
    assert len(bound.order) == len(bound.plan.steps)
    assert set(bound.order) == set(range(len(bound.steps)))
    return [stretch.rounds for stretch in bound.stretches] or [1]


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
        rest = [1] if batch % items and batch > items else []
        assert rounds_of(parts, x.shape) == [max(1, batch // items), *rest]
        np.testing.assert_array_equal(parts.run(None, {"x": x})[0], found)


def test_a_round_has_the_bits_of_a_run_of_its_items() -> None:
    one = session(model(NETWORK, WEIGHTS), "1")
    x = draw(5, 4, 9, 7)
    (found,) = one.run(None, {"x": x})
    alone = [one.run(None, {"x": x[n : n + 1]})[0] for n in range(5)]
    np.testing.assert_array_equal(found, np.concatenate(alone))


# Other operators that keep items apart, on maps of 4 channels with 9 by 7 places.
APART = {
    "normalised over places": """axes = Constant<value_ints=[2,3]>() m = ReduceMean(x, axes) d = Sub(x, m)
        y = LayerNormalization<axis=-1>(d, seven, seven)""",
    "normalised by known statistics": "y = BatchNormalization(x, four, four, four, four)",
    "normalised for each item": "y = InstanceNormalization(x, four, four)",
    "matrices times matrices": "t = Transpose<perm=[0,1,3,2]>(x) p = MatMul(x, t) y = Softmax<axis=-1>(p)",
    "axes come and go": """a = Constant<value_ints=[2]>() m = ReduceMean<keepdims=1>(x, a) s = Squeeze(m, a)
        u = Unsqueeze(s, a) y = Mul(x, u)""",
    "picked channels": "i = Constant<value_ints=[2,0]>() g = Gather<axis=1>(x, i) y = Relu(g)",
    "rows of items are counted together": """to = Constant<value_ints=[-1,9,7]>() r = Reshape(x, to)
        t = Transpose<perm=[0,2,1]>(r) p = MatMul(r, t) back = Constant<value_ints=[-1,4,9,9]>()
        y = Reshape(p, back)""",
    "extremes of maps": """axes = Constant<value_ints=[2,3]>() low = ReduceMin(x, axes) high = ReduceMax(x, axes)
        d = Sub(x, low) y = Mul(d, high)""",
    "normalised over channels": "l = LRN<size=3>(x) y = Relu(l)",
}


@pytest.mark.parametrize("what", APART)
def test_operators_that_keep_items_apart_go_in_rounds(what: str) -> None:
    made = model(APART[what], {"four": 1 + draw(4) ** 2, "seven": draw(7)})
    x = draw(5, 4, 9, 7)
    (whole,) = session(made, "0").run(None, {"x": x})
    parts = session(made, "2")
    np.testing.assert_allclose(parts.run(None, {"x": x})[0], whole, rtol=2e-6, atol=2e-6)
    assert rounds_of(parts, x.shape) == [2, 1]


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
    plans = [ready.source.bound for one in segments for ready in one._plans.values()]
    assert all(stretch.rounds == 1 for bound in plans for stretch in bound.stretches)


def test_a_fixed_batch_is_divided_too() -> None:
    made = model(NETWORK, WEIGHTS, "6, 4, 9, 7")
    x = draw(6, 4, 9, 7)
    parts = session(made, "2")
    np.testing.assert_allclose(parts.run(None, {"x": x})[0], session(made, "0").run(None, {"x": x})[0], rtol=2e-6)
    assert rounds_of(parts, x.shape) == [3]


def test_large_maps_are_divided_and_small_ones_are_not() -> None:
    body = "a = Add(x, x) b = MaxPool<kernel_shape=[3,3], pads=[1,1,1,1]>(a) c = Mul(b, a) y = GlobalAveragePool(c)"
    one = session(model(body, dims="n, c, h, k"), "auto")
    assert rounds_of(one, (4, 4, 9, 7)) == [1]
    caches = one._sess.plan.steps[0].call.plan_for(((1, 4, 9, 7),)).source.segment.library.target.caches
    side = 1 + int((caches.l3 / 4 / 16 / 2) ** 0.5)
    assert rounds_of(one, (16, 2, side, side))[0] > 1


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


RESIDUAL = """
    a0 = Conv<pads=[1,1,1,1]>(x, w, b) a = Relu(a0) s0 = Conv<group=6, pads=[1,1,1,1]>(a, d) s1 = Add(a, s0)
    s = Relu(s1)
    t0 = Conv<pads=[1,1,1,1]>(s, e) t = Sigmoid(t0) p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(t)
    q0 = Conv<strides=[2,2]>(p, e) q1 = Relu(q0) g = GlobalAveragePool(q1) h = Flatten(g) z = MatMul(h, m)
    y = Sigmoid(z)
"""


def in_parts(monkeypatch: pytest.MonkeyPatch, seed: int) -> list[list[Part]]:
    """Let sessions cut segments wherever they can, into parts of random numbers of items; what they chose."""
    numbers = np.random.default_rng(seed)
    chosen: list[list[Part]] = []

    def cut(loads: Sequence[Load], cuts: Mapping[int, int], batch: int, target: Target) -> list[Part]:
        bounds = [0, *(index for index in sorted(cuts) if numbers.random() < 0.7), len(loads)]
        chosen.append([Part(*both, int(numbers.integers(1, batch + 1))) for both in pairwise(bounds)])
        return chosen[-1]

    monkeypatch.setattr(batch_rounds, "choose", cut)
    return chosen


@pytest.mark.parametrize("seed", range(12))
def test_parts_of_any_numbers_of_items_compute_what_the_whole_batch_does(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = model(RESIDUAL, {**WEIGHTS, "e": draw(6, 6, 3, 3)}, "n, 4, 19, 17")
    x = draw(2 + seed % 7, 4, 19, 17)
    (whole,) = session(made, "0").run(None, {"x": x})
    chosen = in_parts(monkeypatch, seed)
    found = [session(made, "auto", threads).run(None, {"x": x})[0] for threads in (1, 2)]
    assert max(map(len, chosen)) > 1
    for one in found:
        np.testing.assert_allclose(one, whole, rtol=2e-5, atol=2e-6)


def test_outputs_on_the_way_and_at_the_end_come_from_their_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    made = onnx.load_from_string(model(RESIDUAL, {**WEIGHTS, "e": draw(6, 6, 3, 3)}, "n, 4, 19, 17"))
    made.graph.output.extend([onnx.helper.make_empty_tensor_value_info(name) for name in ("s", "p")])
    for value in made.graph.output[1:]:
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    x = draw(5, 4, 19, 17)
    whole = session(made.SerializeToString(), "0").run(None, {"x": x})
    for seed in range(4):
        in_parts(monkeypatch, seed)
        for one, other in zip(session(made.SerializeToString(), "auto").run(None, {"x": x}), whole, strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)


def test_numbers_of_items_do_not_depend_on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    made = model(RESIDUAL, {**WEIGHTS, "e": draw(6, 6, 3, 3)}, "n, 4, 19, 17")
    x = draw(7, 4, 19, 17)
    found = []
    for threads in (1, 2, 3):
        in_parts(monkeypatch, 5)
        found.append(session(made, "auto", threads).run(None, {"x": x})[0])
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])
