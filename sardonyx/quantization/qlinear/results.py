"""What operators have in common that read and give activations with known scales."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.quantization.quantized_numbers import Parameters, extremes
from sardonyx.quantization.rewriting import Rewriting, attributes, quantized_name
from sardonyx.quantization.weights import QuantizedTensor


def reason_of(rewriting: Rewriting, inputs: Sequence[ir.Value | None], output: ir.Value | None) -> str | None:
    """Why activations cannot be quantised; None where they can. All have one type; `output` is None for an operator
    that gives what it reads."""
    for value in inputs:
        if value is None or not rewriting.job.is_float(value):
            return f"'{'' if value is None else value.name}' is not float32 or float16"
        if not rewriting.can_quantize(value):
            return f"its input '{value.name}' has no calibrated range that is finite"
        is_constant = value not in rewriting.known and rewriting.job.is_constant(value)
        if is_constant and not all(np.isfinite(end).all() for end in extremes(rewriting.array(value))):
            return f"constant '{value.name}' has numbers that are not finite"
    kinds = [_kind(rewriting, value) for value in inputs if value is not None]
    if output is not None:
        parameters = rewriting.output_parameters(output)
        if parameters is None:
            return f"its output '{output.name}' has no calibrated range that is finite"
        kinds.append(parameters.dtype)
    if len(set(kinds)) > 1:
        return f"what it reads and gives has several types: {', '.join(sorted({kind.name for kind in kinds}))}"
    return None


def _kind(rewriting: Rewriting, value: ir.Value) -> ir.DataType:
    form = rewriting.known.get(value)
    if form is not None:
        return form.dtype
    if rewriting.job.is_constant(value):
        return rewriting.job.activation_type
    parameters = rewriting.output_parameters(value)
    assert parameters is not None
    return parameters.dtype


def triple(form: QuantizedTensor) -> list[ir.Value]:
    """A quantised tensor as operators read it."""
    return [form.values, form.scale, form.zero_point]


def result(
    rewriting: Rewriting,
    node: ir.Node,
    op_type: str,
    inputs: Sequence[ir.Value | None],
    *,
    more: Sequence[ir.Value | None] = (),
    before: Sequence[ir.Node] = (),
    parameters: Parameters | None = None,
    given: dict[str, Any] | None = None,
    domain: str = "",
    first: bool = False,
) -> None:
    """Put an operator in the place of a node: it reads `inputs`, the scale and the zero point of what it gives,
    and `more`.

    With `first` the scale and the zero point come before the inputs. `parameters` are those of the output, by default
    the calibrated ones; `given` the attributes, by default those of the node.
    """
    output = node.outputs[0]
    if parameters is None:
        parameters = rewriting.output_parameters(output)
    assert parameters is not None
    scale, zero_point = rewriting.weights.scale_and_zero_point(output.name or "", parameters)
    values = rewriting.like(output, f"{output.name}_quantized", parameters.dtype)
    read = [scale, zero_point, *inputs, *more] if first else [*inputs, scale, zero_point, *more]
    made = rewriting.job.node(
        op_type, read, [values], quantized_name(node), attributes(node) if given is None else given, domain
    )
    form = QuantizedTensor(values, scale, zero_point, parameters.dtype, parameters)
    rewriting.quantized(node, [*before, made], {output: form}, f"{op_type} of {parameters.dtype.name}")
