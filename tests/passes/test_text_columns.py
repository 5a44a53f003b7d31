"""Columns of strings that are looked up at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.passes.agreement import outputs_of, outputs_of_onnxruntime
from tests.passes.models import operators, rewritten

ML = "ai.onnx.ml"
WORDS = np.array([["b", "a", "b"], ["", "c", "a"], ["a", "a", "c"], ["c", "x", "y"]], object)
NUMBERS = {"keys_strings": ["a", "b", "a", "c"], "values_floats": [0.5, -1.0, 9.0, 2.5], "default_float": 7.0}
PLACES = {"keys_strings": ["c", "x", "a"], "values_int64s": [4, -2, 4], "default_int64": 12}
ROWS = {"cats_strings": ["b", "a", "b", "y"]}
TEXTS = {"keys_strings": ["a"], "values_strings": ["b"]}


def columns(
    *encoders: tuple[str, dict[str, Any]], picks: tuple[Any, ...] = (0, 1, 2), width: Any = 3, outside: bool = False
) -> Any:
    """Each encoder reads what is picked from one matrix by places; single ones lose the dimension with Gather."""
    nodes, outputs, places = [], [], []
    for number, (op_type, attributes) in enumerate(encoders):
        pick = np.array(picks[number], np.int64)
        places.append(helper.make_tensor(f"p{number}", TensorProto.INT64, pick.shape, pick.reshape(-1)))
        if pick.shape:
            nodes.append(helper.make_node("ArrayFeatureExtractor", ["x", f"p{number}"], [f"c{number}"], domain=ML))
        else:
            nodes.append(helper.make_node("Gather", ["x", f"p{number}"], [f"c{number}"], axis=1))
        nodes.append(helper.make_node(op_type, [f"c{number}"], [f"y{number}"], f"n{number}", domain=ML, **attributes))
        kind = TensorProto.INT64 if "values_int64s" in attributes else TensorProto.FLOAT
        kind = TensorProto.STRING if "values_strings" in attributes else kind
        outputs.append(helper.make_tensor_value_info(f"y{number}", kind, None))
    if outside:
        outputs.append(helper.make_tensor_value_info("c0", TensorProto.STRING, None))
    inputs = [helper.make_tensor_value_info("x", TensorProto.STRING, ["n", width])]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(ML, 3)]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, places)
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


NUMBER, PLACE, ROW = ("LabelEncoder", NUMBERS), ("LabelEncoder", PLACES), ("OneHotEncoder", ROWS)


@pytest.mark.parametrize(
    "model",
    [
        columns(NUMBER, PLACE, ROW),
        columns(ROW, ROW, NUMBER, picks=([2], [0, 1], [1])),
        columns(NUMBER, PLACE, picks=(0, [0, 2, 0])),
        columns(PLACE, ROW, picks=(-1, -3), outside=True),
    ],
    ids=["each", "several", "twice", "read elsewhere"],
)
def test_columns_are_looked_up_at_once(model: Any) -> None:
    after = rewritten(model)[0]
    texts = [node for node in after.graph.node if any(name.name.endswith("_strings") for name in node.attribute)]
    assert [(node.op_type, list(node.input)) for node in texts] == [("LabelEncoder", ["x"])]
    for words in (WORDS, WORDS[:1], WORDS[:0]):
        expected = outputs_of_onnxruntime(model, {"x": words})
        for given, level in ((after, 0), (model, 0), (model, 99)):
            for mine, theirs in zip(outputs_of(given, {"x": words}, level), expected, strict=True):
                assert mine.dtype == theirs.dtype
                np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(
    "model",
    [
        columns(NUMBER),
        columns(NUMBER, ("LabelEncoder", TEXTS)),
        columns(NUMBER, PLACE, width=5),
        columns(NUMBER, PLACE, width=None),
    ],
    ids=["one column", "texts", "most are not read", "of any width"],
)
def test_what_stays(model: Any) -> None:
    assert operators(rewritten(model)[0]) == operators(model)
