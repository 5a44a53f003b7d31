"""Operators without a rule of their own: all floats that they read and make are stored as activations."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.quantization.qdq.plan import Plan


def everything(plan: Plan, node: ir.Node) -> None:
    for index in range(len(node.inputs)):
        plan.read(node, index)
    for index in range(len(node.outputs)):
        plan.make(node, index)
