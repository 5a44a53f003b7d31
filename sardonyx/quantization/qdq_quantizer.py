"""`QDQQuantizer`: models of float operators between pairs of QuantizeLinear and DequantizeLinear."""

from __future__ import annotations

from sardonyx.quantization.base_quantizer import BaseQuantizer, QuantizationParams
from sardonyx.quantization.qdq.rules import quantize


class QDQQuantizer(BaseQuantizer):
    """Static quantization in the QDQ format; the arguments are those of `BaseQuantizer`, with calibrated ranges."""

    def quantize(self) -> None:
        quantize(self.job)
        self.job.finish()


__all__ = ["QDQQuantizer", "QuantizationParams"]
