"""Runs the steps of a binder one by one, each buffer of the arena in memory of its own between guard zones."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from sardonyx import errors
from sardonyx.compiler.binding import Argument, Binder, Bound, Buffer, Tensor
from sardonyx.compiler.kernels.template import NativeKernel
from sardonyx.compiler.llvm.kernels.engine.executor import executor_code
from sardonyx.compiler.llvm.library import library
from sardonyx.compiler.llvm.target import host_targets
from sardonyx.runtime.memory.execution_contexts import ExecutionContextPool
from sardonyx.runtime.settings import RunSettings
from sardonyx.runtime.threads.thread_pool import FINISHED, ThreadPoolOptions, shared_thread_pool
from tests.compiler.machines import Visit, emulated_variants, kernels_of, visit_of

Array = np.ndarray[Any, Any]

GUARD = 256  # bytes before and behind every buffer
POISON = 0xA5
# Every instruction set of this machine, and emulated ones of others: for kernels that multiply bytes, pairs or
# tiles where a machine can.
PRODUCT_VARIANTS = (*host_targets(), *emulated_variants())
# Those that differ in more than such products; the best one stands for others of its width.
_BY_WIDTH = {target.vector_bits: name for name, target in reversed(host_targets().items())}
VARIANTS = (*reversed(_BY_WIDTH.values()), *emulated_variants())


def new_binder(variant: str = "", threads: int = 0) -> Binder:
    return Binder(kernels_of(variant), settings=RunSettings(threads=threads))


class Memory:
    """Buffers by identity; poisoned when they are made."""

    def __init__(self) -> None:
        self._rooms: dict[int, tuple[Buffer, Array]] = {}

    def place(self, buffer: Buffer) -> Array:
        """The bytes of a buffer."""
        root, start = buffer.settled()
        if root is not buffer:
            return self.place(root)[start : start + buffer.nbytes]
        if buffer.array is not None:
            raise ValueError("a constant has its own memory")
        if id(buffer) not in self._rooms:
            self._rooms[id(buffer)] = buffer, np.full(buffer.nbytes + 2 * GUARD, POISON, np.uint8)
        return self._rooms[id(buffer)][1][GUARD : GUARD + buffer.nbytes]

    def put(self, tensor: Tensor, values: Array) -> None:
        """Fill a value's elements."""
        self.read(tensor)[...] = values

    def share(self, buffer: Buffer, other: Buffer) -> None:
        """Let a buffer be the memory of another of the same size."""
        self.place(other)
        self._rooms[id(buffer)] = self._rooms[id(other)]

    def read(self, tensor: Tensor) -> Array:
        """A value's elements, as an array over its memory."""
        item = tensor.dtype.itemsize
        strides = tuple(stride * item for stride in tensor.strides)
        if tensor.buffer.array is not None:
            return np.asarray(tensor.array)
        room = self.place(tensor.buffer)
        return np.ndarray(tensor.shape, tensor.dtype, room, tensor.offset, strides)

    def _address(self, argument: Argument, visit: Visit) -> int:
        if isinstance(argument, int):
            return argument
        buffer = argument.buffer
        memory = buffer.array if buffer.array is not None else self.place(buffer)
        return visit.address(memory) + argument.offset

    def run(self, binder: Binder, *, one_by_one: bool = False) -> list[str]:
        """Every step of the binder, the second half of its chunks before the first, or one chunk after the other from
        the last to the first; the faults that were noted, as their messages.

        AssertionError where a step wrote outside of a buffer.
        """
        notes = self.place(binder._notes).view(np.int64).reshape(-1, 2)
        notes[...] = 0
        visit = visit_of(binder.library)
        for step in binder.steps:
            words = np.array([self._address(argument, visit) for argument in step.arguments], np.int64)
            scratch = np.full(binder.scratch_bytes + 128, POISON, np.uint8)
            aligned = scratch[-scratch.ctypes.data % 64 :]
            ends = range(step.chunks + 1) if one_by_one else sorted({0, step.chunks // 2, step.chunks})
            for begin, end in reversed(list(itertools.pairwise(ends))):
                visit.call(step.function, words, begin, end, aligned)
        for _, room in self._rooms.values():
            visit.fetch(room)
            assert (room[:GUARD] == POISON).all(), "a kernel wrote before a buffer"
            assert (room[len(room) - GUARD :] == POISON).all(), "a kernel wrote behind a buffer"
        found = zip(binder.faults, notes.tolist(), strict=True)
        return [_message(fault.describe(number)) for fault, (noted, number) in found if noted]


def _message(error: Exception) -> str:
    return error.message if isinstance(error, errors.OnnxRuntimeError) else str(error)


def bind(
    kernel: NativeKernel,
    arrays: Sequence[Array | None],
    variant: str = "",
    *,
    known: Collection[int] = (),
    threads: int = 0,
    binder: Binder | None = None,
) -> tuple[Binder, Memory, Sequence[Tensor | None]]:
    """A kernel bound to arrays as inputs of a plan; those at the places `known` are constants."""
    binder, memory = new_binder(variant, threads) if binder is None else binder, Memory()
    tensors: list[Tensor | None] = []
    for index, array in enumerate(arrays):
        if array is None:
            tensors.append(None)
        elif index in known:
            tensors.append(binder.constant(array))
        else:
            tensor = binder.external(index, array.dtype, array.shape)
            memory.put(tensor, array)
            tensors.append(tensor)
    return binder, memory, kernel.bind(binder, *tensors)


def outputs_of(
    kernel: NativeKernel,
    arrays: Sequence[Array | None],
    variant: str = "",
    *,
    known: Collection[int] = (),
    one_by_one: bool = False,
    threads: int = 0,
    binder: Binder | None = None,
) -> list[Array]:
    """What a kernel computes that is bound for so many threads; AssertionError where it notes a fault."""
    binder, memory, results = bind(kernel, arrays, variant, known=known, threads=threads, binder=binder)
    faults = memory.run(binder, one_by_one=one_by_one)
    assert not faults, faults
    return [memory.read(result).copy() for result in results if result is not None]


def run_plan(bound: Bound, inputs: Sequence[Array], threads: int = 1) -> list[Array]:
    """The outputs of a native plan on one or more threads; the faults of the run come last where it has any."""
    code = executor_code(library())
    thread_pool, pool = shared_thread_pool(code, ThreadPoolOptions(threads=threads)), ExecutionContextPool(threads)
    outputs = [np.empty(shape, dtype) for dtype, shape in bound.outputs]
    notes = np.zeros(2 * len(bound.faults), np.int64)
    arrays = [*inputs, *outputs, *([notes] if bound.faults else [])]
    with pool.execution_context() as execution_context:
        status = thread_pool.run(bound.plan, execution_context, [array.ctypes.data for array in arrays])
    assert status == FINISHED
    return [*outputs, notes] if bound.faults else outputs
