"""The text of a function under construction: lines, blocks, names, declarations and constants."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import BOOL, F16, F32, PTR, VOID, Type
from sardonyx.compiler.llvm.values import Pointer, Value

if TYPE_CHECKING:
    from sardonyx.compiler.llvm.builder import Function

if TYPE_CHECKING:
    pass


class FunctionText:
    """What all parts of the builder write to. Parameters are read with ``k["name"]``."""

    def __init__(self, name: str, target: Target, parameters: Sequence[tuple[str, Type]], returns: Type = VOID) -> None:
        self.name = name
        self.target = target
        self.returns = returns
        self.flushes = False  # whether what is rounded to bfloat16 loses denormal numbers, as products of it do
        self._parameters = {key: self.named(f"%{key}", type_) for key, type_ in parameters}
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

    def named(self, name: str, type_: Type) -> Value:
        """The value that LLVM calls `name`, or a constant as LLVM writes it."""
        return Value(cast("Function", self), name, type_)

    def line(self, text: str) -> None:
        self._lines.append(f"  {text}")

    def emit(self, type_: Type, text: str) -> Value:
        """One instruction with a result."""
        self._count += 1
        name = f"%v{self._count}"
        self._types[name] = type_
        self._lines.append(f"  {name} = {text}")
        return self.named(name, type_)

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
            return self.named("void", VOID)
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
            return self.named("void", VOID)
        return self.emit(returns, f"call {returns} {address.name}({spelled})")

    def table(self, scalar: Type, numbers: Sequence[int | float]) -> Pointer:
        """The address of a constant table of numbers."""
        name = f"@{self.name}.table{len(self._globals)}"
        items = ", ".join(f"{scalar} {literal(number, scalar)}" for number in numbers)
        self._globals.append(f"{name} = private unnamed_addr constant [{len(numbers)} x {scalar}] [{items}], align 64")
        return Pointer(self.named(name, PTR), scalar)

    def zeros(self, scalar: Type, count: int) -> Pointer:
        """The address of so many constant zeros."""
        name = f"@{self.name}.zeros.{scalar}.{count}"
        line = f"{name} = private unnamed_addr constant [{count} x {scalar}] zeroinitializer, align 64"
        if line not in self._globals:
            self._globals.append(line)
        return Pointer(self.named(name, PTR), scalar)

    def finish(self) -> str:
        """The text of the whole module."""
        return joined([self])

    def _body(self, linkage: str = "") -> list[str]:
        """The function itself, and the parts of it that are functions of their own."""
        parameters = ", ".join(
            f"{value.type} {'noundef ' if value.type != PTR else ''}{value.name}" for value in self._parameters.values()
        )
        attributes = self.target.function_attributes()
        return [
            f"define {linkage}{self.returns} @{self.name}({parameters}) {attributes} {{",
            "entry:",
            *self._entry,
            *self._lines,
            *(["  ret void"] if self.returns == VOID else []),
            "}",
            *self._parts,
        ]

    def give(self, value: Any) -> None:
        """Return a value; nothing may follow."""
        value = self.coerce(value, self.returns)
        self.line(f"ret {value.type} {value.name}")

    def constant(self, type_: Type, number: int | float | bool) -> Value:
        """A number of a type; in every lane of a vector."""
        spelled = literal(number, type_.scalar)
        if type_.lanes == 1:
            return self.named(spelled, type_)
        return self.named(f"splat ({type_.scalar} {spelled})", type_)

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

    def splat(self, scalar: Value, lanes: int) -> Value:
        """A vector with the scalar in every lane."""
        if lanes == 1 or scalar.type.lanes == lanes:
            return scalar
        wide = scalar.type.vector(lanes)
        first = self.emit(wide, f"insertelement {wide} poison, {scalar.type} {scalar.name}, i64 0")
        return self.emit(wide, f"shufflevector {wide} {first.name}, {wide} poison, <{lanes} x i32> zeroinitializer")


def joined(functions: Sequence[FunctionText], variables: Sequence[str] = ()) -> str:
    """The text of a module of these functions, which may call each other, and of variables in LLVM's own words.

    Other modules see the first function alone.
    """
    declarations: dict[str, str] = {}
    for function in functions:
        declarations.update(function._declarations)
    return "\n".join(
        [
            f'target triple = "{functions[0].target.triple}"',
            *variables,
            *(line for function in functions for line in function._globals),
            *declarations.values(),
            *functions[0]._body(),
            *(line for function in functions[1:] for line in function._body("internal ")),
            "",
        ]
    )


def literal(number: int | float | bool, scalar: Type) -> str:
    """A number as LLVM reads it exactly."""
    if scalar == BOOL:
        return "true" if number else "false"
    if scalar.is_tiny_float:
        return str(int(np.float32(number).astype(np.dtype(scalar.kind)).view(np.uint8)))
    if scalar.is_float:
        if scalar.bits == 64:
            return "0x" + struct.pack(">d", float(number)).hex().upper()
        if scalar == F32:
            single = struct.unpack(">f", struct.pack(">f", _to_single(float(number))))[0]
            return "0x" + struct.pack(">d", single).hex().upper()
        bits = struct.pack(">e", float(number)) if scalar == F16 else struct.pack(">f", float(number))[:2]
        return str(int.from_bytes(bits, "big"))
    return str(int(number))


def _to_single(number: float) -> float:
    """`number` in float32's range: what rounds beyond it becomes infinite, which `struct` refuses to do."""
    try:
        struct.pack(">f", number)
    except OverflowError:
        return float("inf") if number > 0 else float("-inf")
    return number
