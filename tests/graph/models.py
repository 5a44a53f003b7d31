"""Builds small models for the tests of loading."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from sardonyx import log
from sardonyx.api.building.compiled_model import CompiledModel
from sardonyx.graph.load import LoadedModel, Source, load_model
from sardonyx.providers import registry
from sardonyx.runtime.context import RunContext
from sardonyx.runtime.executor import execute

FLOAT = TensorProto.FLOAT
node = helper.make_node


def info(name: str, shape: Sequence[int | str] = (2,), kind: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, list(shape))


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Any] = ("x",),
    outputs: Sequence[Any] = ("y",),
    initializers: Sequence[onnx.TensorProto] = (),
    opset: int = 17,
    ir_version: int = 8,
    imports: Sequence[tuple[str, int]] = (),
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    values = [[info(item) if isinstance(item, str) else item for item in items] for items in (inputs, outputs)]
    graph = helper.make_graph(list(nodes), "graph", values[0], values[1], list(initializers))
    opsets = [helper.make_opsetid(*item) for item in (("", opset), *imports)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version, functions=list(functions))


def pair(name: str, values: Sequence[float] = (1.0, 2.0)) -> onnx.TensorProto:
    return helper.make_tensor(name, FLOAT, [len(values)], list(values))


def tensor(dims: Sequence[int], kind: int = FLOAT, name: str = "w", **fields: Any) -> onnx.TensorProto:
    """A TensorProto with exactly these fields, however wrong."""
    proto = TensorProto(name=name, data_type=kind, dims=list(dims))
    for field, value in fields.items():
        if isinstance(value, bytes):
            setattr(proto, field, value)
        else:
            getattr(proto, field).extend(value)
    return proto


def adding(weights: onnx.TensorProto) -> onnx.ModelProto:
    """y = x + w."""
    return model([node("Add", ["x", "w"], ["y"], name="n1")], initializers=[weights])


def build(source: Source | LoadedModel) -> CompiledModel:
    loaded = source if isinstance(source, LoadedModel) else load_model(source)
    return CompiledModel.build(loaded, [registry.create("CPUExecutionProvider", {})], log.DEFAULT)


def run(source: Source | LoadedModel, **feeds: Any) -> list[Any]:
    compiled = build(source)
    values = [np.asarray(feeds[value.name]) for value in compiled.model.graph.inputs]
    return execute(compiled.compiled.plan, RunContext(), values)
