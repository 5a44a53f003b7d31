"""The pointwise kernel: expressions over every element of an iteration space, row by row.

Arguments: the address of each operand (inputs, then outputs); items, items per chunk; elements of a row, elements of a
piece, elements that a row loses from one item to the next; the number of items along the fastest outer dimension;
each operand's step along that dimension and along the row, in bytes; rank and table (size, steps in bytes) of the
slower dimensions. A long row is cut in pieces, which then are the fastest outer dimension.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from sardonyx.compiler.llvm.builder import Function, Value
from sardonyx.compiler.llvm.expression import emit_abreast, emit_node, emit_working
from sardonyx.compiler.llvm.kernels.rows.row_access import Access, Operand, lanes_for, types_within
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import type_of
from sardonyx.compiler.llvm.walk import kernel_frame, places, runs, share
from sardonyx.kernel.canonical import Canonical
from sardonyx.kernel.expr import Apply, Constant, Expr, Input, walk
from sardonyx.light_dataclass import dataclass


@dataclass(frozen=True)
class PointwiseSpec:
    """Expressions over `inputs` (dtypes by name) and how each operand, outputs included, lies along a row; `flushes`:
    what is rounded to bfloat16 may lose denormal numbers."""

    body: Canonical
    inputs: tuple[str, ...]
    access: tuple[Access, ...]
    unroll: int = 1
    flushes: bool = False


def emit_pointwise(target: Target, spec: PointwiseSpec) -> str:
    """The module of a pointwise kernel."""
    k, words = kernel_frame(target)
    k.flushes = spec.flushes
    dtypes = [np.dtype(name) for name in spec.inputs] + [root.dtype for root in spec.body.roots]
    count = len(dtypes)
    scalars = []
    for dtype in dtypes:
        scalar = type_of(dtype)
        assert scalar is not None
        scalars.append(scalar)
    lanes = lanes_for(target, [*scalars, *types_within(spec.body.roots)])
    bases = [k.pointer(words.load(index), scalar) for index, scalar in enumerate(scalars)]
    items, per_chunk, row, piece, shrink, fastest = (words.load(count + index) for index in range(6))
    steps = [words.load(count + 6 + index) for index in range(count)]
    strides = [words.load(2 * count + 6 + index) for index in range(count)]
    operands = [
        Operand(k, scalar, access, stride) for scalar, access, stride in zip(scalars, spec.access, strides, strict=True)
    ]
    begin, end = share(k, items, per_chunk)
    rank, table = words.load(3 * count + 6), words.offset(3 * count + 7)
    with runs(k, begin, end, fastest) as (slower, first, last):
        offsets = places(k, slower, table, rank, count)
        starts = [k.advance(base.address, offset, 1) for base, offset in zip(bases, offsets, strict=True)]
        with k.loop(first, last) as item:
            for operand, start, step in zip(operands, starts, steps, strict=True):
                operand.start_row(k.advance(start, item * step, 1))
            _emit_row(k, spec, operands, k.smaller(piece, row - item * shrink), lanes)
    return k.finish()


def _emit_row(k: Function, spec: PointwiseSpec, operands: Sequence[Operand], count: Value, lanes: int) -> None:
    """One row of `count` elements."""
    roots, inputs, outputs = spec.body.roots, operands[: len(spec.inputs)], operands[len(spec.inputs) :]
    known = _row_values(k, roots, inputs, lanes)

    def visit(index: Value, vectors: int) -> None:
        places = [index + turn * lanes for turn in range(vectors)]
        loaded = [[operand.load(at, lanes) for operand in inputs] for at in places]
        for at, results in zip(places, emit_abreast(k, roots, loaded, known), strict=True):
            for operand, result in zip(outputs, results, strict=True):
                operand.store(result, at, lanes)

    whole = count - count % lanes
    step = lanes * spec.unroll
    unrolled = count - count % step if spec.unroll > 1 else whole
    with k.loop(0, unrolled, step) as index:
        visit(index, spec.unroll)
    if spec.unroll > 1:
        with k.loop(unrolled, whole, lanes) as index:
            visit(index, 1)
    rest = count - whole
    with k.when(rest > 0):
        results = emit_working(k, roots, [operand.load_part(whole, lanes, rest) for operand in inputs], known)
        for operand, result in zip(outputs, results, strict=True):
            operand.store(result, whole, lanes, rest)


def _row_values(k: Function, roots: Sequence[Expr], inputs: Sequence[Operand], lanes: int) -> Mapping[int, Value]:
    """What is the same for a whole row, computed once, as vectors where elements meet it."""
    scalars: dict[int, Value] = {}
    loaded = [operand.value if operand.value is not None else operand.k.undefined(operand.scalar) for operand in inputs]
    order = walk(roots)
    for expr in order:
        if isinstance(expr, Input) and inputs[expr.index].access != "broadcast":
            continue
        if isinstance(expr, Apply) and not all(id(arg) in scalars for arg in expr.args):
            continue
        scalars[id(expr)] = emit_node(k, expr, loaded, scalars)
    met = {id(root) for root in roots}
    for expr in order:
        if isinstance(expr, Apply) and id(expr) not in scalars:
            met.update(id(arg) for arg in expr.args)
    return {
        id(expr): k.splat(scalars[id(expr)], lanes)
        for expr in order
        if id(expr) in scalars and id(expr) in met and not isinstance(expr, Constant)
    }
