"""Conv: ConvInteger, the product of the scales, and the bias."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from sardonyx.quantization.integer.matmul import scaled
from sardonyx.quantization.rewriting import FLOAT, Rewriting, attributes, quantized_name


def quantize(rewriting: Rewriting, node: ir.Node) -> str | None:
    """A Conv of a constant weight.

    Per channel each output channel has a scale, and all the same zero point: ConvInteger takes no others.
    """
    job = rewriting.job
    source, weight, *rest = node.inputs
    assert source is not None
    assert weight is not None
    if not (job.is_float(source) and job.is_float(weight)):
        return "its inputs are not both float32 or float16"
    if not job.is_constant(weight):
        return "its weight is no constant"
    shape = rewriting.tensor_shape(weight)
    if 0 in shape:
        return "its weight is empty"
    first = rewriting.activation(source, node)
    per_channel = job.per_channel and not job.options.ort_compatible
    parameters = rewriting.parameters(weight, 0, symmetric=True) if per_channel else rewriting.parameters(weight)
    if per_channel:
        zero_points = np.asarray(parameters.zero_point)
        scale = np.asarray(parameters.scale).reshape(-1, *[1] * (len(shape) - 2))
        # Where the numbers of a channel are all zero, any zero point stands for them but with a scale that is not 0.
        zero_point = zero_points.reshape(-1)[int(np.argmax(np.abs(zero_points.astype(np.int64))))]
        parameters = replace(parameters, zero_point=np.full(zero_points.shape, zero_point, zero_points.dtype))
        stored = rewriting.stored(weight, parameters)
        zero = job.initializer(f"{weight.name}_zero_point_of_all", np.asarray(zero_point), parameters.dtype)
        second_scale = job.initializer(f"{weight.name}_scale_of_channels", scale)
        job.release(stored.scale)
        job.release(stored.zero_point)
    else:
        stored = rewriting.stored(weight, parameters)
        zero, second_scale = stored.zero_point, stored.scale
    output, name = node.outputs[0], quantized_name(node)
    sums = rewriting.like(output, f"{output.name}_output_quantized", ir.DataType.INT32)
    nodes = [
        job.node("ConvInteger", [first.values, stored.values, first.zero_point, zero], [sums], name, attributes(node))
    ]
    bias = rest[0] if rest else None
    made, result = scaled(
        rewriting, sums, first, second_scale, name, output, f"{output.name}quant_scaled_output" if bias else None
    )
    nodes += made
    if bias is not None:
        sizes = np.array([1, -1, *[1] * (len(shape) - 2)], np.int64)
        target = job.initializer(f"{output.name}_bias_reshape_shape", sizes)
        shaped = job.value(f"{output.name}_bias_reshape_output", job.dtype(bias) or FLOAT)
        total = rewriting.successor(output)
        nodes += [
            job.node("Reshape", [bias, target], [shaped], f"{output.name}_bias_reshape"),
            job.node("Add", [result, shaped], [total], f"{output.name}_bias_add"),
        ]
        result = total
    rewriting.replace(node, nodes, {output: result}, f"ConvInteger of {first.dtype.name} and {stored.dtype.name}")
    return None
