"""Nodes that must stay float32 are found by running the model."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import sardonyx
from sardonyx import errors
from sardonyx.transformers import mixed_precision
from sardonyx.transformers.float16 import auto_mixed_precision

RNG = np.random.default_rng(5)


def overflowing() -> onnx.ModelProto:
    """A chain in which one value, `big`, is beyond what float16 holds."""
    text = """<ir_version: 10, opset_import: ["" : 18]> g (float[n, 4] x) => (float[n, 4] y) {
      a = MatMul(x, w) b = Relu(a) c = Add(b, x) big = Mul(c, up) d = Div(big, down) e = Tanh(d) f = MatMul(e, w)
      y = Neg(f) }"""
    model = onnx.parser.parse_model(text)
    weights = {"w": RNG.standard_normal((4, 4)), "up": np.array([5e4]), "down": np.array([6e4])}
    model.graph.initializer.extend(
        numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()
    )
    return model


FEEDS = {"x": RNG.standard_normal((3, 4)).astype(np.float32)}


def result(model: onnx.ModelProto, half: bool) -> np.ndarray:
    session = sardonyx.InferenceSession(model)
    feeds = {name: array.astype(np.float16) if half else array for name, array in FEEDS.items()}
    return np.float32(session.run(None, feeds)[0])


def blocked_operators(model: onnx.ModelProto) -> list[str]:
    """The operators between casts to float32 and back."""
    made = {node.output[0] for node in model.graph.node if node.op_type == "Cast" and node.attribute[0].i == 1}
    found = []
    for node in model.graph.node:
        if node.op_type != "Cast" and made.intersection(node.input):
            made.update(node.output)
            found.append(node.op_type)
    return found


def test_the_nodes_around_an_overflow_stay():
    model = overflowing()
    after = auto_mixed_precision(model, FEEDS, rtol=0.02, atol=0.02)
    assert blocked_operators(after) == ["Mul", "Div"]  # the value beyond float16, between them
    np.testing.assert_allclose(result(after, half=True), result(model, half=False), rtol=0.02, atol=0.02)
    assert [node.name for node in model.graph.node] == [""] * 8  # the model that was given stays as it is


def test_nothing_stays_where_half_is_enough():
    model = overflowing()
    model.graph.initializer[1].CopyFrom(numpy_helper.from_array(np.float32([1.0]), "up"))
    after = auto_mixed_precision(model, FEEDS, atol=0.1)
    assert all(node.op_type != "Cast" for node in after.graph.node)


def test_the_options_are_those_of_the_conversion():
    after = auto_mixed_precision(
        overflowing(), FEEDS, rtol=0.02, atol=0.02, keep_io_types=True, op_block_list=["Tanh"], max_finite_val=3e4
    )
    kinds = {info.name: info.type.tensor_type.elem_type for info in (*after.graph.input, *after.graph.output)}
    assert kinds == {"x": 1, "y": 1}
    assert "Tanh" in blocked_operators(after)


def test_a_measure_of_the_callers_own():
    seen = []

    def near(wanted, found):
        seen.append((wanted[0].dtype, found[0].dtype))
        return bool(np.isfinite(np.float32(found[0])).all())

    after = auto_mixed_precision(overflowing(), FEEDS, near)
    assert seen[0] == (np.float32, np.float16)
    assert np.isfinite(result(after, half=True)).all()


def test_the_search_finds_a_smallest_set():
    wanted = {"b", "g", "h", "p"}
    asked = []

    def passes(blocked):
        asked.append(set(blocked))
        return wanted <= set(blocked)

    letters = "abcdefghijklmnopqrstuvwxyz"
    assert mixed_precision._needed(letters, (), passes) == sorted(wanted)
    assert len(asked) < 40


def test_what_cannot_be_reached_is_refused():
    with pytest.raises(errors.Fail, match="even where every node computes in float32"):
        auto_mixed_precision(overflowing(), FEEDS, atol=1e-9)
    with pytest.raises(ValueError, match="give validate_fn, rtol or atol"):
        auto_mixed_precision(overflowing(), FEEDS)
