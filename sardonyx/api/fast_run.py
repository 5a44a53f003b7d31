"""The short way of a run: where a session is one native segment, the same call again goes straight to native code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx.kernel.dtypes import FLOAT8
from sardonyx.runtime.fast_call import FastCall, Form, is_usable
from sardonyx.runtime.native_segment import NativeSegment, ReadyPlan
from sardonyx.runtime.plan import Plan

Array = np.ndarray[Any, Any]


class OneSegment:
    """A plan that is one native segment from its inputs to its outputs.

    `inputs` are the names of the plan's inputs in the segment's order; `results` the place of each of the plan's
    outputs among those of the segment.
    """

    def __init__(self, segment: NativeSegment, inputs: Sequence[str], results: Sequence[int]) -> None:
        self.segment = segment
        self.inputs = tuple(inputs)
        self.results = tuple(results)

    @classmethod
    def of(cls, plan: Plan, input_names: Sequence[str]) -> OneSegment | None:
        """The plan as one segment, or None where it is more than that."""
        if len(plan.steps) != 1 or not is_usable():
            return None
        (step,) = plan.steps
        if not isinstance(step.call, NativeSegment) or sorted(step.inputs) != sorted(plan.inputs):
            return None
        if step.call.steering_places:  # the same shapes may take another plan
            return None
        if any(slot not in step.outputs for slot in plan.outputs) or len(set(plan.outputs)) != len(plan.outputs):
            return None
        names = dict(zip(plan.inputs, input_names, strict=True))
        return cls(
            step.call, [names[slot] for slot in step.inputs], [step.outputs.index(slot) for slot in plan.outputs]
        )

    def fast_call(self) -> FastCall:
        return self.segment.fast_call()

    def prepare(self, call: FastCall, feeds: Mapping[str, Array]) -> None:
        """Let `call` serve runs whose inputs look like these; it stays closed where it cannot."""
        arrays = [feeds[name] for name in self.inputs]
        ready = self._plan_for(arrays)
        if ready is None:
            return
        forms = [
            Form(array.dtype, array.shape, index, name)
            for index, (name, array) in enumerate(zip(self.inputs, arrays, strict=True))
        ]
        first = len(forms)
        results = [Form(*ready.outputs[place], first + place) for place in self.results]
        self._prepare(call, ready, forms, results)

    def prepare_bound(self, call: FastCall, feeds: Mapping[str, Array], results: Sequence[Array]) -> None:
        """Let `call` run on this memory, which its owner keeps; it stays closed where the memory does not fit."""
        arrays = [feeds[name] for name in self.inputs]
        ready = self._plan_for(arrays)
        if ready is None or len(results) != len(ready.outputs):
            return
        addresses = [array.ctypes.data for array in arrays] + [0] * (len(results) + bool(ready.faults))
        for place, array in zip(self.results, results, strict=True):
            dtype, shape = ready.outputs[place]
            if not (_is_plain(array, dtype) and array.shape == shape and array.flags.writeable):
                return
            if any(np.may_share_memory(array, other) for other in (*arrays, *results) if other is not array):
                return
            addresses[len(arrays) + place] = array.ctypes.data
        self._prepare(call, ready, (), (), addresses)

    def _prepare(
        self,
        call: FastCall,
        ready: ReadyPlan,
        inputs: Sequence[Form],
        outputs: Sequence[Form],
        addresses: Sequence[int] = (),
    ) -> None:
        call.prepare(
            ready.plan,
            inputs,
            outputs,
            addresses,
            note_count=2 * len(ready.faults),
            releases_lock=ready.releases_lock,
            owner=self.segment,
        )

    def _plan_for(self, arrays: Sequence[Array]) -> ReadyPlan | None:
        """The plan for inputs that native code reads as they are, if it makes every output as callers see it."""
        if not all(_is_plain(array, dtype) for array, dtype in zip(arrays, self.segment.dtypes, strict=True)):
            return None
        ready = self.segment.plan_for(tuple(array.shape for array in arrays))
        if ready.known or len(self.results) != len(ready.outputs):
            return None
        return None if any(dtype in FLOAT8 for dtype, _ in ready.outputs) else ready


def _is_plain(array: Any, dtype: np.dtype[Any]) -> bool:
    """Whether native code can read an array as it is: also its dtype object is the one of its type."""
    return type(array) is np.ndarray and array.dtype == dtype and array.flags.c_contiguous and array.flags.aligned
