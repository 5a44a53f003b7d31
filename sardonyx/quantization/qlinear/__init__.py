"""Static quantization in operators of integers: the scales of activations are known."""

from __future__ import annotations

from sardonyx.quantization.integer import embedding
from sardonyx.quantization.qlinear import (
    clamp,
    concat,
    convolution,
    elementwise,
    gather,
    layout,
    matmul,
    pooling,
    softmax,
)
from sardonyx.quantization.rewriting import MICROSOFT, Handlers

HANDLERS: Handlers = {
    ("", "Add"): elementwise.quantize_pair,
    ("", "ArgMax"): layout.quantize_arg_max,
    ("", "AveragePool"): pooling.quantize,
    ("", "Clip"): clamp.quantize,
    ("", "Concat"): concat.quantize,
    ("", "Conv"): convolution.quantize,
    ("", "Flatten"): layout.quantize,
    ("", "Gather"): gather.quantize,
    ("", "Gemm"): matmul.quantize_gemm,
    ("", "GlobalAveragePool"): pooling.quantize_global,
    ("", "LeakyRelu"): elementwise.quantize,
    ("", "MatMul"): matmul.quantize,
    ("", "MaxPool"): layout.quantize,
    ("", "Mul"): elementwise.quantize_pair,
    ("", "Pad"): layout.quantize_pad,
    ("", "Relu"): clamp.quantize,
    ("", "Reshape"): layout.quantize,
    ("", "Resize"): layout.quantize,
    ("", "Sigmoid"): elementwise.quantize,
    ("", "Softmax"): softmax.quantize,
    ("", "Split"): layout.quantize_split,
    ("", "Squeeze"): layout.quantize,
    ("", "Transpose"): layout.quantize,
    ("", "Unsqueeze"): layout.quantize,
    ("", "Where"): elementwise.quantize_where,
    (MICROSOFT, "EmbedLayerNormalization"): embedding.quantize,
}
