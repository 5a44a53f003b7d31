"""Weights that are denormal numbers, which processors multiply many times slower than others, become zero.

Training with weight decay leaves them behind: a quarter of some layers' weights. What is lost is less than half a unit
in the last place of the largest weight beside them.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from numpy.lib.stride_tricks import as_strided

from sardonyx.graph.constants import Array, array_of, is_constant, nodes_of, tensor_of
from sardonyx.passes.base import Context
from sardonyx.runtime.memory.mapped_pages import release_pages

NAME = "DenormalWeightElimination"

# Where products have their weights.
_WEIGHTS = {
    ("", "Conv"): (1,),
    ("", "ConvTranspose"): (1,),
    ("", "Gemm"): (0, 1),
    ("", "MatMul"): (0, 1),
    ("com.microsoft", "FusedMatMul"): (0, 1),
    ("", "RNN"): (1, 2),
    ("", "GRU"): (1, 2),
    ("", "LSTM"): (1, 2),
}
_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE})
# This many pieces, each of so many elements, tell of large weights: all of a model's weights take long to look at.
_PIECES, _PIECE = 256, 64


def flush_denormal_weights(context: Context) -> int:
    """Set denormal weights of products to zero."""
    changes = 0
    seen: set[ir.Value] = set()
    for node in nodes_of(context.model.graph):
        for index in _WEIGHTS.get((node.domain, node.op_type), ()):
            value = node.inputs[index] if index < len(node.inputs) else None
            if value is None or value in seen or value.dtype not in _FLOATS or not is_constant(value):
                continue
            seen.add(value)
            if _is_weight_alone(value):
                changes += _flush(context, node, value)
    return changes


def _is_weight_alone(value: ir.Value) -> bool:
    """Whether products alone read a constant."""
    if value.is_graph_output():
        return False
    return all(index in _WEIGHTS.get((user.domain, user.op_type), ()) for user, index in value.uses())


def _flush(context: Context, node: ir.Node, value: ir.Value) -> bool:
    """Set the denormal elements of a constant to zero; whether there were any."""
    weights = array_of(value)
    has_some = _denormal(_some(weights)).any()
    release_pages(weights)
    if not has_some:
        return False
    if np.abs(weights).max() < np.finfo(weights.dtype).tiny * 2.0 ** (np.finfo(weights.dtype).nmant + 2):
        context.decline(node, f"denormal numbers among the weights {value.name} matter beside the others")
        return False
    dtype = value.dtype
    assert dtype is not None
    value.const_value = tensor_of(
        np.where(_denormal(weights), 0, weights).astype(weights.dtype), dtype, value.name or ""
    )
    return True


def _denormal(weights: Array) -> Array:
    found: Array = (np.abs(weights) < np.finfo(weights.dtype).tiny) & (weights != 0)
    return found


def _some(weights: Array) -> Array:
    """All of some weights, or pieces from all over them, which begin in different columns."""
    if weights.size <= 2 * _PIECES * _PIECE or not weights.flags.c_contiguous:
        return weights
    step = (weights.size // _PIECES - _PIECE) * weights.itemsize
    return as_strided(weights, (_PIECES, _PIECE), (step, weights.itemsize), writeable=False)
