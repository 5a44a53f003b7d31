"""BitCast."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.graph.types import numpy_dtype
from sardonyx.kernel.program import Kernel, Template
from sardonyx.ops.framework.facts import Fact, tensor
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import Array, Operator, Value, operator


@operator("BitCast", since=26)
class BitCast(Operator):
    """The bits of each element as an element of the type `to`, which is as wide."""

    to: int

    def run(self, data: Array) -> Sequence[Value]:
        dtype = numpy_dtype(ir.DataType(self.to))
        if dtype.itemsize != data.dtype.itemsize:
            raise ValueError(f"elements of {data.dtype} are not as wide as those of {dtype}")
        bits = np.ascontiguousarray(data).view(np.dtype(f"u{dtype.itemsize}")).reshape(data.shape)
        width = ir.DataType(self.to).bitwidth
        if width < 8:  # a byte holds one element, whose upper bits repeat the sign of a signed one
            bits = bits & (2**width - 1)
            if dtype.name.startswith("int"):
                bits = (bits ^ 2 ** (width - 1)) - np.uint8(2 ** (width - 1))
        return (bits.view(dtype).copy(),)

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        return Template("bit_cast", {"dtype": numpy_dtype(ir.DataType(self.to))}, self.run)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        data, wanted = inputs[0], ir.DataType(self.to)
        assert data is not None
        if data.dtype is not None and data.dtype.bitwidth != wanted.bitwidth:
            raise ValueError(f"elements of {data.dtype.name} are not as wide as those of {wanted.name}")
        return [tensor(wanted, data.shape)]
