"""The short way of a run with steps on the host: they and native code take turns, without what runs check anew."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from sardonyx.api.running.feeds import are_texts
from sardonyx.api.running.results import detach
from sardonyx.api.values.element_types import is_float8
from sardonyx.runtime.context import RunContext
from sardonyx.runtime.memory.memory import MemoryLimitError
from sardonyx.runtime.native.fast_call import NEEDED_FLAGS, Form, is_usable
from sardonyx.runtime.native.native_segment import NativeSegment
from sardonyx.runtime.plan import ABSENT, Plan, Step, Value

Array = np.ndarray[Any, Any]
Frame = list[Value]

# What takes longer gains nothing from a call that is prepared, which keeps memory of its own.
_LONG_NS = 200_000


class PreparedCall(Protocol):
    """What serves a run of all outputs whose inputs look like those that it was prepared for."""

    @property
    def arrays(self) -> Callable[[None, Any], list[Any] | None]: ...

    def close(self) -> bool: ...


class Way(Protocol):
    """Prepares calls of one kind for a plan; `inputs` are the names that it takes."""

    inputs: tuple[str, ...]

    def look(self, arrays: Sequence[Array]) -> Hashable: ...

    def prepare(self, call: Any, feeds: Mapping[str, Array]) -> None: ...


class _Given(NamedTuple):
    """An input as it has to look; a text's `dtype` is None, its elements are looked at in each run."""

    name: str
    slot: int
    dtype: np.dtype[Any] | None
    shape: tuple[int, ...]


class Relay:
    """The way through a plan with steps on the host; `inputs` are the names of its inputs, in their order."""

    def __init__(self, plan: Plan, input_names: Sequence[str], context: RunContext) -> None:
        self.inputs = tuple(input_names)
        self._plan, self._context = plan, context

    @classmethod
    def of(cls, plan: Plan, input_names: Sequence[str], context: RunContext) -> Relay | None:
        """The way, or None where the plan is of another kind."""
        if not is_usable() or context.trace is not None or plan.captures:
            return None
        if not any(step.kind == "host" for step in plan.steps):
            return None
        return cls(plan, input_names, context)

    def look(self, arrays: Sequence[Array]) -> Hashable:
        """What runs have in common that the same call serves."""
        return tuple([one.shape for one in arrays])

    def call(self) -> RelayCall:
        """A call of its own to prepare."""
        return RelayCall(self._plan, self._context)

    def prepare(self, call: RelayCall, feeds: Mapping[str, Array]) -> None:
        """Let `call` serve runs whose inputs look like these."""
        given = [feeds[name] for name in self.inputs]
        call.open(
            [
                _Given(name, slot, None if array.dtype.kind in "OU" else array.dtype, array.shape)
                for name, slot, array in zip(self.inputs, self._plan.inputs, given, strict=True)
            ]
        )


class RelayCall:
    """One plan, callable with less of Python: `arrays` gives None where it declines, also where a step fails.

    The same run the long way then tells what is wrong.
    """

    def __init__(self, plan: Plan, context: RunContext) -> None:
        self._outputs = plan.outputs
        # As in the executor, ABSENT addresses a last place that stays None.
        self._empty: Frame = [None] * (len(plan.slots) + 1)
        for slot, value in plan.constants.items():
            self._empty[slot] = value
        self._turns = [_turn(step, context) for step in plan.steps]
        self._given: Sequence[_Given] | None = None

    def open(self, given: Sequence[_Given]) -> None:
        """Serve runs with such inputs from now on."""
        self._given = given

    def close(self) -> bool:
        """Decline every call until it is opened again, and give memory back; False while a call still uses it."""
        self._given = None
        closed = [turn.close() for turn in self._turns if isinstance(turn, _NativeTurn)]
        return all(closed)

    def arrays(self, names: None, feeds: Any) -> list[Any] | None:
        """All outputs of one run, which belong to the caller."""
        given = self._given
        if given is None or type(feeds) is not dict or len(feeds) != len(given):
            return None
        frame = self._filled(given, feeds)
        if frame is None:
            return None
        try:
            for turn in self._turns:
                turn(frame)
        except Exception:
            return None
        values = [frame[slot] for slot in self._outputs]
        del frame  # its references would make results look shared
        return detach(values)

    def _filled(self, given: Sequence[_Given], feeds: dict[str, Any]) -> Frame | None:
        """The frame of a run; None where an input is not as it has to be."""
        frame = self._empty.copy()
        for name, slot, dtype, shape in given:
            array = feeds.get(name)
            if type(array) is not np.ndarray or array.shape != shape:
                return None
            if array.flags.num & NEEDED_FLAGS != NEEDED_FLAGS:
                return None
            if dtype is None:
                if array.dtype.kind == "U":
                    array = array.astype(object)
                elif array.dtype.kind != "O" or not are_texts(array):
                    return None
            elif array.dtype is not dtype:
                return None
            frame[slot] = array
        return frame


def _turn(step: Step, context: RunContext) -> Callable[[Frame], None]:
    if isinstance(step.call, NativeSegment) and ABSENT not in step.outputs:
        return _NativeTurn(step, step.call, context)
    return _turn_of_host(step, context)


def _turn_of_host(step: Step, context: RunContext) -> Callable[[Frame], None]:
    call, inputs, outputs, released = step.call, step.inputs, step.outputs, step.release

    def turn(frame: Frame) -> None:
        made = call(context, [frame[slot] for slot in inputs])
        for slot, value in zip(outputs, made, strict=False):
            if slot != ABSENT:
                frame[slot] = value
        for slot in released:
            frame[slot] = None

    return turn


class _NativeTurn:
    """A segment with a call that is prepared for what came twice; all else it takes itself."""

    def __init__(self, step: Step, segment: NativeSegment, context: RunContext) -> None:
        self._segment, self._context = segment, context
        self._inputs, self._outputs, self._released = step.inputs, step.outputs, step.release
        self._named = [(str(place), slot) for place, slot in enumerate(step.inputs)]
        self._call = segment.fast_call()
        self._last_look: Hashable = None

    def __call__(self, frame: Frame) -> None:
        made = self._call.arrays(None, {name: frame[slot] for name, slot in self._named})
        if made is None:
            arrays = [frame[slot] for slot in self._inputs]
            made = self._segment(self._context, arrays)
            self._prepare(arrays)
        for slot, value in zip(self._outputs, made, strict=True):
            frame[slot] = value
        for slot in self._released:
            frame[slot] = None

    def close(self) -> bool:
        return self._call.close()

    def _prepare(self, arrays: Sequence[Any]) -> None:
        """Let the next run with such inputs be a prepared one, where it gains from that."""
        segment = self._segment
        if not all(type(array) is np.ndarray and array.dtype.kind != "O" for array in arrays):
            return
        shapes = tuple([array.shape for array in arrays])
        contents = [arrays[place] for place in segment.steering_places]
        look = shapes, tuple([array.tobytes() for array in contents])
        if look != self._last_look and self._last_look is not None:
            self._last_look = look
            return
        self._last_look = look
        ready = segment.made_plan(shapes, contents)
        if ready is None or ready.known or ready.nanoseconds > _LONG_NS:
            return
        if any(is_float8(dtype) for dtype, _ in ready.outputs):
            return
        steering = segment.steering_places
        forms = [
            Form(array.dtype, array.shape, place, name, contents=array.tobytes() if place in steering else b"")
            for place, ((name, _), array) in enumerate(zip(self._named, arrays, strict=True))
        ]
        first = len(forms)
        outputs = [Form(*output, first + place) for place, output in enumerate(ready.outputs)]
        with contextlib.suppress(MemoryLimitError):  # the segment itself needs less
            self._call.prepare(
                ready.plan,
                forms,
                outputs,
                [0] * (first + len(outputs) + bool(ready.faults)),
                note_count=2 * len(ready.faults),
                releases_lock=ready.releases_lock,
                owner=segment,
            )
