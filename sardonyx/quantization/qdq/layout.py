"""Operators whose results are numbers that they read, or lie between these: they keep the parameters of their input."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.quantization.qdq.plan import Plan
from sardonyx.quantization.quantized_numbers import FLOAT8

FLOAT_INPUT = "its input is not stored quantised (ForceQuantizeNoInputCheck quantises it)"
_OLDEST_MAX_POOL = 12  # that takes integers
_OLDEST_RESIZE = 11


def same_numbers(plan: Plan, node: ir.Node) -> str | None:
    """The result is stored as the input is, if that is stored quantised."""
    if plan.options.force_quantize_no_input_check:
        plan.read(node, 0)
    elif not plan.is_quantized(node.inputs[0]):
        return FLOAT_INPUT
    plan.make_like(node)
    return None


def max_pool(plan: Plan, node: ir.Node) -> str | None:
    """As `same_numbers`, in the types that it takes."""
    if plan.job.opset < _OLDEST_MAX_POOL:
        return f"MaxPool takes no integers before opset {_OLDEST_MAX_POOL}"
    if plan.job.activation_type in FLOAT8:
        return "MaxPool takes no 8-bit floats"
    return same_numbers(plan, node)


def resize(plan: Plan, node: ir.Node) -> str | None:
    """As `same_numbers`, but cubic interpolation and extrapolation have results beyond what they read."""
    if plan.job.opset < _OLDEST_RESIZE:
        return f"Resize is another operator before opset {_OLDEST_RESIZE}"
    cubic = plan.job.attribute(node, "mode") == "cubic"
    beyond = plan.job.attribute(node, "coordinate_transformation_mode") == "tf_crop_and_resize"
    if plan.options.ort_compatible or not (cubic or beyond):
        return same_numbers(plan, node)
    if plan.options.force_quantize_no_input_check:
        plan.read(node, 0)
    elif not plan.is_quantized(node.inputs[0]):
        return FLOAT_INPUT
    plan.make(node)
    return None


def split(plan: Plan, node: ir.Node) -> None:
    """All parts are stored as the whole is."""
    plan.read(node, 0)
    for index in range(len(node.outputs)):
        plan.make_like(node, index)


def pad(plan: Plan, node: ir.Node) -> str | None:
    """As `same_numbers` where what is added is zero, which every range has, or is read."""
    value = node.inputs[2] if len(node.inputs) > 2 else None
    added = plan.job.constant(value) if value is not None else np.zeros(())
    if plan.job.opset < _OLDEST_RESIZE:
        added = np.asarray(plan.job.attribute(node, "value", 0.0))
    reads = plan.job.attribute(node, "mode", "constant") != "constant"
    if added is not None and not reads and not np.isfinite(np.float64(added)).all():
        return "it pads with infinity, for which no integer stands"
    plan.read(node, 0)
    plan.read(node, 2)
    if reads or (added is not None and not added.any()):
        plan.make_like(node)
    else:
        plan.make(node)
    return None
