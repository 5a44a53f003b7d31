"""What is known about a value before it is computed: its type, its shape, sometimes its elements."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.light_dataclass import dataclass

# A dimension: a number, a symbol or an expression of symbols, or SymbolicDim(None) where nothing is known.
Dim = int | ir.SymbolicDim
Dims = tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class Fact:
    """Known of a value: its type; its dimensions (None: not even the rank); its contents where they are constant.

    `elements` holds the contents of an integer tensor of rank 0 or 1 in row order, symbols included: that is how
    shape arithmetic (Shape, Gather, Concat, Reshape) stays symbolic. `constant` is the whole array.
    """

    type: Any = None  # an onnx_ir type or graph.types.MapType; None where unknown
    shape: Dims | None = None
    elements: tuple[Dim, ...] | None = None
    constant: np.ndarray[Any, Any] | None = None

    @property
    def dtype(self) -> ir.DataType | None:
        return None if self.type is None else self.type.dtype

    @property
    def rank(self) -> int | None:
        return None if self.shape is None else len(self.shape)

    def integers(self) -> list[int] | None:
        """The contents as numbers, where all are known."""
        if self.constant is not None:
            return [int(item) for item in np.asarray(self.constant).ravel()]
        if self.elements is not None and all(isinstance(item, int) for item in self.elements):
            return [int(item) for item in self.elements]  # type: ignore[arg-type]
        return None


UNKNOWN = Fact()


def unknown_dim() -> ir.SymbolicDim:
    return ir.SymbolicDim(None)


# What a dimension's name may look like to take part in arithmetic: sums and products of names and small numbers.
_ARITHMETIC = re.compile(r"(?!.*\*\*)[A-Za-z_][\w.]*(?: ?[-+*] ?(?:[A-Za-z_][\w.]*|\d{1,9})){0,15}", re.ASCII)


@functools.lru_cache(maxsize=4096)
def symbol(name: str | None) -> ir.SymbolicDim:
    """The dimension that a model calls `name`, which is untrusted text.

    A name that is an expression keeps its meaning; any other text, which may be no expression or one that takes
    for ever to evaluate, becomes an opaque symbol: the same for the same text.
    """
    if name is None or _ARITHMETIC.fullmatch(name):
        return ir.SymbolicDim(name)
    return ir.SymbolicDim("dim_" + hashlib.blake2b(name.encode("utf-8", "replace"), digest_size=8).hexdigest())


def tensor(dtype: ir.DataType, shape: Iterable[Dim] | None, elements: Sequence[Dim] | None = None) -> Fact:
    """The fact of a tensor."""
    return Fact(
        ir.TensorType(dtype), None if shape is None else tuple(shape), None if elements is None else tuple(elements)
    )


# Contents of small integer tensors take part in shape arithmetic.
MAXIMUM_ELEMENTS = 256
_WHOLE = (ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL)


def of_array(array: np.ndarray[Any, Any], dtype: ir.DataType) -> Fact:
    """The fact of a constant."""
    elements = None
    if dtype in _WHOLE and array.ndim <= 1 and array.size <= MAXIMUM_ELEMENTS:
        elements = tuple(int(item) for item in array.ravel())
    return Fact(ir.TensorType(dtype), tuple(array.shape), elements, array)


def known(dim: Dim) -> bool:
    """Whether a dimension is a number or has a name; an unknown one equals nothing, not even itself."""
    return isinstance(dim, int) or dim.value is not None


def same(a: Dim, b: Dim) -> bool:
    """Whether two dimensions are certainly equal."""
    return known(a) and known(b) and a == b


def broadcast(shapes: Sequence[Dims]) -> Dims:
    """The shape that shapes broadcast to, as NumPy does; ValueError where numbers contradict each other."""
    rank = max((len(shape) for shape in shapes), default=0)
    result: list[Dim] = []
    for axis in range(-rank, 0):
        dims = [shape[axis] for shape in shapes if len(shape) >= -axis]
        result.append(_broadcast_dim(dims))
    return tuple(result)


def _broadcast_dim(dims: Sequence[Dim]) -> Dim:
    numbers = {dim for dim in dims if isinstance(dim, int) and dim != 1}
    if len(numbers) > 1:
        raise ValueError(f"dimensions {sorted(numbers)} do not broadcast")
    if numbers:
        return numbers.pop()
    symbols = [dim for dim in dims if not isinstance(dim, int)]
    if not symbols:
        return 1
    # A slice's length, Max(0, size), beside the size itself: no size is negative.
    lengths = {f"Max(0, {dim.value})" for dim in symbols if dim.value is not None}
    symbols = [dim for dim in symbols if dim.value not in lengths]
    # A slice's bound, Min(size, limit): what it broadcasts against is the size itself.
    plain = [dim for dim in symbols if dim.value is None or "Min(" not in dim.value] or symbols
    first = plain[0]
    return first if all(same(first, other) for other in plain[1:]) else unknown_dim()
