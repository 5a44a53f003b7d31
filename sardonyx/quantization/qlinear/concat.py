"""Concat: QLinearConcat of com.microsoft."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.quantization.qlinear.results import reason_of, result, triple
from sardonyx.quantization.rewriting import MICROSOFT, Rewriting


def quantize(rewriting: Rewriting, node: ir.Node) -> str | None:
    """A Concat of activations or constants, each with a scale of its own."""
    reason = reason_of(rewriting, node.inputs, node.outputs[0])
    if reason is not None:
        return reason
    forms = [rewriting.activation(value, node) for value in node.inputs if value is not None]
    inputs = [one for form in forms for one in triple(form)]
    result(rewriting, node, "QLinearConcat", inputs, domain=MICROSOFT, first=True)
    return None
