"""The native functions of the runtime, by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sardonyx.compiler.llvm.emitters import emitter
from sardonyx.compiler.llvm.library import Kernel, KernelLibrary, key_of

# The module of `kernels.engine`, the function that writes the text, and what it is given.
_FUNCTIONS = {
    "run": ("executor", "emit_executor", ("run",)),
    "work": ("executor", "emit_executor", ("work",)),
    "stop": ("executor", "emit_executor", ("stop",)),
    "call arrays": ("call", "emit_call", ("arrays",)),
    "call bound": ("call", "emit_call", ("bound",)),
    "chain": ("chain", "emit_chain", ()),
    "take result": ("result_pool", "emit_result_pool", ("take",)),
    "give result": ("result_pool", "emit_result_pool", ("give",)),
    "release results": ("result_pool", "emit_result_pool", ("release",)),
    "interrupts": ("interrupts", "emit_interrupts", ()),
    "rounds": ("rounds", "emit_rounds", ()),
}

# What a session needs before its first run is over, and one with more than a native step.
OF_EVERY_SESSION = tuple(name for name in _FUNCTIONS if name not in ("chain", "rounds"))
OF_PROGRAMS = tuple(_FUNCTIONS)


def runtime_functions(library: KernelLibrary, names: Sequence[str]) -> list[int]:
    """The addresses of these functions."""
    return [kernel.address for kernel in ask_for(library, names)]


def ask_for(library: KernelLibrary, names: Sequence[str]) -> list[Kernel]:
    """These functions, which helpers compile until somebody needs them."""
    return [_kernel(library, *_FUNCTIONS[name]) for name in names]


def emitters() -> list[tuple[Any, tuple[str, ...]]]:
    """What writes the text of each function, and what that is given."""
    return [(emitter(f"engine.{module}", name), spec) for module, name, spec in _FUNCTIONS.values()]


def function_key(name: str) -> str:
    """The key by which libraries know a function."""
    module, name, spec = _FUNCTIONS[name]
    emit = emitter(f"engine.{module}", name)
    return key_of(emit.__module__, emit.__qualname__, spec)


def _kernel(library: KernelLibrary, module: str, name: str, spec: tuple[str, ...]) -> Kernel:
    emit = emitter(f"engine.{module}", name)
    known = library.known(key_of(emit.__module__, emit.__qualname__, spec))
    return library.kernel(emit, spec) if known is None else Kernel(known)
