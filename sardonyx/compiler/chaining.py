"""Plans of several native steps woven into one `Chain`: what follows a step, a branch or a round is native too.

A plan whose steps are native segments and control flow over such plans needs no Python between them once the shapes of
its inputs are known. Values between the segments lie in memory that the chain keeps; both branches of an If write the
same one; a loop's carried values have two places that change their roles after every round.

What never ran has no plan yet, and is not bound for the chain's sake: the chain declines where a run gets there.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from sardonyx.compiler.control_flow_call import ControlFlowCall
from sardonyx.runtime.context import RunContext
from sardonyx.runtime.native.array_address import address_of
from sardonyx.runtime.native.chain import Chain, Do, Instruction
from sardonyx.runtime.native.counted_call import CountedCall
from sardonyx.runtime.native.native_segment import MOST_STEERING_ELEMENTS, NativeSegment, ReadyPlan, Shapes
from sardonyx.runtime.native_plan import NativePlan
from sardonyx.runtime.plan import ABSENT, Plan, Step

Array = np.ndarray[Any, Any]

# Bytes between the plans of a chain, at most: where there are more, Python's part of a run does not matter.
_MOST_BYTES = 4 << 20
# The same of results whose sizes a run counts: they are copied once their sizes are known.
_MOST_ROOM_BYTES = 1 << 20
_ALIGNMENT = 64
_FAULT_BYTES = 16  # the two words of a note
_WORD_BYTES = 8
_BRANCHES = ("then_branch", "else_branch")


class NotChainedError(Exception):
    """A plan, or a part of it, that a chain cannot run."""


class _Place:
    """Memory of a value: at a known address, or `nbytes` of the chain's own.

    Where it `leads` to another place, its value lies there.
    """

    __slots__ = ("address", "leads", "nbytes")

    def __init__(self, nbytes: int = 0, address: int = 0) -> None:
        self.nbytes, self.address = nbytes, address
        self.leads: _Place | None = None

    def settled(self) -> _Place:
        place = self
        while place.leads is not None:
            place = place.leads
        return place


class _Label:
    """An instruction to go to."""

    def __init__(self) -> None:
        self.index = 0


@dataclass(frozen=True, slots=True)
class _Held:
    """A value between steps; its contents where they are known, and the input that they come from (-1: none)."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    place: _Place
    array: Array | None = None
    counted: tuple[int, _Place] | None = None  # the axis whose size the run counts, and where it leaves the number
    source: int = -1

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def is_one(self, dtype: Any) -> bool:
        return self.dtype == dtype and math.prod(self.shape) == 1


_Operand = _Place | _Label | int
_Code = list[tuple[Do | ReadyPlan, tuple[_Operand, ...]] | _Label]


@dataclass(slots=True)
class _Part:
    """Code apart, the places that it makes, and its results; None where it declines."""

    code: _Code = field(default_factory=list)
    scope: set[_Place] = field(default_factory=set)
    results: list[_Held] | None = None


Missing = tuple[NativeSegment, Shapes, tuple[Array, ...]]


@dataclass(frozen=True, slots=True)
class Output:
    """An output and its place; where its size along an axis is counted, the place of the number."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    place: int
    axis: int = -1
    counted: int = 0


@dataclass(frozen=True, eq=False)
class Woven:
    """A chain; what its outputs look like; the words of its notes; and the plans that it goes without.

    Where the contents of inputs decide, it is for those that it was made with; `deciding` are their places.
    The chain's places begin with those of the inputs and the outputs. There is none where it would have to go without
    too much, or where something is not as chains need it.
    """

    chain: Chain | None
    outputs: tuple[Output, ...]
    note_count: int
    nanoseconds: float
    missing: tuple[Missing, ...]
    deciding: frozenset[int] = frozenset()

    @property
    def is_outdated(self) -> bool:
        """Whether a plan that it goes without is there now."""
        return any(segment.made_plan(shapes, contents) is not None for segment, shapes, contents in self.missing)


def segments_of(plan: Plan) -> list[NativeSegment] | None:
    """The native segments of a plan whose every step a chain may take; None where there is another step."""
    found: list[NativeSegment] = []
    for step in plan.steps:
        call = step.call
        if isinstance(call, NativeSegment):
            found.append(call)
        elif isinstance(call, CountedCall):
            found.append(call.segment)
        elif isinstance(call, ControlFlowCall) and call.chained:
            for body in call.bodies.values():
                inner = segments_of(body.plan)
                if inner is None:
                    return None
                found += inner
        elif step.kind != "view":
            return None
    return found


def weave(plan: Plan, inputs: Sequence[Array], segment: NativeSegment) -> Woven:
    """The chain of a plan for inputs that look like these; `segment` is any of the plan's."""
    weaver = _Weaver()
    given = [_input(place, array) for place, array in enumerate(inputs)]
    try:
        results = weaver.plan(plan, given, ())
        outputs = [_Place() for _ in results]
        for place, held in zip(outputs, results, strict=True):
            if held.counted is None:
                weaver.deliver(held, place)
        return weaver.finish([one.place for one in given], outputs, results, segment)
    except NotChainedError:
        return Woven(None, (), 0, 0.0, tuple(weaver.missing), frozenset(weaver.deciding))


def _input(place: int, array: Array) -> _Held:
    """The input at a place, with what it contains where that may decide."""
    is_small = array.size <= MOST_STEERING_ELEMENTS
    return _Held(array.dtype, array.shape, _Place(), array.copy() if is_small else None, source=place)


class _Weaver:
    """Collects the instructions of a chain."""

    def __init__(self) -> None:
        self.code: _Code = []
        self.begin: _Code = []  # comes in front
        self.scope: set[_Place] = set()  # places that what is being added made
        self.notes = _Place()
        self.faults = 1  # the chain's own: that it declines
        self.nanoseconds = 0.0
        self.missing: list[Missing] = []
        self.deciding: set[int] = set()  # the inputs whose contents were read
        self.kept: list[Array] = []
        self.held_bytes = 0

    def emit(self, what: Do, *operands: _Operand) -> None:
        self.code.append((what, operands))

    def plan(self, plan: Plan, inputs: Sequence[_Held], captures: Sequence[_Held]) -> list[_Held]:
        """The outputs of a plan, whose steps are added."""
        frame: dict[int, _Held] = {slot: self._constant(value) for slot, value in plan.constants.items()}
        frame.update(zip(plan.inputs, inputs, strict=True))
        frame.update(zip(plan.captures, captures, strict=True))
        for step in plan.steps:
            made = self._step(step, [frame.get(slot) for slot in step.inputs])
            frame.update(
                (slot, held)
                for slot, held in zip(step.outputs, made, strict=False)
                if slot != ABSENT and held is not None
            )
        return [frame[slot] for slot in plan.outputs]

    def _constant(self, value: Any) -> _Held:
        if not isinstance(value, np.ndarray) or value.dtype.hasobject:
            raise NotChainedError("a constant that is no tensor of numbers")
        array = np.ascontiguousarray(value).reshape(value.shape)
        self.kept.append(array)
        return _Held(array.dtype, array.shape, _Place(0, address_of(array)), array)

    def _step(self, step: Step, inputs: Sequence[_Held | None]) -> Sequence[_Held | None]:
        call = step.call
        if any(one is not None and one.counted is not None for one in inputs):
            raise NotChainedError("the size of an input is counted by the run")
        if isinstance(call, CountedCall):
            return self._counted(call, inputs)
        if isinstance(call, NativeSegment):
            return self._segment(call, inputs)
        if step.kind == "view":
            return [self._view(step, inputs)]
        if not isinstance(call, ControlFlowCall):
            raise NotChainedError(f"{step.op_type} is done by Python")
        own = inputs[: call.inputs]
        if call.chained == "If":
            return self._if(call, own, inputs)
        if call.chained == "Loop":
            return self._loop(call, own, inputs)
        return self._scan(call, own, inputs)

    def _segment(self, segment: NativeSegment, inputs: Sequence[_Held | None]) -> list[_Held]:
        """The outputs of a native segment."""
        held = [one for one in inputs if one is not None]
        if [one.dtype for one in held] != list(segment.dtypes):
            raise NotChainedError("an input is missing, or of another type")
        contents = [self._contents(held[place]) for place in segment.steering_places]
        shapes = tuple([one.shape for one in held])
        known = tuple([array for array in contents if array is not None])
        if len(known) != len(contents):
            raise NotChainedError("the contents of an input decide")
        ready = segment.made_plan(shapes, known)
        if ready is None:
            self.missing.append((segment, shapes, known))
            raise NotChainedError("a segment that never ran")
        outputs = [
            self._constant(ready.known[index])
            if index in ready.known
            else _Held(dtype, shape, _Place(math.prod(shape) * dtype.itemsize))
            for index, (dtype, shape) in enumerate(ready.outputs)
        ]
        made = [one.place for index, one in enumerate(outputs) if index not in ready.known]
        self.scope.update(made)
        places = [*(one.place for one in held), *made]
        if ready.faults:
            notes = _Place()
            self.begin.append((Do.SHIFT, (notes, self.notes, self.faults * _FAULT_BYTES)))
            self.faults += len(ready.faults)
            places.append(notes)
        self.nanoseconds += ready.nanoseconds
        self.code.append((ready, tuple(places)))
        return outputs

    def _counted(self, call: CountedCall, inputs: Sequence[_Held | None]) -> list[_Held | None]:
        """The outputs of a kernel that counts how much it writes."""
        *rooms, count = self._segment(call.segment, inputs)
        if sum(room.nbytes for room in rooms) > _MOST_ROOM_BYTES:
            raise NotChainedError("results that are too large to be copied")
        results: list[_Held | None] = [None] * call.outputs
        for place, axis, room in zip(call.places, call.axes, rooms, strict=True):
            results[place] = room if axis is None else replace(room, counted=(axis % len(room.shape), count.place))
        return results

    def _view(self, step: Step, inputs: Sequence[_Held | None]) -> _Held:
        """The same elements in another shape; what the view is, it shows on an array that looks like the input."""
        first, *others = inputs
        contents = [None if one is None else self._contents(one) for one in others]
        if first is None or any(one is not None and array is None for one, array in zip(others, contents, strict=True)):
            raise NotChainedError("the contents of an input decide")
        if first.nbytes > _MOST_BYTES:
            raise NotChainedError("a view of a large value")
        given = np.empty(first.shape, first.dtype)
        made, *more = step.call(RunContext(), [given, *contents])
        same = not more and isinstance(made, np.ndarray) and made.dtype == given.dtype and made.size == given.size
        if not same or not made.flags.c_contiguous or address_of(made) != address_of(given):
            raise NotChainedError("a view of elements in another order")
        same_array = None if first.array is None else first.array.reshape(made.shape)
        return _Held(first.dtype, made.shape, first.place, same_array, source=first.source)

    def _contents(self, held: _Held) -> Array | None:
        """What a value contains, where that is known; the chain is for no other contents of the input it comes from."""
        if held.source >= 0 and held.array is not None:
            self.deciding.add(held.source)
        return held.array

    def deliver(self, held: _Held, place: _Place) -> None:
        """Let a value end up at a place: written there at once where what is being added makes it."""
        settled = held.place.settled()
        if settled in self.scope:
            self.scope.discard(settled)
            settled.leads = place
        else:
            self.emit(Do.COPY, place, held.place, held.nbytes)

    def _body(
        self, call: ControlFlowCall, name: str, inputs: Sequence[_Held], given: Sequence[_Held | None]
    ) -> list[_Held]:
        captured = [given[place] for place in call.captures[name]]
        captures = [one for one in captured if one is not None]
        if len(captures) != len(captured):
            raise NotChainedError("a subgraph reads what is not there")
        results = self.plan(call.bodies[name].plan, inputs, captures)
        if any(one.counted is not None for one in results):
            raise NotChainedError("a subgraph gives results whose size is counted by the run")
        return results

    def _if(self, call: ControlFlowCall, own: Sequence[_Held | None], given: Sequence[_Held | None]) -> Sequence[_Held]:
        condition = own[0]
        if condition is None or not condition.is_one(np.bool_):
            raise NotChainedError("a condition that is no truth value")
        parts = [self._part(partial(self._body, call, name, (), given)) for name in _BRANCHES]
        found = [part.results for part in parts if part.results is not None]
        if not found:
            raise NotChainedError("neither branch can be chained")
        merged = list(found[0])
        if len(found) == len(parts):
            merged = [self._merged(*pair) for pair in zip(*found, strict=True)]
            for part in parts:
                with self._inside(part):
                    for one, held in zip(merged, part.results or (), strict=True):
                        self.deliver(held, one.place)
            self.scope.update(one.place for one in merged)
        else:
            made = {place for part in parts for place in part.scope}
            self.scope.update(made.intersection(one.place.settled() for one in merged))
        otherwise, end = _Label(), _Label()
        self.emit(Do.UNLESS, condition.place, otherwise)
        self.code += [*parts[0].code, (Do.GO, (end,)), otherwise, *parts[1].code, end]
        return merged

    @staticmethod
    def _merged(one: _Held, other: _Held) -> _Held:
        """The value that either branch makes."""
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            raise NotChainedError("the branches make values of different shapes")
        return _Held(one.dtype, one.shape, _Place(one.nbytes))

    def _loop(
        self, call: ControlFlowCall, own: Sequence[_Held | None], given: Sequence[_Held | None]
    ) -> Sequence[_Held]:
        limit, condition, *states = (*own, None, None)[: max(2, len(own))]
        if len(call.bodies["body"].plan.outputs) != 1 + len(states):
            raise NotChainedError("how many values are collected is known only after the loop")
        if limit is not None and not limit.is_one(np.int64):
            raise NotChainedError("a limit that is no number")
        if condition is not None and not condition.is_one(np.bool_):
            raise NotChainedError("a condition that is no truth value")
        self.nanoseconds = math.inf  # nobody knows how many rounds there will be
        counter, going = (
            _Held(np.dtype(kind), _declared_shape(call, place), _Place(_WORD_BYTES))
            for place, kind in enumerate((np.int64, np.bool_))
        )
        self.emit(Do.SET, going.place, 1)
        if condition is not None:
            self.emit(Do.COPY, going.place, condition.place, 1)

        def round_of(states: Sequence[_Held]) -> list[_Held]:
            again, *carried = self._body(call, "body", [counter, going, *states], given)
            if not again.is_one(np.bool_):
                raise NotChainedError("a condition that is no truth value")
            self.emit(Do.COPY, going.place, again.place, 1)
            return carried

        return self._rounds(
            _present(states), counter.place, None if limit is None else limit.place, going.place, round_of
        )

    def _scan(
        self, call: ControlFlowCall, own: Sequence[_Held | None], given: Sequence[_Held | None]
    ) -> Sequence[_Held]:
        scan: Any = call.operator
        settings = scan.scan_input_axes, scan.scan_input_directions, scan.scan_output_axes, scan.scan_output_directions
        if any(number for numbers in settings for number in numbers):
            raise NotChainedError("items along other axes than the first, or backwards")
        values = _present(own)
        split = len(values) - scan.num_scan_inputs
        states, sequences = values[:split], values[split:]
        lengths = {one.shape[0] if one.shape else 0 for one in sequences}
        if len(lengths) != 1 or 0 in lengths:
            raise NotChainedError("sequences of different lengths, or empty ones")
        (length,) = lengths
        counter = _Place(_WORD_BYTES)
        limit = self._constant(np.array(length, np.int64)).place
        items = [_Held(one.dtype, one.shape[1:], _Place()) for one in sequences]
        stacks: list[_Held] = []
        before = self.nanoseconds

        def round_of(states: Sequence[_Held]) -> list[_Held]:
            for item, sequence in zip(items, sequences, strict=True):
                self.emit(Do.ITEM, item.place, sequence.place, counter, item.nbytes)
            outputs = self._body(call, "body", [*states, *items], given)
            into = [_Place() for _ in outputs[split:]]
            for place, made in zip(into, outputs[split:], strict=True):
                whole = _Held(made.dtype, (length, *made.shape), _Place(length * made.nbytes))
                stacks.append(whole)
                # In front of what the body does, which writes there.
                self.code.insert(0, (Do.ITEM, (place, whole.place, counter, made.nbytes)))
                self.deliver(made, place)
            return outputs[:split]

        final = self._rounds(states, counter, limit, None, round_of, declines=False)
        self.nanoseconds = before + (self.nanoseconds - before) * length
        self.scope.update(one.place for one in stacks)
        return [*final, *stacks]

    def _rounds(
        self,
        states: Sequence[_Held],
        counter: _Place,
        limit: _Place | None,
        going: _Place | None,
        round_of: Callable[[Sequence[_Held]], Sequence[_Held]],
        *,
        declines: bool = True,
    ) -> list[_Held]:
        """The states after all rounds. Those of a round lie in one of two places each, what it makes in the other.

        Where a round cannot be chained, the chain declines if there is one; NotChainedError where it never `declines`.
        """
        before, after = ([_Held(one.dtype, one.shape, _Place(one.nbytes)) for one in states] for _ in range(2))
        self.emit(Do.SET, counter, 0)
        for one, start in zip(before, states, strict=True):
            self.emit(Do.COPY, one.place, start.place, start.nbytes)

        def whole_round() -> list[_Held]:
            for one, made in zip(after, round_of(before), strict=True):
                if (made.dtype, made.shape) != (one.dtype, one.shape):
                    raise NotChainedError("a carried value changes its shape")
                self.deliver(made, one.place)
            return []

        part = self._part(whole_round)
        if part.results is None and not declines:
            raise NotChainedError("a round that cannot be chained")
        top, end = _Label(), _Label()
        self.code.append(top)
        if limit is not None:
            self.emit(Do.UNTIL, counter, limit, end)
        if going is not None:
            self.emit(Do.UNLESS, going, end)
        self.code += part.code
        for one, other in zip(before, after, strict=True):
            self.emit(Do.SWAP, one.place, other.place)
        self.emit(Do.COUNT, counter)
        self.emit(Do.GO, top)
        self.code.append(end)
        return before

    def _part(self, make: Callable[[], list[_Held]]) -> _Part:
        """The code that `make` adds, apart; what declines where it cannot be chained."""
        part = _Part()
        with self._inside(part):
            try:
                part.results = make()
            except NotChainedError:
                self.code[:] = [(Do.DECLINE, (self.notes,))]
        return part

    @contextlib.contextmanager
    def _inside(self, part: _Part) -> Iterator[None]:
        """Add to the code of a part for the block."""
        outside = self.code, self.scope
        self.code, self.scope = part.code, part.scope
        try:
            yield
        finally:
            self.code, self.scope = outside

    def finish(
        self, inputs: Sequence[_Place], outputs: Sequence[_Place], results: Sequence[_Held], segment: NativeSegment
    ) -> Woven:
        """The chain, with memory for all places and numbers for them and for the instructions."""
        numbers = {place: index for index, place in enumerate((*inputs, *outputs))}
        rows = [*self.begin, *self.code]
        at = 0
        for row in rows:
            if isinstance(row, _Label):
                row.index = at
                continue
            at += 1
            for operand in row[1]:
                if isinstance(operand, _Place) and operand is not self.notes:
                    numbers.setdefault(operand.settled(), len(numbers))
        numbers[self.notes] = len(numbers)
        addresses = self._addresses(list(numbers)[len(inputs) + len(outputs) :])
        plans: dict[NativePlan, None] = {}
        instructions: list[Instruction] = []
        for row in rows:
            if isinstance(row, _Label):
                continue
            what, operands = row
            if isinstance(what, ReadyPlan):
                plans[what.plan] = None
                read = np.array([numbers[place.settled()] for place in operands if isinstance(place, _Place)], np.int64)
                table = np.zeros(max(1, len(read)), np.int64)
                self.kept += [read, table]
                instructions.append((Do.RUN, what.plan.address, address_of(read), len(read), address_of(table)))
                continue
            instructions.append((what, *(_word(operand, numbers) for operand in operands)))
        team, _ = segment.resources
        chain = Chain(
            tuple(plans),
            instructions,
            ((0,) * (len(inputs) + len(outputs)) + addresses),
            team.run_address,
            segment.chain_address(),
            tuple(self.kept),
            self.held_bytes,
        )
        found = [
            Output(held.dtype, held.shape, numbers[place])
            if held.counted is None
            else Output(
                *(held.dtype, held.shape, numbers[held.place.settled()]),
                axis=held.counted[0],
                counted=numbers[held.counted[1].settled()],
            )
            for place, held in zip(outputs, results, strict=True)
        ]
        deciding = frozenset(self.deciding)
        return Woven(chain, tuple(found), 2 * self.faults, self.nanoseconds, tuple(self.missing), deciding)

    def _addresses(self, places: Sequence[_Place]) -> tuple[int, ...]:
        """The addresses of places, with memory for those that have none."""
        room = sum(-(-place.nbytes // _ALIGNMENT) * _ALIGNMENT for place in places)
        if room > _MOST_BYTES:
            raise NotChainedError(f"{room} bytes between the plans")
        memory = np.zeros(room + _ALIGNMENT, np.uint8)
        self.kept.append(memory)
        self.held_bytes = memory.nbytes
        at = address_of(memory)
        at += -at % _ALIGNMENT
        found = []
        for place in places:
            found.append(place.address or at)
            at += -(-place.nbytes // _ALIGNMENT) * _ALIGNMENT
        return tuple(found)


def _word(operand: _Operand, numbers: Mapping[_Place, int]) -> int:
    if isinstance(operand, _Place):
        return numbers[operand.settled()]
    return operand.index if isinstance(operand, _Label) else operand


def _present(values: Sequence[_Held | None]) -> list[_Held]:
    found = [one for one in values if one is not None]
    if len(found) != len(values):
        raise NotChainedError("a value is not there")
    return found


def _declared_shape(call: ControlFlowCall, place: int) -> tuple[int, ...]:
    """() or (1,): as the body of a Loop declares its counter and its condition."""
    shape = call.graphs["body"].inputs[place].shape
    return (1,) if shape is not None and len(shape) == 1 else ()
