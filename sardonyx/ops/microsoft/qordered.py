"""8-bit operators whose attributes name a matrix order of cuBLASLt, for inputs and outputs of one order.

Where the order does not change, each is a function of rows or elements. Orders other than row-major are layouts of one
GPU library and are declined.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import onnx_ir as ir

from sardonyx import errors
from sardonyx.graph.types import numpy_dtype
from sardonyx.kernel.evaluate import erf
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.framework.operator import Operator, describe, operator
from sardonyx.ops.microsoft.layer_normalization import normalized
from sardonyx.ops.microsoft.linear_quantization import dequantize, one, padded, quantize
from sardonyx.ops.microsoft.rules import DOMAIN, Array, wide

if TYPE_CHECKING:
    from sardonyx.ops.framework.inference import Inference

ROW_MAJOR = 1
_ZERO = np.zeros((), np.int8)


class Ordered(Operator):
    """An operator that knows row-major matrices only."""

    host_reason: ClassVar[str] = "a function of quantised tensors"
    order_names: ClassVar[tuple[str, str]] = ("order_input", "order_output")
    result: ClassVar[ir.DataType] = ir.DataType.INT8

    def __init__(self, node: ir.Node, version: int) -> None:
        super().__init__(node, version)
        for name in self.order_names:
            order = getattr(self, name)
            if order is not None and order != ROW_MAJOR:
                raise errors.NotImplemented(
                    f"Node {describe(node)} has {name}={order}, a layout of cuBLASLt; "
                    "export the model in row-major order, 1"
                )

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        x = inputs[0]
        return [Fact(ir.TensorType(self.result), None if x is None else x.shape)]


@operator("QuantizeWithOrder", domain=DOMAIN)
class QuantizeWithOrder(Ordered):
    """round(input / scale) as int8."""

    inputs: ClassVar[str] = "input, scale_input"
    outputs: ClassVar[str] = "output"
    order_input: int
    order_output: int

    def run(self, *inputs: Any) -> Sequence[Array]:
        x, scale = inputs
        return (quantize(wide(x), one(scale, "scale_input"), _ZERO),)


@operator("DequantizeWithOrder", domain=DOMAIN)
class DequantizeWithOrder(Ordered):
    """input * scale, in the type of attribute `to`."""

    inputs: ClassVar[str] = "input, scale_input"
    outputs: ClassVar[str] = "output"
    order_input: int
    order_output: int
    to: int

    def run(self, *inputs: Any) -> Sequence[Array]:
        x, scale = inputs
        return (dequantize(x, one(scale, "scale_input"), None).astype(numpy_dtype(ir.DataType(self.to))),)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        x = inputs[0]
        return [Fact(ir.TensorType(ir.DataType(self.to)), None if x is None else x.shape)]


@operator("QOrderedGelu", domain=DOMAIN)
class QOrderedGelu(Ordered):
    """Gelu of the real numbers, quantised."""

    inputs: ClassVar[str] = "X, scale_X, scale_Y"
    outputs: ClassVar[str] = "Y"
    order_names: ClassVar[tuple[str, str]] = ("order_X", "order_Y")
    order_X: int | None = None  # noqa: N815 - the name of the attribute
    order_Y: int | None = None  # noqa: N815 - the name of the attribute

    def run(self, *inputs: Any) -> Sequence[Array]:
        x, x_scale, y_scale = inputs
        real = dequantize(x, one(x_scale, "scale_X"), None)
        y = 0.5 * real * (1 + erf(real * np.float32(np.sqrt(0.5))))
        return (quantize(y, one(y_scale, "scale_Y"), _ZERO),)


@operator("QOrderedLayerNormalization", domain=DOMAIN)
class QOrderedLayerNormalization(Ordered):
    """LayerNormalization of the real numbers over the axes from `axis` on, quantised."""

    inputs: ClassVar[str] = "X, scale_X, scale, B?, scale_Y"
    outputs: ClassVar[str] = "Y"
    order_names: ClassVar[tuple[str, str]] = ("order_X", "order_Y")
    axis: int = -1
    epsilon: float = 1e-5
    order_X: int = ROW_MAJOR  # noqa: N815 - the name of the attribute
    order_Y: int = ROW_MAJOR  # noqa: N815 - the name of the attribute

    def run(self, *inputs: Any) -> Sequence[Array]:
        x, x_scale, gamma, beta, y_scale = padded(inputs, 5)
        if not -x.ndim <= self.axis < x.ndim:
            raise ValueError(f"axis {self.axis} is not one of the {x.ndim} axes of input 'X'")
        real = dequantize(x, one(x_scale, "scale_X"), None)
        y, _, _ = normalized(real, x.ndim - self.axis % x.ndim, self.epsilon, centred=True)
        y = y * wide(gamma)
        if beta is not None:
            y = y + wide(beta)
        return (quantize(y, one(y_scale, "scale_Y"), _ZERO),)
