"""The native way into a session, as a Python callable: what it needs to know, in tables that native code reads.

The code itself (`CallCode`) reads objects of the interpreter and of NumPy where they lie. That is checked on this
interpreter before it is used; where it does not hold, sessions run without it.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import math
import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sardonyx.light_dataclass import dataclass
from sardonyx.light_enum import Numbers
from sardonyx.runtime.memory.execution_contexts import ExecutionContext, ExecutionContextPool
from sardonyx.runtime.memory.result_pool import ResultPool
from sardonyx.runtime.native.chain import Chain
from sardonyx.runtime.native_plan import NativePlan
from sardonyx.runtime.threads.thread_pool import ThreadPool

Array = np.ndarray[Any, Any]

# Bytes from the start of an object to its fields: CPython's on 64 bits, and the public struct PyArrayObject_fields.
OBJECT_TYPE = 8
BYTES_DATA = 32
LIST_ITEMS = 24
ARRAY_DATA, ARRAY_NDIM, ARRAY_DIMS, ARRAY_DESCR, ARRAY_FLAGS = 16, 24, 32, 56, 64
PLAIN_FLAGS = 0x0001 | 0x0100 | 0x0400  # of an array in memory that is given: as NEEDED_FLAGS, and writeable
NEEDED_FLAGS = 0x0001 | 0x0100  # C_CONTIGUOUS and ALIGNED; dtypes of the other byte order have another descriptor

# Places in NumPy's table of C functions.
_NEW_FROM_DESCR = 94
_SET_BASE_OBJECT = 282
_METH_FASTCALL = 0x0080

# Runs that take longer than this let other Python threads go on meanwhile.
RELEASE_NS = 20_000


class State(Numbers):
    """The words that native code reads; the first ones may change between calls."""

    OPEN = 0  # 1 where the rest is complete
    BUSY = 1  # 1 during a call
    PLAN = 2
    EXECUTION_CONTEXT = 3
    THREAD_POOL = 4
    RUN = 5
    EXTERNALS = 6
    INPUTS = 7
    INPUT_COUNT = 8
    OUTPUTS = 9
    OUTPUT_COUNT = 10
    RELEASES_LOCK = 11
    NONE = 12
    TRUE = 13
    DICT = 14
    ARRAY = 15
    NEW_ARRAY = 16
    NEW_LIST = 17
    DICT_SIZE = 18
    GET_ITEM = 19
    INCREF = 20
    DECREF = 21
    SAVE_THREAD = 22
    RESTORE_THREAD = 23
    NOTES = 24  # what kernels find wrong in this run
    NOTE_COUNT = 25
    POOL = 26  # of the memory of large results; 0 for none
    TAKE = 27
    RELEASE = 28
    NEW_CAPSULE = 29
    SET_CONTEXT = 30
    SET_BASE = 31
    WATCH = 32  # the words of `interrupts.WatchField`, where the run is long enough to be interrupted; else 0
    COUNT = 33


class InputColumn(Numbers):
    """The columns of the table of inputs."""

    NAME = 0
    DESCR = 1
    RANK = 2
    DIMS = 3
    EXTERNAL = 4  # its place among the plan's external addresses
    HELD = 5  # the array of the call in progress
    CONTENTS = 6  # the bytes that the array must have, and how many; 0 where any will do
    CONTENT_BYTES = 7
    COUNT = 8


class OutputColumn(Numbers):
    """The columns of the table of outputs."""

    DESCR = 0
    RANK = 1
    DIMS = 2
    EXTERNAL = 3
    NBYTES = 4
    ITEM_BYTES = 5
    AXIS = 6  # whose size the run counts; the result is then made after it, from what lies at the external; else -1
    COUNTED = 7  # the place among the external addresses of the number that was counted
    COUNT = 8


class _MethodDef(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


@dataclass(frozen=True)
class CallCode:
    """Addresses of the native functions for arrays and for bound memory; and of that for chains, which few need."""

    arrays: int
    bound: int
    chain: Callable[[], int]


@dataclass(frozen=True)
class Form:
    """What an input or an output looks like, and its place among a plan's external addresses.

    Where a run counts the size of an output along `axis`, it leaves the number at the external address `counted`, and
    the elements, as many as there are, densely in memory for the whole shape. Of an input that decides what the plan
    does, `contents` are the bytes that it must have.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    external: int
    name: str = ""
    axis: int = -1
    counted: int = 0
    contents: bytes = b""


class _Memory:
    """What native code reads in a call; the callables keep it, however long they live."""

    def __init__(self) -> None:
        self.words = (ctypes.c_int64 * State.COUNT)()
        self.tables: list[Any] = []  # what the words point to
        self.execution_context: ExecutionContext | None = None  # taken from a pool while there is a plan
        self._definitions: list[_MethodDef] = []

    def callable(self, name: str, address: int) -> Callable[..., Any]:
        """A built-in function whose code is at an address."""
        definition = _MethodDef(name.encode(), address, _METH_FASTCALL, None)
        self._definitions.append(definition)
        make = ctypes.pythonapi.PyCFunction_NewEx
        make.argtypes = (ctypes.c_void_p, ctypes.py_object, ctypes.py_object)
        make.restype = ctypes.py_object
        place = ctypes.addressof(self.words).to_bytes(8, sys.byteorder)
        # The last argument is meant for a module; the function holds on to it.
        return make(ctypes.addressof(definition), place, self)  # type: ignore[no-any-return]


class FastCall:
    """One plan in an execution context of its own, callable without Python's help.

    `arrays(None, feeds)` gives a list of new arrays, `bound()` True; both give None where they decline, which they do
    while another call is in progress, for whatever differs from what was prepared, and where a kernel found something
    wrong; then the same run the long way tells what. Long runs of the main thread raise what the handler of a signal
    raises meanwhile.
    """

    def __init__(
        self,
        code: CallCode,
        thread_pool: ThreadPool,
        execution_contexts: ExecutionContextPool,
        results: ResultPool | None = None,
    ) -> None:
        self._thread_pool = thread_pool
        self._execution_contexts = execution_contexts
        self._lock = threading.Lock()  # held by whoever changes what native code reads
        self._closings = 0
        self._memory = memory = _Memory()
        self._words = words = memory.words
        words[State.NONE], words[State.TRUE] = id(None), id(True)
        words[State.DICT], words[State.ARRAY] = id(dict), id(np.ndarray)
        words[State.NEW_ARRAY] = _numpy_function(_NEW_FROM_DESCR)
        words[State.SET_BASE] = _numpy_function(_SET_BASE_OBJECT)
        if results is not None:
            words[State.POOL] = results.address
            words[State.TAKE], words[State.RELEASE] = results.code.take, results.code.release
        for field, name in (
            (State.NEW_LIST, "PyList_New"),
            (State.DICT_SIZE, "PyDict_Size"),
            (State.GET_ITEM, "PyDict_GetItemWithError"),
            (State.INCREF, "Py_IncRef"),
            (State.DECREF, "Py_DecRef"),
            (State.SAVE_THREAD, "PyEval_SaveThread"),
            (State.RESTORE_THREAD, "PyEval_RestoreThread"),
            (State.NEW_CAPSULE, "PyCapsule_New"),
            (State.SET_CONTEXT, "PyCapsule_SetContext"),
        ):
            words[field] = _python_function(name)
        _CALLS.add(self)
        self.arrays = memory.callable("run", code.arrays)
        self.bound = memory.callable("run_bound", code.bound)

    def __del__(self) -> None:
        # While the process ends, this module may have lost its names before the last call goes.
        if hasattr(self, "_memory") and State is not None:
            self.close()

    def prepare(
        self,
        plan: NativePlan | Chain,
        inputs: Sequence[Form],
        outputs: Sequence[Form],
        addresses: Sequence[int] = (),
        *,
        note_count: int = 0,
        releases_lock: bool,
        owner: object = None,
    ) -> None:
        """Serve this plan from now on; `addresses` are external ones that stay.

        The plan's kernels live as long as `owner`. Where the plan takes notes (`note_count` words, its last base), a
        run that leaves one counts as declined.

        Nothing happens while the last plan is still running, or another thread prepares or closes this call.
        """
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._release():
                closings = self._closings
                self._fill(plan, inputs, outputs, addresses, note_count, releases_lock)
                self._memory.tables.append(owner)
                if closings == self._closings:
                    self._words[State.OPEN] = 1
                else:
                    self._release()
        finally:
            self._lock.release()

    def _fill(
        self,
        plan: NativePlan | Chain,
        inputs: Sequence[Form],
        outputs: Sequence[Form],
        addresses: Sequence[int],
        note_count: int,
        releases_lock: bool,
    ) -> None:
        """Write everything that native code reads, while it is closed."""
        words = self._words
        execution_context = self._memory.execution_context = self._execution_contexts.lend(self)
        if isinstance(plan, Chain):
            execution_context.reserve(plan.plans, self._thread_pool.threads)
            words[State.RUN] = plan.run_address
        else:
            execution_context.prepare(plan, self._thread_pool.threads)
            words[State.RUN] = self._thread_pool.run_address
        if plan.width > 1:
            self._thread_pool.start()
        externals = (ctypes.c_int64 * max(1, plan.base_count - 1))(*addresses)
        input_table = (ctypes.c_int64 * max(1, len(inputs) * InputColumn.COUNT))()
        output_table = (ctypes.c_int64 * max(1, len(outputs) * OutputColumn.COUNT))()
        thread_pool, worker_threads = self._thread_pool.shared_memory if plan.width > 1 else (0, None)
        notes = (ctypes.c_int64 * max(1, note_count))()
        if note_count:
            externals[plan.base_count - 2] = ctypes.addressof(notes)
        words[State.NOTES], words[State.NOTE_COUNT] = ctypes.addressof(notes), note_count
        kept: list[Any] = [plan, worker_threads, externals, input_table, output_table, notes]
        for index, form in enumerate(inputs):
            name, dims = sys.intern(form.name), _dims(form.shape)
            contents = ctypes.create_string_buffer(form.contents)
            kept += [name, dims, form.dtype, contents]
            row = index * InputColumn.COUNT
            input_table[row : row + InputColumn.COUNT] = [
                id(name), id(form.dtype), len(form.shape), ctypes.addressof(dims), form.external, 0,
                ctypes.addressof(contents), len(form.contents),
            ]  # fmt: skip
        for index, form in enumerate(outputs):
            dims = _dims(form.shape)
            kept += [dims, form.dtype]
            row = index * OutputColumn.COUNT
            nbytes = math.prod(form.shape) * form.dtype.itemsize
            output_table[row : row + OutputColumn.COUNT] = [
                id(form.dtype), len(form.shape), ctypes.addressof(dims), form.external, nbytes,
                form.dtype.itemsize, form.axis, form.counted,
            ]  # fmt: skip
        words[State.PLAN], words[State.EXECUTION_CONTEXT] = plan.address, execution_context.address
        words[State.THREAD_POOL] = thread_pool
        words[State.EXTERNALS] = ctypes.addressof(externals)
        words[State.INPUTS], words[State.INPUT_COUNT] = ctypes.addressof(input_table), len(inputs)
        words[State.OUTPUTS], words[State.OUTPUT_COUNT] = ctypes.addressof(output_table), len(outputs)
        watch = self._thread_pool.watch if plan.is_long else None
        words[State.WATCH] = 0 if watch is None else watch.address
        words[State.RELEASES_LOCK] = int(releases_lock or watch is not None)
        self._memory.tables = kept

    def close(self) -> bool:
        """Decline every call until the next `prepare`, and give the execution context back.

        False while a call still runs in it; or while another thread prepares it, which then leaves it closed.
        """
        self._words[State.OPEN] = 0
        self._closings += 1
        if not self._lock.acquire(blocking=False):  # never waits: a finalizer may come while this thread prepares
            return False
        try:
            return self._release()
        finally:
            self._lock.release()

    def _release(self) -> bool:
        """Close and give the execution context back, unless a call still runs in it."""
        self._words[State.OPEN] = 0
        if self._words[State.BUSY]:
            return False
        execution_context, self._memory.execution_context = self._memory.execution_context, None
        if execution_context is not None:
            self._execution_contexts.give(execution_context)
        return True

    def _forget_calls(self) -> None:
        """In a forked child: no call is in progress, and the workers that the plan was prepared for are not there."""
        self._lock = threading.Lock()
        self._words[State.BUSY] = 0
        self.close()


_CALLS: weakref.WeakSet[FastCall] = weakref.WeakSet()


def _after_fork() -> None:
    for call in tuple(_CALLS):
        call._forget_calls()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _dims(shape: Sequence[int]) -> Any:
    return (ctypes.c_int64 * max(1, len(shape)))(*shape)


def _python_function(name: str) -> int:
    return ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0


@functools.cache
def _numpy_function(index: int) -> int:
    """The address of a function of NumPy's C interface."""
    umath: Any = importlib.import_module("numpy._core._multiarray_umath")
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.argtypes, pointer.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p
    table = pointer(umath._ARRAY_API, None)
    return int((ctypes.c_int64 * (index + 1)).from_address(table)[index])


@functools.cache
def is_usable() -> bool:
    """Whether objects of this interpreter and of NumPy lie in memory as native code expects."""
    if sys.implementation.name != "cpython" or ctypes.sizeof(ctypes.c_void_p) != 8 or sys.platform == "win32":
        return False
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return False
    sample = np.zeros((2, 3), np.float32)
    items = [sample]

    def word(thing: Any, offset: int) -> int:
        return ctypes.c_int64.from_address(id(thing) + offset).value

    def half(thing: Any, offset: int) -> int:
        return ctypes.c_int32.from_address(id(thing) + offset).value

    dims = (ctypes.c_int64 * 2).from_address(word(sample, ARRAY_DIMS))
    place = ctypes.c_int64.from_address(word(items, LIST_ITEMS)).value
    try:
        there = _numpy_function(_NEW_FROM_DESCR) != 0
    except (ImportError, AttributeError, ValueError):
        return False
    return (
        there
        and word(sample, OBJECT_TYPE) == id(np.ndarray)
        and word(sample, ARRAY_DATA) == sample.ctypes.data
        and half(sample, ARRAY_NDIM) == 2
        and tuple(dims) == (2, 3)
        and word(sample, ARRAY_DESCR) == id(sample.dtype)
        and half(sample, ARRAY_FLAGS) & 0xFFFF == sample.flags.num & 0xFFFF
        and place == id(sample)
        and ctypes.string_at(id(b"12345678") + BYTES_DATA, 8) == b"12345678"
    )
