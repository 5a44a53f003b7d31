"""The products of a model whose second operand is a constant matrix: which they are, and what they need."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.quantization.job import Job


def shape_of(job: Job, value: ir.Value) -> tuple[int, ...]:
    """The shape of a constant."""
    tensor = job.tensor(value)
    assert tensor is not None
    return tuple(int(size) for size in tensor.shape.numpy())


def weight_objection(job: Job, weight: ir.Value | None) -> str | None:
    """Why a weight cannot be quantised, whoever reads it."""
    if weight is None or not job.is_constant(weight):
        return "its weight is no constant"
    if not job.is_float(weight):
        return "its weight is not of float32 or float16"
    return "its weight has no elements" if 0 in shape_of(job, weight) else None


def product_objection(job: Job, node: ir.Node, batches: bool = False) -> str | None:
    """Why no matrix can stand for the weight of a MatMul; `batches`: several may stand together."""
    weight = node.inputs[1]
    reason = weight_objection(job, weight)
    if reason is not None:
        return reason
    assert weight is not None
    shape = shape_of(job, weight)
    if len(shape) < 2:
        return "its weight is a vector"
    if is_batch(shape):
        return None if batches else "its weight is a batch of matrices, which QuantFormat.QDQ can hold"
    if len(shape) > 2 and missing_rank(job, node, len(shape)) is None:
        return "its weight has more than two dimensions, and how many its other input has is not known"
    return None


def is_batch(shape: tuple[int, ...]) -> bool:
    return any(size != 1 for size in shape[:-2])


def missing_rank(job: Job, node: ir.Node, rank: int) -> int | None:
    """How many dimensions the first input of a product needs, so that a matrix can stand for a weight of this rank.

    None where that is not known.
    """
    a = node.inputs[0]
    shape = None if a is None else job.shape(a)
    if shape is None:
        return None
    return max(0, rank - len(shape) if len(shape) > 1 else rank - 1 - len(shape))
