"""Gather of a constant table, in the type of activations, which the operators after it read."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.quantization.rewriting import Rewriting
from sardonyx.quantization.weights import QuantizedTensor


def quantize(rewriting: Rewriting, node: ir.Node) -> str | None:
    """A Gather of a table; its rows have the scale of the table."""
    job = rewriting.job
    table, indices = node.inputs
    assert table is not None
    if not job.is_float(table) or not job.is_constant(table):
        return "its table is no constant of float32 or float16"
    form, output = rewriting.constant(table), node.outputs[0]
    values = rewriting.like(output, f"{output.name}_quantized", form.dtype)
    made = rewriting.same(node, [form.values, indices], [values])
    result = QuantizedTensor(values, form.scale, form.zero_point, form.dtype, form.parameters)
    rewriting.quantized(node, [made], {output: result}, f"Gather of {form.dtype.name}")
    return None
