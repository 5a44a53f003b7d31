"""The native way into a session: a function that Python calls like a built-in one, and that runs a plan at once.

It serves the common call alone: all outputs wanted, the inputs in a dict, every input an array of the type, shape
and layout that the last run had. It reads the fields of NumPy's array object, whose layout is part of NumPy's stable
interface, allocates the outputs through NumPy's C interface and starts the executor. Whatever is different it
declines by returning None, before anything has happened, and Python's own way of running takes over.
"""

from __future__ import annotations

from sardonyx.compiler.llvm.builder import Function, Pointer, Value, Variable
from sardonyx.compiler.llvm.kernels.engine.interrupts import Watched
from sardonyx.compiler.llvm.library import KERNEL
from sardonyx.compiler.llvm.system import has_signals
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import BOOL, I32, I64, PTR, U8
from sardonyx.runtime.memory.result_pool import SMALLEST, BlockColumn
from sardonyx.runtime.native.fast_call import (
    ARRAY_DATA,
    ARRAY_DESCR,
    ARRAY_DIMS,
    ARRAY_FLAGS,
    ARRAY_NDIM,
    BYTES_DATA,
    LIST_ITEMS,
    NEEDED_FLAGS,
    OBJECT_TYPE,
    PLAIN_FLAGS,
    InputColumn,
    OutputColumn,
    State,
)


def emit_call(target: Target, spec: tuple[str]) -> str:
    """The text of ``PyObject *call(PyObject *self, PyObject *const *arguments, Py_ssize_t count)``.

    `spec` is ("arrays",) for a call with (output names, dict of inputs), which returns a list of new arrays, or
    ("bound",) for a call without arguments on memory that was bound before, which returns True.
    """
    return _emit_arrays(target) if spec[0] == "arrays" else _emit_bound(target)


class _Call:
    """The state of a session's fast way, and what both forms do with it."""

    def __init__(self, k: Function) -> None:
        self.k = k
        self.state = k.pointer(_word(k, k["self"], BYTES_DATA), I64)

    def field(self, which: State) -> Value:
        return self.state.load(int(which))

    def address(self, which: State) -> Value:
        """A field as an address: of a C function or an object."""
        return self.k.pointer(self.field(which), I64).address

    def is_free(self) -> Value:
        """Whether there is a plan, and no other call is in its execution context."""
        return self.field(State.OPEN).differs(0) & self.state.load(int(State.BUSY)).equals(0)

    def set_busy(self, busy: int) -> None:
        self.state.store(busy, int(State.BUSY))

    def run(self) -> Value:
        """Run the plan, without the interpreter's lock where that pays; whether it went through.

        If not, a signal has set Python's error.
        """
        k = self.k
        notes = k.pointer(self.field(State.NOTES), I64)
        with k.loop(0, self.field(State.NOTE_COUNT)) as index:
            notes.store(0, index)
        releases = self.field(State.RELEASES_LOCK).differs(0)
        saved = k.variable(PTR, _null(k))
        with k.when(releases):
            saved.set(k.call_address(self.address(State.SAVE_THREAD), PTR))
        fields = (State.THREAD_POOL, State.PLAN, State.EXECUTION_CONTEXT, State.EXTERNALS)
        nothing = k.constant(I64, 0)  # no times, and nobody who ends the run
        status = k.variable(I64, 0)

        def go(stop: Value) -> None:
            given = (self.field(one) for one in fields)
            status.set(k.call_address(self.address(State.RUN), I64, *given, nothing, stop))

        watch = self.field(State.WATCH)
        if has_signals(k):
            with k.when(watch.differs(0)), k.apart():  # not for short runs
                watched = Watched(k, watch, nothing)
                with watched.watching():
                    go(watched.stop)
        with k.when(watch.equals(0)):
            go(nothing)
        with k.when(releases):
            k.call_address(self.address(State.RESTORE_THREAD), None, saved.get())
        return status.get().equals(0)

    def is_clean(self) -> Value:
        """Whether no kernel of the last run noted anything wrong."""
        k = self.k
        notes = k.pointer(self.field(State.NOTES), I64)
        found = k.variable(I64, 0)
        with k.loop(0, self.field(State.NOTE_COUNT), 2) as index:
            found.set(found.get() | notes.load(index))
        return found.get().equals(0)

    def new_reference(self, which: State) -> Value:
        """A new reference to an object of the state."""
        found = self.address(which)
        self.k.call_address(self.address(State.INCREF), None, found)
        return found


def _emit_arrays(target: Target) -> str:
    k = Function(KERNEL, target, [("self", PTR), ("arguments", PTR), ("count", I64)], returns=PTR)
    call = _Call(k)
    arguments = k.pointer("arguments", I64)
    result = k.variable(PTR, _null(k))
    fits = k.variable(BOOL, False)
    with k.when(k["count"].equals(2)), k.when(call.is_free() & arguments.load(0).equals(call.field(State.NONE))):
        call.set_busy(1)
        _check_inputs(call, arguments.load(1), fits)
        with k.when(~fits.get()):
            call.set_busy(0)
    ready = fits.get()
    with k.when(ready):
        outputs = k.call_address(call.address(State.NEW_LIST), PTR, call.field(State.OUTPUT_COUNT))
        made = k.variable(BOOL, _is_object(k, outputs))
        with k.when(_is_object(k, outputs)):
            _allocate(call, outputs, made)
        complete = made.get()
        with k.when(complete):
            _hold_inputs(call, State.INCREF)
            went_through = call.run()
            _hold_inputs(call, State.DECREF)
            good = went_through & call.is_clean()
            with k.when(good):
                _finish_counted(call, outputs, made)
                whole = made.get()
                with k.when(whole):
                    result.set(outputs)
                with k.otherwise(whole):
                    k.call_address(call.address(State.DECREF), None, outputs)
            with k.otherwise(good):
                k.call_address(call.address(State.DECREF), None, outputs)
                with k.when(went_through):
                    result.set(call.new_reference(State.NONE))
        with k.otherwise(complete):  # no memory: NumPy has set the error, and the result is NULL
            k.call_address(call.address(State.DECREF), None, outputs)  # which takes NULL too
        call.set_busy(0)
    with k.otherwise(ready):
        result.set(call.new_reference(State.NONE))
    k.give(result.get())
    return k.finish()


def _emit_bound(target: Target) -> str:
    k = Function(KERNEL, target, [("self", PTR), ("arguments", PTR), ("count", I64)], returns=PTR)
    call = _Call(k)
    result = k.variable(PTR, _null(k))
    ready = call.is_free()
    with k.when(ready):
        call.set_busy(1)
        went_through = call.run()
        clean = call.is_clean()
        with k.when(went_through & clean):
            result.set(call.new_reference(State.TRUE))
        with k.when(went_through & ~clean):
            result.set(call.new_reference(State.NONE))
        call.set_busy(0)
    with k.otherwise(ready):
        result.set(call.new_reference(State.NONE))
    k.give(result.get())
    return k.finish()


def _check_inputs(call: _Call, feeds: Value, fits: Variable) -> None:
    """Set `fits` if `feeds` is a dict of exactly the inputs, each as the plan expects it; note them and their data."""
    k = call.k
    given = k.pointer(feeds, I64).address
    is_dict = _word(k, given, OBJECT_TYPE).equals(call.field(State.DICT))
    with k.when(is_dict):
        size = k.call_address(call.address(State.DICT_SIZE), I64, given)
        fits.set(size.equals(call.field(State.INPUT_COUNT)))
        with k.loop(0, call.field(State.INPUT_COUNT)) as index, k.when(fits.get()):
            _check_input(call, given, index, fits)


def _check_input(call: _Call, given: Value, index: Value, fits: Variable) -> None:
    k = call.k
    row = k.pointer(call.field(State.INPUTS), I64).offset(index * int(InputColumn.COUNT))
    name = k.pointer(row.load(int(InputColumn.NAME)), I64).address
    found = k.call_address(call.address(State.GET_ITEM), PTR, given, name)
    there = _is_object(k, found)
    fits.set(False)
    with k.when(there), k.when(_word(k, found, OBJECT_TYPE).equals(call.field(State.ARRAY))):
        rank = Pointer(k.advance(found, ARRAY_NDIM, 1), I32).load().to(I64)
        flags = Pointer(k.advance(found, ARRAY_FLAGS, 1), I32).load()
        plain = (flags & NEEDED_FLAGS).equals(NEEDED_FLAGS)
        typed = _word(k, found, ARRAY_DESCR).equals(row.load(int(InputColumn.DESCR)))
        ranked = rank.equals(row.load(int(InputColumn.RANK)))
        with k.when(plain & typed & ranked):
            fits.set(True)
            dims = k.pointer(_word(k, found, ARRAY_DIMS), I64)
            expected = k.pointer(row.load(int(InputColumn.DIMS)), I64)
            with k.loop(0, rank) as axis:
                fits.set(fits.get() & dims.load(axis).equals(expected.load(axis)))
            row.store(_number(k, found), int(InputColumn.HELD))
            data = _word(k, found, ARRAY_DATA)
            there_now, wanted = (k.pointer(one, U8) for one in (data, row.load(int(InputColumn.CONTENTS))))
            with k.when(fits.get()), k.loop(0, row.load(int(InputColumn.CONTENT_BYTES))) as place:
                fits.set(fits.get() & there_now.load(place).equals(wanted.load(place)))
            externals = k.pointer(call.field(State.EXTERNALS), I64)
            externals.store(data, row.load(int(InputColumn.EXTERNAL)))


def _hold_inputs(call: _Call, count: State) -> None:
    """Keep the inputs alive while other threads may run, or let them go."""
    k = call.k
    with k.loop(0, call.field(State.INPUT_COUNT)) as index:
        row = k.pointer(call.field(State.INPUTS), I64).offset(index * int(InputColumn.COUNT))
        held = k.pointer(row.load(int(InputColumn.HELD)), I64).address
        k.call_address(call.address(count), None, held)


def _allocate(call: _Call, outputs: Value, made: Variable) -> None:
    """Put a new array for each output whose size is known into the list; clear `made` where one could not be had."""
    k = call.k
    externals = k.pointer(call.field(State.EXTERNALS), I64)
    with k.loop(0, call.field(State.OUTPUT_COUNT)) as index, k.when(made.get()):
        row = k.pointer(call.field(State.OUTPUTS), I64).offset(index * int(OutputColumn.COUNT))
        with k.when(row.load(int(OutputColumn.AXIS)) < 0):
            array = _put_array(call, row, outputs, index, made)
            with k.when(made.get()):
                externals.store(_word(k, array, ARRAY_DATA), row.load(int(OutputColumn.EXTERNAL)))


def _finish_counted(call: _Call, outputs: Value, made: Variable) -> None:
    """Put what was written of each output whose size the run counted into the list."""
    k = call.k
    externals = k.pointer(call.field(State.EXTERNALS), I64)
    with k.loop(0, call.field(State.OUTPUT_COUNT)) as index, k.when(made.get()):
        row = k.pointer(call.field(State.OUTPUTS), I64).offset(index * int(OutputColumn.COUNT))
        axis = row.load(int(OutputColumn.AXIS))
        with k.when(axis >= 0):
            dims = k.pointer(row.load(int(OutputColumn.DIMS)), I64)
            dims.store(k.pointer(externals.load(row.load(int(OutputColumn.COUNTED))), I64).load(), axis)
            nbytes = k.variable(I64, row.load(int(OutputColumn.ITEM_BYTES)))
            with k.loop(0, row.load(int(OutputColumn.RANK))) as place:
                nbytes.set(nbytes.get() * dims.load(place))
            row.store(nbytes.get(), int(OutputColumn.NBYTES))
            array = _put_array(call, row, outputs, index, made)
            with k.when(made.get()):
                room = k.pointer(externals.load(row.load(int(OutputColumn.EXTERNAL))), U8)
                k.copy(k.pointer(_word(k, array, ARRAY_DATA), U8), room, nbytes.get())


def _put_array(call: _Call, row: Pointer, outputs: Value, index: Value, made: Variable) -> Value:
    """A new array as a row of the table of outputs says, in its place of the list; `made` says whether it is there."""
    k = call.k
    array = k.variable(PTR, _null(k))
    large = (row.load(int(OutputColumn.NBYTES)) >= SMALLEST) & call.field(State.POOL).differs(0)
    with k.when(large):
        array.set(_pooled_array(call, row))
    with k.when(~_is_object(k, array.get())):
        array.set(_new_array(call, row, _null(k)))
    there = _is_object(k, array.get())
    made.set(there)
    with k.when(there):
        k.pointer(_word(k, outputs, LIST_ITEMS), I64).store(_number(k, array.get()), index)
    return array.get()


def _new_array(call: _Call, row: Pointer, data: Value) -> Value:
    """A new array as a row of the table of outputs says, in memory at `data` or, for NULL, of its own."""
    k = call.k
    descr = k.pointer(row.load(int(OutputColumn.DESCR)), I64).address
    k.call_address(call.address(State.INCREF), None, descr)  # the new array takes this reference
    flags = k.select(_is_object(k, data), k.constant(I32, PLAIN_FLAGS), 0)
    return k.call_address(
        call.address(State.NEW_ARRAY),
        PTR,
        call.address(State.ARRAY),
        descr,
        row.load(int(OutputColumn.RANK)).to(I32),
        k.pointer(row.load(int(OutputColumn.DIMS)), I64).address,
        _null(k),
        data,
        flags,
        _null(k),
    )


def _pooled_array(call: _Call, row: Pointer) -> Value:
    """A new array in a block of the pool, which goes back with the capsule at its base; NULL where there is none."""
    k = call.k
    result = k.variable(PTR, _null(k))
    pool = call.address(State.POOL)
    place = k.call_address(call.address(State.TAKE), I64, pool, row.load(int(OutputColumn.NBYTES)))
    with k.when(place.differs(0)):
        block = k.pointer(place, I64)
        capsule = k.call_address(
            call.address(State.NEW_CAPSULE), PTR, block.address, _null(k), call.address(State.RELEASE)
        )
        with k.when(_is_object(k, capsule)):
            k.call_address(call.address(State.SET_CONTEXT), I32, capsule, pool)
            data = k.pointer(block.load(int(BlockColumn.ADDRESS)), I64).address
            array = _new_array(call, row, data)
            there = _is_object(k, array)
            with k.when(there):
                k.call_address(call.address(State.SET_BASE), I32, array, capsule)  # takes the reference
                result.set(array)
            with k.otherwise(there):
                k.call_address(call.address(State.DECREF), None, capsule)
    return result.get()


def _word(k: Function, address: Value, offset: int) -> Value:
    """The 64-bit word `offset` bytes into an object."""
    return Pointer(k.advance(address, offset, 1), I64).load()


def _number(k: Function, address: Value) -> Value:
    return k.emit(I64, f"ptrtoint ptr {address.name} to i64")


def _is_object(k: Function, reference: Value) -> Value:
    return _number(k, reference).differs(0)


def _null(k: Function) -> Value:
    return Value(k, "null", PTR)
