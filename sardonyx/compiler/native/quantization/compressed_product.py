"""A product whose constant weight is made real once, while binding, and is an ordinary one then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx.compiler.binding import Array, Binder, Tensor
from sardonyx.compiler.kernels.template import Epilogue, NativeKernel, template
from sardonyx.compiler.native.products.inner_products import product_of
from sardonyx.compiler.native.products.matmul import ProductShape, add_product, as_matrix
from sardonyx.compiler.native.products.packed_constants import Packed, pack_b
from sardonyx.graph.types import numpy_dtype
from sardonyx.kernel.expr import Input
from sardonyx.ops.framework.facts import Fact

_FLOATS = ("float32", "float16", "bfloat16")


@template("compressed_product")
class CompressedProductKernel(NativeKernel):
    """A times a weight that `weight` makes of the second and third input, float32.

    Parameters: `weight`, `inner`, the number of elements that a row of A has, and `transposed`, which tells whether it
    is the weight's transpose that is multiplied.
    """

    takes_epilogue = True
    known_inputs = (1, 2)

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        super().__init__(parameters)
        self._real: tuple[Array, Array, tuple[int, int]] | None = None

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        a = inputs[0]
        if a is None or a.dtype is None or numpy_dtype(a.dtype).name not in _FLOATS:
            return "only rows of float32, float16 and bfloat16"
        return None

    def bind(self, binder: Binder, *inputs: Tensor | None, epilogue: Epilogue | None = None) -> Sequence[Tensor | None]:
        a, codes, scales = inputs[:3]
        assert a is not None
        assert codes is not None
        assert scales is not None
        inner = self.parameters["inner"]
        if not a.shape or a.shape[-1] != inner:
            raise ValueError(f"the last dimension of input 'A' must be {inner}, got shape {a.shape}")
        weights = self._weights(binder, codes, scales)
        left = as_matrix(a, vector="row")
        shape = ProductShape(left.shape[:-2], left.shape[-2], weights.shape[-1], len(a.shape) > 1, True)
        product = product_of(a.dtype)
        assert product is not None
        return add_product(binder, shape, left, weights, Input(a.dtype, 0), [], epilogue, product)

    def _weights(self, binder: Binder, codes: Tensor, scales: Tensor) -> Packed:
        source, steps = codes.array, scales.array
        assert source is not None
        assert steps is not None
        if self._real is None or self._real[0] is not source:
            weight = np.asarray(self.parameters["weight"](source, steps), np.float32)
            matrix = weight.T if self.parameters["transposed"] else np.ascontiguousarray(weight)
            self._real = source, pack_b(binder.library, matrix, "f32"), (matrix.shape[0], matrix.shape[1])
        return Packed(binder.constant(self._real[1]), self._real[2])
