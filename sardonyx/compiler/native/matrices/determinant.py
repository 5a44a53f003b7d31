"""Det."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.kernels.template import NativeKernel, template
from sardonyx.compiler.llvm.kernels.matrices.determinant import DeterminantSpec, emit_determinant, scratch_bytes
from sardonyx.compiler.llvm.types import type_of
from sardonyx.compiler.native.movement.copy import contiguous
from sardonyx.graph.types import numpy_dtype
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.linear_algebra import check_square

# Multiply-adds that are worth a claim of their own.
_CHUNK = 1 << 14


@template("determinant")
class Determinant(NativeKernel):
    """The determinants of the matrices in the last two dimensions."""

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        x = inputs[0]
        type_ = None if x is None or x.dtype is None else type_of(numpy_dtype(x.dtype))
        return None if type_ is not None and type_.is_float else "no kernel eliminates elements of this type"

    def bind(self, binder: Binder, *inputs: Tensor | None) -> Sequence[Tensor]:
        x = inputs[0]
        assert x is not None
        check_square(x.shape)
        rows = x.shape[-1]
        x = contiguous(binder, x)
        result = binder.new(x.dtype, x.shape[:-2])
        count = math.prod(result.shape)
        type_ = type_of(x.dtype)
        assert type_ is not None
        per_chunk = max(1, _CHUNK // max(1, rows**3))
        binder.step(
            emit_determinant,
            DeterminantSpec(type_),
            [x, result, count, per_chunk, rows],
            reads=(x,),
            writes=(result,),
            chunks=-(-count // per_chunk),
            scratch=scratch_bytes(binder.target, rows),
            flops=2 / 3 * rows**3 * count,
            detail=f"{count} matrices of {rows} rows",
        )
        return [result]
