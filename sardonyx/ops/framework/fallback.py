"""The universal fallback: an operator without a class of its own runs on `onnx.reference`."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from sardonyx import errors
from sardonyx.ops.framework.operator import Operator, Value, describe


class Reference(Operator):
    """A node run by ONNX's own reference implementation."""

    host_reason = "no kernel: run by onnx.reference"

    def prefers_body(self) -> bool:
        """Where a subclass has no kernel of its own."""
        return type(self).lower is Operator.lower

    def run(self, *inputs: Value) -> Sequence[Value]:
        return run_reference(self.node, self.version, inputs)


def run_reference(node: ir.Node, version: int, inputs: Sequence[Value]) -> Sequence[Value]:
    """The outputs of a node as `onnx.reference` computes them."""
    with np.errstate(all="ignore"):
        outputs: Sequence[Value] = _implementation(node, version, _signature(inputs)).run(*inputs)
    return outputs


def _signature(inputs: Sequence[Value]) -> tuple[Any, ...]:
    return tuple(value.dtype.str if isinstance(value, np.ndarray) else type(value).__name__ for value in inputs)


@functools.lru_cache(maxsize=4096)
def _implementation(node: ir.Node, version: int, signature: tuple[Any, ...]) -> Any:
    from onnx.reference import ReferenceEvaluator

    proto = ir.to_proto(node)
    opsets = {node.domain: version, "": version if node.domain == "" else onnx.defs.onnx_opset_version()}
    model = onnx.helper.make_function(
        "sardonyx",
        "node",
        list(filter(None, proto.input)),
        list(filter(None, proto.output)),
        [proto],
        [onnx.helper.make_opsetid(domain, number) for domain, number in opsets.items()],
    )
    try:
        evaluator = ReferenceEvaluator(model)
    except MemoryError:
        raise
    except Exception as error:
        raise errors.NotImplemented(
            f"Could not find an implementation for {node.op_type}({version}) node with name '{node.name}': {error}"
        ) from error
    (implementation,) = evaluator.rt_nodes_
    return implementation


__all__ = ["Reference", "describe", "run_reference"]
