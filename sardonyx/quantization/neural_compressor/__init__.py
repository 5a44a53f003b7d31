"""The functions of onnxruntime's copy of Intel Neural Compressor: `rtn_quantize` and `gptq_quantize`."""

from sardonyx.quantization.neural_compressor.weight_only import gptq_quantize, rtn_quantize

__all__ = ["gptq_quantize", "rtn_quantize"]
