"""The short way of a run: where a session is native as a whole, the same call again goes straight to native code."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Collection, Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from sardonyx.api.values.element_types import is_float8
from sardonyx.light_dataclass import dataclass
from sardonyx.runtime.native.chain import Chain
from sardonyx.runtime.native.fast_call import RELEASE_NS, FastCall, Form, is_usable
from sardonyx.runtime.native.native_segment import NativeSegment
from sardonyx.runtime.native_plan import NativePlan
from sardonyx.runtime.plan import Plan

if TYPE_CHECKING:
    from sardonyx.compiler.chaining import Woven

Array = np.ndarray[Any, Any]

# Chains kept for a call; the one that was woven first goes first.
_MOST_CHAINS = 16


@dataclass(frozen=True, slots=True)
class _Ready:
    """What a call is prepared for: its outputs, those of its external addresses that stay, and the rest of what
    `FastCall.prepare` takes. The contents of the inputs at the places `deciding` decided what it is.
    """

    plan: NativePlan | Chain
    outputs: Sequence[Form]
    addresses: Sequence[int]
    note_count: int
    releases_lock: bool
    owner: object
    deciding: Container[int] = ()


class ShortWay(ABC):
    """A plan that is native from its inputs to its outputs; `inputs` are their names, in the order it takes them."""

    inputs: tuple[str, ...]

    @staticmethod
    def of(plan: Plan, input_names: Sequence[str]) -> ShortWay | None:
        """The short way of a plan, or None where it has none."""
        if not is_usable():
            return None
        return OneSegment.of(plan, input_names) or ManySteps.of(plan, input_names)

    @property
    @abstractmethod
    def held_bytes(self) -> int:
        """Bytes of what lies between the steps of runs that are prepared."""

    @abstractmethod
    def fast_call(self) -> FastCall:
        """A call of its own to prepare."""

    @abstractmethod
    def _deciding(self) -> Iterable[int]:
        """The places of the inputs whose contents may decide what is done."""

    @property
    def is_steered(self) -> bool:
        """Whether contents of inputs decide what is done, as far as it is known yet."""
        return any(True for _ in self._deciding())

    def look(self, arrays: Sequence[Array]) -> Hashable:
        """What runs have in common that the same call serves, as far as it is known yet."""
        return tuple([one.shape for one in arrays]), self._contents(arrays)

    def _contents(self, arrays: Sequence[Array]) -> tuple[bytes, ...]:
        """The contents of those inputs that may decide."""
        return tuple([arrays[place].tobytes() for place in self._deciding()])

    @abstractmethod
    def _ready(self, call: FastCall, arrays: Sequence[Array]) -> _Ready | None:
        """What `call` does for inputs that look like these; None where it cannot serve them."""

    def prepare(self, call: FastCall, feeds: Mapping[str, Array]) -> None:
        """Let `call` serve runs whose inputs look like these; it stays closed where it cannot."""
        arrays = [feeds[name] for name in self.inputs]
        ready = self._served(call, arrays)
        if ready is None:
            return
        forms = [
            Form(array.dtype, array.shape, index, name, contents=array.tobytes() if index in ready.deciding else b"")
            for index, (name, array) in enumerate(zip(self.inputs, arrays, strict=True))
        ]
        self._prepare(call, ready, forms, ready.outputs, ready.addresses)

    def prepare_bound(
        self,
        call: FastCall,
        feeds: Mapping[str, Array],
        results: Mapping[str, Array | None],
        in_place: Collection[tuple[str, str]],
        *,
        once: bool = False,
    ) -> list[Array]:
        """Let `call` run on this memory, which its owner keeps; it stays closed where the memory does not fit.

        `results` is the memory of all outputs in their order, None for one that nobody wants: memory for it is made and
        given back, for the owner to keep as well. Memory may be that of an input where the two are a pair of
        `in_place`: elsewhere a step might read what another one has written over. Where contents of inputs decide what
        is done, `call` serves the run that comes next, and no other: nobody would see that they have changed.
        """
        arrays = [feeds[name] for name in self.inputs]
        ready = self._served(call, arrays)
        if ready is None or len(results) != len(ready.outputs) or any(form.axis >= 0 for form in ready.outputs):
            return []
        if ready.deciding and not once:
            return []
        targets = {
            name: np.empty(form.shape, form.dtype) if array is None else array
            for form, (name, array) in zip(ready.outputs, results.items(), strict=True)
        }
        for form, array in zip(ready.outputs, targets.values(), strict=True):
            if not (_is_plain(array, form.dtype) and array.shape == form.shape and array.flags.writeable):
                return []
        if not _are_apart(dict(zip(self.inputs, arrays, strict=True)), targets, in_place):
            return []
        addresses = list(ready.addresses)
        addresses[: len(arrays)] = [array.ctypes.data for array in arrays]
        for form, array in zip(ready.outputs, targets.values(), strict=True):
            addresses[form.external] = array.ctypes.data
        self._prepare(call, ready, (), (), addresses)
        return [targets[name] for name, array in results.items() if array is None]

    def _served(self, call: FastCall, arrays: Sequence[Array]) -> _Ready | None:
        """What `_ready` gives, if native code makes every output as callers see it."""
        ready = self._ready(call, arrays)
        if ready is None or any(is_float8(form.dtype) for form in ready.outputs):
            return None
        return ready

    @staticmethod
    def _prepare(
        call: FastCall, ready: _Ready, inputs: Sequence[Form], outputs: Sequence[Form], addresses: Sequence[int]
    ) -> None:
        call.prepare(
            ready.plan,
            inputs,
            outputs,
            addresses,
            note_count=ready.note_count,
            releases_lock=ready.releases_lock,
            owner=ready.owner,
        )


class OneSegment(ShortWay):
    """A plan that is one native segment.

    `inputs` are the names of the plan's inputs in the segment's order; `results` the place of each of the plan's
    outputs among those of the segment. `chained` copies outputs that are known before the run.
    """

    def __init__(
        self, segment: NativeSegment, inputs: Sequence[str], results: Sequence[int], chained: ManySteps
    ) -> None:
        self.segment = segment
        self.inputs = tuple(inputs)
        self.results = tuple(results)
        self._chained = chained

    @classmethod
    def of(cls, plan: Plan, input_names: Sequence[str]) -> OneSegment | None:
        """The plan as one segment, or None where it is more than that."""
        if len(plan.steps) != 1:
            return None
        (step,) = plan.steps
        if not isinstance(step.call, NativeSegment) or sorted(step.inputs) != sorted(plan.inputs):
            return None
        if any(slot not in step.outputs for slot in plan.outputs) or len(set(plan.outputs)) != len(plan.outputs):
            return None
        names = dict(zip(plan.inputs, input_names, strict=True))
        return cls(
            step.call,
            [names[slot] for slot in step.inputs],
            [step.outputs.index(slot) for slot in plan.outputs],
            ManySteps(replace(plan, inputs=step.inputs), [names[slot] for slot in step.inputs], [step.call]),
        )

    @property
    def held_bytes(self) -> int:
        return self._chained.held_bytes

    def fast_call(self) -> FastCall:
        return self.segment.fast_call()

    def _deciding(self) -> Iterable[int]:
        return self.segment.steering_places

    def _ready(self, call: FastCall, arrays: Sequence[Array]) -> _Ready | None:
        if not all(_is_plain(array, dtype) for array, dtype in zip(arrays, self.segment.dtypes, strict=True)):
            return None
        steering = self.segment.steering_places
        ready = self.segment.plan_for(tuple(array.shape for array in arrays), [arrays[place] for place in steering])
        if ready.known or len(self.results) != len(ready.outputs):
            return self._chained._ready(call, arrays)
        first = len(arrays)
        outputs = [Form(*ready.outputs[place], first + place) for place in self.results]
        addresses = [0] * (first + len(outputs) + bool(ready.faults))
        notes = 2 * len(ready.faults)
        return _Ready(ready.plan, outputs, addresses, notes, ready.releases_lock, self.segment, steering)


class ManySteps(ShortWay):
    """A plan of several native steps, control flow included, which run as a chain."""

    def __init__(self, plan: Plan, inputs: Sequence[str], segments: Sequence[NativeSegment]) -> None:
        self.inputs = tuple(inputs)
        self._plan, self._segment = plan, segments[0]
        # The chains of each call, which have memory of their own, by the forms of the inputs.
        self._woven: WeakKeyDictionary[FastCall, OrderedDict[Any, Woven]] = WeakKeyDictionary()
        self._decided: set[int] = set()  # the inputs whose contents have decided what a chain is

    @classmethod
    def of(cls, plan: Plan, input_names: Sequence[str]) -> ManySteps | None:
        """The plan as a chain, or None where it has other steps."""
        # Few plans need these.
        from sardonyx.compiler.chaining import segments_of
        from sardonyx.compiler.control_flow_call import ControlFlowCall

        if any(step.kind == "host" and not isinstance(step.call, ControlFlowCall) for step in plan.steps):
            return None

        segments = segments_of(plan)
        if not segments:
            return None
        segments[0].chain_address()  # so that no run has to wait for its code
        return cls(plan, input_names, segments)

    @property
    def held_bytes(self) -> int:
        calls = [call for found in self._woven.keyrefs() if (call := found()) is not None]
        woven = [one.chain for call in calls for one in list(self._woven.get(call, {}).values())]
        return sum(chain.held_bytes for chain in woven if chain is not None)

    def fast_call(self) -> FastCall:
        return self._segment.fast_call()

    def _deciding(self) -> Iterable[int]:
        return sorted(self._decided)

    def _ready(self, call: FastCall, arrays: Sequence[Array]) -> _Ready | None:
        if not all(_is_plain(array, array.dtype) for array in arrays):
            return None
        woven = self._woven_for(call, arrays)
        if woven.chain is None:
            return None
        outputs = [Form(one.dtype, one.shape, one.place, axis=one.axis, counted=one.counted) for one in woven.outputs]
        releases = woven.nanoseconds > RELEASE_NS
        return _Ready(woven.chain, outputs, woven.chain.addresses, woven.note_count, releases, woven, woven.deciding)

    def _woven_for(self, call: FastCall, arrays: Sequence[Array]) -> Woven:
        """The chain for inputs like these, woven anew once there are plans that it went without."""
        from sardonyx.compiler.chaining import weave

        chains = self._woven.setdefault(call, OrderedDict())
        dtypes = tuple([array.dtype for array in arrays])
        woven = chains.get((dtypes, self.look(arrays)))
        if woven is None or woven.is_outdated:
            woven = weave(self._plan, arrays, self._segment)
            self._decided |= woven.deciding
            chains[dtypes, self.look(arrays)] = woven
            while len(chains) > _MOST_CHAINS:
                chains.popitem(last=False)
        return woven


def _are_apart(
    inputs: Mapping[str, Array], results: Mapping[str, Array], in_place: Collection[tuple[str, str]]
) -> bool:
    """Whether contiguous results share memory with nothing but, as a whole, the inputs that `in_place` names."""
    given = [one for one in (*inputs.values(), *results.values()) if one.nbytes]
    begins = sorted(one.ctypes.data for one in given)
    ends = sorted(one.ctypes.data + one.nbytes for one in given)
    sharing = {made for one, made in in_place if one in inputs and is_same_memory(inputs[one], results[made])}
    for name, array in results.items():
        place = array.ctypes.data
        there = bisect_left(begins, place + array.nbytes) - bisect_right(ends, place)
        if array.nbytes and there > 1 + (name in sharing):
            return False
    return True


def is_same_memory(one: Array, other: Array) -> bool:
    """Whether two contiguous arrays are of the same elements in the same places."""
    return one.ctypes.data == other.ctypes.data and one.shape == other.shape and one.dtype == other.dtype


def _is_plain(array: Any, dtype: np.dtype[Any]) -> bool:
    """Whether native code can read an array as it is: also its dtype object is the one of its type."""
    return type(array) is np.ndarray and array.dtype == dtype and array.flags.c_contiguous and array.flags.aligned
