"""LSTM: DynamicQuantizeLSTM."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.quantization.quantized_numbers import Parameters
from sardonyx.quantization.rewriting import FLOAT, MICROSOFT, Rewriting, attributes, quantized_name

# Where the batch comes first: how its inputs and outputs are turned.
_SEQUENCE, _STATE = (1, 0, 2), (1, 0, 2)
_OUTPUT = (2, 0, 1, 3)


def quantize(rewriting: Rewriting, node: ir.Node) -> str | None:
    """An LSTM of constant weights; those are stored with the gates last, each direction with one scale, or per channel
    with one for each gate of each unit."""
    job = rewriting.job
    inputs = [*node.inputs, *[None] * (8 - len(node.inputs))]
    source, weight, recurrent = inputs[:3]
    assert source is not None
    if weight is None or recurrent is None or not (job.is_constant(weight) and job.is_constant(recurrent)):
        return "its weights are no constants"
    if job.dtype(source) != FLOAT or job.dtype(weight) != FLOAT:
        return "DynamicQuantizeLSTM takes float32 alone"
    if len(rewriting.tensor_shape(weight)) != 3 or len(rewriting.tensor_shape(recurrent)) != 3:
        return "its weights are not of rank 3"
    forms = [rewriting.stored(value, _parameters(rewriting, value), transposed=True) for value in (weight, recurrent)]
    scales = [_flat(rewriting, form) for form in forms]
    outputs = {value: rewriting.successor(value) for value in node.outputs}
    before: list[ir.Node] = []
    after: list[ir.Node] = []
    results = list(outputs.values())
    if job.attribute(node, "layout", 0) == 1:
        for index in (0, 5, 6):
            value = inputs[index]
            if value is not None:
                inputs[index] = _turned(rewriting, value, _SEQUENCE, before)
        for index, new in enumerate(results):
            if new.name:
                inner = job.value(f"{new.name}_sequence_first", FLOAT)
                perm = _OUTPUT if index == 0 else _STATE
                after.append(job.node("Transpose", [inner], [new], f"{new.name}_Transpose", {"perm": perm}))
                results[index] = inner
    given = [inputs[0], *(form.values for form in forms), *inputs[3:8], *(one for pair in scales for one in pair)]
    made = job.node(
        "DynamicQuantizeLSTM",
        given,
        results,
        quantized_name(node),
        attributes(node, without=("layout",)),
        domain=MICROSOFT,
    )
    rewriting.replace(node, [*before, made, *after], outputs, f"DynamicQuantizeLSTM of {forms[0].dtype.name}")
    return None


def _parameters(rewriting: Rewriting, value: ir.Value) -> Parameters:
    job = rewriting.job
    dtype = ir.DataType.INT8 if job.options.ort_compatible else job.weight_type
    # DynamicQuantizeLSTM adds zero points to sums of a whole row: kernels take but one for all of a direction.
    if not job.per_channel:
        return rewriting.parameters(value, 0, dtype=dtype)
    shape = rewriting.tensor_shape(value)
    return rewriting.parameters(value, 2, shape[2], dtype=dtype, symmetric=True)


def _flat(rewriting: Rewriting, form: Any) -> tuple[ir.Value, ir.Value]:
    """The scale and the zero point as DynamicQuantizeLSTM takes them: [directions] or [directions, 4 * hidden]."""
    if form.parameters.block_size == 0:
        return form.scale, form.zero_point
    flat = []
    for value in (form.scale, form.zero_point):
        array = rewriting.array(value)
        if array.ndim == 3:
            value.const_value = ir.Tensor(np.ascontiguousarray(array[..., 0]), dtype=value.dtype, name=value.name)
            value.shape = ir.Shape(array.shape[:2])
        flat.append(value)
    return flat[0], flat[1]


def _turned(rewriting: Rewriting, value: ir.Value, perm: tuple[int, ...], nodes: list[ir.Node]) -> ir.Value:
    made = rewriting.job.value(f"{value.name}_sequence_first", FLOAT)
    nodes.append(rewriting.job.node("Transpose", [value], [made], f"{made.name}_Transpose", {"perm": perm}))
    return made
