"""The patterns of QuantizeLinear and DequantizeLinear, of ONNX and of com.microsoft, which mean the same."""

from __future__ import annotations

from sardonyx.passes.rule import OpPattern

_DOMAINS = "|com.microsoft"


def quantize(*operands: str | float | OpPattern) -> OpPattern:
    """A QuantizeLinear of the operands x, scale and zero point."""
    return OpPattern("QuantizeLinear", operands, _DOMAINS)


def dequantize(*operands: str | float | OpPattern, shared: bool = False) -> OpPattern:
    """A DequantizeLinear of the operands x, scale and zero point; `shared`: others may read its result."""
    return OpPattern("DequantizeLinear", operands, _DOMAINS, shared)
