"""How kernels that go over rows read and write operands: contiguous, broadcast along the row, or with a stride.

Tables of 256 bytes are whole for every element.

The last elements of a row, fewer than a vector holds, are read and written under a mask where the target has masks for
any element; elsewhere by way of a buffer on the stack, so that the same vector code computes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.lookup import TABLE
from sardonyx.compiler.llvm.memory_access import as_byte
from sardonyx.compiler.llvm.narrow_floats import from_bits, to_bits, word_of
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import BOOL, U8, Type, type_of
from sardonyx.kernel.expr import Expr, walk

Access = Literal["contiguous", "broadcast", "strided", "table"]

_SAME_FOR_ALL = ("broadcast", "table")


def lanes_for(target: Target, types: Sequence[Type]) -> int:
    """The lanes of a vector register for the widest of some storage types; narrow floats are computed as F32."""
    bits = max((32 if one.is_narrow_float else one.bits for one in types), default=32)
    return target.lanes(Type("u", max(8, bits)))


def types_within(roots: Sequence[Expr]) -> list[Type]:
    """The types of all values of expressions."""
    found = {type_of(expr.dtype) for expr in walk(roots)}
    return [one for one in found if one is not None]


def memory_type(scalar: Type) -> Type:
    """The type with which elements are moved: not every target moves vectors of truth values or narrow floats."""
    if scalar == BOOL or scalar.is_tiny_integer:
        return U8
    return word_of(scalar) if scalar.is_narrow_float else scalar


def as_stored(k: Function, value: Value, scalar: Type) -> Value:
    """A value of the working type as it lies in memory."""
    if scalar == BOOL or scalar.is_tiny_integer:
        return as_byte(value, scalar)
    return to_bits(k, value, scalar) if scalar.is_narrow_float else value


def as_loaded(value: Value, scalar: Type) -> Value:
    """A value read from memory in its working type."""
    if scalar == BOOL:
        return value.differs(0)
    if scalar.is_tiny_integer:
        return value.to(scalar)
    return from_bits(value, scalar) if scalar.is_narrow_float else value


class Operand:
    """One operand along the current row; `stride` counts bytes and only matters to strided ones."""

    def __init__(self, k: Function, scalar: Type, access: Access, stride: Value | None) -> None:
        self.k = k
        self.scalar = scalar
        self.access = access
        self.stride = stride
        self.row: Pointer | None = None
        self.value: Value | None = None

    def start_row(self, address: Value) -> None:
        """Begin a row at an address; a broadcast element, and a table, is read here."""
        self.row = Pointer(address, memory_type(self.scalar))
        if self.access == "table":
            self.value = self.row.cast(TABLE.scalar).load(0, TABLE.lanes)
        if self.access == "broadcast":
            self.value = as_loaded(self.row.load(0), self.scalar)

    def load(self, index: Value, lanes: int) -> Value:
        """`lanes` elements from `index` on; the one of the row, as a scalar, for a broadcast operand."""
        assert self.row is not None
        if self.access in _SAME_FOR_ALL:
            assert self.value is not None
            return self.value
        if self.access == "contiguous":
            return as_loaded(self.row.load(index, lanes), self.scalar)
        return self._gathered(index, lanes, None)

    def load_part(self, index: Value, lanes: int, count: Value) -> Value:
        """`count` elements, fewer than `lanes`, from `index` on; the other lanes hold 0."""
        assert self.row is not None
        if self.access in _SAME_FOR_ALL:
            assert self.value is not None
            return self.value
        if lanes == 1:
            return self.load(index, 1)
        if self.access == "contiguous" and self.k.target.has_masks:
            mask = self.k.lanes_below(count, lanes)
            loaded = self.row.load(index, lanes, mask)
        elif self.access == "contiguous":
            loaded = self._through_buffer(index, lanes, count)
        else:
            loaded = self._gathered(index, lanes, count)
        return as_loaded(loaded, self.scalar)

    def store(self, value: Value, index: Value, lanes: int, count: Value | None = None) -> None:
        """Write `lanes` elements from `index` on, or only the first `count` of them."""
        assert self.row is not None
        stored = as_stored(self.k, self.k.splat(value, lanes), self.scalar)
        if self.access == "contiguous" and (count is None or lanes == 1):
            self.row.store(stored, index)
        elif self.access == "contiguous" and self.k.target.has_masks:
            assert count is not None
            self.row.store(stored, index, self.k.lanes_below(count, lanes))
        else:
            buffer = self.k.stack(memory_type(self.scalar), lanes)
            buffer.store(stored)
            with self.k.loop(0, lanes if count is None else count) as lane:
                self._element(index + lane).store(buffer.load(lane))

    def _element(self, index: Value) -> Pointer:
        assert self.row is not None
        if self.access == "contiguous":
            return self.row.offset(index)
        assert self.stride is not None
        address = self.k.advance(self.row.address, index * self.stride, 1)
        return Pointer(address, self.row.scalar)

    def _gathered(self, index: Value, lanes: int, count: Value | None) -> Value:
        """Elements a stride apart, one after the other: no instruction is faster for so few cache lines."""
        if lanes == 1:
            return as_loaded(self._element(index).load(), self.scalar)
        if count is not None:
            return self._through_buffer(index, lanes, count)
        value = self.k.undefined(memory_type(self.scalar).vector(lanes))
        for lane in range(lanes):
            value = self.k.insert(value, self._element(index + lane).load(), lane)
        return as_loaded(value, self.scalar)

    def _through_buffer(self, index: Value, lanes: int, count: Value) -> Value:
        """The first `count` of `lanes` elements by a buffer that is zero elsewhere, as they lie in memory."""
        scalar = memory_type(self.scalar)
        buffer = self.k.stack(scalar, lanes)
        buffer.store(self.k.constant(scalar.vector(lanes), 0))
        with self.k.loop(0, count) as lane:
            buffer.store(self._element(index + lane).load(), lane)
        return buffer.load(0, lanes)
