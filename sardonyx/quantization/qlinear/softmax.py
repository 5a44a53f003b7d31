"""Softmax: QLinearSoftmax of com.microsoft, whose results are stored in steps of 1/256."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.quantization.qlinear.results import reason_of, result, triple
from sardonyx.quantization.quantized_numbers import Parameters, narrow_dtype, type_range
from sardonyx.quantization.rewriting import MICROSOFT, Rewriting, attributes


def quantize(rewriting: Rewriting, node: ir.Node) -> str | None:
    """A Softmax; the range of its output is known without calibration."""
    job = rewriting.job
    source, output = node.inputs[0], node.outputs[0]
    assert source is not None
    reason = reason_of(rewriting, [source], None)
    if reason is not None:
        return reason
    form = rewriting.activation(source, node)
    least, _ = type_range(form.dtype)
    parameters = Parameters(form.dtype, np.asarray(1 / 256, np.float32), np.asarray(least, narrow_dtype(form.dtype)))
    if job.overrides.overrides_scale_zp(output.name or ""):
        own = rewriting.output_parameters(output)
        assert own is not None
        if own.dtype != form.dtype:
            return f"what it reads and gives has several types: {form.dtype.name}, {own.dtype.name}"
        parameters = own
    given = {**attributes(node), "opset": job.opset}
    result(rewriting, node, "QLinearSoftmax", triple(form), parameters=parameters, given=given, domain=MICROSOFT)
    return None
