"""AveragePool and GlobalAveragePool: their QLinear forms of com.microsoft."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.quantization.qlinear.results import reason_of, result, triple
from sardonyx.quantization.rewriting import MICROSOFT, Rewriting, attributes


def quantize(rewriting: Rewriting, node: ir.Node) -> str | None:
    """An AveragePool without dilations."""
    source = node.inputs[0]
    assert source is not None
    if any(size != 1 for size in rewriting.job.attribute(node, "dilations", ())):
        return "QLinearAveragePool has no dilations"
    reason = reason_of(rewriting, [source], node.outputs[0])
    if reason is not None:
        return reason
    form = rewriting.activation(source, node)
    given = attributes(node, without=("dilations",))
    result(rewriting, node, "QLinearAveragePool", triple(form), given=given, domain=MICROSOFT)
    return None


def quantize_global(rewriting: Rewriting, node: ir.Node) -> str | None:
    """A GlobalAveragePool of a quantised value; one whose range is not known has that of what it reads."""
    source, output = node.inputs[0], node.outputs[0]
    assert source is not None
    form = rewriting.known.get(source)
    if form is None or form.parameters is None:
        return "what it reads is not quantised"
    parameters = rewriting.output_parameters(output) or form.parameters
    if parameters.dtype != form.dtype:
        return f"what it reads and gives has several types: {form.dtype.name}, {parameters.dtype.name}"
    given = {**attributes(node), "channels_last": 0}
    result(
        rewriting,
        node,
        "QLinearGlobalAveragePool",
        triple(form),
        parameters=parameters,
        given=given,
        domain=MICROSOFT,
    )
    return None
