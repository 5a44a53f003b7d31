"""Attention of com.microsoft: QAttention."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.quantization.rewriting import MICROSOFT, Rewriting, attributes, quantized_name

_KNOWN = frozenset(
    {"num_heads", "unidirectional", "past_present_share_buffer", "mask_filter_value", "scale", "do_rotary"}
)


def quantize(rewriting: Rewriting, node: ir.Node) -> str | None:
    """An Attention whose weight is a constant; queries, keys and values are of one size."""
    job = rewriting.job
    source, weight, bias, *rest = [*node.inputs, None, None, None][: max(3, len(node.inputs))]
    mask, past, *more = [*rest, None, None]
    if source is None or weight is None or not job.is_float(source) or not job.is_constant(weight):
        return "its weight is no constant"
    if job.dtype(source) != ir.DataType.FLOAT:
        return "QAttention takes float32 alone"
    if bias is None:
        return "QAttention needs a bias"
    unknown = sorted(set(node.attributes) - _KNOWN)
    if unknown:
        return f"QAttention has no attribute {unknown[0]}"
    if any(value is not None for value in more):
        return "QAttention has no bias of attention scores, nor a length of the past"
    first = rewriting.unsigned(source, node)
    axis = len(rewriting.tensor_shape(weight)) - 1 if job.per_channel else None
    second = rewriting.stored(weight, rewriting.parameters(weight, axis))
    outputs = {value: rewriting.successor(value) for value in node.outputs}
    inputs = [
        first.values,
        second.values,
        bias,
        first.scale,
        second.scale,
        mask,
        first.zero_point,
        second.zero_point,
        past,
    ]
    made = job.node(
        "QAttention", inputs, list(outputs.values()), quantized_name(node), attributes(node), domain=MICROSOFT
    )
    rewriting.replace(node, [made], outputs, f"QAttention of {first.dtype.name} and {second.dtype.name}")
    return None
