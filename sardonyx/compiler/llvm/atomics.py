"""Atomic operations of the kernel language, for the words through which threads speak to each other.

Orders, as in C11: ``monotonic`` (only the word itself), ``acquire`` (what the writer did before its release is seen
after), ``release``, ``acq_rel`` and ``seq_cst`` (one order of all such operations, in which everybody agrees).
"""

from __future__ import annotations

from typing import Any

from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.types import BOOL


def load(source: Pointer, order: str) -> Value:
    """The word at an address."""
    k, type_ = source.function, source.scalar
    return k.emit(type_, f"load atomic {type_}, ptr {source.address.name} {order}, align {type_.nbytes}")


def store(target: Pointer, value: Any, order: str) -> None:
    """Put a value or a number into the word at an address."""
    k, type_ = target.function, target.scalar
    value = k.coerce(value, type_)
    k.line(f"store atomic {type_} {value.name}, ptr {target.address.name} {order}, align {type_.nbytes}")


def update(operation: str, target: Pointer, value: Any, order: str) -> Value:
    """Read, change and write a word (``add``, ``sub``, ``and``, ``or``, ``xchg``); what was there before."""
    k, type_ = target.function, target.scalar
    value = k.coerce(value, type_)
    return k.emit(
        type_,
        f"atomicrmw {operation} ptr {target.address.name}, {type_} {value.name} {order}, align {type_.nbytes}",
    )


def exchange_if(target: Pointer, expected: Any, value: Any, order: str) -> Value:
    """Put `value` into a word that holds `expected`; whether it did. A failure orders nothing."""
    k, type_ = target.function, target.scalar
    expected, value = k.coerce(expected, type_), k.coerce(value, type_)
    pair = k.emit(
        type_,
        f"cmpxchg ptr {target.address.name}, {type_} {expected.name}, {type_} {value.name} {order} monotonic, "
        f"align {type_.nbytes}",
    )
    return k.emit(BOOL, f"extractvalue {{ {type_}, i1 }} {pair.name}, 1")


def pause(k: Function) -> None:
    """Tell the core that this is a spin loop."""
    if k.target.architecture == "x86_64":
        k.declare_text("llvm.x86.sse2.pause", "declare void @llvm.x86.sse2.pause()")
        k.line("call void @llvm.x86.sse2.pause()")
    elif k.target.architecture == "aarch64":
        k.declare_text("llvm.aarch64.hint", "declare void @llvm.aarch64.hint(i32)")
        k.line("call void @llvm.aarch64.hint(i32 1)")
