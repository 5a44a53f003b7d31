"""Values of the kernel language: what a kernel's text is written with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sardonyx.compiler.llvm.types import I64, PTR, Type

if TYPE_CHECKING:
    from sardonyx.compiler.llvm.builder import Function


class Value:
    """An SSA value: its LLVM name, its type and the function that it belongs to."""

    __slots__ = ("function", "name", "type")

    def __init__(self, function: Function, name: str, type_: Type) -> None:
        self.function = function
        self.name = name
        self.type = type_

    def __repr__(self) -> str:
        return f"{self.type} {self.name}"

    @property
    def number(self) -> int | None:
        """The integer that it is, if it is a constant."""
        if self.name[0] == "%" or self.type.is_float:
            return None
        return int(self.name) if self.name.lstrip("-").isdecimal() else None

    # Arithmetic. A Python number takes the type of the other operand; a scalar is spread over a vector.

    def __add__(self, other: Any) -> Value:
        return self.function.binary("add", self, other)

    def __radd__(self, other: Any) -> Value:
        return self.function.binary("add", other, self)

    def __sub__(self, other: Any) -> Value:
        return self.function.binary("sub", self, other)

    def __rsub__(self, other: Any) -> Value:
        return self.function.binary("sub", other, self)

    def __mul__(self, other: Any) -> Value:
        return self.function.binary("mul", self, other)

    def __rmul__(self, other: Any) -> Value:
        return self.function.binary("mul", other, self)

    def __truediv__(self, other: Any) -> Value:
        return self.function.binary("div", self, other)

    def __rtruediv__(self, other: Any) -> Value:
        return self.function.binary("div", other, self)

    def __floordiv__(self, other: Any) -> Value:
        """The integer quotient, rounded towards zero."""
        return self.function.binary("div", self, other)

    def __mod__(self, other: Any) -> Value:
        """The remainder with the sign of the dividend."""
        return self.function.binary("rem", self, other)

    def __and__(self, other: Any) -> Value:
        return self.function.binary("and", self, other)

    def __or__(self, other: Any) -> Value:
        return self.function.binary("or", self, other)

    def __xor__(self, other: Any) -> Value:
        return self.function.binary("xor", self, other)

    def __invert__(self) -> Value:
        return self.function.binary("xor", self, -1)

    def __lshift__(self, other: Any) -> Value:
        return self.function.binary("shl", self, other)

    def __rshift__(self, other: Any) -> Value:
        """Arithmetic for signed types, logical for unsigned ones."""
        return self.function.binary("shr", self, other)

    def __neg__(self) -> Value:
        return self.function.negate(self)

    # Comparisons give truth values; ordered (false for NaN) except `differs`, which is true for NaN.

    def __lt__(self, other: Any) -> Value:
        return self.function.compare("lt", self, other)

    def __le__(self, other: Any) -> Value:
        return self.function.compare("le", self, other)

    def __gt__(self, other: Any) -> Value:
        return self.function.compare("gt", self, other)

    def __ge__(self, other: Any) -> Value:
        return self.function.compare("ge", self, other)

    def equals(self, other: Any) -> Value:
        return self.function.compare("eq", self, other)

    def differs(self, other: Any) -> Value:
        return self.function.compare("ne", self, other)

    # Conversions

    def to(self, scalar: Type) -> Value:
        """The value converted: floats round to nearest even, float to integer saturates (NaN gives 0)."""
        return self.function.convert(self, scalar)

    def bits_as(self, scalar: Type) -> Value:
        """The same bits read as another type of the same width."""
        return self.function.bitcast(self, scalar)

    def lane(self, index: int | Value) -> Value:
        return self.function.extract(self, index)


class Variable:
    """A place for a value that changes, such as an accumulator of a loop."""

    __slots__ = ("_function", "_slot", "type")

    def __init__(self, function: Function, slot: str, type_: Type) -> None:
        self._function = function
        self._slot = slot
        self.type = type_

    def get(self) -> Value:
        return self._function.emit(self.type, f"load {self.type}, ptr {self._slot}")

    def set(self, value: Any) -> None:
        value = self._function.coerce(value, self.type)
        self._function.line(f"store {value.type} {value.name}, ptr {self._slot}")


class Carried:
    """A value that turns of a loop hand on, for `loop`: no memory stands behind it, so that no branch may set it."""

    __slots__ = ("_value",)

    def __init__(self, start: Value) -> None:
        self._value = start

    def get(self) -> Value:
        return self._value

    def set(self, value: Any) -> None:
        self._value = self._value.function.coerce(value, self._value.type)


class Pointer:
    """An address of elements of one scalar type; indices count elements."""

    __slots__ = ("address", "function", "scalar")

    def __init__(self, address: Value, scalar: Type) -> None:
        self.function = address.function
        self.address = address
        self.scalar = scalar

    def offset(self, index: Any) -> Pointer:
        """The address `index` elements further on."""
        if isinstance(index, Value):
            number = index.number
            index = index if number is None else number
        if isinstance(index, int) and index == 0:
            return self
        return Pointer(self.function.advance(self.address, index, self.scalar.nbytes), self.scalar)

    def cast(self, scalar: Type) -> Pointer:
        return Pointer(self.address, scalar)

    def load(
        self,
        index: Any = 0,
        lanes: int = 1,
        mask: Value | None = None,
        *,
        align: int = 0,
        outside: Value | None = None,
    ) -> Value:
        """`lanes` consecutive elements from `index` on; those outside `mask` are not touched and read as 0.

        With `outside` they are those of this vector, for numbers that lie in memory as they are in registers.
        """
        return self.function.load(self.offset(index), lanes, mask, align, outside)

    def store(self, value: Any, index: Any = 0, mask: Value | None = None, *, align: int = 0) -> None:
        """Write a value (a vector writes consecutive elements); those outside `mask` are not touched."""
        self.function.store(self.offset(index), value, mask, align)

    def stream(self, value: Value, index: Any = 0) -> None:
        """Write a vector past the caches, at a multiple of its size."""
        self.function.stream(self.offset(index), value)

    def gather(self, indices: Value, mask: Value | None = None) -> Value:
        """The elements at a vector of indices; those outside `mask` read as 0."""
        return self.function.gather(self, indices, mask)

    def prefetch(self, index: Any = 0, *, level: int = 3) -> None:
        """Ask for the cache line of an element: `level` 3 is the nearest cache, 2 the second, 1 the last."""
        self.function.prefetch(self.offset(index), level)

    def aligned(self, nbytes: int) -> Pointer:
        """The first address at or after this one that is a multiple of `nbytes` (a power of two)."""
        word = self.function.emit(I64, f"ptrtoint ptr {self.address.name} to i64")
        rounded = (word + (nbytes - 1)) & -nbytes
        return Pointer(self.function.emit(PTR, f"inttoptr i64 {rounded.name} to ptr"), self.scalar)
