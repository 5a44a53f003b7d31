"""Loads, stores and addresses of the kernel language."""

from __future__ import annotations

from typing import Any

from sardonyx.compiler.llvm.function_text import FunctionText
from sardonyx.compiler.llvm.types import BOOL, I64, PTR, VOID, Type
from sardonyx.compiler.llvm.values import Pointer, Value


class MemoryAccess(FunctionText):
    """Instructions on memory."""

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

    def load(
        self, pointer: Pointer, lanes: int, mask: Value | None, align: int = 0, outside: Value | None = None
    ) -> Value:
        scalar = pointer.scalar
        if scalar == BOOL:  # one byte in memory, one bit in registers
            return self.load(pointer.cast(Type("u", 8)), lanes, mask, align).differs(0)
        if scalar.is_tiny_integer:
            return self.load(pointer.cast(Type("u", 8)), lanes, mask, align).to(scalar)
        wide = scalar.vector(lanes)
        align = align or scalar.nbytes
        if mask is None:
            return self.emit(wide, f"load {wide}, ptr {pointer.address.name}, align {align}")
        if lanes == 1:
            raise TypeError("a scalar load takes no mask")
        return self._masked("load", wide, pointer, mask, outside, align)

    def _masked(self, what: str, wide: Type, pointer: Pointer, mask: Value, value: Value | None, align: int) -> Value:
        """`llvm.masked.load` and `llvm.masked.store`, whose alignment is an attribute of the pointer.

        `value` is what is stored, or what lanes outside of the mask are after a load: 0 without one.
        """
        flags = f"<{wide.lanes} x i1>"
        address = f"ptr align {align} {pointer.address.name}"
        if what == "load":
            name = f"llvm.masked.load.{wide.mangled}.p0"
            self._declarations[name] = f"declare {wide} @{name}(ptr, {flags}, {wide})"
            outside = "zeroinitializer" if value is None else value.name
            return self.emit(wide, f"call {wide} @{name}({address}, {flags} {mask.name}, {wide} {outside})")
        assert value is not None
        name = f"llvm.masked.store.{wide.mangled}.p0"
        self._declarations[name] = f"declare void @{name}({wide}, ptr, {flags})"
        self.line(f"call void @{name}({wide} {value.name}, {address}, {flags} {mask.name})")
        return value

    def store(self, pointer: Pointer, value: Any, mask: Value | None, align: int = 0) -> None:
        scalar = pointer.scalar
        if not isinstance(value, Value):
            value = self.constant(scalar, value)
        if scalar == BOOL or scalar.is_tiny_integer:
            self.store(pointer.cast(Type("u", 8)), as_byte(value, scalar), mask, align)
            return
        value = self.coerce(value, scalar.vector(value.type.lanes))
        align = align or scalar.nbytes
        if mask is None:
            self.line(f"store {value.type} {value.name}, ptr {pointer.address.name}, align {align}")
        else:
            self._masked("store", value.type, pointer, mask, value, align)

    def stream(self, pointer: Pointer, value: Value) -> None:
        """Write a vector past the caches, without reading the lines that it fills; it lies at a multiple of its size.

        Others see it after `settle_streams`.
        """
        value = self.coerce(value, pointer.scalar.vector(value.type.lanes))
        where = f"ptr {pointer.address.name}, align {value.type.lanes * pointer.scalar.nbytes}"
        self.line(f"store {value.type} {value.name}, {where}, !nontemporal !{{i32 1}}")

    def settle_streams(self) -> None:
        """Let others see what was written past the caches, before all that is written from here on."""
        if self.target.architecture == "x86_64":
            self.call("llvm.x86.sse.sfence", VOID)

    def gather(self, pointer: Pointer, indices: Value, mask: Value | None) -> Value:
        lanes, scalar = indices.type.lanes, pointer.scalar
        if scalar == BOOL:
            return self.gather(pointer.cast(Type("u", 8)), indices, mask).differs(0)
        if scalar.is_tiny_integer:
            return self.gather(pointer.cast(Type("u", 8)), indices, mask).to(scalar)
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

    def stack(self, scalar: Type, count: int, align: int = 64) -> Pointer:
        """Room for `count` elements on the stack, the same for every turn of a loop."""
        self._count += 1
        name = f"%s{self._count}"
        self._types[name] = PTR
        self._entry.append(f"  {name} = alloca [{count} x {scalar}], align {align}")
        return Pointer(self.named(name, PTR), scalar)


def as_byte(value: Value, scalar: Type) -> Value:
    """A truth value or a tiny integer of type `scalar` as it lies in memory: the low bits of a byte."""
    return value.to(scalar).to(Type("u", scalar.bits)).to(Type("u", 8))
