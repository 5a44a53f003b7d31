"""BatchNormalization, InstanceNormalization and LayerNormalization."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.quantization.qdq.plan import Plan


def normalization(plan: Plan, node: ir.Node) -> None:
    """The factors are a weight with one scale, which have one axis and so no channels in the sense of kernels."""
    plan.read(node, 0)
    plan.weight(node, 1, channels=plan.asked_axes().get(node.op_type))
    plan.bias(node, 2)
    for index in range(len(node.outputs)):
        plan.make(node, index)
