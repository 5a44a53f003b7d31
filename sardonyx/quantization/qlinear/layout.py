"""Operators that give the numbers that they read, as they are stored: MaxPool, Reshape, Split, Pad and others."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.quantization.quantized_numbers import Parameters, type_range
from sardonyx.quantization.quantized_numbers import quantize as quantize_array
from sardonyx.quantization.rewriting import Array, Rewriting, attributes, quantized_name
from sardonyx.quantization.weights import QuantizedTensor

# The operator set from which an operator takes integers of 8 bits.
_SINCE = {"MaxPool": 12, "Resize": 11, "Flatten": 9, "Pad": 11}


def quantize(rewriting: Rewriting, node: ir.Node) -> str | None:
    """An operator of one tensor, of what that is stored as."""
    source = node.inputs[0]
    assert source is not None
    reason = _reason(rewriting, node, source)
    if reason is not None:
        return reason
    if node.op_type == "Resize" and rewriting.job.attribute(node, "mode", "nearest") == "cubic":
        return "a cubic Resize gives numbers outside of the range of what it reads"
    form, output = rewriting.activation(source, node), node.outputs[0]
    values = rewriting.like(output, f"{output.name}_quantized", form.dtype)
    others = {value: rewriting.successor(value) for value in node.outputs[1:]}
    made = rewriting.same(node, [form.values, *node.inputs[1:]], [values, *others.values()])
    for old, new in others.items():
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    _pass(rewriting, node, made, {output: values}, form)
    return None


def quantize_split(rewriting: Rewriting, node: ir.Node) -> str | None:
    """A Split; what it reads is quantised for it where it is not yet."""
    source = node.inputs[0]
    assert source is not None
    if not rewriting.can_quantize(source):
        return f"its input '{source.name}' has no calibrated range"
    form = rewriting.activation(source, node)
    values = {value: rewriting.like(value, f"{value.name}quantized", form.dtype) for value in node.outputs}
    made = rewriting.job.node(
        "Split", [form.values, *node.inputs[1:]], list(values.values()), quantized_name(node), attributes(node)
    )
    made.version = node.version
    _pass(rewriting, node, made, values, form)
    return None


def quantize_pad(rewriting: Rewriting, node: ir.Node) -> str | None:
    """A Pad, by a number that the range of what it reads holds."""
    job = rewriting.job
    source, pads, *rest = node.inputs
    assert source is not None
    reason = _reason(rewriting, node, source)
    if reason is not None:
        return reason
    number = rest[0] if rest else None
    is_constant = job.attribute(node, "mode", "constant") == "constant"
    if is_constant and number is not None and not job.is_constant(number):
        return "the number that it pads with is no constant"
    form, output = rewriting.activation(source, node), node.outputs[0]
    if form.parameters is None:
        return "the scale of what it reads is not known"
    stored: ir.Value | None = form.zero_point if is_constant else None
    if is_constant and number is not None:
        array = rewriting.array(number).reshape(-1)
        if not holds(array, form.parameters):
            return f"it pads with {array[0]}, which is outside of the range of what it reads"
        kept = quantize_array(array, form.parameters).reshape(rewriting.tensor_shape(number))
        stored = job.initializer(f"{number.name}_quantized", kept, form.dtype)
    values = rewriting.like(output, f"{output.name}_quantized", form.dtype)
    given = [form.values, pads, stored, *rest[1:]]
    while given[-1] is None:
        given.pop()
    made = rewriting.same(node, given, [values])
    _pass(rewriting, node, made, {output: values}, form)
    return None


def quantize_arg_max(rewriting: Rewriting, node: ir.Node) -> str | None:
    """An ArgMax: the largest number is the one that is stored as the largest."""
    source = node.inputs[0]
    form = None if source is None else rewriting.known.get(source)
    if form is None:
        return "what it reads is not quantised"
    node.replace_input_with(0, form.values)
    rewriting.job.report.quantized(node, f"ArgMax of {form.dtype.name}")
    return None


def holds(array: Array, parameters: Parameters) -> bool:
    """Whether numbers are stored without being cut off."""
    least, largest = type_range(parameters.dtype)
    stored = np.rint(array.astype(np.float64) / float(parameters.scale)) + float(parameters.zero_point)
    return bool(((stored >= least) & (stored <= largest)).all())


def _reason(rewriting: Rewriting, node: ir.Node, source: ir.Value) -> str | None:
    job = rewriting.job
    since = _SINCE.get(node.op_type, 1)
    if job.opset < since:
        return f"{node.op_type} of opset {job.opset} takes no integers of 8 bits"
    if source in rewriting.known:
        return None
    if not job.options.force_quantize_no_input_check:
        return "what it reads is not quantised (extra option ForceQuantizeNoInputCheck)"
    if job.is_constant(source):
        return "what it reads is a constant"
    return None if rewriting.can_quantize(source) else f"its input '{source.name}' has no calibrated range"


def _pass(
    rewriting: Rewriting, node: ir.Node, made: ir.Node, outputs: dict[ir.Value, ir.Value], form: QuantizedTensor
) -> None:
    forms = {
        value: QuantizedTensor(values, form.scale, form.zero_point, form.dtype, form.parameters)
        for value, values in outputs.items()
    }
    rewriting.quantized(node, [made], forms, f"{node.op_type} of {form.dtype.name}")
