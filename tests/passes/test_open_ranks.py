"""Readers of what two branches give with different numbers of dimensions."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

import sardonyx
from tests.passes.agreement import outputs_of, outputs_of_onnxruntime
from tests.passes.models import operators, rewritten

HEAD = '<ir_version: 8, opset_import: ["": 17]> g (float[n, m] x, bool c) =>'
# `y` has two or three dimensions, and `w` as many as x in both branches.
BRANCHES = """y, w = If(c) <
    then_branch = a () => (float[q, r] y1, float[q, r] w1) { y1 = Relu(x) w1 = Identity(x) },
    else_branch = b () => (float[q, s, r] y2, float[q, r] w2) { y2 = Unsqueeze(x, one) w2 = Neg(x) }>"""
CONSTANTS = "one = Constant<value_ints = [1]>() flat = Constant<value_ints = [-1]>()"


def model(outputs: str, nodes: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f"{HEAD} ({outputs}) {{ {CONSTANTS} {BRANCHES} {nodes} }}")


FOLLOWED = {
    "readers": ("float[k] z", "e = Exp(y) z = Reshape(e, flat)"),
    "what others read, too": (
        "float[k] z, float[n, m] v, float[n, m] w",
        "e = Exp(y) v = Abs(w) f = Reshape(e, flat) s = Reshape(v, flat) z = Add(f, s) u = Relu(v)",
    ),
    "nodes behind that need no branch": (
        "float[k] z, float[n, m] t",
        "t = Tanh(x) big = ReduceMax(t) e = Add(y, big) z = Reshape(e, flat)",
    ),
    "a size": ("int64 z", "s = Shape(y) z = Size(s)"),
}
LEFT = {
    "read by control flow": (
        "float[k] z",
        "z = If(c) <then_branch = d () => (float[k] z1) { z1 = Reshape(y, flat) }, "
        "else_branch = f () => (float[k] z2) { z2 = Reshape(x, flat) }>",
    ),
}


@pytest.mark.parametrize("case", [*FOLLOWED, *LEFT])
@pytest.mark.parametrize("chosen", [True, False])
def test_results_stay(case: str, chosen: bool) -> None:
    before = model(*(FOLLOWED | LEFT)[case])
    feeds = {"x": np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32), "c": np.array(chosen)}
    expected = outputs_of_onnxruntime(before, feeds)
    for given, level in ((rewritten(before)[0], 0), (before, 0), (before, 99)):
        for mine, theirs in zip(outputs_of(given, feeds, level), expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("case", "outside"), [("readers", {"If"}), ("nodes behind that need no branch", {"If", "Tanh"})]
)
def test_readers_go_into_the_branches(case: str, outside: set[str]) -> None:
    after = rewritten(model(*FOLLOWED[case]))[0]
    assert outside <= set(operators(after))
    assert "Reshape" not in {node.op_type for node in after.graph.node}
    (node,) = (node for node in after.graph.node if node.op_type == "If")
    for branch in node.attribute:
        assert branch.g.node[-1].op_type == "Reshape"
    onnx.checker.check_model(after)


@pytest.mark.parametrize("chosen", [True, False])
def test_an_output_of_any_rank_is_given_out(chosen: bool) -> None:
    before = model("float[] z, float[k] f", "z = Exp(y) f = Reshape(z, flat)")
    feeds = {"x": np.ones((3, 4), np.float32), "c": np.array(chosen)}
    for mine, theirs in zip(outputs_of(before, feeds, 99), outputs_of_onnxruntime(before, feeds), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5)


@pytest.mark.parametrize("case", LEFT)
def test_what_cannot_follow_stays(case: str) -> None:
    before = model(*LEFT[case])
    assert [node.op_type for node in rewritten(before)[0].graph.node] == [
        node.op_type for node in before.graph.node if node.op_type != "Constant"
    ]


def test_a_branch_that_its_readers_would_break_stays_as_it_is() -> None:
    before = model(
        "float[k] z",
        "three = Constant<value_ints = [1, 0, 2]>() t = Transpose<perm = [1, 0, 2]>(y) z = Reshape(t, flat)",
    )
    session = sardonyx.InferenceSession(before.SerializeToString())
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.testing.assert_array_equal(session.run(None, {"x": x, "c": np.array(False)})[0], x.reshape(-1))
    with pytest.raises(sardonyx.errors.OnnxRuntimeError):
        session.run(None, {"x": x, "c": np.array(True)})
