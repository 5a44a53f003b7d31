"""Inference over symbols, against the shapes of real runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from sardonyx import errors
from sardonyx.ops.framework import dims
from sardonyx.ops.framework.facts import Fact, known
from sardonyx.ops.framework.inference import Inference
from tests.ops.one_node import model_of, run

I64 = np.int64


def infer(model: onnx.ModelProto) -> dict[str, Fact]:
    loaded = ir.serde.deserialize_model(model)
    for node in loaded.graph.all_nodes():
        node.version = node.version or loaded.opset_imports.get(node.domain, 1)
    inference = Inference(loaded.opset_imports, loaded.ir_version or 8)
    inference.graph(loaded.graph)
    return {value.name or "": fact for value, fact in inference.facts.items()}


def node(op_type: str, inputs: list[str], outputs: list[str], **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op_type, inputs, outputs, name=outputs[0], **attributes)


def check(
    nodes: list[onnx.NodeProto],
    feeds: Mapping[str, Any],
    shapes: Mapping[str, list[Any]],
    constants: Mapping[str, Any] | None = None,
    opset: int = 17,
) -> dict[str, Fact]:
    """Every value is known in the inputs' symbols, and is what a run gives."""
    outputs = [name for item in nodes for name in item.output]
    model = model_of(nodes, feeds, outputs, shapes=shapes, constants=constants, opset=opset)
    facts = infer(model)
    symbols = {
        dim: size
        for name, array in feeds.items()
        for dim, size in zip(shapes[name], array.shape, strict=True)
        if isinstance(dim, str) and dim.isidentifier()
    }
    for name, value in zip(outputs, run(model, feeds), strict=True):
        fact = facts[name]
        assert fact.shape is not None, name
        assert tuple(dims.evaluate(dim, symbols) for dim in fact.shape) == value.shape, (name, fact.shape)
        if fact.elements is not None and all(known(item) for item in fact.elements):
            assert [dims.evaluate(item, symbols) for item in fact.elements] == value.ravel().tolist(), name
    return facts


def test_split_heads_and_back() -> None:
    facts = check(
        [
            node("Shape", ["x"], ["shape"]),
            node("Gather", ["shape", "zero"], ["batch"]),
            node("Gather", ["shape", "one"], ["length"]),
            node("Unsqueeze", ["batch", "axis"], ["batch1"]),
            node("Unsqueeze", ["length", "axis"], ["length1"]),
            node("Concat", ["batch1", "length1", "heads"], ["target"], axis=0),
            node("Reshape", ["x", "target"], ["split"]),
            node("Transpose", ["split"], ["turned"], perm=[0, 2, 1, 3]),
            node("Transpose", ["turned"], ["back"], perm=[0, 2, 1, 3]),
            node("Concat", ["batch1", "length1", "minus"], ["joined"], axis=0),
            node("Reshape", ["back", "joined"], ["y"]),
        ],
        {"x": np.zeros((2, 5, 12), np.float32)},
        {"x": ["batch", "seq", 12]},
        {
            "zero": np.array(0, I64),
            "one": np.array(1, I64),
            "axis": np.array([0], I64),
            "heads": np.array([3, 4], I64),
            "minus": np.array([-1], I64),
        },
    )
    assert [str(dim) for dim in facts["turned"].shape or ()] == ["batch", "3", "seq", "4"]
    assert facts["y"].shape == facts["x"].shape


def test_cache_grows_by_the_sequence() -> None:
    facts = check(
        [
            node("Concat", ["past", "new"], ["present"], axis=2),
            node("Shape", ["present"], ["shape"]),
            node("Gather", ["shape", "two"], ["total"]),
            node("Shape", ["new"], ["fresh_shape"]),
            node("Gather", ["fresh_shape", "two"], ["fresh"]),
            node("Sub", ["total", "fresh"], ["start"]),
            node("Range", ["start", "total", "one"], ["positions"]),
            node("Unsqueeze", ["start", "axis"], ["first"]),
            node("Unsqueeze", ["total", "axis"], ["last"]),
            node("Slice", ["mask", "first", "last", "axis", "step"], ["rows"]),
            node("Unsqueeze", ["total", "axis"], ["width"]),
            node("ConstantOfShape", ["width"], ["zeros"]),
        ],
        {"past": np.zeros((1, 2, 7, 4), np.float32), "new": np.zeros((1, 2, 3, 4), np.float32)},
        {"past": ["batch", 2, "past_length", 4], "new": ["batch", 2, "length", 4]},
        {
            "two": np.array(2, I64),
            "one": np.array(1, I64),
            "axis": np.array([0], I64),
            "step": np.array([1], I64),
            "mask": np.tri(64, dtype=np.float32),
        },
    )
    assert [str(dim) for dim in facts["present"].shape or ()] == ["batch", "2", "length + past_length", "4"]
    assert [str(dim) for dim in facts["positions"].shape or ()] == ["length"]


def test_expand_with_a_shape_chosen_by_where() -> None:
    check(
        [
            node("Shape", ["x"], ["shape"]),
            node("ConstantOfShape", ["rank"], ["ones"], value=numpy_helper.from_array(np.array([1], I64))),
            node("Mul", ["ones", "minus"], ["all_minus"]),
            node("Equal", ["wanted", "all_minus"], ["same"]),
            node("Where", ["same", "shape", "wanted"], ["target"]),
            node("Expand", ["x", "target"], ["y"]),
        ],
        {"x": np.zeros((4, 1, 3), np.float32)},
        {"x": ["n", 1, 3]},
        {
            "rank": np.array([3], I64),
            "minus": np.array([-1], I64),
            "wanted": np.array([-1, 6, -1], I64),
        },
    )


@pytest.mark.parametrize("size", [1, 2, 7, 8])
def test_moves_over_a_symbol(size: int) -> None:
    check(
        [
            node("Slice", ["x", "one", "far"], ["tail"]),
            node("Slice", ["x", "zero", "two"], ["head"]),
            node("Slice", ["x", "minus_two", "far"], ["end"]),
            node("Slice", ["x", "zero", "far", "zero", "two"], ["every_other"]),
            node("Slice", ["x", "minus_one", "lowest", "zero", "minus_one"], ["reversed"]),
            node("Tile", ["x", "repeats"], ["tiled"]),
            node("Flatten", ["x"], ["flat"], axis=0),
            node("Squeeze", ["flat", "zero"], ["line"]),
            node("Size", ["x"], ["count"]),
            node("Identity", ["x"], ["same"]),
        ],
        {"x": np.zeros((size, 2), np.float32)},
        {"x": ["n", 2]},
        {
            "zero": np.array([0], I64),
            "one": np.array([1], I64),
            "two": np.array([2], I64),
            "minus_one": np.array([-1], I64),
            "minus_two": np.array([-2], I64),
            "far": np.array([2**63 - 1], I64),
            "lowest": np.array([-(2**63)], I64),
            "repeats": np.array([3, 2], I64),
        },
    )


def test_parts_of_a_symbol() -> None:
    check(
        [
            node("Split", ["x"], ["a", "b"], axis=0, num_outputs=2),
            node("Split", ["x", "sizes"], ["c", "d"], axis=1),
            node("Gather", ["x", "index"], ["picked"], axis=0),
            node("GatherND", ["x", "pairs"], ["points"]),
        ],
        {"x": np.zeros((7, 5), np.float32)},
        {"x": ["n", 5]},
        {"sizes": np.array([2, 3], I64), "index": np.array([[0, 1]], I64), "pairs": np.array([[0, 1]], I64)},
        opset=18,
    )


@pytest.mark.parametrize("length", [5, 6, 9])
def test_a_padded_convolution_cut_to_its_inputs_length(length: int) -> None:
    """Windows of an even size give one place too many: what is left without it has the length of what it is added to,
    also where that is an expression."""
    check(
        [
            node("Conv", ["signal", "first"], ["x"], strides=[2], kernel_shape=[5]),
            node("Conv", ["x", "weights"], ["longer"], pads=[2, 2], kernel_shape=[4]),
            node("Slice", ["longer", "zero", "minus_one", "axis"], ["cut"]),
            node("Add", ["x", "cut"], ["y"]),
        ],
        {"signal": np.zeros((1, 2, length), np.float32)},
        {"signal": ["batch", 2, "length"]},
        {
            "first": np.zeros((3, 2, 5), np.float32),
            "weights": np.zeros((3, 3, 4), np.float32),
            "zero": np.array([0], I64),
            "minus_one": np.array([-1], I64),
            "axis": np.array([2], I64),
        },
    )


def test_branches_merge() -> None:
    def branch(name: str, value: str) -> onnx.GraphProto:
        return helper.make_graph(
            [helper.make_node("Identity", [value], [name])], name, [], [helper.make_empty_tensor_value_info(name)]
        )

    nodes = [
        node("If", ["flag"], ["same"], then_branch=branch("p", "x"), else_branch=branch("q", "y")),
        node("If", ["flag"], ["other"], then_branch=branch("r", "x"), else_branch=branch("s", "z")),
    ]
    feeds = {
        "flag": np.array(True),
        "x": np.zeros((2, 3), np.float32),
        "y": np.zeros((2, 3), np.float32),
        "z": np.zeros((2, 4), np.float32),
    }
    model = model_of(nodes, feeds, ["same", "other"], shapes={"x": ["n", 3], "y": ["n", 3], "z": ["n", 4]})
    facts = infer(model)
    assert [str(dim) for dim in facts["same"].shape or ()] == ["n", "3"]
    other = facts["other"].shape
    assert other is not None
    assert str(other[0]) == "n"
    assert not known(other[1])


def test_contradictions_name_the_node() -> None:
    feeds = {"a": np.zeros((2, 3), np.float32), "b": np.zeros((3, 2), np.float32)}
    model = model_of([node("Concat", ["a", "b"], ["joined"], axis=0)], feeds, ["joined"])
    with pytest.raises(errors.Fail, match=r"Node \(joined\) Op \(Concat\) \[ShapeInferenceError\] .*equal dimensions"):
        infer(model)


def test_errors_show_dimensions_by_their_names() -> None:
    shapes: dict[str, list[str | int | None]] = {"a": ["n", None, 4], "b": [4, "m"]}
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    graph = helper.make_graph([node("Gemm", ["a", "b"], ["y"])], "graph", inputs, [onnx.ValueInfoProto(name="y")])
    with pytest.raises(errors.Fail, match=r"not shapes \(n, \?, 4\) and \(4, m\)$"):
        infer(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


def test_loop_forgets_what_changes() -> None:
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["going"], ["still"]),
            helper.make_node("Concat", ["grown", "grown"], ["next"], axis=0),
            helper.make_node("Identity", ["steady"], ["kept"]),
            helper.make_node("Identity", ["steady"], ["row"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            helper.make_empty_tensor_value_info("grown"),
            helper.make_empty_tensor_value_info("steady"),
        ],
        [helper.make_empty_tensor_value_info(name) for name in ("still", "next", "kept", "row")],
    )
    feeds = {"m": np.array(3, I64), "x": np.zeros((2, 3), np.float32)}
    model = model_of(
        [node("Loop", ["m", "", "x", "x"], ["grown_out", "steady_out", "rows"], body=body)],
        feeds,
        ["grown_out", "steady_out", "rows"],
        shapes={"x": ["n", 3]},
    )
    facts = infer(model)
    grown = facts["grown_out"].shape
    assert grown is not None
    assert not known(grown[0])
    assert grown[1] == 3
    assert [str(dim) for dim in facts["steady_out"].shape or ()] == ["n", "3"]
    assert [str(dim) for dim in (facts["rows"].shape or ())[1:]] == ["n", "3"]
    assert [value.shape for value in run(model, feeds)] == [(16, 3), (2, 3), (3, 2, 3)]
