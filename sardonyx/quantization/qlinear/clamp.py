"""Relu and Clip: part of the range that their input is stored with, or Clip of integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.graph.constants import nodes_of
from sardonyx.quantization.quantized_numbers import Parameters, narrow_dtype, type_range
from sardonyx.quantization.rewriting import Rewriting, quantized_name
from sardonyx.quantization.weights import QuantizedTensor

# Operators that give the range of their output: the others give that of what they read.
_OWN_RANGE = frozenset(
    {
        "Add",
        "AveragePool",
        "Concat",
        "Conv",
        "Gemm",
        "GlobalAveragePool",
        "LeakyRelu",
        "MatMul",
        "Mul",
        "Sigmoid",
        "Where",
    }
)
_ROUNDING = 0.501  # what storing a bound may add to it, in stored numbers
_CLIP_OF_INTEGERS = 12  # the operator set in which Clip takes integers of 8 bits


def narrow_ranges(rewriting: Rewriting) -> None:
    """Let what a Relu or Clip alone reads have the range of its result: the rest of it is lost anyway."""
    job = rewriting.job
    for node in nodes_of(job.graph):
        if node.op_type not in ("Relu", "Clip") or job.why_not(node) is not None:
            continue
        source, output = node.inputs[0], node.outputs[0]
        assert source is not None
        if len(source.uses()) != 1 or (source.is_graph_output() and not job.options.ort_compatible):
            continue
        producer = source.producer()
        is_own = producer is not None and producer.op_type in _OWN_RANGE and job.why_not(producer) is None
        if (is_own or job.options.ort_compatible) and (source.name or "") in rewriting.ranges:
            rewriting.ranges.take(source.name or "", output.name or "")


def quantize(rewriting: Rewriting, node: ir.Node) -> str | None:
    """A Relu or Clip of a quantised value.

    It goes where the stored numbers are those between its bounds, so that storing clamps. Else it is a Clip of the
    stored numbers, which says the same as the one of floats: both are monotonic, and so is storing.
    """
    job = rewriting.job
    source, output = node.inputs[0], node.outputs[0]
    assert source is not None
    form = rewriting.known.get(source)
    if form is None or form.parameters is None:
        return "what it reads is not quantised"
    if job.options.ort_compatible:
        if job.options.activation_symmetric:
            return "activations are symmetric"
        rewriting.drop(node, "in the range of what it reads")
        return None
    bounds = _bounds(rewriting, node)
    if bounds is None:
        return "its bounds are no constants"
    low, high = (_stored(bound, form.parameters) for bound in bounds)
    least, largest = type_range(form.dtype)
    if low <= least + _ROUNDING and high >= largest - _ROUNDING:
        rewriting.drop(node, "in the range of what it reads")
        return None
    if job.opset < _CLIP_OF_INTEGERS:
        return f"opset {job.opset} has no Clip of integers"
    kind = narrow_dtype(form.dtype)
    limits = [
        job.initializer(f"{output.name}_{name}", np.asarray(np.rint(min(max(bound, least), largest)), kind))
        for name, bound in (("least", low), ("largest", high))
    ]
    values = rewriting.like(output, f"{output.name}_quantized", form.dtype)
    made = job.node("Clip", [form.values, *limits], [values], quantized_name(node))
    result = QuantizedTensor(values, form.scale, form.zero_point, form.dtype, form.parameters)
    rewriting.quantized(node, [made], {output: result}, f"Clip of {form.dtype.name}")
    return None


def _bounds(rewriting: Rewriting, node: ir.Node) -> tuple[float, float] | None:
    """The bounds of a Relu or Clip, not finite where there is none; None where they are no constants."""
    if node.op_type == "Relu":
        return 0.0, np.inf
    found: list[Any] = [-np.inf, np.inf]
    for index, name in enumerate(("min", "max")):
        value = node.inputs[index + 1] if index + 1 < len(node.inputs) else None
        if value is not None:
            bound = rewriting.job.constant(value)
            if bound is None or bound.size != 1:
                return None
            found[index] = float(bound.reshape(-1)[0])
        elif name in node.attributes:
            found[index] = float(node.attributes[name].as_float())
    # Where the bounds are the wrong way round, the upper one counts.
    return min(found), found[1]


def _stored(bound: float, parameters: Parameters) -> float:
    """The number that a bound would be stored as, of any size and not rounded."""
    return bound / float(parameters.scale) + float(parameters.zero_point)
