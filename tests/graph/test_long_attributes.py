"""Long attributes come out of a file as short ones do."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from sardonyx import errors
from sardonyx.graph.load import load_model

COUNTS = (1, 255, 256, 5000)


def model_with(attributes: dict[str, object]) -> onnx.ModelProto:
    node = helper.make_node("Custom", ["x"], ["y"], domain="test", doc_string="a node", **attributes)
    graph = helper.make_graph(
        [helper.make_node("Identity", ["given"], ["x"]), node],
        "g",
        [helper.make_tensor_value_info("given", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("test", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def attributes_of(count: int) -> dict[str, list[object]]:
    rng = np.random.default_rng(count)
    return {
        "ints": [int(number) for number in rng.integers(-(2**62), 2**62, count)],
        "floats": [float(number) for number in rng.standard_normal(count).astype(np.float32)],
        "strings": [f"mode é {number}" for number in rng.integers(0, 3, count)],
    }


@pytest.mark.parametrize("count", COUNTS)
def test_values_are_those_of_the_message(count: int) -> None:
    expected = attributes_of(count)
    node = list(load_model(model_with(expected)).model.graph)[1]
    for name, numbers in expected.items():
        attribute = node.attributes[name]
        assert attribute.value == tuple(numbers)
        assert {type(one) for one in attribute.value} == {type(numbers[0])}
        assert attribute.type == getattr(ir.AttributeType, name.upper())


@pytest.mark.parametrize("count", COUNTS)
def test_a_model_is_written_as_it_was_read(count: int) -> None:
    proto = model_with(attributes_of(count))
    written = ir.serde.serialize_model(load_model(proto).model)
    before, after = ({one.name: one for one in each.graph.node[1].attribute} for each in (proto, written))
    assert before.keys() == after.keys()
    for name, attribute in before.items():
        assert helper.get_attribute_value(attribute) == helper.get_attribute_value(after[name])


def test_long_strings_must_be_readable() -> None:
    proto = model_with({"strings": [b"\xff", *([b"good"] * 500)]})
    with pytest.raises(errors.InvalidGraph, match="'strings' holds a string that is not UTF-8"):
        load_model(proto)
