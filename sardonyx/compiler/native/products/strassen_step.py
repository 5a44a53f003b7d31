"""Products of large matrices with a constant as steps of a plan: seven products of quarters, or 49 of sixteenths."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from sardonyx.compiler.binding import Argument, Binder
from sardonyx.compiler.choice.gemm_choice import Problem, panel_columns, tile_shape
from sardonyx.compiler.choice.sixteenths_choice import SixteenthsCut, choose_sixteenths, takes_sixteenths
from sardonyx.compiler.choice.strassen_choice import Cut, choose_cut, columns_of_quarters
from sardonyx.compiler.llvm.kernels.products import gemm_sixteenths
from sardonyx.compiler.llvm.kernels.products.gemm_sixteenths import emit_b_sums, emit_sixteenths
from sardonyx.compiler.llvm.kernels.products.gemm_strassen import argument_names, emit_stamp, emit_strassen
from sardonyx.compiler.llvm.kernels.products.quarter_kernel import QuarterSpec
from sardonyx.compiler.native.products.plain_product import PlainProduct

# Rows that are enough for every product that may take quarters, and for one that may take sixteenths.
_MANY_ROWS = 512
_VERY_MANY_ROWS = 4096


def columns_by_quarters(binder: Binder, product: PlainProduct) -> int:
    """How many of the first columns are computed by quarters or sixteenths, whose steps are added.

    A rehearsal with few rows makes the kernels ready for runs with many.
    """
    part = _part(binder, product)
    known = [] if part is None else [_add_steps(binder, part)]
    if binder.rehearses:
        for rows in (_MANY_ROWS, _VERY_MANY_ROWS):
            a = product.a.reshaped((rows, product.problem.k), product.a.strides)
            long = _part(binder, replace(product, problem=replace(product.problem, m=rows), a=a))
            if long is not None and takes_sixteenths(binder.target, long.problem) not in known:
                known.append(_add_steps(Binder(binder.library), long))
    return 0 if part is None else part.problem.n


def _part(binder: Binder, product: PlainProduct) -> PlainProduct | None:
    """What of a product is computed so: the first columns, or nothing."""
    columns = columns_of_quarters(binder.target, product.problem)
    return replace(product, problem=replace(product.problem, n=columns)) if columns else None


def _add_steps(binder: Binder, part: PlainProduct) -> bool:
    """Whether the steps that were added take sixteenths."""
    by_sixteenths = takes_sixteenths(binder.target, part.problem)
    (multiply_sixteenths if by_sixteenths else multiply_quarters)(binder, part)
    return by_sixteenths


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


def multiply_sixteenths(binder: Binder, product: PlainProduct) -> None:
    """Add the steps of a product by the packed panels of a constant: its sums, then 49 products."""
    n, k = product.problem.n, product.problem.k
    cut = choose_sixteenths(binder.target, product.problem)
    tile = tile_shape(binder.target)
    sums = binder.new(np.dtype(np.float32), (n * k,))
    values: dict[str, Argument] = {"b": product.b, "b_sums": sums, "k": 2 * cut.k, "panels": 2 * cut.panels}
    binder.step(
        emit_b_sums,
        panel_columns(binder.target),
        [*map(values.__getitem__, gemm_sixteenths.B_SUM_NAMES)],
        reads=(product.b,),
        writes=(sums,),
        chunks=2 * cut.panels,
        flops=float(n * k),
        detail=partial("sums of quarters of {}x{}".format, k, n),
    )
    spec = QuarterSpec("f32", tile.rows, tile.vectors, product.epilogue)
    values = product.arguments | vars(cut) | {"b_sums": sums}
    binder.step(
        emit_sixteenths,
        spec,
        [*map(values.__getitem__, gemm_sixteenths.argument_names(spec))],
        reads=(*product.reads, sums),
        writes=product.writes,
        chunks=cut.chunks,
        scratch=cut.scratch,
        flops=product.flops * 49 / 64,
        detail=partial(_sixteenths_detail, spec, cut, product.problem),
    )


def _detail(spec: QuarterSpec, cut: Cut, sizes: Problem) -> str:
    """The sizes, the tile in rows and registers, and how the products are cut into chunks."""
    return (
        f"{sizes.m}x{sizes.k}x{sizes.n} {spec.product} by 7 products of quarters, "
        f"tile {cut.tile_rows}x{spec.vectors}, {cut.row_block} rows of each half, k {cut.k_block}, "
        f"{cut.group} panels of each half a chunk"
    )


def _sixteenths_detail(spec: QuarterSpec, cut: SixteenthsCut, sizes: Problem) -> str:
    """The same of a product by sixteenths."""
    return (
        f"{sizes.m}x{sizes.k}x{sizes.n} {spec.product} by 49 products of sixteenths, "
        f"tile {cut.tile_rows}x{spec.vectors}, {cut.row_block} rows of each quarter, k {cut.k_block}, "
        f"{cut.group} panels of each quarter a chunk"
    )
