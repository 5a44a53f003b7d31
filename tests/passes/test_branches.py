"""Ifs that always choose the same branch."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import parser

from tests.passes.agreement import assert_agrees
from tests.passes.models import operators, rewritten

X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)
FEEDS = {"x": X, "z": X + 1}
EQUAL = """
    xs = Shape (x)
    zs = Shape (z)
    one = Constant <value_int = 1> ()
    m = Gather (xs, one)
    k = Gather (zs, one)
    c = Equal (m, k)"""


def model(nodes: str, outputs: str = "float[a, b] y", z: str = "float[a, b] z") -> onnx.ModelProto:
    text = f'<ir_version: 9, opset_import: ["" : 17]> g (float[a, b] x, {z}) => ({outputs}) {{ {nodes} }}'
    return parser.parse_model(text)


def choice(result: str, condition: str = "c", yes: str = "h = Abs (x)", no: str = "h = Neg (x)") -> str:
    """An If that gives `result`; both branches use the name h."""
    return f"""
    {result} = If ({condition}) <
        then_branch = yes () => (float[a, b] h) {{ {yes} }},
        else_branch = no () => (float[a, b] h) {{ {no} }}>"""


@pytest.mark.parametrize(("negated", "kept"), [(False, "Abs"), (True, "Neg")])
def test_the_branch_that_sizes_choose_takes_the_place_of_its_if(negated: bool, kept: str) -> None:
    before = model(EQUAL + ("\n d = Not (c)" if negated else "") + choice("y", "d" if negated else "c"))
    after, reports = rewritten(before)
    assert operators(after) == [kept]
    assert reports["BranchElimination"].changes == 1
    assert_agrees(before, after, FEEDS)


def test_branches_with_the_same_names_stand_beside_each_other() -> None:
    before = model(EQUAL + choice("p") + choice("q", no="h = Identity (x)", yes="h = Exp (p)") + "\n y = Add (p, q)")
    after, _ = rewritten(before)
    assert operators(after) == ["Abs", "Exp", "Add"]
    names = [name for node in after.graph.node for name in node.output]
    assert len(set(names)) == len(names)
    assert_agrees(before, after, FEEDS)


def test_what_a_branch_gives_through_is_read_where_it_comes_from() -> None:
    before = model(EQUAL + "\n w = Exp (x)" + choice("p", yes="h = Identity (w)") + "\n y = Neg (p)")
    after, _ = rewritten(before)
    assert operators(after) == ["Exp", "Neg"]
    assert_agrees(before, after, FEEDS)


def test_constants_and_ifs_inside_come_along() -> None:
    inner = choice("h", yes="two = Constant <value_float = 2.0> () h = Mul (x, two)").replace("h)", "g)", 2)
    inner = inner.replace("h = Mul", "g = Mul").replace("h = Neg", "g = Neg")
    before = model(EQUAL + choice("y", yes=inner))
    after, reports = rewritten(before)
    assert operators(after) == ["Mul"]
    assert reports["BranchElimination"].changes == 2
    assert_agrees(before, after, FEEDS)


def test_an_if_inside_an_open_one_is_settled() -> None:
    inner = choice("h").replace("h)", "g)").replace("h = Abs", "g = Abs").replace("h = Neg", "g = Neg")
    opened = "\n s = ReduceSum <keepdims = 0> (x) zero = Constant <value_float = 0.0> () o = Less (s, zero)"
    before = model(EQUAL + opened + choice("y", "o", yes=inner, no="h = Exp (x)"))
    after, reports = rewritten(before)
    (node,) = [node for node in after.graph.node if node.op_type == "If"]
    assert sorted(one.op_type for branch in node.attribute for one in branch.g.node) == ["Abs", "Exp"]
    assert reports["BranchElimination"].changes == 1
    assert_agrees(before, after, {"x": X - 1, "z": X})


def test_sizes_that_may_differ_leave_both_branches() -> None:
    before = model(EQUAL + choice("y"), z="float[a, d] z")
    after, reports = rewritten(before)
    assert "If" in operators(after)
    assert reports["BranchElimination"].changes == 0
    assert_agrees(before, after, FEEDS)
    assert_agrees(before, after, {"x": X, "z": X[:, :2]})


def test_ifs_of_loops_stay() -> None:
    before = model(f"""{EQUAL}
    turns = Constant <value_int = 2> ()
    y = Loop (turns, c, x) <body = round (int64 i, bool on, float[a, b] v) => (bool on_, float[a, b] u) {{
        on_ = Identity (on)
        {choice("w", yes="h = Abs (v)", no="h = Neg (v)")}
        u = Add (w, v)
    }}>""")
    after, reports = rewritten(before)
    assert reports["BranchElimination"].changes == 0
    assert_agrees(before, after, FEEDS)
