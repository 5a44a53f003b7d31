"""ConvInteger and QLinearConv: convolutions of bytes, zero points, and the scales of the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sardonyx.compiler.binding import Array, Binder, Tensor
from sardonyx.compiler.kernels.template import Epilogue, NativeKernel, template
from sardonyx.compiler.native.convolution.convolution_call import ConvolutionCall
from sardonyx.compiler.native.movement.copy import contiguous
from sardonyx.compiler.native.movement.slices import transposed
from sardonyx.compiler.native.quantization import float_convolution
from sardonyx.compiler.native.quantization.byte_convolution import PRODUCT, convolved
from sardonyx.compiler.native.quantization.byte_windows import OFFSET, signed_weights, unsigned_image
from sardonyx.compiler.native.quantization.exact_convolution import convolve_exactly, factors_of, single, wrapped
from sardonyx.graph.types import numpy_dtype
from sardonyx.kernel.expr import Expr, Input
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.quantization import quantized
from sardonyx.ops.windows import WindowAttributes

_BYTES = (np.dtype(np.uint8), np.dtype(np.int8))
_I32, _F32 = np.dtype(np.int32), np.dtype(np.float32)


class _Weights:
    """What follows from the constant weights: the sums of each filter's differences from its zero point, and that
    point (None: 0 everywhere), both for the weights as signed bytes."""

    def __init__(self, w: Array, zero_point: Array | None) -> None:
        signed = signed_weights(w)
        zero = np.zeros(1, np.int64) if zero_point is None else zero_point.reshape(-1).astype(np.int64)
        if zero.size not in (1, len(signed)):
            raise ValueError(f"there are {zero.size} zero points, but {len(signed)} filters")
        if w.dtype != signed.dtype:
            zero = zero - OFFSET
        count = signed[0].size if len(signed) else 0
        self.sums = signed.reshape(len(signed), -1).sum(axis=1, dtype=np.int64) - count * zero
        self.zero = np.broadcast_to(zero, self.sums.shape) if zero.any() else None


class ByteConvolution(NativeKernel):
    """Sums of windows of (x - its zero point) * (w - its zero point). Parameters: `group`, `attributes`.

    With unsigned bytes a of x, signed bytes b of w and zero points p, q: sum (a - p) (b - q) is
    sum a b - p (sum b - K q) - q sum a. What is known before the run is what sums start from; the sums of windows of x
    are needed only where q is not 0, and are a convolution with one filter of ones.
    """

    takes_epilogue = True

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        super().__init__(parameters)
        self.group: int = parameters["group"]
        self.attributes: Callable[[Sequence[int]], WindowAttributes] = parameters["attributes"]
        self._kept: tuple[Array, Array | None, _Weights] | None = None

    def _declines(self, x: Fact | None, w: Fact | None) -> str | None:
        for fact in (x, w):
            if fact is None or fact.dtype is None or numpy_dtype(fact.dtype) not in _BYTES:
                return "only convolutions of bytes"
        return None

    def _weights(self, w: Tensor, zero_point: Tensor | None) -> _Weights:
        point = None if zero_point is None else zero_point.array
        assert w.array is not None
        if self._kept is None or self._kept[0] is not w.array or self._kept[1] is not point:
            self._kept = w.array, point, _Weights(w.array, point)
        return self._kept[2]

    def _call(self, x: Tensor, w: Tensor, epilogue: Epilogue | None) -> ConvolutionCall:
        rank, group = len(x.shape), self.group
        fits = rank == len(w.shape) and rank > 2
        if not fits or x.shape[1] != w.shape[1] * group or w.shape[0] % group:
            raise ValueError(f"input {x.shape} and weights {w.shape} with group {group} do not fit")
        windows = self.attributes(w.shape[2:]).windows(x.shape[2:])
        return ConvolutionCall(x, w, None, windows, group, epilogue, PRODUCT)

    def _bind(
        self,
        binder: Binder,
        call: ConvolutionCall,
        x_zero: Tensor | None,
        w_zero: Tensor | None,
        bias: Array | None,
        finished: Callable[[Expr, list[Tensor]], Expr],
    ) -> list[Tensor]:
        """`finished` gives the result from the exact sums, adding operands to a list."""
        if self._takes_floats(binder, call, w_zero):
            w_point = None if w_zero is None else w_zero.array
            parameters = {"group": self.group, "attributes": self.attributes}
            return float_convolution.convolve_in_floats(binder, call, parameters, x_zero, w_point, bias, finished)
        weights = self._weights(call.w, w_zero)
        offset = OFFSET if call.x.dtype == np.int8 else 0
        operands: list[Tensor] = []
        total: Expr = Input(_I32, 0)
        init = np.zeros(call.filters, np.int64) if bias is None else bias.astype(np.int64)
        if x_zero is None or x_zero.is_known:
            known = 0 if x_zero is None or x_zero.array is None else int(x_zero.array.reshape(()))
            padding = binder.constant(np.asarray(known + offset, np.uint8))
            init = init - (known + offset) * weights.sums
        else:
            point = x_zero.reshaped((1,))
            operands.append(point)
            zero = Input(x_zero.dtype, len(operands)).cast(_I32)
            operands.append(binder.constant(weights.sums.astype(np.int32)))
            total = total - (zero + offset if offset else zero) * Input(_I32, len(operands))
            padding = unsigned_image(binder, point)
        if weights.zero is not None:
            operands.append(self._window_sums(binder, call, padding))
            operands.append(binder.constant(weights.zero.astype(np.int32)))
            total = total - Input(_I32, len(operands) - 1) * Input(_I32, len(operands))
        result = finished(total, operands)
        return convolved(binder, call, padding, result, operands, _wrapped(init))

    @staticmethod
    def _takes_floats(binder: Binder, call: ConvolutionCall, w_zero: Tensor | None) -> bool:
        if not binder.settings.bytes_in_floats or call.group == 1 or call.w.array is None or not call.w.size:
            return False
        point = None if w_zero is None else w_zero.array
        return float_convolution.takes(binder.target, call, float_convolution.differences(call.w.array, point))

    def _window_sums(self, binder: Binder, call: ConvolutionCall, padding: Tensor) -> Tensor:
        """The sums of the windows of x as unsigned bytes, [batch, *places, 1], or one for each filter of groups."""
        ones = binder.constant(np.ones((self.group, *call.w.shape[1:]), np.int8))
        only = replace(call, w=ones, epilogue=None)
        init = np.zeros(self.group, np.int32)
        (sums,) = convolved(binder, only, padding, Input(_I32, 0), [], init)
        last = sums.reshaped((sums.shape[0], *sums.shape[2:], sums.shape[1]),
                             (sums.strides[0], *sums.strides[2:], sums.strides[1]))  # fmt: skip
        if self.group == 1:
            return last
        filters = call.filters // self.group
        shape, strides = (*last.shape, filters), (*last.strides, 0)
        return contiguous(binder, last.reshaped(shape, strides)).reshaped((*last.shape[:-1], call.filters))


def _wrapped(sums: Array) -> Array:
    """Whole numbers modulo 2^32."""
    return sums.astype(np.uint64).astype(np.uint32).view(np.int32)


@template("convolution_integer")
class ConvIntegerKernel(ByteConvolution):
    """Inputs: x, w, the zero points of x and of w; the sums in int32."""

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        return self._declines(inputs[0], inputs[1])

    def bind(self, binder: Binder, *inputs: Tensor | None, epilogue: Epilogue | None = None) -> Sequence[Tensor | None]:
        x, w, x_zero, w_zero = (*inputs, None, None)[:4]
        assert x is not None
        assert w is not None
        if _is_laid_out(w) and (w_zero is None or w_zero.is_known):
            return self._bind(binder, self._call(x, w, epilogue), x_zero, w_zero, None, lambda total, _: total)
        zeros = (x_zero, w_zero)
        return convolve_exactly(
            binder, self.group, self.attributes, x, w, zeros, None, epilogue, lambda total, _: wrapped(total)
        )


@template("convolution_quantized")
class QLinearConvKernel(ByteConvolution):
    """Inputs: x, w and y with scale and zero point each, a bias in int32; the result as bytes.

    With the parameter `channels_last`, the channels of x and y come behind the places.
    """

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        super().__init__(parameters)
        self.takes_epilogue = not parameters.get("channels_last")

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        y_zero = inputs[7]
        if y_zero is None or y_zero.dtype is None or numpy_dtype(y_zero.dtype) not in _BYTES:
            return "only results of bytes"
        return self._declines(inputs[0], inputs[3])

    def bind(self, binder: Binder, *inputs: Tensor | None, epilogue: Epilogue | None = None) -> Sequence[Tensor | None]:
        x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias = (*inputs, None)[:9]
        assert x is not None
        assert w is not None
        assert y_zero is not None
        if not (_is_laid_out(w) and all(one is None or one.is_known for one in inputs[1:])):
            return self._bind_unknown(binder, inputs, epilogue)
        steps = [_array(one).astype(np.float32).reshape(-1) for one in (x_scale, w_scale, y_scale)]
        factors = binder.constant(np.ascontiguousarray(steps[0] * steps[1] / steps[2]))
        target = y_zero.dtype

        def finished(total: Expr, operands: list[Tensor]) -> Expr:
            operands.append(factors)
            quotient = total.cast(_F32) * Input(_F32, len(operands))
            operands.append(y_zero.reshaped((1,)))
            return quantized(quotient, Input(target, len(operands)).cast(_F32), target)

        added = None if bias is None else _array(bias)
        if not self.parameters.get("channels_last"):
            return self._bind(binder, self._call(x, w, epilogue), x_zero, w_zero, added, finished)
        rank = len(x.shape)
        call = self._call(transposed(x, (0, rank - 1, *range(1, rank - 1))), w, None)
        (y,) = self._bind(binder, call, x_zero, w_zero, added, finished)
        return [transposed(y, (0, *range(2, rank), 1))]

    def _bind_unknown(
        self, binder: Binder, inputs: Sequence[Tensor | None], epilogue: Epilogue | None
    ) -> Sequence[Tensor | None]:
        """Weights, scales or zero points come with the run."""
        x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias = (*inputs, None)[:9]
        assert x is not None
        assert w is not None
        assert x_scale is not None
        assert w_scale is not None
        assert y_scale is not None
        assert y_zero is not None
        rank, target = len(x.shape), y_zero.dtype
        last = bool(self.parameters.get("channels_last"))
        factors = factors_of(binder, x_scale, w_scale, y_scale, w.shape[0], rank - 2)
        point = single(y_zero, "zero point of y")

        def finished(total: Expr, operands: list[Tensor]) -> Expr:
            operands.extend([factors, point])
            quotient = total.cast(_F32) * Input(_F32, len(operands) - 1)
            return quantized(quotient, Input(target, len(operands)).cast(_F32), target)

        x = transposed(x, (0, rank - 1, *range(1, rank - 1))) if last else x
        zeros = (x_zero, w_zero)
        results = convolve_exactly(binder, self.group, self.attributes, x, w, zeros, bias, epilogue, finished)
        if not last:
            return results
        return [None if one is None else transposed(one, (0, *range(2, rank), 1)) for one in results]


def _is_laid_out(w: Tensor) -> bool:
    """Whether the weights lie ready before the run."""
    return w.is_known and w.buffer.kind == "constant"


def _array(tensor: Tensor | None) -> Array:
    assert tensor is not None
    assert tensor.array is not None
    return tensor.array
