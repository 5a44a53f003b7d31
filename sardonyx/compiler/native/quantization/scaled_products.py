"""Products of quantised matrices whose sums are scaled: to real numbers, or to the quantisation of the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.kernels.attention.projected_attention import ProjectedAttentionKernel
from sardonyx.compiler.kernels.pointwise import PointwiseKernel
from sardonyx.compiler.kernels.template import Epilogue, NativeKernel, template
from sardonyx.compiler.native.movement.copy import contiguous
from sardonyx.compiler.native.products.integer_matmul import IntegerProduct
from sardonyx.compiler.native.rows.reduction import ReductionKernel
from sardonyx.graph.types import numpy_dtype
from sardonyx.kernel.evaluate import evaluate
from sardonyx.kernel.expr import Expr, Input, constant
from sardonyx.kernel.program import Pointwise
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.quantization import dynamically_quantized, quantized

Tensors = Sequence["Tensor | None"]

_BYTES = (np.dtype(np.uint8), np.dtype(np.int8))
_F32 = np.dtype(np.float32)


def _is_spread(fact: Fact | None) -> str | None:
    """Why a parameter does not fit: it belongs to a whole matrix or to its columns, not to several matrices."""
    return (
        "parameters of every matrix of a batch" if fact is not None and (fact.rank is None or fact.rank > 1) else None
    )


class ScaledProduct(IntegerProduct):
    """What becomes of the sums: they are multiplied by scales, a bias is added, or they are quantised again."""

    def _scaled(
        self,
        binder: Binder,
        operands: tuple[Tensor, Tensor],
        scales: tuple[Tensor, Tensor],
        zeros: tuple[Tensor | None, Tensor | None],
        bias: Tensor | None,
        epilogue: Epilogue | None,
        result: np.dtype[Any] = _F32,
        into: Tensor | None = None,
    ) -> Sequence[Tensor]:
        """The product times both scales, plus the bias."""

        def finished(total: Expr, taken: list[Tensor]) -> Expr:
            factors = [self._parameter(taken, scale).cast(_F32) for scale in scales]
            value = total.cast(_F32) * (factors[0] * factors[1])
            if bias is not None:
                value = value + self._parameter(taken, bias).cast(_F32)
            return value.cast(result)

        return self._bind(binder, *operands, zeros, epilogue, finished, into=into)

    @staticmethod
    def _parameter(taken: list[Tensor], parameter: Tensor) -> Expr:
        """A number, or one for each column, of each matrix where there is a batch, as a further operand."""
        if len(parameter.shape) < 3:
            parameter = parameter.reshaped((parameter.size,), (parameter.strides or (1,))[-1:])
        taken.append(parameter)
        return Input(parameter.dtype, len(taken))

    def _quantized(
        self, taken: list[Tensor], total: Expr, factors: Tensor, zero_point: Tensor, target: np.dtype[Any]
    ) -> Expr:
        """The sums times `factors` in the integers of the result."""
        quotient = total.cast(_F32) * self._parameter(taken, factors)
        return quantized(quotient, self._parameter(taken, zero_point).cast(_F32), target)


@template("matmul_integer_to_float")
class MatMulIntegerToFloatKernel(ScaledProduct):
    """A, B, their scales, their zero points, a bias: all parameters of A are numbers, those of B may be rows."""

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        a, b, _, b_scale, a_zero, b_zero, bias = (*inputs, None, None, None)[:7]
        return self._objection(a, b, a_zero, b_zero) or _is_spread(b_scale) or _is_spread(bias)

    def bind(self, binder: Binder, *inputs: Tensor | None, epilogue: Epilogue | None = None) -> Sequence[Tensor | None]:
        a, b, a_scale, b_scale, a_zero, b_zero, bias = (*inputs, None, None, None)[:7]
        assert a is not None
        assert b is not None
        assert a_scale is not None
        assert b_scale is not None
        zeros = a_zero, b_zero
        return self._scaled(binder, (a, b), (a_scale, b_scale), zeros, bias, epilogue, a_scale.dtype)


@template("dynamic_quantize_matmul")
class DynamicQuantizeMatMulKernel(ScaledProduct):
    """A in float32, B, its scale, its zero point, a bias; A is quantised over its whole range first."""

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        super().__init__(parameters)
        self._quantizing = ReductionKernel(dynamically_quantized(Input(_F32, 0)), [_F32])

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        a, b, b_scale, b_zero, bias = (*inputs, None, None)[:5]
        if a is None or a.dtype is None or numpy_dtype(a.dtype) != _F32:
            return "only rows of float32"
        return self._objection(b, b, None, b_zero) or _is_spread(b_scale) or _is_spread(bias)

    def bind(
        self,
        binder: Binder,
        *inputs: Tensor | None,
        epilogue: Epilogue | None = None,
        into: Tensor | None = None,
    ) -> Sequence[Tensor | None]:
        a, b, b_scale, b_zero, bias = (*inputs, None, None)[:5]
        assert a is not None
        assert b is not None
        assert b_scale is not None
        a = contiguous(binder, a)
        codes, scale, zero = self._quantizing.bind(binder, [a.reshaped((a.size,))], (0,))
        left = codes.reshaped(a.shape)
        return self._scaled(binder, (left, b), (scale, b_scale), (zero, b_zero), bias, epilogue, into=into)


@template("matmul_quantized")
class QLinearMatMulKernel(ScaledProduct):
    """A, B and the result with scale and zero point each."""

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = inputs
        for fact in (a_scale, y_scale, y_zero, a_zero):
            if fact is None or fact.shape is None or any(dim != 1 for dim in fact.shape):
                return "scales of every row"
        if y_zero is None or y_zero.dtype is None or numpy_dtype(y_zero.dtype) not in _BYTES:
            return "only results of bytes"
        return self._objection(a, b, None, b_zero) or _is_spread(b_scale)

    def bind(self, binder: Binder, *inputs: Tensor | None, epilogue: Epilogue | None = None) -> Sequence[Tensor | None]:
        a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = inputs
        assert a is not None
        assert b is not None
        assert a_zero is not None
        assert y_zero is not None
        factors = _factors(binder, (a_scale, b_scale), y_scale)

        def finished(total: Expr, taken: list[Tensor]) -> Expr:
            return self._quantized(taken, total, factors, y_zero, y_zero.dtype)

        return self._bind(binder, a, b, (a_zero.reshaped((1,)), b_zero), epilogue, finished)


@template("gemm_quantized")
class QGemmKernel(ScaledProduct):
    """A, its scale and zero point, B, its scale and zero point, C in int32, scale and zero point of the result.

    Parameters: `alpha`, `transA`, `transB`. Without a scale of the result it is real.
    """

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        a, _, a_zero, b, b_scale, b_zero, _, y_scale, y_zero = (*inputs, None, None, None)[:9]
        if y_scale is not None and (y_zero is None or y_zero.dtype is None or numpy_dtype(y_zero.dtype) not in _BYTES):
            return "only results of bytes"
        return self._objection(a, b, a_zero, b_zero) or _is_spread(b_scale)

    def bind(self, binder: Binder, *inputs: Tensor | None, epilogue: Epilogue | None = None) -> Sequence[Tensor | None]:
        a, a_scale, a_zero, b, b_scale, b_zero, c, y_scale, y_zero = (*inputs, None, None, None)[:9]
        assert a is not None
        assert b is not None
        assert a_zero is not None
        if len(a.shape) != 2 or len(b.shape) != 2:
            raise ValueError(f"QGemm needs matrices, not shapes {a.shape} and {b.shape}")
        factors = _factors(binder, (a_scale, b_scale), y_scale, self.parameters["alpha"])

        def finished(total: Expr, taken: list[Tensor]) -> Expr:
            if c is not None:
                taken.append(c)
                total = total + Input(c.dtype, len(taken))
            if y_zero is None or y_scale is None:
                return total.cast(_F32) * self._parameter(taken, factors)
            return self._quantized(taken, total, factors, y_zero, y_zero.dtype)

        if self.parameters["transA"]:
            a = a.reshaped(a.shape[::-1], a.strides[::-1])
        turned = bool(self.parameters["transB"])
        return self._bind(binder, a, b, (a_zero.reshaped((1,)), b_zero), epilogue, finished, turned=turned)


def _factors(binder: Binder, scales: Sequence[Tensor | None], divisor: Tensor | None, alpha: float = 1.0) -> Tensor:
    """alpha times the scales, over that of the result, in float32: a vector, made once where all of them are known."""
    given = [one for one in (*scales, divisor) if one is not None]
    vectors = [one.reshaped((one.size,), (one.strides or (1,))[-1:]) for one in given]
    count = len(vectors)
    factor: Expr = constant(alpha, _F32)
    for index, one in enumerate(vectors):
        scale = Input(one.dtype, index).cast(_F32)
        factor = factor / scale if divisor is not None and index == count - 1 else factor * scale
    if all(one.is_known for one in given):
        contents = [one.array.reshape(-1) for one in given if one.array is not None]
        return binder.constant(evaluate(Pointwise(tuple(one.dtype for one in given), (factor,)), contents)[0])
    return PointwiseKernel([factor], [one.dtype for one in given]).bind(binder, vectors)[0]


@template("projected_attention_quantized")
class QAttentionKernel(NativeKernel):
    """QAttention: the projection is a `MatMulIntegerToFloatKernel`, the rest is the attention of its columns.

    Inputs: input, weight, bias, their scales, mask index, zero points, past.
    """

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        super().__init__(parameters)
        self._product = MatMulIntegerToFloatKernel({})
        self._attention = ProjectedAttentionKernel(parameters)

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        x, weight, bias, x_scale, w_scale, mask, x_zero, w_zero, past = (*inputs, None, None, None, None)[:9]
        if bias is None or bias.dtype is None or numpy_dtype(bias.dtype) != _F32:
            return "only a bias of float32"
        problem = self._product.declines([x, weight, x_scale, w_scale, x_zero, w_zero, bias], outputs)
        return problem or self._attention.declines([bias, bias, bias, mask, past], outputs)

    def bind(self, binder: Binder, *inputs: Tensor | None) -> Tensors:
        x, weight, bias, x_scale, w_scale, mask, x_zero, w_zero, past = (*inputs, None, None, None, None)[:9]
        (projected,) = self._product.bind(binder, x, weight, x_scale, w_scale, x_zero, w_zero, bias)
        assert projected is not None
        return self._attention.attended(binder, projected, mask, past, None)
