"""Features of strings that are made from the numbers of their names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import sardonyx
from sardonyx import errors
from tests.passes.agreement import assert_agrees
from tests.passes.models import operators, rewritten

WORDS = np.array([["b", "a", "b", "x"], ["", "c", "a", "b"]], object)


def categories(names: list[str], **attributes: Any) -> Any:
    node = helper.make_node("OneHotEncoder", ["x"], ["y"], domain="ai.onnx.ml", cats_strings=names, **attributes)
    graph = helper.make_graph(
        [node],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.STRING, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4, len(names)])],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize(
    ("model", "left"),
    [
        (categories(["a", "b", "c"]), ["LabelEncoder", "OneHotEncoder"]),
        (categories(["a", "b", "a"]), ["OneHotEncoder"]),
    ],
    ids=["categories", "twice"],
)
def test_strings_are_numbered(model: Any, left: list[str]) -> None:
    after = rewritten(model)[0]
    assert operators(after) == left
    assert_agrees(model, after, {"x": WORDS})


def test_no_category_stays_an_error() -> None:
    after = rewritten(categories(["a", "b", "c", "x", ""], zeros=0))[0]
    assert operators(after) == ["LabelEncoder", "OneHotEncoder"]
    assert_agrees(categories(["a", "b", "c", "x", ""], zeros=0), after, {"x": WORDS})
    session = sardonyx.InferenceSession(categories(["a", "b"], zeros=0).SerializeToString())
    with pytest.raises(errors.Fail, match="an element is of no category"):
        session.run(None, {"x": WORDS})
