"""Gather and GatherElements."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.quantization.qdq.layout import same_numbers
from sardonyx.quantization.qdq.plan import Plan


def gather(plan: Plan, node: ir.Node) -> str | None:
    """A table of constants is stored as activations are, with one scale, which its rows keep."""
    table = node.inputs[0]
    if plan.job.is_constant(table) and plan.job.is_float(table):
        plan.read(node, 0)
        plan.make_like(node)
        return None
    return same_numbers(plan, node)
