"""Products of large matrices with a constant as steps of a plan: seven products of quarters."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from sardonyx.compiler.binding import Binder
from sardonyx.compiler.choice.gemm_choice import Problem, tile_shape
from sardonyx.compiler.choice.strassen_choice import Cut, choose_cut, columns_of_quarters
from sardonyx.compiler.llvm.kernels.products.gemm_strassen import argument_names, emit_stamp, emit_strassen
from sardonyx.compiler.llvm.kernels.products.quarter_kernel import QuarterSpec
from sardonyx.compiler.native.products.plain_product import PlainProduct

# Rows that are enough for every product that may take quarters.
_MANY_ROWS = 512


def columns_by_quarters(binder: Binder, product: PlainProduct) -> int:
    """How many of the first columns are computed by quarters, whose steps are added by `multiply_quarters`.

    A rehearsal with few rows makes the kernels ready for runs with many.
    """
    columns = columns_of_quarters(binder.target, product.problem)
    if columns:
        multiply_quarters(binder, replace(product, problem=replace(product.problem, n=columns)))
        return columns
    if binder.rehearses:
        long = replace(product.problem, m=_MANY_ROWS)
        long = replace(long, n=columns_of_quarters(binder.target, long))
        if long.n:
            rows = product.a.reshaped((long.m, long.k), product.a.strides)
            multiply_quarters(Binder(binder.library), replace(product, problem=long, a=rows))
    return 0


def multiply_quarters(binder: Binder, product: PlainProduct) -> None:
    """Add the steps of a product by the packed panels of a constant."""
    m, n, k = product.problem.m, product.problem.n, product.problem.k
    cut = choose_cut(binder.target, m, k, n)
    stamp = binder.new(np.dtype(np.int64), (1,))
    binder.step(emit_stamp, (), [stamp], reads=(), writes=(stamp,))
    tile = tile_shape(binder.target)
    spec = QuarterSpec("f32", tile.rows, tile.vectors, product.epilogue)
    values = product.arguments | vars(cut) | {"stamp": stamp}
    binder.step(
        emit_strassen,
        spec,
        [*map(values.__getitem__, argument_names(spec))],
        reads=(*product.reads, stamp),
        writes=product.writes,
        chunks=cut.chunks,
        scratch=cut.scratch,
        flops=product.flops * 7 / 8,
        detail=partial(_detail, spec, cut, product.problem),
    )


def _detail(spec: QuarterSpec, cut: Cut, sizes: Problem) -> str:
    """The sizes, the tile in rows and registers, and how the products are cut into chunks."""
    return (
        f"{sizes.m}x{sizes.k}x{sizes.n} {spec.product} by 7 products of quarters, "
        f"tile {cut.tile_rows}x{spec.vectors}, {cut.row_block} rows of each half, k {cut.k_block}, "
        f"{cut.group} panels of each half a chunk"
    )
