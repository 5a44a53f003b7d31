"""Runs vector code that a test emits over whole arrays."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sardonyx.compiler.llvm.builder import Function, Value
from sardonyx.compiler.llvm.codegen import Loader, compile_object
from sardonyx.compiler.llvm.target import host_target, host_targets
from sardonyx.compiler.llvm.types import F32, I64, PTR, type_of

Array = np.ndarray[Any, Any]
KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)

# Every kind of instruction set that this machine executes; those that only add inner products are left out.
VARIANTS = [name for name in host_targets() if name in ("avx512", "avx2", "portable", "neon")]

Emit = Callable[[Function, Sequence[Value]], Sequence[Value]]


@functools.cache
def _loader(variant: str) -> Loader:
    return Loader(host_target(variant))


def kernel_of(text: str, variant: str) -> Any:
    """The callable of a module's function `kernel`."""
    code = compile_object(text, host_target(variant))
    return KERNEL(_loader(variant).load("kernel", code))


def run_vectors(
    variant: str, emit: Emit, inputs: Sequence[Array], results: Sequence[np.dtype[Any]], lanes: int = 0
) -> list[Array]:
    """What `emit` computes from vectors of the inputs' elements, over one-dimensional arrays of one length."""
    target = host_target(variant)
    lanes = lanes or target.lanes(F32)
    k = Function("kernel", target, [("arguments", PTR), ("begin", I64), ("end", I64), ("scratch", PTR)])
    arguments = k.pointer("arguments", I64)
    types = [type_of(np.dtype(dtype)) for dtype in (*(array.dtype for array in inputs), *results)]
    pointers = []
    for index, scalar in enumerate(types):
        assert scalar is not None
        pointers.append(k.pointer(arguments.load(index), scalar))
    with k.loop(0, arguments.load(len(types)), lanes) as i:
        values = emit(k, [pointer.load(i, lanes) for pointer in pointers[: len(inputs)]])
        for pointer, value in zip(pointers[len(inputs) :], values, strict=True):
            pointer.store(value, i)
    run = kernel_of(k.finish(), variant)
    size = inputs[0].size
    padded = [np.concatenate([array, np.ones(-size % lanes, array.dtype)]) for array in inputs]
    outputs = [np.zeros(padded[0].size, dtype) for dtype in results]
    words = np.array([array.ctypes.data for array in (*padded, *outputs)] + [padded[0].size], np.int64)
    run(words.ctypes.data, 0, 1, None)
    return [output[:size] for output in outputs]
