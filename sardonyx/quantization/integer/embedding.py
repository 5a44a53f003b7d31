"""EmbedLayerNormalization of com.microsoft: QEmbedLayerNormalization."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.quantization.rewriting import MICROSOFT, Rewriting, attributes, quantized_name
from sardonyx.quantization.weights import QuantizedTensor

_TABLES = (2, 3, 4, 5, 6)  # tables of words, positions and segments, gamma, beta


def quantize(rewriting: Rewriting, node: ir.Node) -> str | None:
    """An EmbedLayerNormalization whose tables are constants of float32; they are stored as those of Gather are."""
    job = rewriting.job
    inputs = [*node.inputs, *[None] * (8 - len(node.inputs))]
    if len(node.outputs) > 2:
        return "QEmbedLayerNormalization does not give the sum of the embeddings"
    if len(node.inputs) > 8:
        return "QEmbedLayerNormalization takes no ids of positions"
    tables = [inputs[index] for index in _TABLES]
    if any(value is not None and not job.is_constant(value) for value in tables):
        return "its tables are no constants"
    if any(value is not None and job.dtype(value) != ir.DataType.FLOAT for value in tables):
        return "QEmbedLayerNormalization takes float32 alone"
    symmetric = None if job.options.weight_symmetric is not None else False
    forms: list[QuantizedTensor | None] = []
    for value in tables:
        if value is None:
            forms.append(None)
        elif job.options.ort_compatible:
            forms.append(rewriting.constant(value))
        else:
            forms.append(rewriting.stored(value, rewriting.parameters(value, symmetric=symmetric, reduced=False)))
    outputs = {value: rewriting.successor(value) for value in node.outputs}
    given = [
        *inputs[:2],
        *(None if form is None else form.values for form in forms),
        inputs[7],
        *(None if form is None else form.scale for form in forms),
        *(None if form is None else form.zero_point for form in forms),
    ]
    made = job.node(
        "QEmbedLayerNormalization",
        given,
        list(outputs.values()),
        quantized_name(node),
        attributes(node),
        domain=MICROSOFT,
    )
    kind = next(form.dtype for form in forms if form is not None)
    rewriting.replace(node, [made], outputs, f"QEmbedLayerNormalization of {kind.name}")
    return None
