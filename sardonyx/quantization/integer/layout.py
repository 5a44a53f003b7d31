"""Transpose: of what is stored, where no float of it is left."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.quantization.rewriting import Rewriting
from sardonyx.quantization.weights import QuantizedTensor


def quantize(rewriting: Rewriting, node: ir.Node) -> str | None:
    """A Transpose of rows of a table; of a value that is there as a float it stays a Transpose of floats."""
    (source,) = node.inputs
    assert source is not None
    if source not in rewriting.known or not rewriting.is_gone(source):
        return "what it reads is no quantised value"
    form, output = rewriting.known[source], node.outputs[0]
    values = rewriting.like(output, f"{output.name}_quantized", form.dtype)
    made = rewriting.same(node, [form.values], [values])
    result = QuantizedTensor(values, form.scale, form.zero_point, form.dtype, form.parameters)
    rewriting.quantized(node, [made], {output: result}, f"Transpose of {form.dtype.name}")
    return None
