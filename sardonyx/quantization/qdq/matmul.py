"""MatMul and Gemm."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.quantization.qdq.plan import Plan


def matmul(plan: Plan, node: ir.Node) -> str | None:
    """A constant operand is a weight. Only one of rank 2 has channels, as kernels take a scale for each column of one
    matrix and of nothing else.
    """
    job = plan.job
    if plan.options.matmul_const_b_only and not job.is_constant(node.inputs[1]):
        return "its second operand is no constant (MatMulConstBOnly)"
    for index in range(2):
        value = node.inputs[index]
        if value is None or not job.is_constant(value):
            plan.read(node, index)
            continue
        rank = len(job.shape(value) or ())
        asked = plan.asked_axes().get("MatMul", 1)
        channels = asked if rank == 2 or plan.options.ort_compatible else None
        plan.weight(node, index, channels, blocks=max(rank - 2, 0) if index else rank - 1)
    plan.make(node)
    return None


def gemm(plan: Plan, node: ir.Node) -> None:
    """`beta` multiplies the stored bias, and is 1 afterwards."""
    job = plan.job
    channels = 0 if job.attribute(node, "transB", 0) else 1
    plan.read(node, 0)
    plan.make(node)
    plan.weight(node, 1, channels, blocks=1 - channels)
    plan.bias(node, 2, channels=channels, factor=job.attribute(node, "beta", 1.0))
