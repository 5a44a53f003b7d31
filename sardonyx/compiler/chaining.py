"""Plans of several native steps woven into one `Chain`: what follows a step, a branch or a round is native too.

A plan whose steps are native segments and control flow over such plans needs no Python between them once the shapes of
its inputs are known. Values between the segments lie in memory that the chain keeps; both branches of an If write the
same one; a loop's carried values have two places that change their roles after every round.

What never ran has no plan yet, and is not bound for the chain's sake: the chain declines where a run gets there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from sardonyx.compiler.chain_code import MOST_BYTES, ChainCode, Held, Label, NotChainedError, Output, Place
from sardonyx.compiler.control_flow_call import ControlFlowCall
from sardonyx.light_dataclass import dataclass
from sardonyx.runtime.context import RunContext
from sardonyx.runtime.control_flow import IfFlow, LoopFlow, ScanFlow
from sardonyx.runtime.native.array_address import address_of
from sardonyx.runtime.native.chain import Chain, Do
from sardonyx.runtime.native.counted_call import CountedCall
from sardonyx.runtime.native.native_segment import MOST_STEERING_ELEMENTS, NativeSegment, Shapes
from sardonyx.runtime.plan import ABSENT, Plan, Step

Array = np.ndarray[Any, Any]

# Bytes of results whose sizes a run counts, at most: they are copied once their sizes are known.
_MOST_ROOM_BYTES = 1 << 20
_FAULT_BYTES = 16  # the two words of a note
_WORD_BYTES = 8
_BRANCHES = ("then_branch", "else_branch")


Missing = tuple[NativeSegment, Shapes, tuple[Array, ...]]


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
        elif isinstance(call, ControlFlowCall) and call.flow.is_chained:
            for body in call.bodies.values():
                inner = segments_of(body)
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
        outputs = [Place() for _ in results]
        for place, held in zip(outputs, results, strict=True):
            if held.counted is None:
                weaver.code.deliver(held, place)
        chain, found = weaver.code.finish([one.place for one in given], outputs, results, segment)
    except NotChainedError:
        return Woven(None, (), 0, 0.0, tuple(weaver.missing), frozenset(weaver.deciding))
    missing, deciding = tuple(weaver.missing), frozenset(weaver.deciding)
    return Woven(chain, found, 2 * weaver.faults, weaver.nanoseconds, missing, deciding)


def _input(place: int, array: Array) -> Held:
    """The input at a place, with what it contains where that may decide."""
    is_small = array.size <= MOST_STEERING_ELEMENTS
    return Held(array.dtype, array.shape, Place(), array.copy() if is_small else None, source=place)


class _Weaver:
    """Collects the instructions of a chain."""

    def __init__(self) -> None:
        self.code = ChainCode()
        self.faults = 1  # the chain's own: that it declines
        self.nanoseconds = 0.0
        self.missing: list[Missing] = []
        self.deciding: set[int] = set()  # the inputs whose contents were read

    def plan(self, plan: Plan, inputs: Sequence[Held], captures: Sequence[Held]) -> list[Held]:
        """The outputs of a plan, whose steps are added."""
        frame: dict[int, Held] = {slot: self.code.constant(value) for slot, value in plan.constants.items()}
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

    def _step(self, step: Step, inputs: Sequence[Held | None]) -> Sequence[Held | None]:
        call = step.call
        if any(one is not None and one.counted is not None for one in inputs):
            raise NotChainedError("the size of an input is counted by the run")
        if isinstance(call, CountedCall):
            return self._counted(call, inputs)
        if isinstance(call, NativeSegment):
            return self._segment(call, inputs)
        if step.kind == "view":
            return [self._view(step, inputs) if inputs else self.code.constant(step.call(RunContext(), [])[0])]
        if not isinstance(call, ControlFlowCall):
            raise NotChainedError(f"{step.op_type} is done by Python")
        own = inputs[: call.inputs]
        flow = call.flow
        if isinstance(flow, IfFlow):
            return self._if(call, own, inputs)
        if isinstance(flow, LoopFlow):
            return self._loop(call, flow, own, inputs)
        if isinstance(flow, ScanFlow):
            return self._scan(call, flow, own, inputs)
        raise NotChainedError(f"{step.op_type} is done by Python")

    def _segment(self, segment: NativeSegment, inputs: Sequence[Held | None]) -> list[Held]:
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
            self.code.constant(ready.known[index])
            if index in ready.known
            else Held(dtype, shape, Place(math.prod(shape) * dtype.itemsize))
            for index, (dtype, shape) in enumerate(ready.outputs)
        ]
        made = [one.place for index, one in enumerate(outputs) if index not in ready.known]
        self.code.scope.update(made)
        places = [*(one.place for one in held), *made]
        if ready.faults:
            notes = Place()
            self.code.begin.append((Do.SHIFT, (notes, self.code.notes, self.faults * _FAULT_BYTES)))
            self.faults += len(ready.faults)
            places.append(notes)
        self.nanoseconds += ready.nanoseconds
        self.code.rows.append((ready, tuple(places)))
        return outputs

    def _counted(self, call: CountedCall, inputs: Sequence[Held | None]) -> list[Held | None]:
        """The outputs of a kernel that counts how much it writes."""
        *rooms, count = self._segment(call.segment, inputs)
        if sum(room.nbytes for room in rooms) > _MOST_ROOM_BYTES:
            raise NotChainedError("results that are too large to be copied")
        results: list[Held | None] = [None] * call.outputs
        for place, axis, room in zip(call.places, call.axes, rooms, strict=True):
            results[place] = room if axis is None else replace(room, counted=(axis % len(room.shape), count.place))
        return results

    def _view(self, step: Step, inputs: Sequence[Held | None]) -> Held:
        """The same elements in another shape; what the view is, it shows on an array that looks like the input."""
        first, *others = inputs
        contents = [None if one is None else self._contents(one) for one in others]
        if first is None or any(one is not None and array is None for one, array in zip(others, contents, strict=True)):
            raise NotChainedError("the contents of an input decide")
        if first.nbytes > MOST_BYTES:
            raise NotChainedError("a view of a large value")
        given = np.empty(first.shape, first.dtype)
        made, *more = step.call(RunContext(), [given, *contents])
        same = not more and isinstance(made, np.ndarray) and made.dtype == given.dtype and made.size == given.size
        if not same or not made.flags.c_contiguous or address_of(made) != address_of(given):
            raise NotChainedError("a view of elements in another order")
        same_array = None if first.array is None else first.array.reshape(made.shape)
        return Held(first.dtype, made.shape, first.place, same_array, source=first.source)

    def _contents(self, held: Held) -> Array | None:
        """What a value contains, where that is known; the chain is for no other contents of the input it comes from."""
        if held.source >= 0 and held.array is not None:
            self.deciding.add(held.source)
        return held.array

    def _body(
        self, call: ControlFlowCall, name: str, inputs: Sequence[Held], given: Sequence[Held | None]
    ) -> list[Held]:
        captured = [given[place] for place in call.captures[name]]
        captures = [one for one in captured if one is not None]
        if len(captures) != len(captured):
            raise NotChainedError("a subgraph reads what is not there")
        results = self.plan(call.bodies[name], inputs, captures)
        if any(one.counted is not None for one in results):
            raise NotChainedError("a subgraph gives results whose size is counted by the run")
        return results

    def _if(self, call: ControlFlowCall, own: Sequence[Held | None], given: Sequence[Held | None]) -> Sequence[Held]:
        condition = own[0]
        if condition is None or not condition.is_one(np.bool_):
            raise NotChainedError("a condition that is no truth value")
        parts = [self.code.part(partial(self._body, call, name, (), given)) for name in _BRANCHES]
        found = [part.results for part in parts if part.results is not None]
        if not found:
            raise NotChainedError("neither branch can be chained")
        merged = list(found[0])
        if len(found) == len(parts):
            merged = [self._merged(*pair) for pair in zip(*found, strict=True)]
            for part in parts:
                with self.code.inside(part):
                    for one, held in zip(merged, part.results or (), strict=True):
                        self.code.deliver(held, one.place)
            self.code.scope.update(one.place for one in merged)
        else:
            made = {place for part in parts for place in part.scope}
            self.code.scope.update(made.intersection(one.place.settled() for one in merged))
        otherwise, end = Label(), Label()
        self.code.emit(Do.UNLESS, condition.place, otherwise)
        self.code.rows += [*parts[0].rows, (Do.GO, (end,)), otherwise, *parts[1].rows, end]
        return merged

    @staticmethod
    def _merged(one: Held, other: Held) -> Held:
        """The value that either branch makes."""
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            raise NotChainedError("the branches make values of different shapes")
        return Held(one.dtype, one.shape, Place(one.nbytes))

    def _loop(
        self, call: ControlFlowCall, flow: LoopFlow, own: Sequence[Held | None], given: Sequence[Held | None]
    ) -> Sequence[Held]:
        limit, condition, *states = (*own, None, None)[: max(2, len(own))]
        if len(call.bodies["body"].outputs) != 1 + len(states):
            raise NotChainedError("how many values are collected is known only after the loop")
        if limit is not None and not limit.is_one(np.int64):
            raise NotChainedError("a limit that is no number")
        if condition is not None and not condition.is_one(np.bool_):
            raise NotChainedError("a condition that is no truth value")
        self.nanoseconds = math.inf  # nobody knows how many rounds there will be
        counter, going = (
            Held(np.dtype(kind), shape, Place(_WORD_BYTES))
            for kind, shape in ((np.int64, flow.counter), (np.bool_, flow.condition))
        )
        self.code.emit(Do.SET, going.place, 1)
        if condition is not None:
            self.code.emit(Do.COPY, going.place, condition.place, 1)

        def round_of(states: Sequence[Held]) -> list[Held]:
            again, *carried = self._body(call, "body", [counter, going, *states], given)
            if not again.is_one(np.bool_):
                raise NotChainedError("a condition that is no truth value")
            self.code.emit(Do.COPY, going.place, again.place, 1)
            return carried

        return self._rounds(
            _present(states), counter.place, None if limit is None else limit.place, going.place, round_of
        )

    def _scan(
        self, call: ControlFlowCall, flow: ScanFlow, own: Sequence[Held | None], given: Sequence[Held | None]
    ) -> Sequence[Held]:
        settings = flow.input_axes, flow.input_directions, flow.output_axes, flow.output_directions
        if any(number for numbers in settings for number in numbers):
            raise NotChainedError("items along other axes than the first, or backwards")
        values = _present(own)
        split = len(values) - flow.scan_inputs
        states, sequences = values[:split], values[split:]
        lengths = {one.shape[0] if one.shape else 0 for one in sequences}
        if len(lengths) != 1 or 0 in lengths:
            raise NotChainedError("sequences of different lengths, or empty ones")
        (length,) = lengths
        counter = Place(_WORD_BYTES)
        limit = self.code.constant(np.array(length, np.int64)).place
        items = [Held(one.dtype, one.shape[1:], Place()) for one in sequences]
        stacks: list[Held] = []
        before = self.nanoseconds

        def round_of(states: Sequence[Held]) -> list[Held]:
            for item, sequence in zip(items, sequences, strict=True):
                self.code.emit(Do.ITEM, item.place, sequence.place, counter, item.nbytes)
            outputs = self._body(call, "body", [*states, *items], given)
            into = [Place() for _ in outputs[split:]]
            for place, made in zip(into, outputs[split:], strict=True):
                whole = Held(made.dtype, (length, *made.shape), Place(length * made.nbytes))
                stacks.append(whole)
                # In front of what the body does, which writes there.
                self.code.rows.insert(0, (Do.ITEM, (place, whole.place, counter, made.nbytes)))
                self.code.deliver(made, place)
            return outputs[:split]

        final = self._rounds(states, counter, limit, None, round_of, declines=False)
        self.nanoseconds = before + (self.nanoseconds - before) * length
        self.code.scope.update(one.place for one in stacks)
        return [*final, *stacks]

    def _rounds(
        self,
        states: Sequence[Held],
        counter: Place,
        limit: Place | None,
        going: Place | None,
        round_of: Callable[[Sequence[Held]], Sequence[Held]],
        *,
        declines: bool = True,
    ) -> list[Held]:
        """The states after all rounds. Those of a round lie in one of two places each, what it makes in the other.

        Where a round cannot be chained, the chain declines if there is one; NotChainedError where it never `declines`.
        """
        before, after = ([Held(one.dtype, one.shape, Place(one.nbytes)) for one in states] for _ in range(2))
        self.code.emit(Do.SET, counter, 0)
        for one, start in zip(before, states, strict=True):
            self.code.emit(Do.COPY, one.place, start.place, start.nbytes)

        def whole_round() -> list[Held]:
            for one, made in zip(after, round_of(before), strict=True):
                if (made.dtype, made.shape) != (one.dtype, one.shape):
                    raise NotChainedError("a carried value changes its shape")
                self.code.deliver(made, one.place)
            return []

        part = self.code.part(whole_round)
        if part.results is None and not declines:
            raise NotChainedError("a round that cannot be chained")
        top, end = Label(), Label()
        self.code.rows.append(top)
        if limit is not None:
            self.code.emit(Do.UNTIL, counter, limit, end)
        if going is not None:
            self.code.emit(Do.UNLESS, going, end)
        self.code.rows += part.rows
        for one, other in zip(before, after, strict=True):
            self.code.emit(Do.SWAP, one.place, other.place)
        self.code.emit(Do.COUNT, counter)
        self.code.emit(Do.GO, top)
        self.code.rows.append(end)
        return before


def _present(values: Sequence[Held | None]) -> list[Held]:
    found = [one for one in values if one is not None]
    if len(found) != len(values):
        raise NotChainedError("a value is not there")
    return found
