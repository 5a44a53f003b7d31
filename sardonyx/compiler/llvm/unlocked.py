"""From text to object code by as many threads as like to, each with a context of LLVM of its own.

LLVM shares nothing between contexts that is not guarded. llvmlite takes one lock around every call, as most of its
users share a context, and lets Python's lock go with each, for which threads then wait that want it back. So its
library is called here without the one, and short calls keep the other.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

_ASSEMBLY, _OBJECT = 0, 1
_POINTER, _PLACE = ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)

# The functions, without their prefix: what each takes and gives.
_LONG: dict[str, tuple[list[Any], Any]] = {
    "ParseAssembly": ([_POINTER, ctypes.c_char_p, _PLACE], _POINTER),
    "VerifyModule": ([_POINTER, _PLACE], ctypes.c_int),
    "RunNewModulePassManager": ([_POINTER] * 3, None),
    "TargetMachineEmitToMemory": ([_POINTER, _POINTER, ctypes.c_int, _PLACE], _POINTER),
}
_SHORT: dict[str, tuple[list[Any], Any]] = {
    "ContextCreate": ([], _POINTER),
    "ContextDispose": ([_POINTER], None),
    "DisposeModule": ([_POINTER], None),
    "CreatePipelineTuningOptions": ([], _POINTER),
    "DisposePipelineTuningOptions": ([_POINTER], None),
    "CreatePassBuilder": ([_POINTER] * 2, _POINTER),
    "DisposePassBuilder": ([_POINTER], None),
    "CreateNewModulePassManager": ([], _POINTER),
    "DisposeNewModulePassManger": ([_POINTER], None),
    "module_AddSROAPass": ([_POINTER], None),
    "GetBufferStart": ([_POINTER], _POINTER),
    "GetBufferSize": ([_POINTER], ctypes.c_size_t),
    "DisposeMemoryBuffer": ([_POINTER], None),
    "DisposeString": ([_POINTER], None),
}


@functools.cache
def _functions() -> dict[str, Callable[..., Any]]:
    """The functions by their names: Python's lock is let go during those that take long."""
    from llvmlite.binding import ffi

    found: dict[str, Callable[..., Any]] = {}
    for kind, declared in ((ctypes.CDLL, _LONG), (ctypes.PyDLL, _SHORT)):
        library = kind(ffi.lib._name, handle=ffi.lib._handle)
        for name, (takes, gives) in declared.items():
            function = library[f"LLVMPY_{name}"]
            function.argtypes, function.restype = takes, gives
            found[name] = function
    return found


def generated(text: str, machine: ctypes.c_void_p, *, as_object: bool) -> bytes:
    """The object code, or the assembly, that a target machine makes of a module.

    `machine` points to LLVM's machine, which no other thread uses meanwhile. ValueError where the text is no
    valid module.
    """
    llvm = _functions()
    with ExitStack() as made:

        def new(kind: str, dispose: str, *given: Any) -> Any:
            one = llvm[kind](*given)
            if one:
                made.callback(llvm[dispose], one)
            return one

        problem = ctypes.c_void_p()  # in words
        context = new("ContextCreate", "ContextDispose")
        module = new("ParseAssembly", "DisposeModule", context, text.encode(), ctypes.byref(problem))
        if not module or llvm["VerifyModule"](module, ctypes.byref(problem)):
            raise ValueError(f"the kernel is not valid LLVM IR: {_taken(problem)}\n{text}")
        _taken(problem)
        tuning = new("CreatePipelineTuningOptions", "DisposePipelineTuningOptions")
        builder = new("CreatePassBuilder", "DisposePassBuilder", machine, tuning)
        passes = new("CreateNewModulePassManager", "DisposeNewModulePassManger")
        llvm["module_AddSROAPass"](passes)  # variables into registers; kernels are written as they should run
        llvm["RunNewModulePassManager"](passes, module, builder)
        kind = _OBJECT if as_object else _ASSEMBLY
        given = machine, module, kind, ctypes.byref(problem)
        code = new("TargetMachineEmitToMemory", "DisposeMemoryBuffer", *given)
        if not code:
            raise RuntimeError(_taken(problem))
        return ctypes.string_at(llvm["GetBufferStart"](code), llvm["GetBufferSize"](code))


def _taken(problem: ctypes.c_void_p) -> str:
    """What LLVM says is wrong; its memory is given back."""
    if problem.value is None:
        return ""
    words = ctypes.string_at(problem.value).decode(errors="replace")
    _functions()["DisposeString"](problem)
    problem.value = None
    return words
