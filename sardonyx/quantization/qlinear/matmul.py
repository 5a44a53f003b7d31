"""MatMul and Gemm: QLinearMatMul and QGemm."""

from __future__ import annotations

import math

import onnx_ir as ir

from sardonyx.quantization.integer.matmul import product_reason, weight
from sardonyx.quantization.qlinear.results import reason_of, result, triple
from sardonyx.quantization.rewriting import MICROSOFT, Rewriting, attributes


def quantize(rewriting: Rewriting, node: ir.Node) -> str | None:
    """A MatMul; its second input may be an activation as well, unless `MatMulConstBOnly` is on."""
    left, right = node.inputs
    assert left is not None
    assert right is not None
    reason = product_reason(rewriting, left, right)
    if reason is None:
        activations = [left] if rewriting.is_constant(right) else [left, right]
        reason = reason_of(rewriting, activations, node.outputs[0])
    if reason is not None:
        return reason
    first = rewriting.activation(left, node)
    second, made = weight(rewriting, node, right, left)
    result(rewriting, node, "QLinearMatMul", [*triple(first), *triple(second)], before=made)
    return None


def quantize_gemm(rewriting: Rewriting, node: ir.Node) -> str | None:
    """A Gemm of a constant bias.

    QGemm multiplies the bias by alpha, as it does the product: it is stored with alpha in its scale, beta times.
    """
    job = rewriting.job
    left, right, *rest = node.inputs
    bias = rest[0] if rest else None
    assert left is not None
    assert right is not None
    alpha, beta = (float(job.attribute(node, key, 1.0)) for key in ("alpha", "beta"))
    if not math.isfinite(alpha) or alpha <= 0 or not math.isfinite(beta):
        return f"its alpha is {alpha} and its beta {beta}"
    transposed = bool(job.attribute(node, "transB", 0))
    reason = product_reason(rewriting, left, right, transposed=transposed)
    if reason is None:
        constant = job.is_constant(right)
        reason = reason_of(rewriting, [left] if constant else [left, right], node.outputs[0])
    if reason is not None:
        return reason
    if beta == 0:
        bias = None
    if bias is not None and not job.is_constant(bias):
        return "its bias is no constant"
    first = rewriting.activation(left, node)
    assert first.parameters is not None
    if job.is_constant(right):
        axis = (0 if transposed else 1) if job.per_channel else None
        parameters = rewriting.parameters(right, axis)
        if bias is not None:
            scale = float(first.parameters.scale)
            factor = alpha / beta
            parameters = rewriting.weights.raised(right, parameters, bias, scale, factor)
        second = rewriting.stored(right, parameters)
    else:
        second = rewriting.activation(right, node)
        assert second.parameters is not None
        parameters = second.parameters
    if bias is None:
        third = None
    elif job.options.ort_compatible:
        third = rewriting.bias(bias, first, parameters, factor=beta)
    else:
        third = rewriting.bias(bias, first, parameters, factor=alpha, multiplier=beta)
    result(
        rewriting,
        node,
        "QGemm",
        [*triple(first), *triple(second), third],
        given=attributes(node, without=("beta",)),
        domain=MICROSOFT,
    )
    return None
