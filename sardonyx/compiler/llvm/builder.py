"""The kernel language: a typed builder of LLVM IR in which a kernel reads like the loop nest it is.

Values carry operators, `loop` and `when` are ``with`` blocks, `variable` is a place that may change (LLVM promotes
it to registers). The builder writes text; it knows the target only as a description.

    k = Function("scale", target, [("x", PTR), ("n", I64), ("factor", F32)])
    x = k.pointer("x", F32)
    with k.loop(0, k["n"]) as i:
        x.store(x.load(i) * k["factor"], i)
    text = k.finish()
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import BF16, BOOL, F16, F32, I8, I32, I64, PTR, VOID, Type

Operand = "Value | int | float"

_NAMED = re.compile(r"%[\w.]+")
_DEFINED = re.compile(r"\s*(%[\w.]+) = ")

# Floats that are loaded and stored as integers: LLVM calls library functions for masked accesses of them.
_AS_INTEGERS = (F16, BF16)


class Value:
    """An SSA value: its LLVM name, its type and the function that it belongs to."""

    __slots__ = ("function", "name", "type")

    def __init__(self, function: Function, name: str, type_: Type) -> None:
        self.function = function
        self.name = name
        self.type = type_

    def __repr__(self) -> str:
        return f"{self.type} {self.name}"

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


class Pointer:
    """An address of elements of one scalar type; indices count elements."""

    __slots__ = ("address", "function", "scalar")

    def __init__(self, address: Value, scalar: Type) -> None:
        self.function = address.function
        self.address = address
        self.scalar = scalar

    def offset(self, index: Any) -> Pointer:
        """The address `index` elements further on."""
        if isinstance(index, int) and index == 0:
            return self
        return Pointer(self.function.advance(self.address, index, self.scalar.nbytes), self.scalar)

    def cast(self, scalar: Type) -> Pointer:
        return Pointer(self.address, scalar)

    def load(self, index: Any = 0, lanes: int = 1, mask: Value | None = None, *, align: int = 0) -> Value:
        """`lanes` consecutive elements from `index` on; those outside `mask` are not touched and read as 0."""
        return self.function.load(self.offset(index), lanes, mask, align)

    def store(self, value: Any, index: Any = 0, mask: Value | None = None, *, align: int = 0) -> None:
        """Write a value (a vector writes consecutive elements); those outside `mask` are not touched."""
        self.function.store(self.offset(index), value, mask, align)

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


class Function:
    """A function under construction. Parameters are read with ``k["name"]``."""

    def __init__(self, name: str, target: Target, parameters: Sequence[tuple[str, Type]], returns: Type = VOID) -> None:
        self.name = name
        self.target = target
        self.returns = returns
        self._parameters = {key: Value(self, f"%{key}", type_) for key, type_ in parameters}
        self._entry: list[str] = []  # variables live in the entry block, where LLVM promotes them
        self._lines: list[str] = []
        self._declarations: dict[str, str] = {}
        self._globals: list[str] = []
        self._parts: list[str] = []  # functions that `apart` made
        self._types = {value.name: value.type for value in self._parameters.values()}
        self._count = 0
        self._block = "entry"

    def __getitem__(self, name: str) -> Value:
        return self._parameters[name]

    # Text

    def line(self, text: str) -> None:
        self._lines.append(f"  {text}")

    def emit(self, type_: Type, text: str) -> Value:
        """One instruction with a result."""
        self._count += 1
        name = f"%v{self._count}"
        self._types[name] = type_
        self._lines.append(f"  {name} = {text}")
        return Value(self, name, type_)

    def label(self, stem: str) -> str:
        self._count += 1
        return f"{stem}{self._count}"

    def start_block(self, label: str) -> None:
        self._lines.append(f"{label}:")
        self._block = label

    def declare(self, name: str, returns: Type, arguments: Sequence[Type]) -> None:
        spelled = ", ".join(str(argument) for argument in arguments)
        self.declare_text(name, f"declare {returns} @{name}({spelled})")

    def declare_text(self, name: str, text: str) -> None:
        """A declaration in LLVM's own words, such as that of a function with a variable number of arguments."""
        self._declarations[name] = text

    def call(self, name: str, returns: Type, *arguments: Value) -> Value:
        """A call of an intrinsic or of a function of the process, declared on the way."""
        self.declare(name, returns, [argument.type for argument in arguments])
        spelled = ", ".join(f"{argument.type} {argument.name}" for argument in arguments)
        if returns == VOID:
            self.line(f"call void @{name}({spelled})")
            return Value(self, "void", VOID)
        return self.emit(returns, f"call {returns} @{name}({spelled})")

    def call_pointer(self, address: Value, *arguments: Value) -> None:
        """Call a function without a result through its address."""
        spelled = ", ".join(f"{argument.type} {argument.name}" for argument in arguments)
        self.line(f"call void {address.name}({spelled})")

    def call_address(self, address: Value, returns: Type | None, *arguments: Value) -> Value:
        """Call a C function through its address; None for one without a result."""
        spelled = ", ".join(f"{argument.type} {argument.name}" for argument in arguments)
        if returns is None:
            self.line(f"call void {address.name}({spelled})")
            return Value(self, "void", VOID)
        return self.emit(returns, f"call {returns} {address.name}({spelled})")

    def table(self, scalar: Type, numbers: Sequence[int | float]) -> Pointer:
        """The address of a constant table of numbers."""
        name = f"@{self.name}.table{len(self._globals)}"
        items = ", ".join(f"{scalar} {_literal(number, scalar)}" for number in numbers)
        self._globals.append(f"{name} = private unnamed_addr constant [{len(numbers)} x {scalar}] [{items}], align 64")
        return Pointer(Value(self, name, PTR), scalar)

    def finish(self) -> str:
        """The text of the whole module."""
        if self.returns == VOID:
            self.line("ret void")
        parameters = ", ".join(
            f"{value.type} {'noundef ' if value.type != PTR else ''}{value.name}" for value in self._parameters.values()
        )
        attributes = self.target.function_attributes()
        return "\n".join(
            [
                f'target triple = "{self.target.triple}"',
                *self._globals,
                *self._declarations.values(),
                f"define {self.returns} @{self.name}({parameters}) {attributes} {{",
                "entry:",
                *self._entry,
                *self._lines,
                "}",
                *self._parts,
                "",
            ]
        )

    def give(self, value: Any) -> None:
        """Return a value; nothing may follow."""
        value = self.coerce(value, self.returns)
        self.line(f"ret {value.type} {value.name}")

    # Values

    def constant(self, type_: Type, number: int | float | bool) -> Value:
        """A number of a type; in every lane of a vector."""
        literal = _literal(number, type_.scalar)
        if type_.lanes == 1:
            return Value(self, literal, type_)
        return Value(self, f"splat ({type_.scalar} {literal})", type_)

    def coerce(self, value: Value | int | float | bool, type_: Type) -> Value:
        """A Python number or a scalar as a value of `type_`; TypeError where the scalar types differ."""
        if not isinstance(value, Value):
            return self.constant(type_, value)
        if value.type.lanes == 1 and type_.lanes > 1:
            value = self.splat(value, type_.lanes)
        if (value.type.kind, value.type.bits, value.type.lanes) != (type_.kind, type_.bits, type_.lanes) and not (
            value.type.bits == type_.bits
            and value.type.lanes == type_.lanes
            and not value.type.is_float
            and not type_.is_float
        ):
            raise TypeError(f"a value of type {value.type} where {type_} is wanted")
        return value

    def undefined(self, type_: Type) -> Value:
        return Value(self, "poison", type_)

    def splat(self, scalar: Value, lanes: int) -> Value:
        """A vector with the scalar in every lane."""
        if lanes == 1 or scalar.type.lanes == lanes:
            return scalar
        wide = scalar.type.vector(lanes)
        first = self.emit(wide, f"insertelement {wide} poison, {scalar.type} {scalar.name}, i64 0")
        return self.emit(wide, f"shufflevector {wide} {first.name}, {wide} poison, <{lanes} x i32> zeroinitializer")

    def iota(self, scalar: Type, lanes: int) -> Value:
        """0, 1, 2, … in the lanes."""
        items = ", ".join(f"{scalar} {_literal(lane, scalar)}" for lane in range(lanes))
        return Value(self, f"<{items}>", scalar.vector(lanes))

    def lanes_below(self, count: Value, lanes: int) -> Value:
        """The mask of the lanes whose number is below `count` (i64; may be negative or above `lanes`)."""
        bounded = self.smaller(self.larger(count, 0), lanes).to(I32)
        return self.iota(I32, lanes) < self.splat(bounded, lanes)

    def extract(self, vector: Value, index: int | Value) -> Value:
        spelled = f"i64 {index}" if isinstance(index, int) else f"{index.type} {index.name}"
        return self.emit(vector.type.scalar, f"extractelement {vector.type} {vector.name}, {spelled}")

    def insert(self, vector: Value, element: Value, index: int | Value) -> Value:
        spelled = f"i64 {index}" if isinstance(index, int) else f"{index.type} {index.name}"
        return self.emit(
            vector.type,
            f"insertelement {vector.type} {vector.name}, {element.type} {element.name}, {spelled}",
        )

    def shuffle(self, first: Value, second: Value | None, lanes: Sequence[int]) -> Value:
        """The lanes numbered in `lanes` of `first` followed by `second`; -1 for one that does not matter."""
        other = second.name if second is not None else "poison"
        mask = ", ".join("i32 poison" if lane < 0 else f"i32 {lane}" for lane in lanes)
        wide = first.type.scalar.vector(len(lanes))
        return self.emit(
            wide,
            f"shufflevector {first.type} {first.name}, {first.type} {other}, <{len(lanes)} x i32> <{mask}>",
        )

    def binary(self, operation: str, left: Any, right: Any) -> Value:
        left, right = self._matched(left, right)
        type_ = left.type
        if type_.is_float:
            opcode = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv", "rem": "frem"}[operation]
            return self.emit(type_, f"{opcode} contract {type_} {left.name}, {right.name}")
        signed = type_.is_signed
        opcode = {
            "div": "sdiv" if signed else "udiv",
            "rem": "srem" if signed else "urem",
            "shr": "ashr" if signed else "lshr",
        }.get(operation, operation)
        return self.emit(type_, f"{opcode} {type_} {left.name}, {right.name}")

    def _matched(self, left: Any, right: Any) -> tuple[Value, Value]:
        if isinstance(left, Value) and (not isinstance(right, Value) or left.type.lanes >= right.type.lanes):
            return left, self.coerce(right, left.type)
        return self.coerce(left, right.type), right

    def negate(self, value: Value) -> Value:
        if value.type.is_float:
            return self.emit(value.type, f"fneg {value.type} {value.name}")
        return self.binary("sub", self.constant(value.type, 0), value)

    def compare(self, relation: str, left: Any, right: Any) -> Value:
        left, right = self._matched(left, right)
        type_ = left.type
        if type_.is_float:
            code = "fcmp " + ("une" if relation == "ne" else f"o{relation}")
        elif relation in ("eq", "ne"):
            code = f"icmp {relation}"
        else:
            code = f"icmp {'s' if type_.is_signed else 'u'}{relation}"
        return self.emit(BOOL.vector(type_.lanes), f"{code} {type_} {left.name}, {right.name}")

    def select(self, condition: Value, yes: Any, no: Any) -> Value:
        """`yes` where the condition holds, else `no`, lane by lane."""
        yes, no = self._matched(yes, no)
        if condition.type.lanes > yes.type.lanes:
            yes, no = self.splat(yes, condition.type.lanes), self.splat(no, condition.type.lanes)
        elif condition.type.lanes < yes.type.lanes:
            condition = self.splat(condition, yes.type.lanes)
        return self.emit(
            yes.type,
            f"select {condition.type} {condition.name}, {yes.type} {yes.name}, {no.type} {no.name}",
        )

    def convert(self, value: Value, scalar: Type) -> Value:
        source, wanted = value.type, value.type.with_scalar(scalar)
        if source == wanted:
            return value
        if scalar == BOOL:
            return self.compare("ne", value, self.constant(source, 0))
        if source.scalar == BOOL:
            opcode = "uitofp" if scalar.is_float else "zext"
            return self.emit(wanted, f"{opcode} {source} {value.name} to {wanted}")
        if source.is_float and scalar.is_float:
            if BF16 in (source.scalar, scalar) or (F16 in (source.scalar, scalar) and not self.target.has_f16_converts):
                return self._narrow_float(value, scalar)
            opcode = "fptrunc" if scalar.bits < source.bits else "fpext"
            return self.emit(wanted, f"{opcode} {source} {value.name} to {wanted}")
        if source.is_float:
            name = f"llvm.fpto{'s' if scalar.is_signed else 'u'}i.sat.{wanted.mangled}.{source.mangled}"
            return self.call(name, wanted, value)
        if scalar.is_float:
            return self.emit(wanted, f"{'s' if source.is_signed else 'u'}itofp {source} {value.name} to {wanted}")
        if scalar.bits == source.bits:
            return Value(self, value.name, wanted)
        opcode = "trunc" if scalar.bits < source.bits else "sext" if source.is_signed else "zext"
        return self.emit(wanted, f"{opcode} {source} {value.name} to {wanted}")

    def _narrow_float(self, value: Value, scalar: Type) -> Value:
        """Conversions from and to bfloat16, in integer arithmetic: not every target has instructions for them."""
        source = value.type
        u16, u32 = Type("u", 16), Type("u", 32)
        if source.scalar == BF16:
            wide = (value.bits_as(u16).to(u32) << 16).bits_as(F32)
            return wide.to(scalar)
        if scalar == BF16:
            single = value.to(F32)
            word = single.bits_as(u32)
            rounded = (word + ((word >> 16) & 1) + 0x7FFF) >> 16
            quiet = (word >> 16) | 0x40
            return self.select(single.differs(single), quiet, rounded).to(u16).bits_as(BF16)
        opcode = "fptrunc" if scalar.bits < source.bits else "fpext"
        return self.emit(source.with_scalar(scalar), f"{opcode} {source} {value.name} to {source.with_scalar(scalar)}")

    def bitcast(self, value: Value, scalar: Type) -> Value:
        lanes = value.type.lanes * value.type.bits // scalar.bits
        wanted = scalar.vector(lanes)
        if str(wanted) == str(value.type):
            return Value(self, value.name, wanted)
        return self.emit(wanted, f"bitcast {value.type} {value.name} to {wanted}")

    # Mathematics of the machine; what is computed by polynomials is in `mathematics`.

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """a * b + c, rounded once where the target has the instruction."""
        type_ = max((a.type, b.type, c.type), key=lambda one: one.lanes)
        a, b, c = (self.coerce(one, type_) for one in (a, b, c))
        name = "llvm.fma" if self.target.has_fma else "llvm.fmuladd"
        return self.call(f"{name}.{type_.mangled}", type_, a, b, c)

    def unary(self, intrinsic: str, value: Value) -> Value:
        """An LLVM intrinsic of one operand: ``fabs``, ``sqrt``, ``floor``, ``ceil``, ``trunc``, ``rint``, ``ctpop``…"""
        return self.call(f"llvm.{intrinsic}.{value.type.mangled}", value.type, value)

    def smaller(self, left: Any, right: Any) -> Value:
        """The minimum; of floats, NaN if either is NaN."""
        return self._extreme("min", left, right)

    def larger(self, left: Any, right: Any) -> Value:
        """The maximum; of floats, NaN if either is NaN."""
        return self._extreme("max", left, right)

    def _extreme(self, which: str, left: Any, right: Any) -> Value:
        left, right = self._matched(left, right)
        if left.type.is_float:
            better = left < right if which == "min" else left > right
            # The comparison is false for NaN on either side: take `right`, or `left` where that is NaN.
            chosen = self.select(better, left, right)
            return self.select(left.differs(left), left, chosen)
        letter = "s" if left.type.is_signed else "u"
        return self.call(f"llvm.{letter}{which}.{left.type.mangled}", left.type, left, right)

    def faster_larger(self, left: Any, right: Any) -> Value:
        """The maximum where NaN does not matter: `right` if either is NaN; one instruction on x86."""
        left, right = self._matched(left, right)
        return self.select(left > right, left, right)

    def faster_smaller(self, left: Any, right: Any) -> Value:
        """The minimum where NaN does not matter: `right` if either is NaN."""
        left, right = self._matched(left, right)
        return self.select(left < right, left, right)

    def horizontal(self, operation: str, vector: Value) -> Value:
        """``add``, ``mul``, ``max``, ``min``, ``and``, ``or`` over the lanes, as a tree of halves (one fixed order)."""
        while vector.type.lanes > 1:
            half = vector.type.lanes // 2
            if half * 2 != vector.type.lanes:
                raise TypeError(f"{vector.type} has no power of two of lanes")
            low = self.shuffle(vector, None, range(half))
            high = self.shuffle(vector, None, range(half, 2 * half))
            if half == 1:
                low, high = self.extract(vector, 0), self.extract(vector, 1)
            if operation in ("max", "min"):
                vector = self._extreme(operation, low, high)
            else:
                vector = self.binary(operation, low, high)
        return vector

    # Memory

    def pointer(self, source: str | Value, scalar: Type) -> Pointer:
        """A pointer parameter, or an address, as a pointer to elements of a type."""
        value = self._parameters[source] if isinstance(source, str) else source
        if value.type != PTR:
            value = self.emit(PTR, f"inttoptr i64 {value.name} to ptr")
        return Pointer(value, scalar)

    def advance(self, address: Value, index: Any, nbytes: int) -> Value:
        """An address `index` times `nbytes` further on."""
        if not isinstance(index, Value):
            return self.emit(PTR, f"getelementptr i8, ptr {address.name}, i64 {int(index) * nbytes}")
        if index.type.bits != 64:
            index = index.to(I64)
        if nbytes == 1:
            return self.emit(PTR, f"getelementptr i8, ptr {address.name}, i64 {index.name}")
        return self.emit(PTR, f"getelementptr [{nbytes} x i8], ptr {address.name}, i64 {index.name}")

    def load(self, pointer: Pointer, lanes: int, mask: Value | None, align: int = 0) -> Value:
        scalar = pointer.scalar
        if scalar == BOOL:  # one byte in memory, one bit in registers
            return self.load(pointer.cast(Type("u", 8)), lanes, mask, align).differs(0)
        if scalar in _AS_INTEGERS:
            return self.load(pointer.cast(Type("u", 16)), lanes, mask, align).bits_as(scalar)
        wide = scalar.vector(lanes)
        align = align or scalar.nbytes
        if mask is None:
            return self.emit(wide, f"load {wide}, ptr {pointer.address.name}, align {align}")
        if lanes == 1:
            raise TypeError("a scalar load takes no mask")
        return self._masked("load", wide, pointer, mask, None, align)

    def _masked(self, what: str, wide: Type, pointer: Pointer, mask: Value, value: Value | None, align: int) -> Value:
        """`llvm.masked.load` and `llvm.masked.store`, whose alignment is an attribute of the pointer."""
        flags = f"<{wide.lanes} x i1>"
        address = f"ptr align {align} {pointer.address.name}"
        if what == "load":
            name = f"llvm.masked.load.{wide.mangled}.p0"
            self._declarations[name] = f"declare {wide} @{name}(ptr, {flags}, {wide})"
            return self.emit(wide, f"call {wide} @{name}({address}, {flags} {mask.name}, {wide} zeroinitializer)")
        assert value is not None
        name = f"llvm.masked.store.{wide.mangled}.p0"
        self._declarations[name] = f"declare void @{name}({wide}, ptr, {flags})"
        self.line(f"call void @{name}({wide} {value.name}, {address}, {flags} {mask.name})")
        return value

    def store(self, pointer: Pointer, value: Any, mask: Value | None, align: int = 0) -> None:
        scalar = pointer.scalar
        if not isinstance(value, Value):
            value = self.constant(scalar, value)
        if scalar == BOOL:
            self.store(pointer.cast(Type("u", 8)), value.to(Type("u", 8)), mask, align)
            return
        value = self.coerce(value, scalar.vector(value.type.lanes))
        if scalar in _AS_INTEGERS:
            self.store(pointer.cast(Type("u", 16)), value.bits_as(Type("u", 16)), mask, align)
            return
        align = align or scalar.nbytes
        if mask is None:
            self.line(f"store {value.type} {value.name}, ptr {pointer.address.name}, align {align}")
        else:
            self._masked("store", value.type, pointer, mask, value, align)

    def gather(self, pointer: Pointer, indices: Value, mask: Value | None) -> Value:
        lanes, scalar = indices.type.lanes, pointer.scalar
        if scalar == BOOL:
            return self.gather(pointer.cast(Type("u", 8)), indices, mask).differs(0)
        if scalar in _AS_INTEGERS:
            return self.gather(pointer.cast(Type("u", 16)), indices, mask).bits_as(scalar)
        if lanes == 1:
            return pointer.load(indices)
        wide, flags = scalar.vector(lanes), f"<{lanes} x i1>"
        addresses = self.emit(
            PTR.vector(lanes),
            f"getelementptr [{scalar.nbytes} x i8], ptr {pointer.address.name}, {indices.type} {indices.name}",
        )
        chosen = mask.name if mask is not None else "splat (i1 true)"
        name = f"llvm.masked.gather.{wide.mangled}.v{lanes}p0"
        self._declarations[name] = f"declare {wide} @{name}(<{lanes} x ptr>, {flags}, {wide})"
        return self.emit(
            wide,
            f"call {wide} @{name}(<{lanes} x ptr> align {scalar.nbytes} {addresses.name}, {flags} {chosen}, "
            f"{wide} zeroinitializer)",
        )

    def prefetch(self, pointer: Pointer, level: int) -> None:
        self._declarations["llvm.prefetch.p0"] = "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)"
        self.line(f"call void @llvm.prefetch.p0(ptr {pointer.address.name}, i32 0, i32 {level}, i32 1)")

    def copy(self, target: Pointer, source: Pointer, nbytes: Value) -> None:
        """Copy bytes between places that do not overlap."""
        name = "llvm.memcpy.p0.p0.i64"
        self._declarations[name] = f"declare void @{name}(ptr, ptr, i64, i1)"
        self.line(
            f"call void @{name}(ptr {target.address.name}, ptr {source.address.name}, i64 {nbytes.name}, i1 false)"
        )

    def keep_order(self) -> None:
        """No access of memory is moved across this place, in either direction; it costs no instruction."""
        self.line('call void asm sideeffect "", "~{memory}"()')

    def opaque(self, value: Value) -> Value:
        """The same integer or address, in a register, of which LLVM does not know how it was computed."""
        return self.emit(value.type, f'call {value.type} asm "", "=r,0"({value.type} {value.name})')

    def stack(self, scalar: Type, count: int, align: int = 64) -> Pointer:
        """Room for `count` elements on the stack, the same for every turn of a loop."""
        self._count += 1
        name = f"%s{self._count}"
        self._types[name] = PTR
        self._entry.append(f"  {name} = alloca [{count} x {scalar}], align {align}")
        return Pointer(Value(self, name, PTR), scalar)

    # Control

    def variable(self, type_: Type, start: Any = None) -> Variable:
        """A place for values of a type, with `start` in it from here on."""
        self._count += 1
        slot = f"%s{self._count}"
        self._types[slot] = PTR
        self._entry.append(f"  {slot} = alloca {type_}")
        variable = Variable(self, slot, type_)
        if start is not None:
            variable.set(start)
        return variable

    @contextmanager
    def loop(self, begin: Any, end: Any, step: Any = 1) -> Iterator[Value]:
        """``for i in range(begin, end, step)`` with a positive step, over i64."""
        begin, end, step = (self.coerce(bound, I64) for bound in (begin, end, step))
        before, head, body, done = self._block, self.label("head"), self.label("body"), self.label("done")
        self._count += 1
        index, following = f"%i{self._count}", f"%n{self._count}"
        self._types[index] = self._types[following] = I64
        self.line(f"br label %{head}")
        self.start_block(head)
        place = len(self._lines)
        self._lines.append("")
        test = self.emit(BOOL, f"icmp slt i64 {index}, {end.name}")
        self.line(f"br i1 {test.name}, label %{body}, label %{done}")
        self.start_block(body)
        yield Value(self, index, I64)
        latch = self._block
        self.line(f"{following} = add nsw i64 {index}, {step.name}")
        self._lines[place] = f"  {index} = phi i64 [ {begin.name}, %{before} ], [ {following}, %{latch} ]"
        self.line(f"br label %{head}")
        self.start_block(done)

    @contextmanager
    def apart(self) -> Iterator[None]:
        """The block as a function of its own, called here: it takes no registers from the loops around it.

        LLVM keeps the constants of an expensive expression in registers throughout a function, which spills the
        accumulators of a loop elsewhere. Values of the block cannot be used after it; variables from outside that it
        uses live in memory.
        """
        outside = self._lines, self._entry, self._block
        self._lines, self._entry, self._block = [], [], "entry"
        yield
        lines, entry = self._lines, self._entry
        self._lines, self._entry, self._block = outside
        labels = {f"%{line[:-1]}" for line in lines if line.endswith(":")} | {"%entry"}
        inside = {match.group(1) for line in (*entry, *lines) if (match := _DEFINED.match(line))}
        used = dict.fromkeys(name for line in lines for name in _NAMED.findall(line))
        given = [Value(self, name, self._types[name]) for name in used if name not in inside and name not in labels]
        name = f"{self.name}.part{len(self._parts)}"
        parameters = ", ".join(f"{value.type} {value.name}" for value in given)
        self._parts.append(
            "\n".join(
                [
                    f"define internal void @{name}({parameters}) noinline {self.target.function_attributes()} {{",
                    "entry:",
                    *entry,
                    *lines,
                    "  ret void",
                    "}",
                ]
            )
        )
        self.line(f"call void @{name}({parameters})")

    @contextmanager
    def loop_while(self, condition: Any) -> Iterator[None]:
        """``while condition()``: the callable emits the test, before every turn."""
        head, body, done = self.label("while"), self.label("body"), self.label("done")
        self.line(f"br label %{head}")
        self.start_block(head)
        test = condition()
        self.line(f"br i1 {test.name}, label %{body}, label %{done}")
        self.start_block(body)
        yield
        self.line(f"br label %{head}")
        self.start_block(done)

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """The block runs where the condition holds."""
        yes, after = self.label("then"), self.label("after")
        self.line(f"br i1 {condition.name}, label %{yes}, label %{after}")
        self.start_block(yes)
        yield
        self.line(f"br label %{after}")
        self.start_block(after)

    @contextmanager
    def otherwise(self, condition: Value) -> Iterator[None]:
        """The block runs where the condition does not hold: put it after `when` with the same one."""
        no, after = self.label("else"), self.label("after")
        self.line(f"br i1 {condition.name}, label %{after}, label %{no}")
        self.start_block(no)
        yield
        self.line(f"br label %{after}")
        self.start_block(after)

    def choose(self, selector: Value, cases: Sequence[int]) -> Iterator[int]:
        """One block per case, of which the one whose number `selector` is runs; none runs for another number."""
        after = self.label("after")
        labels = [self.label("case") for _ in cases]
        spelled = " ".join(f"{selector.type} {case}, label %{label}" for case, label in zip(cases, labels, strict=True))
        self.line(f"switch {selector.type} {selector.name}, label %{after} [ {spelled} ]")
        for case, label in zip(cases, labels, strict=True):
            self.start_block(label)
            yield case
            self.line(f"br label %{after}")
        self.start_block(after)


def _literal(number: int | float | bool, scalar: Type) -> str:
    """A number as LLVM reads it exactly."""
    if scalar == BOOL:
        return "true" if number else "false"
    if scalar.kind in ("f", "bf"):
        if scalar.bits == 64:
            return "0x" + struct.pack(">d", float(number)).hex().upper()
        if scalar == F32:
            single = struct.unpack(">f", struct.pack(">f", _to_single(float(number))))[0]
            return "0x" + struct.pack(">d", single).hex().upper()
        if scalar == F16:
            return "0xH" + struct.pack(">e", float(number)).hex().upper()
        return "0xR" + struct.pack(">f", float(number))[:2].hex().upper()
    return str(int(number))


def _to_single(number: float) -> float:
    """`number` in float32's range: what rounds beyond it becomes infinite, which `struct` refuses to do."""
    try:
        struct.pack(">f", number)
    except OverflowError:
        return float("inf") if number > 0 else float("-inf")
    return number


def minimum(k: Function, left: Any, right: Any) -> Value:
    """The smaller of two i64."""
    return k.smaller(left if isinstance(left, Value) else k.constant(I64, left), right)


__all__ = ["I8", "I32", "Function", "Pointer", "Value", "Variable", "minimum"]
