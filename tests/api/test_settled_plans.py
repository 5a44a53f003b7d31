"""Models whose Ifs ask for sizes: the same results before and after they are compiled for the sizes that come again."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

import sardonyx as ort
from sardonyx import errors
from sardonyx.api.running import settled_plans

Array = np.ndarray[Any, Any]

# As an exporter writes "squeeze the second axis if it is one": behind it no rank is known.
MODEL = """<ir_version: 9, opset_import: ["" : 17]>
agraph (float[p, q] x, bool c) => (float[r, s] y) {
    shape = Shape (x)
    one = Constant <value_ints = [1]> ()
    second = Gather <axis = 0> (shape, one)
    is_one = Equal (second, one)
    flat = If (is_one) <
        then_branch = yes () => (float[a] narrow) { narrow = Squeeze (x, one) },
        else_branch = no () => (float[b, d] same) { same = Identity (x) }>
    pair = Constant <value_ints = [2, -1]> ()
    z = Exp (flat)
    y = If (c) <
        then_branch = halves () => (float[e, f] h) { h = Reshape (z, pair) },
        else_branch = whole () => (float[g, k] w) {
            row = Constant <value_ints = [1, -1]> ()
            w0 = Reshape (z, row)
            w = Neg (w0)
        }>
}"""


def model() -> bytes:
    return parser.parse_model(MODEL).SerializeToString()


def session(source: bytes | str, level: ort.GraphOptimizationLevel | None = None) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    if level is not None:
        options.graph_optimization_level = level
    return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def expected(x: Array, halves: bool) -> Array:
    z = np.exp(x)
    return z.reshape(2, -1) if halves else -z.reshape(1, -1)


def check(made: ort.InferenceSession, shape: tuple[int, int], halves: bool) -> None:
    x = np.random.default_rng(shape[0]).standard_normal(shape).astype(np.float32)
    (y,) = made.run(None, {"x": x, "c": np.array(halves)})
    np.testing.assert_allclose(y, expected(x, halves), rtol=1e-6)


def settled(made: ort.InferenceSession) -> settled_plans.SettledPlans:
    found = made._sess._settled
    assert found is not None
    return found


def test_sizes_that_come_again_have_plans_without_questions() -> None:
    made = session(model())
    for _ in range(4):
        check(made, (6, 1), True)
        check(made, (3, 4), False)
    kinds = [[step.op_type for step in plan.steps] for plan in settled(made).plans]
    assert len(kinds) == 2
    generic = [step.op_type for step in made._sess.plan.steps]
    assert generic.count("If") == 2
    assert all(found.count("If") == 1 for found in kinds)  # the one that asks for data
    assert made._sess.fast_run is not None


@pytest.mark.parametrize("halves", [True, False])
def test_a_branch_that_sizes_break_is_an_error_only_where_it_is_chosen(halves: bool) -> None:
    made = session(model())
    x = np.ones((5, 1), np.float32)
    for _ in range(4):
        if halves:
            with pytest.raises(errors.OnnxRuntimeError, match=r"Reshape.*cannot be reshaped") as found:
                made.run(None, {"x": x, "c": np.array(True)})
            assert "Refusal" not in str(found.value)
        else:
            check(made, (5, 1), False)
    assert len(settled(made).plans) == 1
    check(made, (5, 1), False)


def test_few_sizes_are_kept_and_few_plans_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settled_plans, "MOST_BUILDS", 6)
    made = session(model())
    for count in range(2, 30, 2):
        for _ in range(3):
            check(made, (count, 1), bool(count % 4))
    found = settled(made)
    assert len(found.plans) == settled_plans.MOST_SIZES
    assert found._builds == 6


def test_where_data_decide_other_sizes_are_not_tried() -> None:
    text = """<ir_version: 9, opset_import: ["" : 17]>
    agraph (float[p, q] x, bool c) => (float[r] y) {
        one = Constant <value_ints = [1]> ()
        flat = If (c) <
            then_branch = yes () => (float[a] narrow) { narrow = Squeeze (x, one) },
            else_branch = no () => (float[b, d] same) { same = Identity (x) }>
        long = Constant <value_ints = [-1]> ()
        y = Reshape (flat, long)
    }"""
    made = session(parser.parse_model(text).SerializeToString())
    for count in (2, 3, 4):
        x = np.arange(count, dtype=np.float32).reshape(count, 1)
        for turn in range(4):
            np.testing.assert_array_equal(made.run(None, {"x": x, "c": np.array(turn % 2 == 0)})[0], x.ravel())
    assert len(settled(made).plans) == 1


def test_threads_with_different_sizes() -> None:
    made = session(model())

    def work(number: int) -> None:
        for turn in range(20):
            check(made, (2 + 2 * (number % 3), 1 + number % 2), bool(turn % 2))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))


def test_other_models_and_levels_ask_for_nothing() -> None:
    plain = parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 17]> g (float[n] x) => (float[n] y) { y = Exp (x) }'
    )
    assert session(plain.SerializeToString())._sess._settled is None
    off = session(model(), ort.GraphOptimizationLevel.ORT_DISABLE_ALL)
    assert off._sess._settled is None
    for _ in range(3):
        check(off, (4, 1), True)


def test_a_file_that_changed_is_not_compiled_again(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(model())
    made = session(str(path))
    check(made, (4, 1), True)
    other = parser.parse_model(MODEL.replace("Exp (flat)", "Abs (flat)"))
    onnx.save(other, path)
    for _ in range(3):
        check(made, (4, 1), True)
    assert settled(made).plans == []
