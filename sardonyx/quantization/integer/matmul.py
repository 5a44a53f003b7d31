"""MatMul and Gemm: MatMulInteger, and the product of the scales."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from sardonyx.quantization.quantized_numbers import Parameters, dequantize
from sardonyx.quantization.quantized_numbers import quantize as quantize_array
from sardonyx.quantization.rewriting import FLOAT, Rewriting, quantized_name
from sardonyx.quantization.weights import QuantizedTensor

_LARGEST_SUM = (1 << 31) - 1
_LARGEST_STEP = 255  # of an activation from its zero point


def quantize(rewriting: Rewriting, node: ir.Node) -> str | None:
    """A MatMul; its second input is a constant, or also found in each run where `MatMulConstBOnly` is off."""
    left, right = node.inputs
    assert left is not None
    assert right is not None
    reason = product_reason(rewriting, left, right)
    if reason is not None:
        return reason
    first = rewriting.activation(left, node)
    second, made = weight(rewriting, node, right, left)
    name = quantized_name(node)
    nodes, result = product(rewriting, node, first, [first.values], second, name, node.outputs[0])
    rewriting.replace(node, [*made, *nodes], {node.outputs[0]: result}, _how(first, second))
    return None


def quantize_gemm(rewriting: Rewriting, node: ir.Node) -> str | None:
    """A Gemm, as a MatMul and an Add."""
    job = rewriting.job
    left, right, *rest = node.inputs
    assert left is not None
    assert right is not None
    bias = rest[0] if rest else None
    alpha, beta = (float(job.attribute(node, key, 1.0)) for key in ("alpha", "beta"))
    flipped, transposed = (bool(job.attribute(node, key, 0)) for key in ("transA", "transB"))
    if not np.isfinite(alpha) or alpha == 0:
        return f"its alpha is {alpha}"
    reason = product_reason(rewriting, left, right, transposed=transposed)
    if reason is not None:
        return reason
    first = rewriting.activation(left, node)
    base = node.name or node.outputs[0].name or ""
    output = node.outputs[0]
    second, nodes = weight(rewriting, node, right, left, transposed=transposed)
    values = [first.values]
    if flipped:
        turned = job.value(f"{first.values.name}_transposed", first.dtype)
        nodes.append(job.node("Transpose", values, [turned], f"{base}_Transpose", {"perm": (1, 0)}))
        values = [turned]
    if alpha != 1:
        scale = job.value(f"{base}_alpha_scale", FLOAT)
        factor = job.initializer(f"{base}_alpha", np.asarray(alpha, np.float32))
        nodes.append(job.node("Mul", [second.scale, factor], [scale], f"{base}_alpha_Mul"))
        second = QuantizedTensor(second.values, scale, second.zero_point, second.dtype)
    if beta == 0:
        bias = None
    made, result = product(
        rewriting,
        node,
        first,
        values,
        second,
        f"{base}_MatMul_quant",
        output,
        f"{output.name}_MatMul" if bias is not None else None,
    )
    nodes += made
    if bias is not None:
        total = rewriting.successor(output)
        if beta != 1:
            scaled = rewriting.like(bias, f"{bias.name}_beta", job.dtype(bias) or FLOAT)
            kind = (job.dtype(bias) or FLOAT).numpy()
            factor = job.initializer(f"{base}_beta", np.asarray(beta, kind))
            nodes.append(job.node("Mul", [bias, factor], [scaled], f"{base}_beta_Mul"))
            bias = scaled
        nodes.append(job.node("Add", [result, bias], [total], f"{base}_Add"))
        result = total
    rewriting.replace(node, nodes, {output: result}, _how(first, second))
    return None


def product_reason(rewriting: Rewriting, left: ir.Value, right: ir.Value, *, transposed: bool = False) -> str | None:
    """Why a product stays in float; None where it need not. `transposed`: `right` is read transposed."""
    job = rewriting.job
    if not (job.is_float(left) and job.is_float(right)):
        return "its inputs are not both float32 or float16"
    if rewriting.is_constant(right):
        return _sum_reason(rewriting, right, left, transposed)
    constant_only = job.options.matmul_const_b_only
    if not rewriting.static if constant_only is None else constant_only:
        return "its second input is no constant (extra option MatMulConstBOnly)"
    return None


def _sum_reason(rewriting: Rewriting, right: ir.Value, left: ir.Value, transposed: bool) -> str | None:
    """Why a product with a constant cannot be reckoned in sums of 32 bits."""
    source, perm = rewriting.transpose_of(right) or (right, None)
    shape = rewriting.tensor_shape(source)
    rank = len(shape)
    if rank == 0 or 0 in shape:
        return "its second input is a single number or empty"
    axes = perm or tuple(range(rank))
    rows, columns = (axes[-1], axes[-2]) if transposed else (axes[max(rank - 2, 0)], axes[-1])
    if shape[rows] * _LARGEST_STEP * _LARGEST_STEP <= _LARGEST_SUM:
        return None
    parameters = weight_parameters(rewriting, source, columns, rows if rank > 1 else None, left, rank)
    one = replace(parameters, scale=np.ones_like(parameters.scale))
    steps = np.abs(dequantize(quantize_array(rewriting.array(source), parameters), one))
    if steps.sum(rows, dtype=np.float64).max() * _LARGEST_STEP <= _LARGEST_SUM:
        return None
    return "sums of its products may exceed 32 bits"


def weight(
    rewriting: Rewriting, node: ir.Node, value: ir.Value, left: ir.Value, *, transposed: bool = False
) -> tuple[QuantizedTensor, list[ir.Node]]:
    """The quantised form of a product's second input, and the nodes that make it. `transposed`: of its transpose."""
    job = rewriting.job
    found = rewriting.transpose_of(value)
    if found is not None:
        source, perm = found
        rank = len(perm)
        rows, columns = (rank - 1, rank - 2) if transposed else (rank - 2, rank - 1)
        form = rewriting.stored(
            source, weight_parameters(rewriting, source, perm[columns], perm[rows] if rank > 1 else None, left, rank)
        )
        values = job.value(f"{value.name}_quantized", form.dtype)
        nodes = [job.node("Transpose", [form.values], [values], f"{value.name}_quant", {"perm": perm})]
        scale, zero_point = form.scale, form.zero_point
        if form.parameters is not None and form.parameters.block_size:
            scale = job.value(f"{value.name}_scale", FLOAT)
            zero_point = job.value(f"{value.name}_zero_point", form.dtype)
            nodes += [
                job.node("Transpose", [one], [turned], f"{turned.name}_Transpose", {"perm": perm})
                for one, turned in ((form.scale, scale), (form.zero_point, zero_point))
            ]
        form = QuantizedTensor(values, scale, zero_point, form.dtype, form.parameters)
        return _turned(rewriting, form, node, nodes) if transposed else (form, nodes)
    if not job.is_constant(value):
        form = rewriting.activation(value, node)
        return _turned(rewriting, form, node, []) if transposed else (form, [])
    rank = len(rewriting.tensor_shape(value))
    rows, columns = (rank - 1, rank - 2) if transposed else (rank - 2, rank - 1)
    parameters = weight_parameters(rewriting, value, columns, rows if rank > 1 else None, left, rank)
    if transposed and rewriting.weights.is_stored(value, parameters) and not job.options.ort_compatible:
        return _turned(rewriting, rewriting.stored(value, parameters), node, [])
    return rewriting.stored(value, parameters, transposed=transposed), []


def _turned(
    rewriting: Rewriting, form: QuantizedTensor, node: ir.Node, nodes: list[ir.Node]
) -> tuple[QuantizedTensor, list[ir.Node]]:
    base = node.name or node.outputs[0].name
    values = rewriting.job.value(f"{form.values.name}_transposed", form.dtype)
    made = rewriting.job.node("Transpose", [form.values], [values], f"{base}_TransposeB", {"perm": (1, 0)})
    return QuantizedTensor(values, form.scale, form.zero_point, form.dtype, form.parameters), [*nodes, made]


def weight_parameters(
    rewriting: Rewriting, value: ir.Value, columns: int, rows: int | None, left: ir.Value, rank: int
) -> Parameters:
    """How a product's constant is stored: per channel it has a scale for each column, in each of its matrices."""
    if not rewriting.job.per_channel or rank < 2:
        return rewriting.parameters(value)
    if rank == 2:
        return rewriting.parameters(value, columns)
    shape = rewriting.job.shape(left)
    if rewriting.job.options.ort_compatible or shape is None or len(shape) < 2:
        return rewriting.parameters(value)
    assert rows is not None
    return rewriting.parameters(value, rows, rewriting.tensor_shape(value)[rows])


def product(
    rewriting: Rewriting,
    node: ir.Node,
    first: QuantizedTensor,
    values: Sequence[ir.Value],
    second: QuantizedTensor,
    name: str,
    output: ir.Value,
    result_name: str | None = None,
) -> tuple[list[ir.Node], ir.Value]:
    """The nodes of a product of two quantised tensors, and the float that they make: `values` stand for those of the
    first one. The result takes the place of `output`, or is called `result_name`.
    """
    job = rewriting.job
    base = result_name or output.name
    sums = rewriting.like(output, f"{base}_output_quantized", ir.DataType.INT32)
    nodes = [
        job.node("MatMulInteger", [*values, second.values, first.zero_point, second.zero_point], [sums], name),
    ]
    made, result = scaled(rewriting, sums, first, second.scale, name, output, result_name)
    return [*nodes, *made], result


def scaled(
    rewriting: Rewriting,
    sums: ir.Value,
    first: QuantizedTensor,
    scale: ir.Value,
    name: str,
    output: ir.Value,
    result_name: str | None = None,
) -> tuple[list[ir.Node], ir.Value]:
    """The nodes from sums of int32 to floats, and the float that they make."""
    job = rewriting.job
    kind = job.dtype(output) or FLOAT
    wide = rewriting.like(output, f"{sums.name}_cast_output", FLOAT)
    scales = job.value(f"{name}_scales_mul:0", FLOAT)
    result = rewriting.successor(output) if result_name is None else rewriting.like(output, result_name, kind)
    product = result if kind == FLOAT else rewriting.like(output, f"{result.name}_float32", FLOAT)
    nodes = [
        job.node("Cast", [sums], [wide], f"{sums.name}_cast", {"to": int(FLOAT)}),
        job.node("Mul", [first.scale, scale], [scales], f"{name}_scales_mul"),
        job.node("Mul", [wide, scales], [product], f"{name}_output_scale_mul"),
    ]
    if product is not result:
        nodes.append(job.node("Cast", [product], [result], f"{name}_narrowed", {"to": int(kind)}))
    return nodes, result


def _how(first: QuantizedTensor, second: QuantizedTensor) -> str:
    return f"MatMulInteger of {first.dtype.name} and {second.dtype.name}"
