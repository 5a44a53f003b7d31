"""The twins of QuantizeLinear and DequantizeLinear, which had 16 and 4 bits before ONNX did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import onnx_ir as ir

from sardonyx.kernel.program import Host, Kernel
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.framework.operator import Operator, operator
from sardonyx.ops.microsoft.linear_quantization import Array, along, dequantize, padded, quantize
from sardonyx.ops.microsoft.rules import DOMAIN, wide
from sardonyx.ops.quantization import quantized, spread_kernel
from sardonyx.ops.row_kernels import leaves

if TYPE_CHECKING:
    from sardonyx.ops.framework.inference import Inference


# Integers that vectors hold.
_NATIVE = frozenset({"uint8", "int8", "uint16", "int16"})


class Linear(Operator):
    """One scale and zero point for the whole tensor, or one pair for each index of `axis`."""

    axis: int | None = None
    host_reason: ClassVar[str] = "a conversion between real and quantised numbers"

    def parameter(self, parameter: Array, x: Array, name: str) -> Array:
        """A parameter in a shape that broadcasts against `x`."""
        if parameter.size == 1:
            return parameter.reshape(())
        axis = 1 if self.axis is None else self.axis
        if not -x.ndim <= axis < x.ndim:
            raise ValueError(f"axis {axis} is not one of the {x.ndim} axes of input 'x'")
        if parameter.shape != (x.shape[axis],):
            raise ValueError(f"input '{name}' is expected to have shape {(x.shape[axis],)}, got {parameter.shape}")
        return along(parameter, x.ndim, axis)


@operator("QuantizeLinear", domain=DOMAIN)
class QuantizeLinear(Linear):
    """round(x / y_scale) + y_zero_point, saturated; uint8 where no zero point is given."""

    inputs: ClassVar[str] = "x, y_scale, y_zero_point?"
    outputs: ClassVar[str] = "y"

    def run(self, *inputs: Any) -> Sequence[Array]:
        x, scale, zero = padded(inputs, 3)
        origin = np.zeros((), np.uint8) if zero is None else self.parameter(zero, x, "y_zero_point")
        return (quantize(wide(x), wide(self.parameter(scale, x, "y_scale")), origin),)

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        dtypes = padded(inputs, 3)
        target = np.dtype(np.uint8) if dtypes[2] is None else dtypes[2]
        x, scale, zero = leaves(dtypes)
        if target.name not in _NATIVE or x is None or scale is None:
            return Host(self.run, self.host_reason)
        result = quantized(x / scale.cast(x.dtype), None if zero is None else zero.cast(x.dtype), target)
        axis = 1 if self.axis is None else self.axis
        return spread_kernel(self, dtypes, result, axis, names=("y_scale", "y_zero_point"))

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        x, _, zero = padded(inputs, 3)
        kind = ir.TensorType(ir.DataType.UINT8) if zero is None else zero.type
        return [Fact(kind, None if x is None else x.shape)]


@operator("DequantizeLinear", domain=DOMAIN)
class DequantizeLinear(Linear):
    """(x - x_zero_point) * x_scale, in the type of the scale."""

    inputs: ClassVar[str] = "x, x_scale, x_zero_point?"
    outputs: ClassVar[str] = "y"

    def run(self, *inputs: Any) -> Sequence[Array]:
        x, scale, zero = padded(inputs, 3)
        origin = None if zero is None else self.parameter(zero, x, "x_zero_point")
        real = dequantize(x, wide(self.parameter(scale, x, "x_scale")), origin)
        return (real.astype(scale.dtype),)

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        dtypes = padded(inputs, 3)
        x, scale, zero = leaves(dtypes)
        if dtypes[0] is None or dtypes[0].name not in (*_NATIVE, "int32") or x is None or scale is None:
            return Host(self.run, self.host_reason)
        whole = x.cast(np.int32)
        values = whole if zero is None else whole - zero.cast(np.int32)
        wide = np.dtype(np.float32)
        real = (values.cast(wide) * scale.cast(wide)).cast(dtypes[1])
        axis = 1 if self.axis is None else self.axis
        return spread_kernel(self, dtypes, real, axis, names=("x_scale", "x_zero_point"))

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        x, scale = inputs[0], inputs[1]
        return [Fact(None if scale is None else scale.type, None if x is None else x.shape)]
