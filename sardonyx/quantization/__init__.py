"""Quantization, under the names of `onnxruntime.quantization`."""
