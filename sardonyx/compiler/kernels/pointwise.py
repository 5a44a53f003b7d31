"""Pointwise kernels: expressions over every element of tensors that broadcast, row by row.

Binding decides on the iteration space and how it is cut into chunks. A long row is cut in pieces, which then are the
fastest outer dimension.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from sardonyx.compiler.arguments import Read, Record, Rest, Several, Size, Write, kernel, sizes
from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.llvm.builder import Function, Value
from sardonyx.compiler.llvm.expression import STRANDS, emit_abreast, emit_node, emit_working, supported
from sardonyx.compiler.llvm.kernels.rows.row_access import Access, Operand, lanes_for, types_within
from sardonyx.compiler.llvm.lookup import has_byte_lookup, has_word_lookup
from sardonyx.compiler.llvm.types import dtype_type
from sardonyx.compiler.llvm.walk import places, runs, share
from sardonyx.compiler.native.quantization.byte_tables import (
    WORTH_AMONG_BYTES,
    Tabulated,
    is_number,
    may_be_tabulated,
    tabulated,
)
from sardonyx.compiler.native.rows.rows import (
    Axis,
    access_of,
    broadcast_steps,
    common_shape,
    elements_per_chunk,
    in_order,
    joined_axes,
    laid_out,
    memory_order,
    permuted,
    space_size,
    table_words,
)
from sardonyx.compiler.traced import larger
from sardonyx.kernel.canonical import Canonical, canonical
from sardonyx.kernel.cost import operations
from sardonyx.kernel.expr import Apply, Constant, Expr, Input, substitute, walk
from sardonyx.kernel.program import Pointwise
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

    @property
    def operands(self) -> int:
        """Inputs and outputs."""
        return len(self.inputs) + len(self.body.roots)


class Arguments(Record):
    inputs = Several(Read(), lambda spec: len(spec.inputs))
    outputs = Several(Write(), lambda spec: len(spec.body.roots))
    items, per_chunk = sizes(2)
    row = Size()  # elements
    piece = Size()  # elements
    shrink = Size()  # elements that a row loses from one item to the next
    fastest = Size()  # items along the fastest outer dimension
    steps = Several(Size(), lambda spec: spec.operands)  # of each operand along that dimension, in bytes
    strides = Several(Size(), lambda spec: spec.operands)  # along the row, in bytes
    rank = Size()  # slower dimensions
    table = Rest()  # their sizes and each operand's steps in bytes


@kernel(Arguments)
def emit_pointwise(k: Function, a: Arguments, spec: PointwiseSpec) -> None:
    """Every element of an iteration space, item by item, which are rows or pieces of them."""
    k.flushes = spec.flushes
    scalars = [dtype_type(name) for name in (*spec.inputs, *(root.dtype.name for root in spec.body.roots))]
    lanes = lanes_for(k.target, [*scalars, *types_within(spec.body.roots)])
    bases = [*a.inputs, *a.outputs]
    items, per_chunk, row, piece, shrink, fastest = a.items, a.per_chunk, a.row, a.piece, a.shrink, a.fastest
    steps, strides = a.steps, a.strides
    operands = [
        Operand(k, scalar, access, stride) for scalar, access, stride in zip(scalars, spec.access, strides, strict=True)
    ]
    begin, end = share(k, items, per_chunk)
    rank, table = a.rank, a.table
    with runs(k, begin, end, fastest) as (slower, first, last):
        offsets = places(k, slower, table, rank, spec.operands)
        starts = [k.advance(base.address, offset, 1) for base, offset in zip(bases, offsets, strict=True)]
        with k.loop(first, last) as item:
            for operand, start, step in zip(operands, starts, steps, strict=True):
                operand.start_row(k.advance(start, item * step, 1))
            _emit_row(k, spec, operands, k.smaller(piece, row - item * shrink), lanes)


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


_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)

# Expressions with fewer operations than this for an element gain from a loop of two vectors a turn; longer ones from
# `STRANDS` of them, until their code takes long to compile.
_UNROLLED_OPERATIONS = 12
_LONG_EXPRESSION = 100

# To begin a row takes as long as to gather so many elements from anywhere.
_SHORT_ROW = 8

_WORD = 4
# Sets of numbers for which a kernel keeps its tables.
_MOST_TABLES = 16

# Pieces of a row are whole vectors, whatever the dtype and the target.
_PIECE_MULTIPLE = 64


class PointwiseKernel:
    """Expressions over the elements of tensors that broadcast against each other; each root is one output.

    `Input(i)` in the roots has the dtype ``dtypes[i]`` and reads input `i`. ValueError where `supported` objects.
    """

    def __init__(self, roots: Sequence[Expr], dtypes: Sequence[np.dtype[Any]]) -> None:
        problem = supported(roots)
        if problem is not None:
            raise ValueError(problem)
        self.dtypes = tuple(dtypes)
        self.body = canonical(roots)
        self.operations = operations(Pointwise(self.dtypes, self.body.roots))
        self._names = tuple(dtype.name for dtype in self.dtypes)
        self._exponents = _inputs_as_exponents(self.body.roots)
        self._may_be_tabulated = may_be_tabulated(self.body.roots)
        self._tabulated: dict[tuple[str | bytes | None, ...], Tabulated | None] = {}
        self._read = [sorted({leaf.index for leaf in walk([root]) if isinstance(leaf, Input)}) for root in roots]

    def bind(self, binder: Binder, inputs: Sequence[Tensor], reason: str = "") -> list[Tensor]:
        """Add the step for these inputs and give the outputs; ValueError where the shapes do not broadcast.

        Every output has the shape to which all the inputs broadcast. `reason` says what the step is there for.
        """
        shape = common_shape([tensor.shape for tensor in inputs])
        order = memory_order(inputs, shape)
        outputs = [_result(binder, place, root.dtype, shape, order) for place, root in enumerate(self.body.roots)]
        self._add(binder, inputs, outputs, order, reason)
        return outputs

    def bind_nodes(self, binder: Binder, inputs: Sequence[Tensor]) -> list[Tensor]:
        """`bind` for outputs of nodes, which were taken for equally large by what the model declares.

        ValueError where they are not: where the inputs that an output depends on broadcast to another shape.
        """
        if len(self._read) > 1:
            shape = common_shape([tensor.shape for tensor in inputs])
            for read in self._read:
                own = common_shape([inputs[index].shape for index in read])
                if own != shape:
                    raise ValueError(f"a result has the shape {own}, but by what the model declares it is {shape}")
        return self.bind(binder, inputs)

    def bind_into(self, binder: Binder, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        """Add the step that writes existing tensors, all of the inputs' broadcast shape."""
        self._add(binder, inputs, outputs, memory_order(outputs[:1], outputs[0].shape))

    def _add(
        self,
        binder: Binder,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        order: Sequence[int],
        reason: str = "",
    ) -> None:
        """Add the step, over the dimensions in this order, slowest first."""
        shape = outputs[0].shape
        if outputs[0].size == 0:
            return
        body, inputs, tables = self._looked_up(binder, inputs)
        inputs = [in_order(binder, tensor, shape, order) for tensor in inputs]
        operands = [*inputs, *tables, *outputs]
        steps = [broadcast_steps(tensor, len(shape)) for tensor in operands]
        axes = joined_axes([shape[axis] for axis in order], [[one[axis] for axis in order] for one in steps])
        axes = _with_long_rows(axes)
        if not axes:
            axes = [Axis(1, tuple(tensor.dtype.itemsize for tensor in operands))]
        row = axes.pop()
        nbytes = sum([tensor.dtype.itemsize for tensor, step in zip(operands, row.steps, strict=True) if step])
        elements = space_size(axes) * row.size
        work = operations(Pointwise((), body.roots)) if tables else self.operations
        wanted = elements_per_chunk(elements, nbytes, work)
        axes, fastest, piece, shrink = _cut(axes, row, wanted)
        items = space_size(axes) * fastest.size
        per_chunk = larger(1, wanted // piece)
        access: list[Access] = [
            access_of(step, one.dtype.itemsize) for one, step in zip(operands, row.steps, strict=True)
        ]
        access[len(inputs) : len(inputs) + len(tables)] = ["table"] * len(tables)
        spec = PointwiseSpec(
            body,
            tuple(tensor.dtype.name for tensor in (*inputs, *tables)) if tables else self._names,
            tuple(access),
            _unroll(work),
            flushes=binder.settings.precision == "bfloat16" and any(one.dtype == _BFLOAT16 for one in outputs),
        )
        rank, *table = table_words(axes)
        arguments = Arguments(
            inputs=(*inputs, *tables),
            outputs=outputs,
            items=items,
            per_chunk=per_chunk,
            row=row.size,
            piece=piece,
            shrink=shrink,
            fastest=fastest.size,
            steps=fastest.steps,
            strides=row.steps,
            rank=rank,
            table=table,
        )
        binder.step(
            emit_pointwise,
            spec,
            arguments,
            read_first=inputs,
            chunks=-(-items // per_chunk),
            flops=float(work) * elements,
            nbytes=sum([_memory_bytes(tensor) for tensor in operands]),
            detail=lambda: (
                f"{elements} elements, {work} operations each{', by tables' if tables else ''}{reason and '; '}{reason}"
            ),
        )

    def _looked_up(
        self, binder: Binder, inputs: Sequence[Tensor]
    ) -> tuple[Canonical, Sequence[Tensor], Sequence[Tensor]]:
        """The expressions for these inputs, those of the inputs that they read, and tables, which are read behind them.

        Where words are looked up, elements of other types may stand beside the bytes; elsewhere registers must be full
        of bytes.
        """
        body = self._body_for(inputs)
        if not self._may_be_tabulated or not has_byte_lookup(binder.target):
            return body, inputs, ()
        key = binder.target.name, *[_contents(tensor) if is_number(tensor) else None for tensor in inputs]
        if key not in self._tabulated:
            if len(self._tabulated) >= _MOST_TABLES:
                self._tabulated.clear()
            self._tabulated[key] = _with_tables(body.roots, inputs, beside_words=has_word_lookup(binder.target))
        found = self._tabulated[key]
        if found is None:
            return body, inputs, ()
        read = [*found.kept, *range(len(inputs), len(inputs) + len(found.tables))]
        places = {index: place for place, index in enumerate(read)}
        outputs = substitute(found.outputs, lambda leaf: Input(leaf.dtype, places[leaf.index]))
        tables = [binder.constant(table).reshaped(()) for table in found.tables]
        return canonical(outputs), [inputs[index] for index in found.kept], tables

    def _body_for(self, inputs: Sequence[Tensor]) -> Canonical:
        """The expressions with known exponents of powers in them: squares and roots cost far less than powers."""
        known: dict[int, Expr] = {}
        for index in self._exponents:
            array = inputs[index].array
            if array is not None and array.size == 1:
                number = array.reshape(-1)[0].item()
                if number in (-1, 0.5, 1, 2, 3):
                    known[index] = Constant(self.dtypes[index], number)
        if not known:
            return self.body
        return canonical(substitute(self.body.roots, lambda leaf: known.get(leaf.index, leaf)))


def _unroll(operations: int) -> int:
    """Vectors in a turn of the loop."""
    if operations < _UNROLLED_OPERATIONS:
        return 2
    return STRANDS if operations < _LONG_EXPRESSION else 1


def _contents(tensor: Tensor) -> bytes:
    assert tensor.array is not None
    return tensor.array.tobytes()


def _with_tables(roots: Sequence[Expr], inputs: Sequence[Tensor], *, beside_words: bool) -> Tabulated | None:
    """The expressions with tables, where these leave nothing but bytes, or stand beside words of 32 bits."""
    found = tabulated(roots, inputs, WORTH_AMONG_BYTES)
    if found is not None and _widest(found.outputs) == 1:
        return found
    found = tabulated(roots, inputs) if beside_words else None
    return found if found is not None and _widest(found.outputs) <= _WORD else None


def _widest(roots: Sequence[Expr]) -> int:
    """The bytes of the largest number that is computed."""
    return max(expr.dtype.itemsize for expr in walk(roots))


def _result(binder: Binder, place: int, dtype: np.dtype[Any], shape: tuple[int, ...], order: tuple[int, ...]) -> Tensor:
    """A new value for the output at `place` in this order; with its channels last, perhaps in a Concat's result."""
    rank = len(shape)
    if not binder.slices or rank < 3 or order != (0, *range(2, rank), 1):
        return laid_out(binder, dtype, shape, order)
    last = binder.result(place, dtype, [shape[axis] for axis in order])
    return permuted(last, (0, rank - 1, *range(1, rank - 1)))


def _with_long_rows(axes: list[Axis]) -> list[Axis]:
    """The axes, the last of which are rows: the longest one where rows along the fastest would be short."""
    if not axes or axes[-1].size >= _SHORT_ROW:
        return axes
    longest = max(axes, key=lambda axis: axis.size)
    if longest.size < _SHORT_ROW:
        return axes
    return [*(axis for axis in axes if axis is not longest), longest]


def _cut(axes: list[Axis], row: Axis, wanted: int) -> tuple[list[Axis], Axis, int, int]:
    """The slower axes, the fastest one over rows, the elements of a piece, and what a row loses from one to the next.

    A row of more than `wanted` elements is cut in pieces, which become the fastest axis.
    """
    if row.size <= wanted:
        fastest = axes[-1] if axes else Axis(1, tuple(0 for _ in row.steps))
        return axes[:-1], fastest, row.size, 0
    pieces = -(-row.size // wanted)
    piece = -(-row.size // (_PIECE_MULTIPLE * pieces)) * _PIECE_MULTIPLE
    return axes, Axis(-(-row.size // piece), tuple(piece * step for step in row.steps)), piece, piece


def _inputs_as_exponents(roots: Sequence[Expr]) -> frozenset[int]:
    """The inputs that are, directly or converted, exponents of powers."""
    found = set()
    for expr in walk(roots):
        if isinstance(expr, Apply) and expr.primitive == "power":
            exponent = expr.args[1]
            while isinstance(exponent, Apply) and exponent.primitive == "cast":
                exponent = exponent.args[0]
            if isinstance(exponent, Input):
                found.add(exponent.index)
    return frozenset(found)


def _memory_bytes(tensor: Tensor) -> int:
    """Bytes of the elements that a tensor really has in memory."""
    count = 1
    for size, stride in zip(tensor.shape, tensor.strides, strict=True):
        count *= size if stride else 1
    return count * tensor.dtype.itemsize
