"""Conv and ConvTranspose."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.quantization.qdq.plan import Plan


def convolution(plan: Plan, node: ir.Node) -> None:
    """The weight has a scale for each channel that it makes; of a ConvTranspose these are of all groups alike."""
    turned = node.op_type == "ConvTranspose"
    plan.read(node, 0)
    plan.make(node)
    channels = 1 if turned else 0
    plan.weight(node, 1, channels, blocks=1 - channels)
    plan.bias(node, 2, channels=channels, groups=plan.job.attribute(node, "group", 1) if turned else 1)
