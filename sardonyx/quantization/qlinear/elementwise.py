"""Add, Mul, Sigmoid, LeakyRelu and Where: their QLinear forms of com.microsoft."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.quantization.qlinear.results import reason_of, result, triple
from sardonyx.quantization.quantized_numbers import Parameters
from sardonyx.quantization.rewriting import MICROSOFT, Rewriting, attributes


def quantize_pair(rewriting: Rewriting, node: ir.Node) -> str | None:
    """An Add or a Mul of activations or constants."""
    if len(node.inputs) != 2 or set(node.attributes):
        return "it is of an old form that broadcasts along an axis"
    reason = reason_of(rewriting, node.inputs, node.outputs[0])
    if reason is not None:
        return reason
    forms = [rewriting.activation(value, node) for value in node.inputs if value is not None]
    inputs = [one for form in forms for one in triple(form)]
    result(rewriting, node, f"QLinear{node.op_type}", inputs, domain=MICROSOFT)
    return None


def quantize(rewriting: Rewriting, node: ir.Node) -> str | None:
    """A Sigmoid or a LeakyRelu."""
    reason = reason_of(rewriting, node.inputs, node.outputs[0])
    if reason is not None:
        return reason
    source = node.inputs[0]
    assert source is not None
    form = rewriting.activation(source, node)
    parameters = rewriting.output_parameters(node.outputs[0])
    assert parameters is not None
    if node.op_type == "Sigmoid" and rewriting.job.options.sigmoid_nnapi:
        zero_point = np.zeros_like(parameters.zero_point)
        parameters = Parameters(parameters.dtype, np.asarray(1 / 256, np.float32), zero_point)
    result(rewriting, node, f"QLinear{node.op_type}", triple(form), parameters=parameters, domain=MICROSOFT)
    return None


def quantize_where(rewriting: Rewriting, node: ir.Node) -> str | None:
    """A Where of two quantised values, or of any with `ForceQuantizeNoInputCheck`.

    Not one of a constant by default: such ones mask with numbers far outside of what else is there, whose range would
    leave nothing of it.
    """
    condition, *sources = node.inputs
    if not rewriting.job.options.force_quantize_no_input_check and not all(
        value in rewriting.known for value in sources
    ):
        return "what it chooses from is not all quantised (extra option ForceQuantizeNoInputCheck)"
    reason = reason_of(rewriting, sources, node.outputs[0])
    if reason is not None:
        return reason
    forms = [rewriting.activation(value, node) for value in sources if value is not None]
    inputs = [condition, *(one for form in forms for one in triple(form))]
    result(rewriting, node, "QLinearWhere", inputs, given=attributes(node), domain=MICROSOFT)
    return None
