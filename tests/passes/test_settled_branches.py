"""Branches that sizes choose or break."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from onnx import parser

from sardonyx import errors
from sardonyx.graph.load import load_model
from sardonyx.passes.settled_branches import settle_branches

# What the other branch does with five elements.
KINDS = {
    "inferred": """
        pair = Constant <value_ints = [2, -1]> ()
        h = Reshape (x, pair)""",
    # The target is known only when its constants are folded.
    "folded": """
        real = Constant <value_floats = [2.5, -1.0]> ()
        sine = Sign (real)
        one = Constant <value_floats = [1.0, 0.0]> ()
        sum = Add (sine, one)
        pair = Cast <to = 7> (sum)
        h = Reshape (x, pair)""",
    "inferred in a loop": """
        turns = Constant <value_int = 2> ()
        going = Constant <value_int = 1> ()
        yes = Cast <to = 9> (going)
        h = Loop (turns, yes) <body = round (int64 i, bool on) => (bool on_, float[e, f] g) {
            on_ = Identity (on)
            pair = Constant <value_ints = [2, -1]> ()
            g = Reshape (x, pair)
        }>""",
    "folded in a loop": """
        turns = Constant <value_int = 2> ()
        going = Constant <value_int = 1> ()
        yes = Cast <to = 9> (going)
        h = Loop (turns, yes) <body = round (int64 i, bool on) => (bool on_, float[e, f] g) {
            on_ = Identity (on)
            real = Constant <value_floats = [2.5, -1.0]> ()
            sine = Sign (real)
            one = Constant <value_floats = [1.0, 0.0]> ()
            sum = Add (sine, one)
            pair = Cast <to = 7> (sum)
            g = Reshape (x, pair)
        }>""",
}


def model(then: str, other: str = "w = Neg (x)") -> ir.Model:
    text = f"""<ir_version: 9, opset_import: ["" : 17]>
    g (float[5] x, bool c) => (y) {{
        y = If (c) <
            then_branch = yes () => (float h) {{ {then} }},
            else_branch = no () => (float w) {{ {other} }}>
    }}"""
    proto = parser.parse_model(text)
    for value in (*proto.graph.output, *(one for a in proto.graph.node[0].attribute for one in a.g.output)):
        value.type.tensor_type.ClearField("shape")
        value.type.tensor_type.elem_type = 1
    return load_model(proto).model


@pytest.mark.parametrize("kind", KINDS)
def test_a_branch_that_sizes_break_raises_when_it_runs(kind: str) -> None:
    found = model(KINDS[kind])
    settle_branches(found)
    (node,) = found.graph
    branches = {name: [inner.op_type for inner in node.attributes[name].as_graph()] for name in node.attributes}
    assert branches == {"then_branch": ["Refusal"], "else_branch": ["Neg"]}


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_sizes_break_in_every_branch_is_refused(kind: str) -> None:
    with pytest.raises(errors.Fail, match="Reshape"):
        settle_branches(model(KINDS[kind], KINDS[kind].replace("h =", "w =")))
