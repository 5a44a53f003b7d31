"""Which operators each form of quantization knows: the keys of dicts that callers read.

The values name the file of the family of operators that does it, in `integer`, `qlinear` or `qdq`.
"""

from __future__ import annotations

CommonOpsRegistry = {
    "Gather": "gather",
    "Transpose": "layout",
    "EmbedLayerNormalization": "embedding",
}

IntegerOpsRegistry = {
    "Conv": "convolution",
    "MatMul": "matmul",
    "Attention": "attention",
    "LSTM": "lstm",
    **CommonOpsRegistry,
}

QLinearOpsRegistry = {
    "ArgMax": "layout",
    "Conv": "convolution",
    "Gemm": "matmul",
    "MatMul": "matmul",
    "Add": "elementwise",
    "Mul": "elementwise",
    "Relu": "clamp",
    "Clip": "clamp",
    "LeakyRelu": "elementwise",
    "Sigmoid": "elementwise",
    "MaxPool": "layout",
    "GlobalAveragePool": "pooling",
    "Split": "layout",
    "Pad": "layout",
    "Reshape": "layout",
    "Squeeze": "layout",
    "Unsqueeze": "layout",
    "Flatten": "layout",
    "Resize": "layout",
    "AveragePool": "pooling",
    "Concat": "concat",
    "Softmax": "softmax",
    "Where": "elementwise",
    **CommonOpsRegistry,
}

QDQRegistry = {
    "Conv": "convolution",
    "ConvTranspose": "convolution",
    "Gemm": "matmul",
    "Clip": "clamp",
    "Relu": "clamp",
    "Reshape": "layout",
    "Transpose": "layout",
    "Squeeze": "layout",
    "Unsqueeze": "layout",
    "Flatten": "layout",
    "Resize": "layout",
    "MaxPool": "layout",
    "AveragePool": "layout",
    "Slice": "layout",
    "Pad": "layout",
    "MatMul": "matmul",
    "Split": "layout",
    "Gather": "gather",
    "GatherElements": "gather",
    "Where": "where",
    "InstanceNormalization": "normalization",
    "LayerNormalization": "normalization",
    "BatchNormalization": "normalization",
    "TopK": "layout",
    "CumSum": "other",
}
