"""Operators made again from the nodes that `stored_program` kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from sardonyx.compiler.interpret import render
from sardonyx.graph.long_attributes import put_back, set_aside
from sardonyx.kernel.program import Host
from sardonyx.ops.framework.operator import Operator
from sardonyx.ops.framework.registry import operator_of
from sardonyx.ops.framework.result_size import checked
from sardonyx.runtime.dtype_names import dtype_called
from sardonyx.runtime.plan import StepCall


def restored_operator(data: bytes, content: Mapping[str, Any]) -> Operator:
    """The operator of the only node of a serialised graph."""
    proto = onnx.GraphProto.FromString(data)
    long_attributes = set_aside(proto)
    graph = ir.from_proto(proto)
    put_back(long_attributes, graph)
    (node,) = graph
    graph.inputs.clear()  # a constant is none
    node.version = content["version"]
    for place in content.get("constants", ()):
        node.inputs[place].const_value = ir.Tensor(np.empty(0))  # a run gives the contents
    return operator_of(node)


def restored_call(data: bytes, content: Mapping[str, Any]) -> StepCall:
    """The function of the step of this node."""
    operator = restored_operator(data, content)
    if content["dtypes"] is None:
        return render(checked(operator, Host(operator.run, "")))
    dtypes = [None if name is None else dtype_called(name) for name in content["dtypes"]]
    return render(checked(operator, operator.lower(dtypes)))
