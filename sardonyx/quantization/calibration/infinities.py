"""Values that are infinite because the model wants it, as masks of attention are, and not because of a wrong sample."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir

from sardonyx.graph.constants import nodes_of, tensor_array

# Operators that make finite numbers of infinite ones, or NaN: what comes behind them is not infinite by the constant.
_ENDS = frozenset(
    {
        "Conv",
        "ConvTranspose",
        "Exp",
        "GRU",
        "Gemm",
        "HardSigmoid",
        "LSTM",
        "MatMul",
        "RNN",
        "Sigmoid",
        "Softmax",
        "Tanh",
    }
)


def meant(graph: ir.Graph) -> set[str]:
    """The names of the values to which an infinite constant comes, or one so large that a sum of it may be infinite."""
    values: set[ir.Value] = set()
    for value in graph.initializers.values():
        if value.const_value is not None and _is_infinite(value.const_value):
            values.add(value)
    waiting = [use.node for value in values for use in value.uses()]
    for node in nodes_of(graph):
        if node.op_type in ("Constant", "ConstantOfShape") and _has_infinite_attribute(node):
            values.update(node.outputs)
            waiting.extend(use.node for value in node.outputs for use in value.uses())
    while waiting:
        node = waiting.pop()
        if node.op_type not in _ENDS and not values.issuperset(node.outputs):
            values.update(node.outputs)
            waiting.extend(use.node for value in node.outputs for use in value.uses())
    return {value.name for value in values if value.name}


def _has_infinite_attribute(node: ir.Node) -> bool:
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.TENSOR and _is_infinite(attribute.as_tensor()):
            return True
        if (
            attribute.type in (ir.AttributeType.FLOAT, ir.AttributeType.FLOATS)
            and not np.isfinite(np.asarray(attribute.value)).all()
        ):
            return True
    return False


def _is_infinite(tensor: ir.TensorProtocol) -> bool:
    if tensor.dtype not in (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE) or not tensor.size:
        return False
    array = tensor_array(tensor)
    least = float(ml_dtypes.finfo(array.dtype).max) / 4
    return bool((np.abs(array) >= least).any())
