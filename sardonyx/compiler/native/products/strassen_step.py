"""Products of large matrices with a constant as steps of a plan: seven products of quarters."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from sardonyx.compiler.binding import Argument, Binder, Tensor
from sardonyx.compiler.gemm_choice import Problem, tile_shape
from sardonyx.compiler.llvm.kernels.products.gemm_epilogue import TileEpilogue
from sardonyx.compiler.llvm.kernels.products.gemm_strassen import (
    StrassenSpec,
    argument_names,
    emit_stamp,
    emit_strassen,
)
from sardonyx.compiler.native.products.sides import Sides, side_arguments
from sardonyx.compiler.strassen_choice import Cut, choose_cut, declined

# Rows that are enough for every product that may take quarters.
_MANY_ROWS = 512


def takes_quarters(
    binder: Binder,
    problem: Problem,
    a: Tensor,
    b: Tensor,
    epilogue: TileEpilogue,
    operands: Sides,
    results: Sides,
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
    operands: Sides,
    results: Sides,
) -> None:
    """Add the steps of results = epilogue(A x B, operands).

    A is a matrix whose rows are contiguous, `b` the packed panels of a constant. Operands and results come with the
    elements between their rows; results end in an axis of N contiguous columns.
    """
    (m, k), a_stride, n = a.shape, a.strides[0], results[0][0].shape[-1]
    cut = choose_cut(binder.target, m, k, n)
    stamp = binder.new(np.dtype(np.int64), (1,))
    binder.step(emit_stamp, (), [stamp], reads=(), writes=(stamp,))
    tile = tile_shape(binder.target)
    spec = StrassenSpec("f32", tile.rows, tile.vectors, epilogue)
    values: dict[str, Argument] = {**vars(cut), "a": a, "b": b, "stamp": stamp, "m": m, "a_stride": a_stride}
    values |= side_arguments(operands, results)
    binder.step(
        emit_strassen,
        spec,
        [values[name] for name in argument_names(spec)],
        reads=(a, b, stamp, *(tensor for tensor, _ in operands)),
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
