"""Reductions while binding: which dimensions make the rows, how vectors run, and how the work is cut into chunks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.kernels.pointwise import PointwiseKernel
from sardonyx.compiler.kernels.template import Epilogue, NativeKernel, template
from sardonyx.compiler.llvm.expression import supported
from sardonyx.compiler.llvm.kernels.rows.reduction import Form, ReductionSpec, emit_reduction
from sardonyx.compiler.llvm.kernels.rows.row_access import Access, lanes_for, types_within
from sardonyx.compiler.llvm.kernels.rows.row_passes import RowPasses
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import F32
from sardonyx.compiler.native.movement.copy import contiguous
from sardonyx.compiler.native.movement.view import reshaped_strides
from sardonyx.compiler.native.rows.long_rows import PIECE, LongRow, can_be_cut
from sardonyx.compiler.native.rows.rows import (
    Axis,
    access_of,
    broadcast_steps,
    common_shape,
    elements_per_chunk,
    in_order,
    laid_out,
    memory_order,
    permuted,
    space_size,
    table_words,
)
from sardonyx.compiler.traced import larger
from sardonyx.errors import EngineError
from sardonyx.kernel.canonical import canonical
from sardonyx.kernel.cost import weight
from sardonyx.kernel.expr import Expr, Input, Reduce, RowIndex, RowLength, mean, reduce, substitute, walk
from sardonyx.kernel.program import Arrangement, Reduction, is_row_value
from sardonyx.light_dataclass import dataclass
from sardonyx.ops.framework.facts import Fact
from sardonyx.runtime.forks import cached_property

# Intermediates are kept for a later pass while a row of them stays in the second cache.
_MOST_SCRATCH = 128 << 10

# A vector is as many registers wide as leaves few lanes empty at the end.
# Down a column wide ones pay: they read more of each memory page.
_WIDTHS: dict[str, tuple[int, ...]] = {"rows": (4, 2), "columns": (8, 4, 2)}
_FULL_ENOUGH = 8


@template("reduction")
class ReductionTemplate(NativeKernel):
    """A node's reduction: its inputs are read under the shapes that the operator arranges.

    A program without reductions is a loop over elements. An epilogue becomes part of the kernel where the result is an
    element of the space, under its shape; elsewhere it is a step of its own.
    """

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        super().__init__(parameters)
        self.program: Reduction = parameters["program"]
        self.operands: tuple[int, ...] = parameters["operands"]
        self.positions: tuple[int, ...] = parameters["outputs"]
        self.arrange: Callable[..., Arrangement] = parameters["arrange"]
        self.known_inputs = parameters["known"]
        self.takes_epilogue = self.positions == (0,)
        self._is_row_value = is_row_value(self.program.outputs[0])
        self.rounds_result = self.positions[:1] == (0,) and not self.takes_epilogue and not self._is_row_value
        self.averages = canonical(self.program.outputs) == _MEAN
        self.reads_slices = not _combines(self.program.outputs)
        self._fused: dict[tuple[Expr, ...], tuple[Expr, ...]] = {}
        self._kernels: dict[tuple[Expr, ...], PointwiseKernel | ReductionKernel] = {}

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        return supported(self.program.outputs)

    def bind(
        self,
        binder: Binder,
        *inputs: Tensor | None,
        epilogue: Epilogue | None = None,
        rounded: bool = False,
    ) -> Sequence[Tensor | None]:
        if epilogue is not None and [*map(type, epilogue.outputs)] == [Input] and not epilogue.operands:
            epilogue = None  # the result as it is
        shapes = [None if tensor is None else tensor.shape for tensor in inputs]
        known = self.known_inputs
        contents = [
            tensor.array if tensor is not None and index in known else None for index, tensor in enumerate(inputs)
        ]
        arrangement = self.arrange(shapes, contents)
        read = []
        for position, shape in zip(self.operands, arrangement.inputs, strict=True):
            tensor = inputs[position]
            assert tensor is not None
            read.append(read_as(binder, tensor, shape))
        roots, dtypes = self.program.outputs, self.program.inputs
        if epilogue is not None and self._takes_in(arrangement, epilogue):
            dtypes = (*dtypes, *(tensor.dtype for tensor in epilogue.operands))
            return self._run(binder, [*read, *epilogue.operands], arrangement.axes, self._with(epilogue), dtypes)
        made = self._means_by_lines(binder, read[0], arrangement) if self.averages else None
        if made is None:
            made = self._run(binder, read, arrangement.axes, self._rounded if rounded else roots, dtypes)
        results: list[Tensor | None] = [None] * (max(self.positions) + 1)
        for position, tensor, shape in zip(self.positions, made, arrangement.outputs, strict=True):
            _check_elements(position, tensor, shape)
            results[position] = read_as(binder, tensor, shape)
        if epilogue is None:
            return results
        own = results[0]
        assert own is not None
        dtypes = (own.dtype, *(tensor.dtype for tensor in epilogue.operands))
        return PointwiseKernel(epilogue.outputs, dtypes).bind_nodes(binder, [own, *epilogue.operands])

    @staticmethod
    def _means_by_lines(binder: Binder, x: Tensor, arrangement: Arrangement) -> list[Tensor] | None:
        """The means of large maps of few channels, which lie last, from the sums of their lines; None for others.

        A thread that takes one vector of channels through all of such a map would be the only one, or one of few.
        """
        if not _is_of_maps(arrangement) or len(x.shape) != _MAP_RANK or x.strides[1] != 1:
            return None
        batch, channels, lines, _ = x.shape
        vectors = -(-channels // binder.target.lanes(F32))
        if math.prod(x.shape[2:]) < _LARGE_MAP or lines == 1 or vectors > _FEW_VECTORS:
            return None
        sums = binder.new(_FLOAT32, (batch, lines, channels))
        of_lines = sums.reshaped((batch, channels, lines, 1), (lines * channels, 1, channels, 1))
        _SUMS.bind_into(binder, [x], [of_lines], (3,))
        means = _means_of_sums(binder, of_lines.reshaped(of_lines.shape[:3], of_lines.strides[:3]), x.shape)
        return [means.reshaped((batch, channels, 1, 1))]

    @cached_property
    def _rounded(self) -> tuple[Expr, ...]:
        """The program's outputs, the first of them in bfloat16."""
        first, *others = self.program.outputs
        return first.cast(ml_dtypes.bfloat16), *others

    def _takes_in(self, arrangement: Arrangement, epilogue: Epilogue) -> bool:
        """Whether the result is an element of the space, with the space's own shape, and stays so."""
        result = arrangement.outputs[0]
        if self._is_row_value or common_shape(arrangement.inputs) != result:
            return False
        return common_shape([result, *(tensor.shape for tensor in epilogue.operands)]) == result

    def _with(self, epilogue: Epilogue) -> tuple[Expr, ...]:
        """The epilogue's outputs over the program's inputs, its operands behind them."""
        known = self._fused.get(epilogue.outputs)
        if known is None:
            (result,) = self.program.outputs
            first = len(self.program.inputs) - 1

            def replaced(leaf: Input) -> Expr:
                return result if leaf.index == 0 else Input(leaf.dtype, first + leaf.index)

            known = self._fused[epilogue.outputs] = tuple(substitute(epilogue.outputs, replaced))
        return known

    def _run(
        self,
        binder: Binder,
        inputs: Sequence[Tensor],
        axes: Sequence[int],
        roots: tuple[Expr, ...],
        dtypes: Sequence[np.dtype[Any]],
    ) -> list[Tensor]:
        kernel = self._kernels.get(roots)
        if kernel is None:
            kernel = ReductionKernel(roots, dtypes) if _combines(roots) else PointwiseKernel(roots, dtypes)
            self._kernels[roots] = kernel
        if isinstance(kernel, PointwiseKernel):
            return kernel.bind(binder, inputs)
        return kernel.bind(binder, inputs, axes)


def _combines(roots: Sequence[Expr]) -> bool:
    """Whether expressions combine the elements of rows."""
    return any(isinstance(expr, Reduce | RowLength) for expr in walk(roots))


def _is_of_maps(arrangement: Arrangement) -> bool:
    """Whether rows are maps [batch, channels, *sizes], all axes but the first two."""
    return tuple(arrangement.axes) == tuple(range(2, len(arrangement.inputs[0])))


def _means_of_sums(binder: Binder, sums: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The means [batch, channels, 1] of maps of this shape from sums of their parts, [batch, channels, parts]."""
    share = binder.constant(np.full((1, 1, 1), 1 / math.prod(shape[2:]), np.float32))
    (means,) = _MEANS_OF_SUMS.bind(binder, [sums, share], (2,))
    return means


def _check_elements(position: int, made: Tensor, shape: tuple[int, ...]) -> None:
    """EngineError where an operator arranges another number of elements than its expression has.

    An expression that reads an input outside a `Reduce` is an element of the space, even if the input is a scalar.
    """
    if made.size != math.prod(shape):
        raise EngineError(
            f"output {position} of a reduction has the shape {made.shape}, arranged as {shape}: "
            "what shall be one value for a row must read its inputs within a Reduce"
        )


def read_as(binder: Binder, tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The elements of a tensor in the same order under another shape; a copy only where strides cannot express it."""
    if tensor.shape == shape:
        return tensor
    if tensor.is_contiguous:
        return tensor.reshaped(shape)
    strides = reshaped_strides(tensor.shape, tensor.strides, shape)
    return contiguous(binder, tensor).reshaped(shape) if strides is None else tensor.reshaped(shape, strides)


class ReductionKernel:
    """Expressions with reductions over rows; `Input(i)` reads input `i`, of dtype ``dtypes[i]``.

    ValueError where `supported` objects.
    """

    def __init__(self, roots: Sequence[Expr], dtypes: Sequence[np.dtype[Any]]) -> None:
        problem = supported(roots)
        if problem is not None:
            raise ValueError(problem)
        self.dtypes = tuple(dtypes)
        self.body = canonical(roots)
        self.of_rows = tuple(is_row_value(root) for root in self.body.roots)
        self.operations = max(1, weight(self.body.roots))
        self._names = tuple(dtype.name for dtype in self.dtypes)
        self._all_values = [*self.body.roots, *(Input(dtype, 0) for dtype in self.dtypes)]
        self._can_be_cut = can_be_cut(self.body.roots)
        self._folds = self._folds_floats()
        self._long: LongRow | None = None
        self._lanes: dict[str, int] = {}
        self._kept: dict[tuple[bool, ...], int] = {}

    def _folds_floats(self) -> bool:
        """Whether all that becomes of a row are combinations of floats, made in one pass."""
        passes = RowPasses(self.body.roots, [False] * len(self.dtypes), False)
        are_floats = all(one.dtype.kind == "f" for group in passes.reductions for one in group)
        numbered = any(isinstance(expr, RowIndex) for expr in passes.order)
        return len(passes.reductions) == 1 and all(self.of_rows) and are_floats and not numbered

    def bind(self, binder: Binder, inputs: Sequence[Tensor], axes: Sequence[int]) -> list[Tensor]:
        """Add the step and give the outputs; rows extend along `axes` of the inputs' broadcast shape.

        Outputs that are values of rows keep those axes with size 1.
        """
        shape = common_shape([tensor.shape for tensor in inputs])
        reduced = {axis % len(shape) for axis in axes} if shape else set()
        kept_shape = tuple(1 if axis in reduced else size for axis, size in enumerate(shape))
        order = memory_order(inputs, shape)
        in_line = self._in_line(inputs, shape, order)
        if self._is_long(in_line, kept_shape):
            if self._long is None:
                self._long = LongRow(self)
            found = self._long.bind(binder, in_line, math.prod(shape))
            back = [list(order).index(axis) for axis in range(len(shape))]
            return [
                one.reshaped(kept_shape) if of_row else permuted(one, back)
                for one, of_row in zip(found, self.of_rows, strict=True)
            ]
        outputs = [
            binder.new(root.dtype, kept_shape) if of_row else laid_out(binder, root.dtype, shape, order)
            for root, of_row in zip(self.body.roots, self.of_rows, strict=True)
        ]
        self._add(binder, inputs, outputs, shape, reduced, order)
        return outputs

    def _in_line(self, inputs: Sequence[Tensor], shape: tuple[int, ...], order: Sequence[int]) -> Sequence[Tensor]:
        """The inputs with their dimensions in the order in which they lie in memory, where it does not matter which
        element of the row comes first: then elements that are computed lie as those of the inputs do."""
        if any(tensor.size != 1 and tensor.shape != shape for tensor in inputs):
            return inputs
        if not (all(self.of_rows) or self._can_be_cut):
            return inputs
        return [tensor if tensor.size == 1 else permuted(tensor, order) for tensor in inputs]

    def _is_long(self, inputs: Sequence[Tensor], kept_shape: tuple[int, ...]) -> bool:
        """Whether there is one row only, and that so long that several threads should share it."""
        shape = common_shape([tensor.shape for tensor in inputs])
        length = math.prod(shape)
        if not self._can_be_cut or length < 2 * PIECE or math.prod(kept_shape) != 1:
            return False
        nbytes = sum(tensor.dtype.itemsize for tensor in inputs if tensor.size == length)
        several = elements_per_chunk(length, nbytes, self.operations) < length // 4
        return several and all(
            tensor.size == 1 or (tensor.shape == shape and tensor.is_contiguous) for tensor in inputs
        )

    def bind_into(
        self, binder: Binder, inputs: Sequence[Tensor], outputs: Sequence[Tensor], axes: Sequence[int]
    ) -> None:
        """Add the step that writes existing tensors, shaped as `bind` gives them."""
        shape = common_shape([tensor.shape for tensor in inputs])
        reduced = {axis % len(shape) for axis in axes} if shape else set()
        self._add(binder, inputs, outputs, shape, reduced, memory_order(inputs, shape))

    def _add(
        self,
        binder: Binder,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        shape: tuple[int, ...],
        reduced: set[int],
        order: Sequence[int],
    ) -> None:
        """Add the step over the dimensions in this order, slowest first, unless there is nothing to compute."""
        rows = math.prod([size for axis, size in enumerate(shape) if axis not in reduced])
        if not rows or not (math.prod(shape) or any(self.of_rows)):
            return
        inputs = [in_order(binder, tensor, shape, order) for tensor in inputs]
        operands = [*inputs, *outputs]
        steps = [broadcast_steps(tensor, len(shape)) for tensor in operands]
        space = _Space.of(shape, steps, reduced, order, self._lanes_on(binder.target) // 2)
        count = len(inputs)
        is_output_element = [False] * count + [not of_row for of_row in self.of_rows]
        space = space.with_row([t.dtype.itemsize if e else 0 for t, e in zip(operands, is_output_element, strict=True)])
        along_row = list(zip(*[axis.steps for axis in space.reduced], strict=True))
        fixed = tuple([not element and not any(along_row[i]) for i, element in enumerate(is_output_element)])
        if self._folds_together(binder.target, space, fixed):
            space = replace(space, form="short rows")
        vector = space.reduced[-1] if space.form == "rows" else space.kept[-1]
        access = tuple([access_of(step, one.dtype.itemsize) for one, step in zip(operands, vector.steps, strict=True)])
        spec, lanes, scratch = self._spec(binder.target, space, access, fixed)
        length = space_size(space.reduced)
        words, items, rows_per_item = space.words(lanes)
        elements = space_size(space.kept) * length
        nbytes = sum([tensor.dtype.itemsize for tensor, one in zip(operands, fixed, strict=True) if not one])
        wanted = elements_per_chunk(elements, nbytes, self.operations)
        per_chunk = larger(1, wanted // larger(1, length * rows_per_item))
        header = [items, per_chunk, vector.size, length, space_size(space.reduced[:-1])]
        binder.step(
            emit_reduction,
            spec,
            [*operands, *header, *words],
            reads=tuple(inputs),
            writes=tuple(outputs),
            chunks=-(-items // per_chunk),
            scratch=scratch,
            flops=float(self.operations) * elements,
            nbytes=sum([tensor.nbytes for tensor in operands]),
            detail=partial(_detail, elements, length, space.form, self.operations),
        )

    def _folds_together(self, target: Target, space: _Space, fixed: Sequence[bool]) -> bool:
        """Whether rows are so short, and so many, that the lanes of several are combined together."""
        if not self._folds or not target.has_masks or space.form != "rows" or len(space.reduced) > 1 or not space.kept:
            return False
        lanes, row, rows = self._lanes_on(target), space.reduced[-1], space.kept[-1]
        if not 1 < row.size <= _SHORT_VECTORS * lanes or rows.size < _MANY_ROWS:
            return False
        count, sizes = len(self.dtypes), [np.dtype(one.dtype).itemsize for one in self._all_values]
        sizes = [*sizes[-count:], *sizes[:-count]]  # inputs, then outputs
        steps = [*row.steps[:count], *rows.steps[count:]]
        return steps == sizes and not any(fixed[:count])

    def _lanes_on(self, target: Target) -> int:
        """Elements of the widest type in a vector."""
        lanes = self._lanes.get(target.name)
        if lanes is None:
            lanes = self._lanes[target.name] = lanes_for(target, types_within(self._all_values))
        return lanes

    def _spec(
        self, target: Target, space: _Space, access: tuple[Access, ...], fixed: tuple[bool, ...]
    ) -> tuple[ReductionSpec, int, int]:
        """The kernel for a space, the lanes of its vectors, and the bytes of scratch memory that it uses."""
        lanes = self._lanes_on(target)
        width = 1  # the address of each lane that is read by itself takes a register
        if space.form == "rows" or "strided" not in access:
            width = _width(space.form, (space.reduced if space.form == "rows" else space.kept)[-1].size, lanes)
        kept = self._kept.get(fixed)
        if kept is None:
            kept = self._kept[fixed] = RowPasses(self.body.roots, fixed[: len(self.dtypes)], True).kept_count
        scratch = kept * 8 * space.padded_row(lanes * width)
        keeps = 0 < scratch <= _MOST_SCRATCH
        runs = len(space.reduced) > 1
        spec = ReductionSpec(self.body, self._names, access, fixed, space.form, width, runs, keeps)
        return spec, lanes * width, scratch if keeps else 0


def _detail(elements: int, length: int, form: str, operations: int) -> str:
    """The rows and their length, how they are gone through, and the work on each element."""
    return f"{elements // length if length else 0} x {length} by {form}, {operations} operations"


def _width(form: str, size: int, lanes: int) -> int:
    for width in _WIDTHS[form]:
        wide = width * lanes
        if size >= wide and (size % wide == 0 or size >= _FULL_ENOUGH * wide):
            return width
    return 1


_FLOAT32 = np.dtype(np.float32)
# What averages do, and how means are made of sums: each is multiplied by a share.
_MEAN = canonical([mean(Input(_FLOAT32, 0))])
_MEANS_OF_SUMS = ReductionKernel([reduce("sum", Input(_FLOAT32, 0) * Input(_FLOAT32, 1))], [_FLOAT32, _FLOAT32])
_SUMS = ReductionKernel([reduce("sum", Input(_FLOAT32, 0))], [_FLOAT32])
# Batch, channels, lines and columns of maps; places of a large one; vectors of channels that give too few chunks.
_MAP_RANK, _LARGE_MAP, _FEW_VECTORS = 4, 4096, 4


@dataclass(frozen=True)
class _Space:
    """The axes of an iteration space: those that are kept and those of a row, each slowest first.

    Vectors run along the last axis of a row (`rows`) or along the last kept one (`columns`).
    """

    kept: list[Axis]
    reduced: list[Axis]
    form: Form

    @staticmethod
    def of(
        shape: Sequence[int], steps: Sequence[Sequence[int]], reduced: set[int], order: Sequence[int], short: int = 0
    ) -> _Space:
        """The dimensions in `order`, that of memory.

        Axes of size 1 are dropped, neighbours of one kind joined where they are one run for every operand. Rows of up
        to `short` elements hardly fill a vector: the elements of as many rows as it has lanes are put side by side.
        """
        axes: list[tuple[bool, Axis]] = []
        for index in order:
            size = shape[index]
            if size == 1:
                continue
            kind, axis = index in reduced, Axis(size, tuple([one[index] for one in steps]))
            if axes and axes[-1][0] == kind:
                before = axes[-1][1]
                if all(outer == size * inner for outer, inner in zip(before.steps, axis.steps, strict=True)):
                    axes[-1] = kind, Axis(before.size * size, axis.steps)
                    continue
            axes.append((kind, axis))
        kept, rows = [axis for kind, axis in axes if not kind], [axis for kind, axis in axes if kind]
        fastest = _fastest([axis for _, axis in axes])
        if fastest is None or fastest in rows or not kept:
            along = _fastest(kept)
            if along is not None and 1 < space_size(rows) <= short and along.size >= _MANY_ROWS:
                return _Space(_last(kept, along), rows, "columns")
            return _Space(kept, _last(rows, fastest), "rows")
        return _Space(_last(kept, fastest), rows, "columns")

    def with_row(self, steps: Sequence[int]) -> _Space:
        """The space with a row of one element where it has no reduced axes; then vectors run along that."""
        if self.reduced:
            return self
        return _Space(self.kept, [Axis(1, tuple(steps))], "rows")

    def padded_row(self, lanes: int) -> int:
        """Elements that an intermediate of one item takes in scratch memory."""
        if self.form == "columns":
            return space_size(self.reduced) * lanes
        row = self.reduced[-1].size
        return space_size(self.reduced[:-1]) * (-(-row // lanes) * lanes)

    def words(self, lanes: int) -> tuple[list[int], int, int]:
        """The kernel's arguments that follow the sizes; the number of items, and the rows of one."""
        nothing = tuple(0 for _ in self.reduced[-1].steps)
        depth: list[int] = []
        if self.form == "rows":
            vector, outer, rows = self.reduced[-1], self.kept, 1
            fastest = outer[-1] if outer else Axis(1, nothing)
            slower = outer[:-1]
        else:
            vector, slower, rows = self.kept[-1], self.kept[:-1], lanes
            fastest = Axis(-(-vector.size // lanes), tuple(lanes * step for step in vector.steps))
            depth = [self.reduced[-1].size, *self.reduced[-1].steps]
        table = table_words(slower)
        steps = [*fastest.steps, *vector.steps, *depth]
        first = len(nothing) + _HEADER_WORDS + len(steps)
        words = [fastest.size, first + len(table), *steps, *table, *table_words(self.reduced[:-1])]
        return words, space_size(slower) * fastest.size, rows


# So many rows are worth it to put short ones side by side, or to combine the lanes of several of so many vectors.
_MANY_ROWS, _SHORT_VECTORS = 64, 8
# Words between the addresses and the steps.
_HEADER_WORDS = 7


def _fastest(axes: Sequence[Axis]) -> Axis | None:
    """The axis along which the operand with most elements moves least; the last of equals."""
    if not axes:
        return None
    weights = [1] * len(axes[0].steps)
    for axis in axes:
        weights = [weight * axis.size if step else weight for weight, step in zip(weights, axis.steps, strict=True)]
    main = weights.index(max(weights))
    moving = [axis for axis in axes if axis.steps[main]]
    return min(reversed(moving), key=lambda axis: abs(axis.steps[main]), default=axes[-1])


def _last(axes: Sequence[Axis], chosen: Axis | None) -> list[Axis]:
    """The axes with `chosen` moved to the end."""
    if chosen is None:
        return list(axes)
    return [*(axis for axis in axes if axis is not chosen), chosen]
