"""Rounds of one native plan after the other without Python in between: the iterations of a loop whose body is native.

A body's inputs are, in order, items of `leading`, carried values and items of `trailing`; its outputs are a condition
(where there is one), the carried values and values to collect. A carried value has two places: a round reads what the
one before it wrote in one of them, and writes to the other. Items are read from, and collected values written to,
places that move on by a stride. All a round needs is a table of addresses, which `RoundsCode` fills in.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from sardonyx import errors
from sardonyx.light_dataclass import dataclass
from sardonyx.light_enum import Numbers
from sardonyx.runtime.context import RunContext
from sardonyx.runtime.executor import TERMINATED
from sardonyx.runtime.memory import memory
from sardonyx.runtime.native.array_address import address_of
from sardonyx.runtime.native.native_segment import BindingError, NativeSegment, ReadyPlan
from sardonyx.runtime.native_plan import LONG_NS
from sardonyx.runtime.plan import Plan
from sardonyx.runtime.threads.interrupts import Watch

Array = np.ndarray[Any, Any]

# Collected values of one call of the native code, at most: what a loop that ends early has taken for nothing.
_COLLECTED_BYTES = 16 << 20

# What a round takes beside its kernels, about.
_ROUND_NS = 50


class RoundsField(Numbers):
    """The words that the native code reads, and two that it writes."""

    RUN = 0  # the executor and its arguments
    THREAD_POOL = 1
    PLAN = 2
    EXECUTION_CONTEXT = 3
    EXTERNALS = 4
    MOVES = 5  # a table of `MoveColumn`
    MOVE_COUNT = 6
    NOTES = 7  # what kernels find wrong
    NOTE_COUNT = 8
    CONDITION = 9  # the address of a byte that a round sets to go on; 0 for none
    COUNT = 10  # rounds
    DONE = 11  # how many were finished
    STATUS = 12  # the executor's last answer
    WORDS = 13


class MoveColumn(Numbers):
    """The columns of the table of moves: where an external address of the plan is in even and in odd rounds, and by
    how many bytes it moves on in every round."""

    EXTERNAL = 0
    EVEN = 1
    ODD = 2
    STRIDE = 3
    WORDS = 4


_Go = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)


class RoundsCode:
    """The native code at an address, which takes the addresses of the words of `RoundsField` and of
    `interrupts.StopField`; `owner` keeps it loaded."""

    def __init__(self, address: int, owner: object) -> None:
        self.address = address
        self._run = _Go(address)
        self.owner = owner

    def run(self, words: int, terminate: int, watch: Watch | None) -> None:
        """Do the rounds; where somebody watches, what the handler of a signal raises comes from here."""
        if watch is None:
            self._run(words, terminate)
        else:
            watch.call(watch.address, self.address, words, terminate)


@dataclass(slots=True)
class Rounds:
    """Up to `count` rounds; items have an axis of so many in front."""

    count: int
    leading: Sequence[Array]
    carried: Sequence[Any]
    trailing: Sequence[Array]
    has_condition: bool


@dataclass(slots=True)
class Outcome:
    """The rounds that were done, one at least; whether the condition still held; the carried values after them, and
    the collected ones with an axis of the rounds in front."""

    done: int
    going: bool
    carried: list[Array]
    collected: list[Array]


class NativeBody:
    """A body whose plan is one native segment."""

    def __init__(self, plan: Plan, segment: NativeSegment, code: RoundsCode) -> None:
        self._segment, self._code = segment, code
        step = plan.steps[0]
        inputs = {slot: place for place, slot in enumerate(plan.inputs)}
        captures = {slot: place for place, slot in enumerate(plan.captures)}
        made = {slot: place for place, slot in enumerate(step.outputs)}
        self._constants = plan.constants
        # For each input of the segment: the body's input, or the outer value, or the constant that it is.
        self._sources = [(slot, inputs.get(slot), captures.get(slot)) for slot in step.inputs]
        # For each output of the body: the segment's output, or the body's input that it is.
        self._results = [(made.get(slot), inputs.get(slot)) for slot in plan.outputs]

    @staticmethod
    def of(plan: Plan, code: RoundsCode) -> NativeBody | None:
        """The body of a plan; None where it is more, or less, than one segment that shapes alone decide about."""
        if len(plan.steps) != 1 or len(set(plan.outputs)) != len(plan.outputs):
            return None
        segment = plan.steps[0].call
        if not isinstance(segment, NativeSegment) or segment.steering_places:
            return None
        known = {*plan.inputs, *plan.steps[0].outputs}
        if not known.issuperset(plan.outputs):
            return None
        return NativeBody(plan, segment, code)

    def rounds(self, given: Rounds, captures: Sequence[Any], context: RunContext) -> Outcome | None:
        """Some rounds; None where they are not alike, or have to be watched one by one."""
        if context.trace is not None or given.count < 1:
            return None
        first, last = ([np.asarray(item[0]) for item in items] for items in (given.leading, given.trailing))
        values = [*first, *given.carried, *last]
        sources = [self._source(source, values, captures) for source in self._sources]
        if not all(
            isinstance(value, np.ndarray) and value.dtype == dtype
            for value, dtype in zip(sources, self._segment.dtypes, strict=True)
        ):
            return None
        try:
            ready = self._segment.plan_in_run(tuple([value.shape for value in sources]), (), context.logger)
        except BindingError:
            return None
        table = _Table(given, ready)
        if not table.connect(self._sources, self._results, sources):
            return None
        return table.run(self._segment, self._code, context)

    def _source(
        self, source: tuple[int, int | None, int | None], values: Sequence[Any], captures: Sequence[Any]
    ) -> Any:
        slot, place, outer = source
        if place is not None:
            return values[place]
        return self._constants.get(slot) if outer is None else captures[outer]


class _Table:
    """The addresses of some rounds."""

    def __init__(self, given: Rounds, ready: ReadyPlan) -> None:
        self._given, self._ready = given, ready
        self._moves: list[int] = []
        self._kept: list[Array] = []  # what addresses point to
        self._first = len(given.leading)
        self._behind = self._first + len(given.carried)
        # The two places of each carried value, and their addresses; none of a value that stays.
        self._places: list[tuple[Array, ...]] = [() for _ in given.carried]
        self._addresses: list[tuple[int, ...]] = [() for _ in given.carried]
        self._collected: list[Array] = []
        self._condition: Array | None = None
        self._count = given.count

    def connect(
        self,
        sources: Sequence[tuple[int, int | None, int | None]],
        results: Sequence[tuple[int | None, int | None]],
        values: Sequence[Array],
    ) -> bool:
        """Find a place for everything; False where a round's results do not look like what the next one reads."""
        outputs, known = self._ready.outputs, self._ready.known
        skip, carried = int(self._given.has_condition), len(self._given.carried)
        if self._given.has_condition and not self._connect_condition(*results[0]):
            return False
        for number, (made, given) in enumerate(results[skip : skip + carried]):
            if made is None:
                if given != self._first + number:
                    return False
                continue  # a value that stays
            start = self._given.carried[number]
            if made in known or not isinstance(start, np.ndarray) or outputs[made] != (start.dtype, start.shape):
                return False
            memory.require(2 * start.nbytes, "the values that a loop carries")
            self._places[number] = places = np.array(start, order="C"), np.empty(start.shape, start.dtype)
            self._addresses[number] = address_of(places[0]), address_of(places[1])
        collected = [made for made, _ in results[skip + carried :]]
        if any(made is None or made in known for made in collected):
            return False
        self._collect([outputs[made] for made in collected if made is not None])
        for external, ((_, place, _), value) in enumerate(zip(sources, values, strict=True)):
            self._read(external, place, value)
        written = [place for place in range(len(outputs)) if place not in known]
        externals = {place: len(sources) + index for index, place in enumerate(written)}
        self._write(externals, results, skip, carried)
        return self._ready.plan.steps.size > 0

    def _connect_condition(self, made: int | None, given: int | None) -> bool:
        """Where the condition is found; False where it ends the loop anyway."""
        if made is None:
            return given == 1  # the condition that a round was begun with
        if made in self._ready.known:
            return bool(self._ready.known[made].reshape(-1)[0])
        dtype, shape = self._ready.outputs[made]
        if dtype != np.bool_ or math.prod(shape) != 1:
            return False
        self._condition = np.zeros(shape, np.bool_)
        return True

    def _collect(self, forms: Sequence[tuple[np.dtype[Any], tuple[int, ...]]]) -> None:
        each = sum(math.prod(shape) * dtype.itemsize for dtype, shape in forms)
        if each:
            self._count = min(self._count, max(1, _COLLECTED_BYTES // each))
            memory.require(each * self._count, "scan outputs of native steps")
        self._collected = [np.empty((self._count, *shape), dtype) for dtype, shape in forms]

    def _read(self, external: int, place: int | None, value: Array) -> None:
        """An input of the plan: an item, a carried value or one that stays."""
        if place is not None and self._first <= place < self._behind:
            places = self._addresses[place - self._first]
            if places:
                self._moves += (external, *places, 0)
                return
        elif place is not None:
            given = self._given
            items = given.leading[place] if place < self._first else given.trailing[place - self._behind]
            if not (np.asarray(items[0]).flags.c_contiguous and items.flags.aligned):
                memory.require(items[: self._count].nbytes, "a copy of an input")
                items = np.ascontiguousarray(items[: self._count])
            self._stay(external, items, items.strides[0])
            return
        if not (value.flags.c_contiguous and value.flags.aligned):
            value = np.array(value, order="C")
        self._stay(external, value)

    def _write(
        self,
        externals: dict[int, int],
        results: Sequence[tuple[int | None, int | None]],
        skip: int,
        carried: int,
    ) -> None:
        """The outputs of the plan."""
        left = dict(externals)
        for index, (made, _) in enumerate(results):
            if made is None or made not in left:
                continue
            external = left.pop(made)
            if index < skip:
                assert self._condition is not None
                self._stay(external, self._condition)
            elif index < skip + carried:
                even, odd = self._addresses[index - skip]
                self._moves += (external, odd, even, 0)
            else:
                items = self._collected[index - skip - carried]
                self._stay(external, items, items.strides[0])
        for made, external in left.items():  # that nothing outside the segment reads
            dtype, shape = self._ready.outputs[made]
            self._stay(external, np.empty(shape, dtype))

    def _stay(self, external: int, array: Array, stride: int = 0) -> None:
        """An address that is the same in even and in odd rounds, but for a stride."""
        self._kept.append(array)
        address = address_of(array)
        self._moves += (external, address, address, stride)

    def run(self, segment: NativeSegment, code: RoundsCode, context: RunContext) -> Outcome:
        """Do the rounds; typed errors as a single run of the segment raises them."""
        ready, plan = self._ready, self._ready.plan
        thread_pool, execution_contexts = segment.resources
        moves = (ctypes.c_int64 * max(1, len(self._moves)))(*self._moves)
        externals = (ctypes.c_int64 * max(1, plan.base_count - 1))()
        notes = (ctypes.c_int64 * max(1, 2 * len(ready.faults)))()
        if ready.faults:
            externals[plan.base_count - 2] = ctypes.addressof(notes)
        words = (ctypes.c_int64 * RoundsField.WORDS)()
        words[RoundsField.RUN] = thread_pool.run_address
        words[RoundsField.PLAN] = plan.address
        words[RoundsField.EXTERNALS] = ctypes.addressof(externals)
        words[RoundsField.MOVES] = ctypes.addressof(moves)
        words[RoundsField.MOVE_COUNT] = len(self._moves) // MoveColumn.WORDS
        words[RoundsField.NOTES], words[RoundsField.NOTE_COUNT] = ctypes.addressof(notes), len(ready.faults)
        words[RoundsField.CONDITION] = 0 if self._condition is None else address_of(self._condition)
        words[RoundsField.COUNT] = self._count
        execution_context = execution_contexts.take()
        try:
            if execution_context.plan is not plan or execution_context.threads < thread_pool.threads:
                execution_context.prepare(plan, thread_pool.threads)
            worker_threads: object = None
            if plan.width > 1:
                thread_pool.start()
                words[RoundsField.THREAD_POOL], worker_threads = thread_pool.shared_memory
            words[RoundsField.EXECUTION_CONTEXT] = execution_context.address
            is_long = plan.nanoseconds is None or (plan.nanoseconds + _ROUND_NS) * self._count >= LONG_NS
            code.run(ctypes.addressof(words), context.terminate_word, thread_pool.watch if is_long else None)
            del worker_threads
        finally:
            execution_contexts.give(execution_context)
        if words[RoundsField.STATUS]:
            raise errors.Fail(TERMINATED)
        for index, describe in enumerate(ready.faults):
            if notes[2 * index]:
                raise describe(notes[2 * index + 1])
        return self._outcome(words[RoundsField.DONE])

    def _outcome(self, done: int) -> Outcome:
        going = self._condition is None or bool(self._condition.reshape(-1)[0])
        carried = [
            places[done & 1] if places else value
            for places, value in zip(self._places, self._given.carried, strict=True)
        ]
        # What was made ready for rounds that did not come is given back.
        collected = [items if done == self._count else items[:done].copy() for items in self._collected]
        return Outcome(done, going, carried, collected)
