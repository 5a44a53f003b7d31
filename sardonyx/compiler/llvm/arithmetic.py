"""Arithmetic, comparisons, conversions and lanes of the kernel language."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sardonyx.compiler.llvm import narrow_floats
from sardonyx.compiler.llvm.function_text import FunctionText, literal
from sardonyx.compiler.llvm.types import BOOL, I32, I64, Type
from sardonyx.compiler.llvm.values import Value

# Bits of the smallest vector register of any target.
_SMALLEST_REGISTER = 128
# Lanes that have a bit each in a register for masks.
_MASK_BITS = (8, 16, 32, 64)


class Arithmetic(FunctionText):
    """Instructions on values."""

    def undefined(self, type_: Type) -> Value:
        return self.named("poison", type_)

    def iota(self, scalar: Type, lanes: int) -> Value:
        """0, 1, 2, … in the lanes."""
        return self.numbers(scalar, range(lanes))

    def numbers(self, scalar: Type, numbers: Sequence[int | float]) -> Value:
        """A number for each lane."""
        items = ", ".join(f"{scalar} {literal(number, scalar)}" for number in numbers)
        return self.named(f"<{items}>", scalar.vector(len(numbers)))

    def lanes_below(self, count: Value, lanes: int) -> Value:
        """The mask of the lanes whose number is below `count` (i64; may be negative or above `lanes`)."""
        bounded = self.smaller(self.larger(count, 0), lanes)
        if self.target.has_masks and lanes in _MASK_BITS:
            # As bits of a number: LLVM would compare lanes anew wherever the mask of a loop is used.
            bits = self.call("llvm.x86.bmi.bzhi.64", I64, self.constant(I64, -1), bounded)
            word = bits if lanes == I64.bits else self.emit(Type("u", lanes), f"trunc i64 {bits.name} to i{lanes}")
            mask = BOOL.vector(lanes)
            return self.emit(mask, f"bitcast i{lanes} {word.name} to {mask}")
        return self.iota(I32, lanes) < self.splat(bounded.to(I32), lanes)

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
        known = _folded(operation, left, right) if type_ == I64 else None
        if known is not None:
            return known
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
        if source.is_narrow_float or scalar.is_narrow_float:
            return narrow_floats.converted(value, scalar)
        if scalar == BOOL:
            return self.compare("ne", value, self.constant(source, 0))
        if source.scalar == BOOL:
            opcode = "uitofp" if scalar.is_float else "zext"
            return self.emit(wanted, f"{opcode} {source} {value.name} to {wanted}")
        if source.is_float and scalar.is_float:
            opcode = "fptrunc" if scalar.bits < source.bits else "fpext"
            return self.emit(wanted, f"{opcode} {source} {value.name} to {wanted}")
        if source.is_float:
            name = f"llvm.fpto{'s' if scalar.is_signed else 'u'}i.sat.{wanted.mangled}.{source.mangled}"
            return self.call(name, wanted, value)
        if scalar.is_float:
            return self.emit(wanted, f"{'s' if source.is_signed else 'u'}itofp {source} {value.name} to {wanted}")
        if scalar.bits == source.bits:
            return self.named(value.name, wanted)
        opcode = "trunc" if scalar.bits < source.bits else "sext" if source.is_signed else "zext"
        return self.emit(wanted, f"{opcode} {source} {value.name} to {wanted}")

    def bitcast(self, value: Value, scalar: Type) -> Value:
        lanes = value.type.lanes * value.type.bits // scalar.bits
        wanted = scalar.vector(lanes)
        if str(wanted) == str(value.type):
            return self.named(value.name, wanted)
        return self.emit(wanted, f"bitcast {value.type} {value.name} to {wanted}")

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

    def any_lane(self, mask: Value) -> Value:
        """Whether a truth value holds in some lane, as a scalar."""
        if mask.type.lanes == 1:
            return mask
        word = self.emit(Type("u", mask.type.lanes), f"bitcast {mask.type} {mask.name} to i{mask.type.lanes}")
        return word.differs(0)

    def keep_order(self, values: Sequence[Value] = ()) -> None:
        """No access of memory is moved across this place, in either direction; it costs no instruction.

        The `values`, vectors of floats, are computed before, where they fill registers.
        """
        registers = {"aarch64": "w", "x86_64": "v" if self.target.vector_bits > 256 else "x"}
        kind = registers.get(self.target.architecture)  # without one, LLVM's own order has to do
        values = [value for value in values if kind and value.type.lanes * value.type.bits >= _SMALLEST_REGISTER]
        operands = ", ".join(f"{value.type} {value.name}" for value in values)
        self.line(f'call void asm sideeffect "", "{f"{kind}," * len(values)}~{{memory}}"({operands})')

    def opaque(self, value: Value) -> Value:
        """The same integer or address, in a register, of which LLVM does not know how it was computed."""
        return self.emit(value.type, f'call {value.type} asm "", "=r,0"({value.type} {value.name})')


def _folded(operation: str, left: Value, right: Value) -> Value | None:
    """What an i64 operation gives without an instruction; None where it takes one."""
    a, b = left.number, right.number
    if operation == "mul" and (a == 0 or b == 1):
        return left
    if operation == "mul" and (b == 0 or a == 1):
        return right
    if operation in ("add", "sub") and b == 0:
        return left
    if operation == "add" and a == 0:
        return right
    if a is None or b is None or operation not in ("add", "sub", "mul"):
        return None
    return left.function.constant(left.type, {"add": a + b, "sub": a - b, "mul": a * b}[operation])
