"""Einsum: diagonals by strides, sums, and matrix products of two operands at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sardonyx.compiler.binding import Array, Binder, Tensor
from sardonyx.compiler.kernels.pointwise import PointwiseKernel
from sardonyx.compiler.kernels.template import NativeKernel, template
from sardonyx.compiler.native.products.matmul import MatMulKernel
from sardonyx.compiler.native.rows.reduction import ReductionKernel, read_as
from sardonyx.kernel.expr import Expr, Input, Reduce
from sardonyx.light_dataclass import dataclass
from sardonyx.ops.framework.facts import Fact

# A dimension's name: its letter, or its place from the end among those that "..." stands for.
Label = str | int

_WIDE = np.dtype(np.float32)
_FLOATS = frozenset({"float32", "float64"})
_NARROW = frozenset({"float16", "bfloat16"})


@dataclass(frozen=True)
class Named:
    """A tensor whose dimensions have names, each once; those of size 1 have none and are left out."""

    tensor: Tensor
    labels: tuple[Label, ...]

    def size(self, label: Label) -> int:
        return self.tensor.shape[self.labels.index(label)]


@template("einsum")
class Einsum(NativeKernel):
    """Sums of products of the elements of all inputs: ``terms`` name the dimensions of each, ``result`` those kept."""

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        names = {"" if fact is None or fact.dtype is None else fact.dtype.numpy().name for fact in inputs}
        if len(names) == 1 and (names <= _FLOATS or (names <= _NARROW and self._rounds_once())):
            return None
        return f"no kernel for sums of products of {', '.join(sorted(names))}"

    def _rounds_once(self) -> bool:
        """Whether there is but one step of arithmetic, whatever the sizes: then narrow floats are rounded once."""
        terms, result = self.parameters["terms"], self.parameters["result"]
        if len(terms) == 1:
            return True
        alone = set(terms[0]) ^ set(terms[-1])
        return len(terms) == 2 and alone <= set(result)

    def bind(self, binder: Binder, *inputs: Tensor | None) -> Sequence[Tensor]:
        terms, result = self.parameters["terms"], self.parameters["result"]
        sizes: dict[Label, int] = {}
        operands = [
            _named(tensor, term, sizes) for tensor, term in zip(inputs, terms, strict=True) if tensor is not None
        ]
        spread = sorted((label for label in sizes if isinstance(label, int)), reverse=True)
        before, dots, after = result.partition("...")
        kept: list[Label] = [*before, *(spread if dots else ()), *after]
        if 0 in sizes.values():
            dtype = operands[0].tensor.dtype
            return [binder.constant(np.zeros([sizes[label] for label in kept], dtype))]
        total, *others = operands
        if not others:
            total = _summed(binder, total, set(kept))
        for place, operand in enumerate(others):
            needed = {label for other in others[place + 1 :] for label in other.labels} | set(kept)
            total = _product(binder, total, operand, needed)
        order = [label for label in kept if label in total.labels]
        moved = _ordered(binder, total, order, [total.size(label) for label in order])
        strides = iter(moved.strides)
        full = [next(strides) if label in order else 0 for label in kept]
        return [moved.reshaped([sizes[label] for label in kept], full)]


def _named(tensor: Tensor, term: str, sizes: dict[Label, int]) -> Named:
    """An operand with the names of its term; `sizes` collects those of all names, ValueError where they differ."""
    before, _, after = term.partition("...")
    middle = len(tensor.shape) - len(before) - len(after)
    labels: list[Label] = [*before, *range(middle, 0, -1), *after]
    if middle < 0 or len(labels) != len(tensor.shape):
        raise ValueError(f"the term '{term}' does not fit an input of shape {tensor.shape}")
    found: dict[Label, tuple[int, int]] = {}
    for label, size, stride in zip(labels, tensor.shape, tensor.strides, strict=True):
        known = sizes.get(label, 1)
        if 1 not in (known, size) and known != size:
            raise ValueError(f"the dimension '{label}' has the sizes {known} and {size}")
        sizes[label] = size if known == 1 else known
        if size != 1:
            found[label] = size, found.get(label, (0, 0))[1] + stride
    if len(found) == len(labels):
        return Named(tensor, tuple(labels))
    shape, strides = [size for size, _ in found.values()], [stride for _, stride in found.values()]
    return Named(tensor.reshaped(shape, strides), tuple(found))


def _summed(binder: Binder, operand: Named, needed: set[Label]) -> Named:
    """The operand summed over the dimensions that nobody needs."""
    axes = [axis for axis, label in enumerate(operand.labels) if label not in needed]
    if not axes:
        return operand
    dtype = operand.tensor.dtype
    element: Expr = Input(dtype, 0)
    wide = _WIDE if dtype.name in _NARROW else dtype
    total = Reduce(wide, "sum", element.cast(wide)).cast(dtype)
    (made,) = ReductionKernel([total], [dtype]).bind(binder, [operand.tensor], axes)
    left = [axis for axis in range(len(operand.labels)) if axis not in axes]
    shape, strides = [made.shape[axis] for axis in left], [made.strides[axis] for axis in left]
    return Named(made.reshaped(shape, strides), tuple(operand.labels[axis] for axis in left))


def _product(binder: Binder, left: Named, right: Named, needed: set[Label]) -> Named:
    """The product of two operands, summed over the dimensions that nobody needs."""
    left = _summed(binder, left, needed | set(right.labels))
    right = _summed(binder, right, needed | set(left.labels))
    shared = [label for label in left.labels if label in right.labels]
    batch, inner = [x for x in shared if x in needed], [x for x in shared if x not in needed]
    rows, columns = [x for x in left.labels if x not in shared], [x for x in right.labels if x not in shared]
    labels = (*batch, *rows, *columns)
    sizes = [left.size(label) if label in left.labels else right.size(label) for label in labels]
    if not inner:
        return Named(_outer(binder, left, right, labels), labels)
    depth = math.prod(left.size(label) for label in inner)
    outer = [left.size(label) for label in batch]
    height = math.prod(left.size(label) for label in rows)
    width = math.prod(right.size(label) for label in columns)
    a = _ordered(binder, left, [*batch, *rows, *inner], [*outer, height, depth])
    b = _ordered(binder, right, [*batch, *inner, *columns], [*outer, depth, width])
    (made,) = MatMulKernel({}).bind(binder, a, b)
    assert made is not None
    return Named(made.reshaped(sizes), labels)


def _outer(binder: Binder, left: Named, right: Named, labels: Sequence[Label]) -> Tensor:
    """The products of elements, over all dimensions of both operands."""
    spread = []
    for one in (left, right):
        pairs = dict(zip(one.labels, zip(one.tensor.shape, one.tensor.strides, strict=True), strict=True))
        shape, strides = zip(*(pairs.get(label, (1, 0)) for label in labels), strict=True) if labels else ((), ())
        spread.append(one.tensor.reshaped(shape, strides))
    dtypes = [tensor.dtype for tensor in spread]
    return PointwiseKernel([Input(dtypes[0], 0) * Input(dtypes[1], 1)], dtypes).bind(binder, spread)[0]


def _ordered(binder: Binder, operand: Named, labels: Sequence[Label], shape: Sequence[int]) -> Tensor:
    """The operand with its dimensions in this order, read under a shape of as many elements."""
    tensor, shape = operand.tensor, tuple(shape)
    axes = tuple(operand.labels.index(label) for label in labels)
    if tensor.is_known and tensor.buffer.kind == "constant":

        def arranged(array: Array) -> Array:
            return np.ascontiguousarray(array.transpose(axes).reshape(shape))

        if tensor.shape == shape and axes == tuple(range(len(axes))):
            return tensor
        return binder.derived(tensor, ("arranged", axes, shape), arranged)
    permuted = tensor.reshaped([tensor.shape[axis] for axis in axes], [tensor.strides[axis] for axis in axes])
    return read_as(binder, permuted, shape)
