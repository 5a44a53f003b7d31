"""Dynamic quantization: integer operators whose activations get their scales in each run."""

from __future__ import annotations

from sardonyx.quantization.integer import attention, convolution, embedding, gather, layout, lstm, matmul
from sardonyx.quantization.rewriting import MICROSOFT, Handlers

HANDLERS: Handlers = {
    ("", "Conv"): convolution.quantize,
    ("", "Gather"): gather.quantize,
    ("", "Gemm"): matmul.quantize_gemm,
    ("", "LSTM"): lstm.quantize,
    ("", "MatMul"): matmul.quantize,
    ("", "Transpose"): layout.quantize,
    (MICROSOFT, "Attention"): attention.quantize,
    (MICROSOFT, "EmbedLayerNormalization"): embedding.quantize,
}
