"""Where."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.quantization.qdq.plan import Plan


def where(plan: Plan, node: ir.Node) -> str | None:
    """It is quantised if both its values are, or if that is forced."""
    if plan.options.force_quantize_no_input_check:
        plan.read(node, 1)
        plan.read(node, 2)
    elif not (plan.is_quantized(node.inputs[1]) and plan.is_quantized(node.inputs[2])):
        return "not both of its values are stored quantised (ForceQuantizeNoInputCheck quantises them)"
    plan.make(node)
    return None
