"""Loops whose rounds hand on what stays, or multiply one item of a sequence each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.passes.agreement import assert_agrees
from tests.passes.models import make_model, node_of, operators, rewritten

_RNG = np.random.default_rng(9)
ITEMS, BATCH, INPUTS, HIDDEN = 6, 2, 5, 4
SEQUENCE = _RNG.standard_normal((ITEMS, BATCH, INPUTS)).astype(np.float32)
CONSTANTS = {
    "w": _RNG.standard_normal((INPUTS, HIDDEN)).astype(np.float32),
    "r": _RNG.standard_normal((HIDDEN, HIDDEN)).astype(np.float32),
    "h0": np.zeros((BATCH, HIDDEN), np.float32),
    "zero": np.array(0, np.int64),
    "rounds": np.array(ITEMS, np.int64),
    "true": np.array(True),
}
STATES = {
    "i": (TensorProto.INT64, []),
    "h": (TensorProto.FLOAT, [BATCH, HIDDEN]),
    "w_in": (TensorProto.FLOAT, [INPUTS, HIDDEN]),
    "r_in": (TensorProto.FLOAT, [HIDDEN, HIDDEN]),
}
BODY = (
    helper.make_node("Add", ["i", "one"], ["i_next"]),
    helper.make_node("Gather", ["x", "i"], ["item"], axis=0),
    helper.make_node("MatMul", ["item", "w_in"], ["from_item"]),
    helper.make_node("MatMul", ["h", "r_in"], ["from_state"]),
    helper.make_node("Add", ["from_item", "from_state"], ["total"]),
    helper.make_node("Tanh", ["total"], ["h_next"]),
    helper.make_node("Identity", ["h_next"], ["item_out"]),
    helper.make_node("Identity", ["going"], ["going_on"]),
)


def recurrent(
    outputs: Sequence[str] = ("y",), body: Sequence[onnx.NodeProto] = BODY, sequence: str = "x", limit: str = "rounds"
) -> onnx.ModelProto:
    """A recurrent layer as a Loop that carries its weights, as converters of TensorFlow write it."""
    handed = {"i": "i_next", "h": "h_next"}
    inputs = {"round": (TensorProto.INT64, []), "going": (TensorProto.BOOL, []), **STATES}
    graph = helper.make_graph(
        body,
        "body",
        [helper.make_tensor_value_info(name, *kind) for name, kind in inputs.items()],
        [
            helper.make_tensor_value_info("going_on", TensorProto.BOOL, []),
            *(helper.make_tensor_value_info(handed.get(name, name), *kind) for name, kind in STATES.items()),
            helper.make_tensor_value_info("item_out", TensorProto.FLOAT, [BATCH, HIDDEN]),
        ],
        [numpy_helper.from_array(np.array(1, np.int64), "one")],
    )
    results = ["i_end", "h_end", "w_end", "r_end", "stacked"]
    nodes = [
        helper.make_node("Neg", ["given"], ["x"] if sequence == "x" else ["unread"]),
        helper.make_node("Loop", [limit, "true", "zero", "h0", "w", "r"], results, body=graph),
        helper.make_node("MatMul", ["h_end", "r_end"], ["end"]),
        helper.make_node("Add", ["stacked", "end"], ["y"]),
    ]
    constants = {**CONSTANTS, "none": np.array(0, np.int64)}
    if sequence != "x":
        constants["x"] = SEQUENCE
    return make_model(nodes, {"given": SEQUENCE.shape}, outputs, constants)


def body_of(model: onnx.ModelProto) -> onnx.GraphProto:
    return node_of(model, "Loop").attribute[0].g


def test_rounds_read_what_stays_where_it_comes_from() -> None:
    model = recurrent()
    after, reports = rewritten(model, disabled=["LoopProductFusion"])
    assert reports["LoopInvariantElimination"].changes == 2
    assert list(node_of(after, "Loop").input[3:]) == ["h0"]
    assert [value.name for value in body_of(after).input[2:]] == ["i", "h"]
    assert {"w", "r"} <= {name for node in body_of(after).node for name in node.input}
    assert_agrees(model, after, {"given": SEQUENCE})


def test_what_stays_is_there_after_no_round() -> None:
    model = recurrent(("end",), limit="none")
    after, reports = rewritten(model)
    assert reports["LoopInvariantElimination"].changes == 2
    assert_agrees(model, after, {"given": SEQUENCE})


def test_what_the_model_gives_out_is_carried_on() -> None:
    model = recurrent(("y", "w_end"))
    after, reports = rewritten(model)
    assert reports["LoopInvariantElimination"].changes == 1
    assert len(node_of(after, "Loop").input) == 5
    assert_agrees(model, after, {"given": SEQUENCE})


@pytest.mark.parametrize("index", ["i", "round"])
def test_items_of_a_sequence_are_multiplied_before_the_loop(index: str) -> None:
    body = [helper.make_node("Gather", ["x", index], ["item"]) if node.op_type == "Gather" else node for node in BODY]
    model = recurrent(body=body)
    after, reports = rewritten(model)
    assert reports["LoopProductFusion"].changes == 1
    assert operators(after) == ["Neg", "MatMul", "Loop", "MatMul", "Add"]
    assert [node.op_type for node in body_of(after).node].count("MatMul") == 1
    assert_agrees(model, after, {"given": SEQUENCE})


def test_rows_of_tables_and_of_places_that_do_not_count_are_multiplied_in_the_loop() -> None:
    table = recurrent(sequence="table")
    after, reports = rewritten(table)
    assert reports["LoopProductFusion"].changes == 0
    assert "table" in reports["LoopProductFusion"].declined[0]
    assert_agrees(table, after, {"given": SEQUENCE})
    halves = [helper.make_node("Mul", ["i", "zero"], ["place"])]
    jumping = recurrent(body=[*halves, helper.make_node("Gather", ["x", "place"], ["item"]), BODY[0], *BODY[2:]])
    after, reports = rewritten(jumping)
    assert reports["LoopProductFusion"].changes == 0
    assert_agrees(jumping, after, {"given": SEQUENCE})
