"""Runs vector code that a test emits over whole arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sardonyx.compiler.llvm.builder import Function, Value
from sardonyx.compiler.llvm.target import host_targets
from sardonyx.compiler.llvm.types import F32, I64, PTR, type_of
from tests.compiler.machines import emulated_variants, kernels_of, load, visit_of

Array = np.ndarray[Any, Any]

# Every kind of instruction set that this machine executes; those that only add inner products are left out.
VARIANTS = [
    *(name for name in host_targets() if name in ("avx512", "avx2", "portable", "neon")),
    *emulated_variants(),
]

Emit = Callable[[Function, Sequence[Value]], Sequence[Value]]


def run_vectors(
    variant: str, emit: Emit, inputs: Sequence[Array], results: Sequence[np.dtype[Any]], lanes: int = 0
) -> list[Array]:
    """What `emit` computes from vectors of the inputs' elements, over one-dimensional arrays of one length."""
    kernels = kernels_of(variant)
    target = kernels.target
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
    size = inputs[0].size
    padded = [np.concatenate([array, np.ones(-size % lanes, array.dtype)]) for array in inputs]
    outputs = [np.zeros(padded[0].size, dtype) for dtype in results]
    visit = visit_of(kernels)
    words = np.array([*map(visit.address, (*padded, *outputs)), padded[0].size], np.int64)
    function = load(kernels, k.finish())
    visit.call(function, words, 0, 1, np.zeros(0, np.uint8))
    for output in outputs:
        visit.fetch(output)
    return [output[:size] for output in outputs]
