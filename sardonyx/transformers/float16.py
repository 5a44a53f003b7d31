"""Models in float16: what callers of onnxruntime import from here, and the search for nodes that must stay float32."""

from __future__ import annotations

from sardonyx.transformers.half_conversion import convert_float_to_float16
from sardonyx.transformers.half_numbers import (
    convert_np_to_float16,
    convert_tensor_float_to_float16,
    float_to_float16_max_diff,
    make_value_info_from_tensor,
)
from sardonyx.transformers.half_ports import ALWAYS_FLOAT_INPUTS, DEFAULT_OP_BLOCK_LIST
from sardonyx.transformers.mixed_precision import auto_mixed_precision

__all__ = [
    "ALWAYS_FLOAT_INPUTS",
    "DEFAULT_OP_BLOCK_LIST",
    "auto_mixed_precision",
    "convert_float_to_float16",
    "convert_np_to_float16",
    "convert_tensor_float_to_float16",
    "float_to_float16_max_diff",
    "make_value_info_from_tensor",
]
