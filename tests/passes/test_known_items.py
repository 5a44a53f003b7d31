"""Sequences whose items are known, and Loops of one round: how exporters split a tensor at given places."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.passes.agreement import assert_agrees
from tests.passes.models import make_model, operators, rewritten

X = np.random.default_rng(3).standard_normal((4, 6)).astype(np.float32)
CONSTANTS = {
    "one": np.array(1, np.int64),
    "two": np.array(2, np.int64),
    "true": np.array(True),
    "false": np.array(False),
    "minus": np.array(-1, np.int64),
    "zero": np.array(0, np.int64),
    "far": np.array(7, np.int64),
}
FEEDS = {"x": X}


def _body(counter: list[int]) -> onnx.GraphProto:
    """Each round adds some rows to a sequence: those between two of the places."""
    items = helper.make_tensor_sequence_value_info
    nodes = [
        helper.make_node("Reshape", ["round", "flat"], ["at"]),
        helper.make_node("Gather", ["places", "at"], ["begin"]),
        helper.make_node("Add", ["at", "next"], ["after"]),
        helper.make_node("Gather", ["places", "after"], ["end"]),
        helper.make_node("Slice", ["h", "begin", "end", "axis"], ["part"]),
        helper.make_node("SequenceInsert", ["parts", "part"], ["more"]),
        helper.make_node("Identity", ["going"], ["going_on"]),
    ]
    constants = {"flat": [1], "next": [1], "axis": [0], "places": [0, 3, 4]}
    return helper.make_graph(
        nodes,
        "body",
        [
            helper.make_tensor_value_info("round", TensorProto.INT64, counter),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            items("parts", TensorProto.FLOAT, [None, None]),
        ],
        [
            helper.make_tensor_value_info("going_on", TensorProto.BOOL, []),
            items("more", TensorProto.FLOAT, [None, None]),
        ],
        [numpy_helper.from_array(np.array(value, np.int64), name) for name, value in constants.items()],
    )


def _split(limit: str = "one", going: str = "true", counter: tuple[int, ...] = ()) -> onnx.ModelProto:
    """What a Loop of so many rounds puts into a sequence, and another item; the first and the last are taken."""
    nodes = [
        helper.make_node("Relu", ["x"], ["h"]),
        helper.make_node("SequenceEmpty", [], ["none"]),
        helper.make_node("Loop", [limit, going, "none"], ["some"], body=_body(list(counter))),
        helper.make_node("Neg", ["h"], ["own"]),
        helper.make_node("SequenceInsert", ["some", "own"], ["all"]),
        helper.make_node("SequenceAt", ["all", "zero"], ["first"]),
        helper.make_node("SequenceAt", ["all", "minus"], ["last"]),
        helper.make_node("Concat", ["last", "first"], ["y"], axis=0),
    ]
    model = make_model(nodes, {"x": X.shape}, ["y"], CONSTANTS)
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 6]))
    return model


@pytest.mark.parametrize("counter", [(), (1,)])
@pytest.mark.parametrize("going", ["true", ""])
def test_one_round_and_its_items_are_nodes_like_others(going: str, counter: tuple[int, ...]) -> None:
    model = _split(going=going, counter=counter)
    after, reports = rewritten(model)
    assert reports["SingleRoundElimination"].changes == 1
    assert reports["SequenceItemElimination"].changes == 2
    assert not {"Loop", "SequenceAt", "SequenceInsert", "SequenceEmpty"} & set(operators(after))
    assert_agrees(model, after, FEEDS)


@pytest.mark.parametrize(("limit", "going"), [("two", "true"), ("one", "false"), ("zero", "true")])
def test_other_loops_stay(limit: str, going: str) -> None:
    model = _split(limit, going)
    after, reports = rewritten(model)
    assert reports["SingleRoundElimination"].changes == reports["SequenceItemElimination"].changes == 0
    assert "Loop" in operators(after)
    assert_agrees(model, after, FEEDS)


@pytest.mark.parametrize(("place", "known"), [("zero", True), ("two", True), ("minus", True), ("far", False)])
def test_items_are_inserted_where_the_model_says(place: str, known: bool) -> None:
    nodes = [
        *(helper.make_node(kind, ["x"], [name]) for kind, name in [("Relu", "a"), ("Neg", "b"), ("Abs", "c")]),
        helper.make_node("SequenceConstruct", ["a", "b"], ["two_items"]),
        helper.make_node("SequenceInsert", ["two_items", "c", "minus"], ["items"]),
        helper.make_node("SequenceAt", ["items", place], ["item"]),
        helper.make_node("Exp", ["item"], ["y"]),
    ]
    model = make_model(nodes, {"x": X.shape}, ["y"], CONSTANTS)
    after, reports = rewritten(model)
    assert reports["SequenceItemElimination"].changes == known
    if known:
        assert len(operators(after)) == 2
        assert_agrees(model, after, FEEDS)
