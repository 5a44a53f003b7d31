"""Products of large matrices with a constant as steps of a plan: seven products of quarters, or 49 of sixteenths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from sardonyx.compiler.binding import Argument, Binder, Tensor
from sardonyx.compiler.choice.gemm_choice import Problem, panel_columns, tile_shape
from sardonyx.compiler.choice.quarter_cuts import QuarterCut
from sardonyx.compiler.choice.sixteenths_choice import choose_sixteenths, takes_sixteenths
from sardonyx.compiler.choice.strassen_choice import choose_cut, columns_of_quarters
from sardonyx.compiler.llvm.emitters import emitter
from sardonyx.compiler.llvm.kernels.products.quarter_kernel import QuarterSpec
from sardonyx.compiler.llvm.library import Emit
from sardonyx.compiler.native.products.plain_product import PlainProduct
from sardonyx.light_dataclass import dataclass

emit_stamp = emitter("products.gemm_strassen", "emit_stamp")

# Rows with which a product takes quarters, if it ever does.
_MANY_ROWS = (256, 512)


def columns_by_quarters(binder: Binder, product: PlainProduct) -> int:
    """How many of the first columns are computed by quarters or sixteenths, whose steps are added.

    A rehearsal with few rows makes the kernel of quarters ready for runs with many; that of sixteenths, which few
    models come to, is made for the first run that takes it.
    """
    part = _part(binder, product)
    known = [] if part is None else [_add_steps(binder, part)]
    if binder.rehearses and False not in known:
        for rows in _MANY_ROWS:
            a = product.a.reshaped((rows, product.problem.k), product.a.strides)
            long = _part(binder, replace(product, problem=replace(product.problem, m=rows), a=a))
            if long is not None and not takes_sixteenths(binder.target, long.problem):
                multiply_quarters(Binder(binder.library), long)
                break
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


@dataclass(frozen=True)
class _Scheme:
    """A kernel, the argument that names what was made for it before, and how many products of which parts it takes."""

    emit: Emit
    argument_names: Callable[[QuarterSpec], Sequence[str]]
    made_before: str
    products: int
    of: int
    parts: str
    part_of_chunk: str


def _names_of_quarters(spec: QuarterSpec) -> Sequence[str]:
    from sardonyx.compiler.llvm.kernels.products import gemm_strassen  # where a product is large enough

    return gemm_strassen.argument_names(spec)


def _names_of_sixteenths(spec: QuarterSpec) -> Sequence[str]:
    from sardonyx.compiler.llvm.kernels.products import gemm_sixteenths  # where a product is large enough

    return gemm_sixteenths.argument_names(spec)


_QUARTERS = _Scheme(
    emitter("products.gemm_strassen", "emit_strassen"), _names_of_quarters, "stamp", 7, 8, "quarters", "half"
)
_SIXTEENTHS = _Scheme(
    emitter("products.gemm_sixteenths", "emit_sixteenths"),
    _names_of_sixteenths,
    "b_sums",
    49,
    64,
    "sixteenths",
    "quarter",
)


def multiply_quarters(binder: Binder, product: PlainProduct) -> None:
    """Add the steps of a product by the packed panels of a constant."""
    cut = choose_cut(binder.target, product.problem.m, product.problem.k, product.problem.n)
    stamp = binder.new(np.dtype(np.int64), (1,))
    binder.step(emit_stamp, (), [stamp], reads=(), writes=(stamp,))
    _multiply(binder, product, _QUARTERS, cut, stamp)


def multiply_sixteenths(binder: Binder, product: PlainProduct) -> None:
    """Add the steps of a product by the packed panels of a constant: its sums, then 49 products."""
    from sardonyx.compiler.llvm.kernels.products.gemm_sixteenths import B_SUM_NAMES

    n, k = product.problem.n, product.problem.k
    cut = choose_sixteenths(binder.target, product.problem)
    sums = binder.new(np.dtype(np.float32), (n * k,))
    values: dict[str, Argument] = {"b": product.b, "b_sums": sums, "k": 2 * cut.k, "panels": 2 * cut.panels}
    binder.step(
        emitter("products.gemm_sixteenths", "emit_b_sums"),
        panel_columns(binder.target),
        [*map(values.__getitem__, B_SUM_NAMES)],
        reads=(product.b,),
        writes=(sums,),
        chunks=2 * cut.panels,
        flops=float(n * k),
        detail=partial("sums of quarters of {}x{}".format, k, n),
    )
    _multiply(binder, product, _SIXTEENTHS, cut, sums)


def _multiply(binder: Binder, product: PlainProduct, scheme: _Scheme, cut: QuarterCut, made_before: Tensor) -> None:
    tile = tile_shape(binder.target)
    spec = QuarterSpec("f32", tile.rows, tile.vectors, product.epilogue)
    values = product.arguments | vars(cut) | {scheme.made_before: made_before}
    binder.step(
        scheme.emit,
        spec,
        [*map(values.__getitem__, scheme.argument_names(spec))],
        reads=(*product.reads, made_before),
        writes=product.writes,
        chunks=cut.chunks,
        scratch=cut.scratch,
        flops=product.flops * scheme.products / scheme.of,
        detail=partial(_detail, spec, scheme, cut, product.problem),
    )


def _detail(spec: QuarterSpec, scheme: _Scheme, cut: QuarterCut, sizes: Problem) -> str:
    """The sizes, the tile in rows and registers, and how the products are cut into chunks."""
    return (
        f"{sizes.m}x{sizes.k}x{sizes.n} {spec.product} by {scheme.products} products of {scheme.parts}, "
        f"tile {cut.tile_rows}x{spec.vectors}, {cut.row_block} rows of each {scheme.part_of_chunk}, k {cut.k_block}, "
        f"{cut.group} panels of each {scheme.part_of_chunk} a chunk"
    )
