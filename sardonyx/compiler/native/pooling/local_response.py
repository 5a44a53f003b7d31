"""Local response normalisation: windows over the channels, whichever way those lie."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.kernels.template import NativeKernel, template
from sardonyx.compiler.llvm.kernels.windows.folds import Combine
from sardonyx.compiler.native.movement.copy import contiguous
from sardonyx.compiler.native.movement.slices import transposed
from sardonyx.compiler.native.pooling.pool import pool
from sardonyx.kernel import expr as e
from sardonyx.kernel.canonical import canonical
from sardonyx.kernel.evaluate import working_dtype
from sardonyx.kernel.expr import Expr, Input
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.normalization import neighbours
from sardonyx.ops.windows import Windows


@template("local_response")
class LocalResponseKernel(NativeKernel):
    """x / (bias + alpha / size * squares of the neighbouring channels) ** beta, of the parameters' names."""

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        x = inputs[0]
        if x is None or x.dtype is None or x.rank is None:
            return "the type or the rank of the input is not known before the run"
        return "an input without channels" if x.rank < 2 else None

    def bind(self, binder: Binder, x: Tensor) -> Sequence[Tensor | None]:
        rank, channels = len(x.shape), x.shape[1]
        before, behind = neighbours(self.parameters["size"], channels)
        size = before + 1 + behind
        last = transposed(x, (0, *range(2, rank), 1))
        if last.is_contiguous and channels > 1:
            places = x.size // channels
            rows = last.reshaped((1, places, channels, 1), (x.size, channels, 1, 0))
            windows = _neighbours((places, channels), (1, size), (0, before))
            (made,) = self._pooled(binder, rows, windows)
            return [transposed(made.reshaped(last.shape), (0, rank - 1, *range(1, rank - 1)))]
        x = contiguous(binder, x)
        maps = x.reshaped((x.shape[0], channels, math.prod(x.shape[2:])))
        (made,) = self._pooled(binder, maps, _neighbours((channels,), (size,), (before,)))
        return [made.reshaped(x.shape)]

    def _pooled(self, binder: Binder, x: Tensor, windows: Windows) -> list[Tensor]:
        """The normalised elements of x [batch, *sizes, other dimensions], over windows of neighbours."""
        wide = working_dtype(x.dtype)
        element = Input(x.dtype, 0).cast(wide)
        alpha, size, bias = (self.parameters[name] for name in ("alpha", "size", "bias"))
        base = bias + alpha / size * Input(wide, 0)
        result = Input(x.dtype, 1).cast(wide) / _power(base, self.parameters["beta"])
        fold = Combine("sum", canonical([element * element]))
        return pool(binder, x, windows, fold, (result.cast(x.dtype),), [x], x.shape)


def _neighbours(sizes: tuple[int, ...], kernel: tuple[int, ...], before: tuple[int, ...]) -> Windows:
    """Windows around every element, `before` of them before it."""
    ones = (1,) * len(sizes)
    behind = tuple(count - 1 - first for count, first in zip(kernel, before, strict=True))
    return Windows(sizes, kernel, ones, ones, before, behind, sizes)


def _power(base: Expr, exponent: float) -> Expr:
    """base ** exponent; by square roots for the usual one."""
    if exponent == 0.75:
        root = e.sqrt(base)
        return root * e.sqrt(root)
    return e.power(base, exponent)
