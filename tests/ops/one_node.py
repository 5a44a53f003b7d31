"""Small models built in code and run by the project, as the tests of operators need them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from sardonyx import log
from sardonyx.api.building.compiled_model import CompiledModel
from sardonyx.graph.load import load_model
from sardonyx.providers import registry
from sardonyx.runtime.context import RunContext
from sardonyx.runtime.executor import execute

SILENT = log.Logger("test", 4)


def model_of(
    nodes: Sequence[onnx.NodeProto],
    feeds: Mapping[str, Any],
    outputs: Sequence[str],
    *,
    opset: int = 21,
    shapes: Mapping[str, Sequence[Any]] | None = None,
    constants: Mapping[str, Any] | None = None,
    domains: Mapping[str, int] | None = None,
) -> onnx.ModelProto:
    """A model whose inputs have the types of `feeds` and the shapes that `shapes` names, else those of the feeds."""
    infos = []
    for name, array in feeds.items():
        shape = (shapes or {}).get(name, array.shape)
        infos.append(helper.make_tensor_value_info(name, _element(array), shape))
    graph = helper.make_graph(
        list(nodes),
        "graph",
        infos,
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in (constants or {}).items()],
    )
    imports = [helper.make_opsetid("", opset)]
    imports += [helper.make_opsetid(domain, version) for domain, version in (domains or {}).items()]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


def _element(array: Any) -> int:
    if array.dtype == object:
        return int(onnx.TensorProto.STRING)
    return int(helper.np_dtype_to_tensor_dtype(array.dtype))


def build(model: onnx.ModelProto) -> CompiledModel:
    return CompiledModel.build(load_model(model), [registry.create("CPUExecutionProvider", {})], SILENT)


def run(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
    compiled = build(model)
    return execute(compiled.compiled.plan, RunContext(), [feeds[value.name] for value in compiled.model.graph.inputs])


def run_node(
    op_type: str, inputs: Sequence[Any], outputs: int = 1, *, opset: int = 21, domain: str = "", **attributes: Any
) -> list[Any]:
    """The outputs of one node; None stands for an input that is not given."""
    names = ["" if value is None else f"x{index}" for index, value in enumerate(inputs)]
    feeds = {name: value for name, value in zip(names, inputs, strict=True) if name}
    results = [f"y{index}" for index in range(outputs)]
    node = helper.make_node(op_type, names, results, domain=domain, name="node", **attributes)
    domains = {domain: onnx.defs.onnx_ml_opset_version() if hasattr(onnx.defs, "onnx_ml_opset_version") else 3}
    model = model_of([node], feeds, results, opset=opset, domains=domains if domain else None)
    return run(model, feeds)
