"""Gather of a constant table: rows of the table as it is stored, made floats where they are read."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.quantization.quantized_numbers import Parameters
from sardonyx.quantization.rewriting import Rewriting
from sardonyx.quantization.weights import QuantizedTensor


def quantize(rewriting: Rewriting, node: ir.Node) -> str | None:
    """A Gather of a table; it has one scale, and the type of weights, with a zero point of its own."""
    job = rewriting.job
    table, indices = node.inputs
    assert table is not None
    if not job.is_float(table):
        return "what it reads is not float32 or float16"
    if not job.is_constant(table):
        return "its table is no constant"
    if job.options.ort_compatible:
        form = rewriting.constant(table)
    else:
        form = rewriting.stored(table, table_parameters(rewriting, table))
    output = node.outputs[0]
    values = rewriting.like(output, f"{output.name}_quantized", form.dtype)
    made = rewriting.same(node, [form.values, indices], [values])
    result = QuantizedTensor(values, form.scale, form.zero_point, form.dtype, form.parameters)
    rewriting.quantized(node, [made], {output: result}, f"Gather of {form.dtype.name}")
    return None


def table_parameters(rewriting: Rewriting, table: ir.Value) -> Parameters:
    """How a table is stored: as the products that read it as well have it, so that it is stored once; without such
    ones asymmetric, which costs a Gather nothing."""
    shared = any(_is_product(rewriting, use.node, use.idx) for use in table.uses())
    symmetric = None if shared or rewriting.job.options.weight_symmetric is not None else False
    return rewriting.parameters(table, symmetric=symmetric, reduced=None if shared else False)


def _is_product(rewriting: Rewriting, node: ir.Node, index: int) -> bool:
    """Whether a node multiplies by its input at `index` or, behind a Transpose, by its transpose."""
    if rewriting.job.why_not(node) is not None:
        return False
    if node.op_type == "Transpose":
        return any(
            _is_product(rewriting, use.node, use.idx)
            for use in node.outputs[0].uses()
            if use.node.op_type != "Transpose"
        )
    return node.op_type in ("MatMul", "Gemm") and index == 1
