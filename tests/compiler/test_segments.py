"""Segments: what is divided where, and that the order of steps changes no result."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest

import sardonyx as ort
from sardonyx.runtime.native.native_segment import NativeSegment
from sardonyx.runtime.native_plan import PhaseColumn
from tests.compiler.rewrites import ALL_REWRITES

Array = np.ndarray[Any, Any]

BRANCHES = """(float[256, 256] x, float[256, 256] w) => (float[256, 256] y) {
    [a1] a1 = MatMul(x, w)
    [a2] a2 = MatMul(a1, w)
    [a3] a3 = Softmax(a2)
    [b1] b1 = MatMul(w, x)
    [b2] b2 = MatMul(b1, x)
    [b3] b3 = Softmax(b2)
    [c] y = MatMul(a3, b3)
}"""


def session(text: str, mode: ort.ExecutionMode = ort.ExecutionMode.ORT_SEQUENTIAL) -> ort.InferenceSession:
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 20]>\nagraph {text}')
    options = ort.SessionOptions()
    options.execution_mode = mode
    options.inter_op_num_threads = 2
    options.intra_op_num_threads = 2
    return ort.InferenceSession(model.SerializeToString(), options, disabled_optimizers=ALL_REWRITES)


def random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def phases(made: ort.InferenceSession, shapes: tuple[tuple[int, ...], ...]) -> int:
    """How often the thread pool of a session that is one segment meets."""
    (step,) = made._sess._plan.steps
    assert isinstance(step.call, NativeSegment)
    plan = step.call.plan_for(shapes).plan
    assert PhaseColumn.FIRST == 0
    return int((plan.steps[1:, 4] & 1).sum()) + 1


def test_branches_run_side_by_side_where_that_is_asked_for() -> None:
    feeds = {"x": random(256, 256), "w": random(256, 256, seed=1)}
    one, both = session(BRANCHES), session(BRANCHES, ort.ExecutionMode.ORT_PARALLEL)
    np.testing.assert_array_equal(one.run(None, feeds)[0], both.run(None, feeds)[0])
    shapes = ((256, 256), (256, 256))
    assert phases(both, shapes) < phases(one, shapes)


@pytest.mark.parametrize("mode", [ort.ExecutionMode.ORT_SEQUENTIAL, ort.ExecutionMode.ORT_PARALLEL])
def test_values_that_are_used_late_keep_their_memory(mode: ort.ExecutionMode) -> None:
    """A long branch reuses the arena while a short one's result waits for the end."""
    lines = ["[s] s = MatMul(x, x)", "[v0] v0 = MatMul(x, x)"]
    lines += [f"[v{i}] v{i} = MatMul(v{i - 1}, x)" for i in range(1, 12)]
    text = "(float[32, 32] x) => (float[32, 32] y) { " + "\n".join(lines) + "\n[y] y = MatMul(s, v11) }"
    x = random(32, 32) / 8
    expected = np.linalg.matrix_power(x.astype(np.float64), 15)
    np.testing.assert_allclose(session(text, mode).run(None, {"x": x})[0], expected, atol=1e-6)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("p = MatMul(x, x)  q = MatMul(x, w)  r = Add(q, p)  y = MatMul(r, w)", 1),
        ("p = MatMul(x, x)  q = MatMul(p, w)  r = Add(q, p)  y = MatMul(r, w)", 2),
        ("p = MatMul(x, x)  q = MatMul(x, w)  r = Add(q, p)  s = MatMul(r, w)  y = Add(s, p)", 2),
        ("p = MatMul(x, x)  q = MatMul(x, w)  r = Add(q, p)  y = Transpose(p)  z = MatMul(r, w)", 1),
    ],
    ids=("read for the last time", "read as a factor, too", "read later", "handed to the caller"),
)
def test_a_product_lies_where_what_is_added_to_it_did(text: str, values: int) -> None:
    names = sorted({name for name in ("y", "z") if f"{name} =" in text})
    outputs = ", ".join(f"float[64, 64] {name}" for name in names)
    parallel = ort.ExecutionMode.ORT_PARALLEL  # plans of sequential ones may be symbolic, which do not do that
    made = session(f"(float[64, 64] x, float[64, 64] w) => ({outputs}) {{ {text} }}", parallel)
    (step,) = made._sess._plan.steps
    assert isinstance(step.call, NativeSegment)
    assert step.call.plan_for(((64, 64), (64, 64))).plan.arena_bytes == values * 64 * 64 * 4
    feeds = {"x": random(64, 64) / 8, "w": random(64, 64, seed=1) / 8}
    x, w = feeds.values()
    p = x @ x
    r = x @ w + p if "MatMul(p, w)" not in text else p @ w + p
    expected = {"y": r @ w, "z": r @ w}
    if len(names) > 1:
        expected["y"] = p.T
    elif "Add(s, p)" in text:
        expected["y"] = r @ w + p
    for name, result in zip(names, made.run(names, feeds), strict=True):
        np.testing.assert_allclose(result, expected[name], atol=1e-5)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("p = CumSum(x, axis)  q = Exp(p)  y = MatMul(q, w)", 1),
        ("p = CumSum(x, axis)  t = Transpose(p)  q = Add(p, t)  y = MatMul(q, w)", 2),
    ],
    ids=("element by element", "elements in two places"),
)
def test_what_goes_over_elements_writes_them_where_it_reads(text: str, values: int) -> None:
    axis = "[axis] axis = Constant <value_int = 0> ()"
    parallel = ort.ExecutionMode.ORT_PARALLEL
    made = session(f"(float[64, 64] x, float[64, 64] w) => (float[64, 64] y) {{ {axis} {text} }}", parallel)
    (step,) = made._sess._plan.steps
    assert isinstance(step.call, NativeSegment)
    assert step.call.plan_for(((64, 64), (64, 64))).plan.arena_bytes == values * 64 * 64 * 4
    feeds = {"x": random(64, 64) / 64, "w": random(64, 64, seed=1) / 8}
    p = feeds["x"].cumsum(0)
    expected = (p + p.T if "Transpose" in text else np.exp(p)) @ feeds["w"]
    np.testing.assert_allclose(made.run(None, feeds)[0], expected, atol=1e-4)


def test_a_step_by_itself_divides_segments_and_known_values_reach_both() -> None:
    text = """(float[n, 8] x) => (float[m, 8] y, float[n, 8] z) {
        [shape] shape = Shape(x)
        [e] e = Exp(x)
        [flat] flat = Constant <value_ints = [-1]> ()
        [line] line = Reshape(e, flat)
        [u] u = Unique(line)
        [total] total = ReduceSum(u)
        [f] f = Add(e, total)
        [z] z = Reshape(f, shape)
        [y] y = Neg(f)
    }"""
    made = session(text)
    kinds = [step.kind for step in made._sess._plan.steps]
    assert kinds.count("segment") == 2
    assert "native" in kinds
    for rows in (3, 5):
        x = random(rows, 8)
        y, z = made.run(None, {"x": x})
        expected = np.exp(x) + np.unique(np.exp(x)).sum()
        np.testing.assert_allclose(z, expected, rtol=1e-5)
        np.testing.assert_allclose(y, -expected, rtol=1e-5)
        assert made.run(["y"], {"x": x})[0].tolist() == y.tolist()
