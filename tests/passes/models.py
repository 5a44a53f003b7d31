"""Small graphs for tests of passes, and the check that a rewrite keeps the meaning."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from sardonyx.passes import pipeline
from sardonyx.passes.base import DEFAULT, Level, PassReport, Settings

Array = np.ndarray[Any, Any]


def make_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sequence[int | str]],
    outputs: Sequence[str],
    constants: Mapping[str, Array] | None = None,
    *,
    opset: int = 17,
    dtype: int = TensorProto.FLOAT,
    output_dtype: int | None = None,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, dtype, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, output_dtype or dtype, None) for name in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    inferred = onnx.shape_inference.infer_shapes(model).graph.output
    for value, known in zip(model.graph.output, inferred, strict=True):
        value.CopyFrom(known)  # a valid model gives its outputs a rank
    return model


def rewritten(
    model: onnx.ModelProto, level: Level = Level.ALL, disabled: Collection[str] = (), settings: Settings = DEFAULT
) -> tuple[onnx.ModelProto, dict[str, PassReport]]:
    """The model after the pipeline, which must be valid, and the reports by pass."""
    loaded = ir.from_proto(onnx.ModelProto.FromString(model.SerializeToString()))
    reports = pipeline.apply(loaded, level, disabled, settings=settings)
    return _checked(model, loaded, reports)


def fused(
    model: onnx.ModelProto, disabled: Collection[str] = (), settings: Settings = DEFAULT
) -> tuple[onnx.ModelProto, dict[str, PassReport]]:
    """The same after the rules for models that are saved."""
    loaded = ir.from_proto(onnx.ModelProto.FromString(model.SerializeToString()))
    return _checked(model, loaded, pipeline.fuse(loaded, disabled, settings))


def _checked(
    model: onnx.ModelProto, loaded: ir.Model, reports: Sequence[PassReport]
) -> tuple[onnx.ModelProto, dict[str, PassReport]]:
    result = ir.to_proto(loaded)
    assert [value.name for value in result.graph.input] == [value.name for value in model.graph.input]
    assert [value.name for value in result.graph.output] == [value.name for value in model.graph.output]
    if all(onnx.defs.has(node.op_type, opset_of(result), node.domain) for node in result.graph.node):
        onnx.checker.check_model(result)  # which knows neither com.microsoft nor what onnxruntime adds to ONNX's domain
    return result, {report.name: report for report in reports}


def opset_of(model: onnx.ModelProto) -> int:
    return next(entry.version for entry in model.opset_import if entry.domain == "")


def node_of(model: onnx.ModelProto, op_type: str) -> onnx.NodeProto:
    """The one node of an operator."""
    (node,) = (node for node in model.graph.node if node.op_type == op_type)
    return node


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


def operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def assert_same_meaning(before: onnx.ModelProto, after: onnx.ModelProto, feeds: Mapping[str, Array]) -> None:
    """Both give the same outputs, bit for bit, on `onnx.reference`."""
    wanted = ReferenceEvaluator(before).run(None, dict(feeds))
    found = ReferenceEvaluator(after).run(None, dict(feeds))
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(ours, theirs)
