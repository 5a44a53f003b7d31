"""One matrix product as steps of a plan: layouts, batch axes, the epilogue's operands, the kernel's arguments."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product as grid

from sardonyx.compiler.binding import Address, Argument, Binder, Tensor
from sardonyx.compiler.choice.gemm_blocking import choose_blocking, copies_large_rows
from sardonyx.compiler.choice.gemm_choice import (
    ROWS_OF_PARTS,
    Blocking,
    Problem,
    asks_ahead,
    asks_for_results,
    packed_words,
    panel_columns,
    tile_shape,
)
from sardonyx.compiler.llvm.emitters import emitter
from sardonyx.compiler.llvm.kernels.products.gemm_epilogue import BATCH_DIMS, Addressing, Operand, TileEpilogue
from sardonyx.compiler.llvm.kernels.products.gemm_packing import (
    WordsInTilesSpec,
    emit_words_in_tiles,
)
from sardonyx.compiler.llvm.kernels.products.gemm_product import PRODUCTS
from sardonyx.compiler.llvm.kernels.products.gemm_spec import GemmSpec, Layout, argument_names
from sardonyx.compiler.llvm.kernels.products.gemm_windows import WindowGeometry
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.native.movement.copy import contiguous
from sardonyx.compiler.native.products.bounded_constants import begins_of, ends_of
from sardonyx.compiler.native.products.dots_step import takes_dots
from sardonyx.compiler.native.products.inner_products import by_constant, takes_pairs, worth_rounding
from sardonyx.compiler.native.products.left_rows import Left, RunGeometry, RunRows, WindowRows, laid_out, read_left
from sardonyx.compiler.native.products.packed_constants import Packed, panels_product
from sardonyx.compiler.native.products.plain_product import Axis, PlainProduct, batch_arguments
from sardonyx.compiler.native.products.shallow_step import takes_shallow
from sardonyx.compiler.native.products.strassen_step import columns_by_quarters
from sardonyx.compiler.native.products.words import as_tiles, row_step
from sardonyx.kernel.expr import Expr
from sardonyx.light_dataclass import dataclass
from sardonyx.runtime.threads.processors import thread_pool_size

emit_gemm = emitter("products.gemm", "emit_gemm")


def multiply(
    binder: Binder,
    a: Left,
    b: Tensor | Packed,
    outputs: tuple[Expr, ...],
    operands: Sequence[Tensor],
    results: Sequence[Tensor],
    product: str,
) -> None:
    """Add the steps of results = outputs(A x B, operands).

    A is [..., M, K] and B [..., K, N] with batch axes that broadcast; in `outputs` `Input(0)` is the product and
    `Input(1 + i)` operand i, which broadcasts to the results' shape [..., M, N].
    """
    if math.prod(results[0].shape) == 0:
        return
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        product = worth_rounding(product, a, b, results[0])
    found = _matrix_terms(binder, a, b, operands, results, product)
    if found is None:
        found = _terms(binder, a, b, operands, results, product)
    if isinstance(a, RunRows):
        unit = PRODUCTS[product].elements(a.geometry.run_words)
        found.problem = replace(found.problem, m=a.rows, k_unit=unit)
    if takes_pairs(binder.target, found.problem):
        product = "bf16"
        found.problem = replace(found.problem, product=product)
    problem, rows, epilogue = found.problem, found.row_steps, TileEpilogue(found.kinds, outputs)
    done = 0  # columns from the first on
    if problem.a == "rows" and PRODUCTS[product].parts == 1:
        left = found.a.reshaped((problem.m, problem.k), (rows[0], 1))
        others = list(zip((*found.operands, *results), rows[2:], strict=True))
        sides = others[: len(operands)], others[len(operands) :]
        plain = PlainProduct(problem, left, found.b, epilogue, *sides, found.batch)
        if problem.b == "packed":
            if takes_shallow(binder, plain):
                return
            done = columns_by_quarters(binder, plain) if binder.settings.fast_products else 0
            if done == problem.n:
                return
        elif found.b.strides[-2] == 1:
            plain = replace(plain, b=found.b.reshaped((problem.k, problem.n), found.b.strides[-2:]))
            if takes_dots(binder, plain) or (problem.m == 1 and takes_dots(binder, plain.turned)):
                return
    tile = tile_shape(binder.target, product, problem.n)
    spec = GemmSpec(
        product, problem.a, problem.b, tile.rows, tile.vectors, tile.unroll, asks_ahead(binder.target), epilogue
    )
    if binder.rehearses and problem.b in ("packed", "panels"):
        _make_ready(binder, spec, problem)
    written = sum([tensor.nbytes for tensor in results])
    in_memory = sum([tensor.nbytes for tensor in found.operands]) + written
    known = _Known(
        spec=spec,
        sizes={
            "m": problem.m,
            "n": problem.n - done,
            "k": problem.k,
            "b_stride": found.b_stride,
            "far": int(in_memory > binder.target.caches.l3 / 2 or asks_for_results(binder.target, written)),
            "a_stride": found.a.strides[-1] if problem.a == "columns" else rows[0],
        },
        matrices=(found.a, found.b, *found.operands, *results),
        row_steps=rows,
        source=found.a if isinstance(a, Tensor) else a.tensor,
        geometry=a.geometry if isinstance(a, WindowRows | RunRows) else None,
        elements=a.shape[-1],
        panel=panel_columns(binder.target, product, problem.n),
    )
    _add_steps(binder, known, replace(problem, n=problem.n - done), found.batch, len(results), done)


def _make_ready(binder: Binder, spec: GemmSpec, problem: Problem) -> None:
    """The kernels for other numbers of rows than those that are guessed, by vectors and in tiles of parts."""
    if spec.product not in _BY_ROWS or spec.a not in ("rows", "tiles"):
        return
    if by_constant(binder, "f32", ROWS_OF_PARTS, problem.n, problem.k) == "f32":
        return
    forms: tuple[tuple[str, Layout, Layout], ...] = (
        ("f32", "rows", "packed"),
        ("f32 tiles", "rows", "panels"),
        ("f32 tiles", "tiles", "panels"),
    )
    for product, left, right in forms:
        tile = tile_shape(binder.target, product, problem.n)
        other = GemmSpec(product, left, right, tile.rows, tile.vectors, tile.unroll, spec.few_prefetch, spec.epilogue)
        binder.library.kernel(emit_gemm, other)
    binder.library.kernel(emit_words_in_tiles, WordsInTilesSpec("f32 tiles"))


_BY_ROWS = ("f32", "f32 tiles")


@dataclass(eq=False, slots=True)
class _Terms:
    """A product as kernels take it: A, B and the operands as they are read, the steps from row to row of A, B, the
    operands and the results, and the batch axes."""

    problem: Problem
    a: Tensor
    b: Tensor
    b_stride: int
    operands: Sequence[Tensor]
    kinds: tuple[Operand, ...]
    row_steps: tuple[int, ...]
    batch: Sequence[Axis]


def _matrix_terms(
    binder: Binder,
    a: Left,
    b: Tensor | Packed,
    operands: Sequence[Tensor],
    results: Sequence[Tensor],
    product: str,
) -> _Terms | None:
    """What `_terms` gives for the product of models at work: one constant matrix, by which all rows are multiplied,
    and operands that are rows or have the shape of the results; None for others."""
    shape = results[0].shape
    size_m, size_n = math.prod(shape[:-1]), shape[-1]
    kind = PRODUCTS[product]
    is_one = isinstance(a, Tensor) and isinstance(b, Packed)
    if is_one and len(b.shape) > 2:
        is_one = kind.parts > 1 and math.prod(b.shape[:-2]) == 1
    if not is_one or (kind.depth > 1 and kind.parts == 1) or size_m == 1 or size_n == 1:
        return None
    assert isinstance(a, Tensor)
    assert isinstance(b, Packed)
    step = row_step(a)
    steps, kinds = [step, 0], []
    for tensor in operands:
        is_row = tensor.shape[-1:] == (size_n,) == (tensor.size,)
        if not (is_row and tensor.strides[-1] == 1) and tensor.shape != shape:
            return None
        steps.append(0 if is_row else row_step(tensor))
        kinds.append(Operand("full" if steps[-1] else "row", tensor.dtype))
    steps += map(row_step, results)
    if a.shape[-1] == 1 or None in steps:
        return None
    problem = Problem(
        m=size_m,
        n=size_n,
        k=b.shape[-2],
        product=product,
        b="panels" if kind.parts > 1 else "packed",
        a_stride_bytes=step * a.dtype.itemsize,  # type: ignore[operator]
        threads=thread_pool_size(binder.settings.threads),
    )
    if kind.parts > 1 and not copies_large_rows(binder.target, problem):
        a = as_tiles(binder, a.reshaped((size_m, a.shape[-1]), (step, 1)), product)  # type: ignore[arg-type]
        steps[0] = a.strides[-2]
        problem = replace(problem, a="tiles")
    stride = _width(binder.target, product, size_n)
    return _Terms(problem, a, b.words, stride, operands, tuple(kinds), tuple(steps), ())  # type: ignore[arg-type]


def _terms(
    binder: Binder,
    a: Left,
    b: Tensor | Packed,
    operands: Sequence[Tensor],
    results: Sequence[Tensor],
    product: str,
) -> _Terms:
    """The product as kernels take it; what they cannot read as it lies is copied."""
    shape = results[0].shape
    size_n, size_k = shape[-1], a.shape[-1]
    a, a_layout = read_left(binder, a, product)
    b_layout: Layout
    if isinstance(b, Tensor):
        b, b_layout = laid_out(binder, b)
        b_tensor, b_steps = b, _steps(b.shape[:-2], b.strides[:-2], shape[:-2])
        b_stride = b.strides[-2] if b_layout == "rows" else b.strides[-1]
    else:
        b_layout = "panels" if PRODUCTS[product].parts > 1 else "packed"
        size_k = PRODUCTS[product].elements(b.steps) if b.steps else size_k
        b_tensor, b_stride = b.words, _width(binder.target, product, size_n)
        words = packed_words(binder.target, panels_product(product), size_k, size_n)
        strides = [words * math.prod(b.shape[axis + 1 : -2]) for axis in range(len(b.shape) - 2)]
        b_steps = _steps(b.shape[:-2], strides, shape[:-2])
    operands = [_readable(binder, operand) for operand in operands]
    along_m = [_steps(operand.shape[:-1], operand.strides[:-1], shape[:-1]) for operand in operands]
    along_n = [_steps(operand.shape[-1:], operand.strides[-1:], shape[-1:])[0] for operand in operands]
    a_steps = _steps(a.shape[:-1], a.strides[:-1], shape[:-1])
    matrices = [a_steps, [*b_steps, 0], *along_m, *(result.strides[:-1] for result in results)]
    axes = _joined([Axis(size, tuple(steps)) for size, *steps in _columns(shape[:-1], matrices)], a_layout)
    rows = axes[-1]
    kinds = tuple(
        Operand(_addressing(rows.steps[2 + index], along_n[index]), operand.dtype)
        for index, operand in enumerate(operands)
    )
    problem = Problem(
        m=rows.size,
        n=size_n,
        k=size_k,
        batch=math.prod(axis.size for axis in axes[:-1]),
        product=product,
        a=a_layout,
        b=b_layout,
        a_stride_bytes=(rows.steps[0] if a_layout != "columns" else a.strides[-1]) * a.dtype.itemsize,
        b_stride_bytes=b_stride * b_tensor.dtype.itemsize,
        threads=thread_pool_size(binder.settings.threads),
    )
    return _Terms(problem, a, b_tensor, b_stride, operands, kinds, rows.steps, axes[:-1])


def _add_steps(
    binder: Binder, known: _Known, problem: Problem, batch: Sequence[Axis], results: int, column: int
) -> None:
    """A step over the batch axes that the kernel addresses, for each place on the others.

    The last `results` of the matrices are written, from a `column` on that begins a panel.
    """
    inner, outer = batch[-BATCH_DIMS:], batch[:-BATCH_DIMS]
    share = math.prod(axis.size for axis in outer)
    each = replace(problem, batch=problem.batch // share)
    blocking = choose_blocking(binder.target, each)
    nbytes = sum([tensor.nbytes for tensor in known.in_memory]) * problem.n / (column + problem.n)
    begins = known.begins(column) if column else [0] * len(known.matrices)
    for index in grid(*(range(axis.size) for axis in outer)):
        offsets = [
            begins[one] + sum(at * axis.steps[one] for at, axis in zip(index, outer, strict=True))
            for one in range(len(known.matrices))
        ]
        binder.step(
            emit_gemm,
            known.spec,
            known.arguments(inner, offsets, blocking),
            reads=known.matrices[:-results],
            writes=known.matrices[-results:],
            read_first=known.matrices[2:-results],
            chunks=blocking.chunks,
            scratch=blocking.scratch,
            flops=2.0 * each.m * each.n * known.elements * each.batch,
            nbytes=nbytes / share,
            detail=partial(_detail, known.spec, problem, blocking, known.elements),
            arithmetic=_ARITHMETIC.get(problem.product, ""),
        )


# The names of inner products where they are other than multiply-adds of the results' type.
_ARITHMETIC = {
    **{name: name for name in ("bf16", "bf16 tiles", "f32 tiles")},
    **dict.fromkeys([f"{left}8s8{how}" for left in "us" for how in ("", " pairs", " bounded")], "int8"),
    "u8s8 tiles": "int8 tiles",
}


def _detail(spec: GemmSpec, problem: Problem, blocking: Blocking, elements: int) -> str:
    """The sizes, the tile in rows and registers, how the product is cut into chunks, and the operands' layouts."""
    sizes = f"{problem.m}x{elements}x{problem.n}" + (f" ({problem.batch} of them)" if problem.batch > 1 else "")
    layouts = (
        f"A {problem.a}{' copied' if blocking.a_copy else ''}, B {problem.b}{' copied' if blocking.b_copy else ''}"
    )
    cut = f"{blocking.row_block} rows, k {blocking.k_block}, {blocking.group} panels a chunk"
    return f"{sizes} {spec.product}, tile {spec.rows}x{spec.vectors}, {cut}, {layouts}"


@dataclass(frozen=True, eq=False)
class _Known:
    """What the arguments of a step are made from; matrices are A, B, the operands, the results.

    `source` is the tensor that A's rows are in, or are put together from; K has so many `elements`,
    and a panel of B so many columns.
    """

    spec: GemmSpec
    sizes: dict[str, int]
    matrices: tuple[Tensor, ...]
    row_steps: tuple[int, ...]
    source: Tensor
    geometry: WindowGeometry | RunGeometry | None
    elements: int
    panel: int

    @property
    def in_memory(self) -> tuple[Tensor, ...]:
        """The matrices as they lie in memory."""
        return (self.source, *self.matrices[1:])

    def begins(self, column: int) -> list[int]:
        """Where this column, which begins one of the packed panels of B, begins in each matrix."""
        operands = [column if kind.addressing in ("full", "row") else 0 for kind in self.spec.epilogue.operands]
        results = [column] * (len(self.matrices) - len(operands) - 2)
        return [0, column * self.sizes["k"], *operands, *results]

    def arguments(self, batches: Sequence[Axis], offsets: Sequence[int], blocking: Blocking) -> list[Argument]:
        count = len(self.spec.epilogue.operands)
        names = ["a", "b", *(f"operand{index}" for index in range(count))]
        names += [f"output{index}" for index in range(len(self.matrices) - len(names))]
        values: dict[str, Argument] = {**self.sizes, **vars(blocking)}
        for one, name in enumerate(names):
            matrix = self.matrices[one]
            values[name] = Address(matrix.buffer, matrix.offset + offsets[one] * matrix.dtype.itemsize)
            if one > 1:
                values[f"{name}_stride"] = self.row_steps[one]
        values |= batch_arguments(names, batches)
        if PRODUCTS[self.spec.product].is_bounded:
            b, words = self.matrices[1], PRODUCTS[self.spec.product].words(self.sizes["k"])
            where = b, b.size // (words * (self.panel + 1) + 1), words, self.panel
            values |= {"begins": begins_of(*where), "ends": ends_of(*where)}
        if self.geometry is None:
            return [*map(values.__getitem__, argument_names(self.spec))]
        values |= self.geometry.arguments()
        return [*(values[name] for name in argument_names(self.spec)), *self.geometry.table()]


def _readable(binder: Binder, operand: Tensor) -> Tensor:
    """The operand with stride 1 along columns, unless it is one column."""
    if operand.shape and operand.shape[-1] != 1 and operand.strides[-1] not in (0, 1):
        return contiguous(binder, operand)
    return operand


def _steps(shape: Sequence[int], strides: Sequence[int], wanted: Sequence[int]) -> list[int]:
    """Strides under which a value reads as one of shape `wanted`, to which its own broadcasts."""
    missing = len(wanted) - len(shape)
    found = [0] * missing
    for size, stride, into in zip(shape, strides, wanted[missing:], strict=True):
        found.append(stride if size == into else 0)
    return found


def _columns(sizes: Sequence[int], matrices: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    return [(size, *(steps[axis] for steps in matrices)) for axis, size in enumerate(sizes)]


def _joined(axes: Sequence[Axis], a_layout: Layout) -> list[Axis]:
    """The axes with neighbours joined that lie together in every matrix; the last one is the rows."""
    *outer, rows = axes
    kept = [axis for axis in outer if axis.size != 1]
    if rows.size == 1 and kept and a_layout not in ("columns", "tiles") and kept[-1].steps[1] == 0:
        rows = kept.pop()  # one row per batch of one B: they are the rows of one product
    joined = [rows]
    for axis in reversed(kept):
        inner = joined[0]
        fixed = a_layout == "columns" and inner.size == 1  # the kernel takes 1 for the step between such rows
        if not fixed and all(step == inner.size * below for step, below in zip(axis.steps, inner.steps, strict=True)):
            joined[0] = Axis(axis.size * inner.size, inner.steps)
        else:
            joined.insert(0, axis)
    return joined


def _addressing(down: int, along: int) -> Addressing:
    if along == 0:
        return "column" if down else "scalar"
    return "full" if down else "row"


def _width(target: Target, product: str, columns: int) -> int:
    """The columns of panels of numbers for a product of parts, 0 for others."""
    return panel_columns(target, panels_product(product), columns) if PRODUCTS[product].parts > 1 else 0
