"""Products of large matrices with a constant as steps of a plan: sums of A's quarters, then seven products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from sardonyx.compiler.binding import Address, Argument, Binder, Tensor
from sardonyx.compiler.gemm_choice import Problem, tile_shape
from sardonyx.compiler.llvm.kernels.gemm_epilogue import BATCH_DIMS, TileEpilogue
from sardonyx.compiler.llvm.kernels.gemm_strassen import A_SUMS, StrassenSpec, argument_names, emit_strassen
from sardonyx.compiler.native.pointwise import PointwiseKernel
from sardonyx.compiler.strassen_choice import Cut, choose_cut, declined
from sardonyx.kernel.expr import Expr, Input

_F32 = np.dtype(np.float32)

# Elements that the rows of sums are longer than half of K: rows a multiple of 4096 bytes apart would share cache sets.
_PAD = 16


def _sums_of_quarters() -> tuple[Expr, ...]:
    """S1 to S4 over A11, A12, A21, A22."""
    a11, a12, a21, a22 = (Input(_F32, index) for index in range(4))
    s1 = a21 + a22
    s2 = s1 - a11
    return s1, s2, a11 - a21, a12 - s2


_SUMS = PointwiseKernel(_sums_of_quarters(), (_F32,) * 4)


# Rows that are enough for every product that may take quarters.
_MANY_ROWS = 512


def takes_quarters(
    binder: Binder,
    problem: Problem,
    a: Tensor,
    b: Tensor,
    epilogue: TileEpilogue,
    operands: Sequence[tuple[Tensor, int]],
    results: Sequence[tuple[Tensor, int]],
) -> bool:
    """Whether a product is computed by quarters; if so its steps are added, by `multiply_quarters`.

    A rehearsal with few rows makes the kernels ready for runs with many.
    """
    if declined(binder.target, problem) is None:
        multiply_quarters(binder, a, b, epilogue, operands, results)
        return True
    if binder.rehearses and declined(binder.target, replace(problem, m=_MANY_ROWS)) is None:
        longer = a.reshaped((_MANY_ROWS, a.shape[1]), a.strides)
        multiply_quarters(Binder(binder.library), longer, b, epilogue, operands, results)
    return False


def multiply_quarters(
    binder: Binder,
    a: Tensor,
    b: Tensor,
    epilogue: TileEpilogue,
    operands: Sequence[tuple[Tensor, int]],
    results: Sequence[tuple[Tensor, int]],
) -> None:
    """Add the steps of results = epilogue(A x B, operands).

    A is a matrix whose rows are contiguous, `b` the packed panels of a constant. Operands and results come with the
    elements between their rows; results end in an axis of N contiguous columns.
    """
    (m, k), a_stride, n = a.shape, a.strides[0], results[0][0].shape[-1]
    cut = choose_cut(binder.target, m, k, n)
    stride = cut.k + _PAD
    sums = binder.new(_F32, (A_SUMS, cut.upper, stride))
    below = (m - cut.upper) * a_stride
    quarters = [
        a.reshaped((cut.upper, cut.k), (a_stride, 1), start * _F32.itemsize)
        for start in (0, cut.k, below, below + cut.k)
    ]
    apart = cut.upper * stride
    parts = [sums.reshaped((cut.upper, cut.k), (stride, 1), which * apart * _F32.itemsize) for which in range(A_SUMS)]
    _SUMS.bind_into(binder, quarters, parts)
    tile = tile_shape(binder.target)
    spec = StrassenSpec("f32", tile.rows, tile.vectors, epilogue)
    sizes = {"m": m, "a_stride": a_stride, "sums_stride": stride, "sums_apart": apart}
    values: dict[str, Argument] = {**vars(cut), **sizes, "a": a, "sums": sums, "b": b}
    for kind, matrices in (("operand", operands), ("output", results)):
        for index, (tensor, step) in enumerate(matrices):
            values[f"{kind}{index}"] = Address(tensor.buffer, tensor.offset)
            values[f"{kind}{index}_stride"] = step
            values.update((f"{kind}{index}_batch{axis}", 0) for axis in range(BATCH_DIMS))
    binder.step(
        emit_strassen,
        spec,
        [values[name] for name in argument_names(spec)],
        reads=(a, sums, b, *(tensor for tensor, _ in operands)),
        writes=tuple(tensor for tensor, _ in results),
        chunks=cut.chunks,
        scratch=cut.scratch,
        flops=2.0 * m * k * n * 7 / 8,
        detail=partial(_detail, spec, cut, f"{m}x{k}x{n}"),
    )


def _detail(spec: StrassenSpec, cut: Cut, sizes: str) -> str:
    """The sizes, the tile in rows and registers, and how the products are cut into chunks."""
    return (
        f"{sizes} {spec.product} by 7 products of quarters, "
        f"tile {cut.tile_rows}x{spec.vectors}, {cut.row_block} rows of each half, k {cut.k_block}, "
        f"{cut.group} panels of each half a chunk"
    )
