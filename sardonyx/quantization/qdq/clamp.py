"""Relu and Clip: left out where what is stored cannot leave their range."""

from __future__ import annotations

import math

import onnx_ir as ir

from sardonyx.quantization.qdq.layout import FLOAT_INPUT
from sardonyx.quantization.qdq.plan import Plan
from sardonyx.quantization.quantized_numbers import FLOAT8, Parameters, type_range
from sardonyx.quantization.ranges import Ranges

_SIXTEEN = frozenset({ir.DataType.INT16, ir.DataType.UINT16})
_HALF = 0.501  # of a step, which rounding adds, and that of the scale
_INPUTS_FROM = 11  # the opset in which the bounds of Clip became inputs


def clamp(plan: Plan, node: ir.Node) -> str | None:
    """The result is stored if the input is."""
    if not plan.is_quantized(node.inputs[0]):
        return FLOAT_INPUT
    plan.read(node, 0)
    plan.make(node)
    plan.clamps.append(node)
    return None


def adjust(plan: Plan, ranges: Ranges) -> None:
    """Let the input of a Relu or Clip have the range of its result, where nobody else reads it."""
    for node in plan.job.nodes():
        source = node.inputs[0] if node.inputs else None
        if node.op_type in ("Relu", "Clip") and source is not None:
            if len(source.uses()) == 1 and not source.is_graph_output():
                ranges.take(source.name or "", node.outputs[0].name or "")
        elif node.op_type == "Softmax":
            ranges.bound(node.outputs[0].name or "", 0.0, 1.0)


def leave_out(plan: Plan, ranges: Ranges) -> None:
    """Remove each Relu and Clip whose result is stored, for all who read it, in a range that clamps as the node does.

    What its input is made by makes its result then, under the name of that.
    """
    job, options = plan.job, plan.options
    if options.qdq_keep_removable_activations or options.activation_symmetric:
        return
    for node in plan.clamps:
        source, result = node.inputs[0], node.outputs[0]
        assert source is not None
        if not _is_stored_alone(plan, source, result):
            continue
        parameters = ranges.parameters(result.name or "")
        bounds = _bounds(plan, node)
        if parameters is None or bounds is None or not _is_within(parameters, bounds, options.ort_compatible):
            continue
        result.replace_all_uses_with(source, replace_graph_outputs=True)
        name, kind, shape = result.name, result.type, result.shape
        job.remove(node)
        source.name, source.type, source.shape = name, kind, shape
        plan.rename(result, source)
        job.report.quantized(node, "left out, as the stored range clamps")


def _is_stored_alone(plan: Plan, source: ir.Value, result: ir.Value) -> bool:
    """Whether a node makes the input for the clamp alone, and everybody reads the result as it is stored."""
    before, after = plan.tensors.get(source), plan.tensors.get(result)
    if before is None or after is None or not before.made or not after.made:
        return False
    if len(source.uses()) != 1 or source.is_graph_output() or source.producer() is None:
        return False
    if any("convert" in one for value in (source, result) for one in plan.job.overrides.get(value.name or "") or ()):
        return False
    if result.is_graph_output() and plan.is_read_apart(result):
        return False
    is_needed = result.is_graph_output() or bool(result.uses())
    return is_needed and all(plan.reads_stored(use.node, result) for use in result.uses())


def _bounds(plan: Plan, node: ir.Node) -> tuple[float, float] | None:
    """The least and the largest number that a node gives; None where these differ from run to run."""
    if node.op_type == "Relu":
        return 0.0, math.inf
    found = [-math.inf, math.inf]
    for index, name in enumerate(("min", "max")):
        if plan.job.opset < _INPUTS_FROM:
            found[index] = float(plan.job.attribute(node, name, found[index]))
        elif index + 1 < len(node.inputs) and node.inputs[index + 1] is not None:
            bound = plan.job.constant(node.inputs[index + 1])
            if bound is None or bound.size != 1:
                return None
            found[index] = float(bound.reshape(-1)[0])
    return found[0], found[1]


def _is_within(parameters: Parameters, bounds: tuple[float, float], compatible: bool) -> bool:
    """Whether all numbers are stored as they are after they were clamped: both bounds as the ends of the type.

    Pairs of 16 bits clamp nothing for engines that take them out.
    """
    if compatible:
        return True
    if parameters.dtype in FLOAT8 or parameters.dtype in _SIXTEEN:
        return False
    least, largest = type_range(parameters.dtype)
    low, high = (bound / float(parameters.scale) + int(parameters.zero_point) for bound in bounds)
    return low <= least + _HALF and high >= largest - _HALF
