"""Conv: QLinearConv, its bias in int32."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.quantization.qlinear.results import reason_of, result, triple
from sardonyx.quantization.rewriting import Rewriting


def quantize(rewriting: Rewriting, node: ir.Node) -> str | None:
    """A Conv of a constant weight and a constant bias; per channel all zero points are the same."""
    job = rewriting.job
    source, weight, *rest = node.inputs
    bias = rest[0] if rest else None
    output = node.outputs[0]
    if weight is None or not job.is_float(weight) or not job.is_constant(weight):
        return "its weight is no constant"
    if bias is not None and not job.is_constant(bias):
        return "its bias is no constant"
    if 0 in rewriting.tensor_shape(weight):
        return "its weight is empty"
    reason = reason_of(rewriting, [source], output)
    if reason is not None:
        return reason
    assert source is not None
    form = rewriting.activation(source, node)
    assert form.parameters is not None
    if not job.per_channel:
        parameters = rewriting.parameters(weight)
    elif job.options.ort_compatible:
        parameters = rewriting.parameters(weight, 0, dtype=ir.DataType.INT8)
    else:
        parameters = rewriting.parameters(weight, 0, symmetric=True)
    if bias is not None:
        parameters = rewriting.weights.raised(weight, parameters, bias, float(form.parameters.scale))
    stored = rewriting.stored(weight, parameters)
    more = [] if bias is None else [rewriting.bias(bias, form, parameters)]
    result(rewriting, node, "QLinearConv", [*triple(form), *triple(stored)], more=more)
    return None
