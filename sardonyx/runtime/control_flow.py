"""What steps with bodies do: If, Loop, Scan and SequenceMap over plans of their own.

Engines keep a flow as what `flow_content` says of it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from sardonyx.light_dataclass import dataclass
from sardonyx.runtime.flex_attention import FlexAttentionFlow
from sardonyx.runtime.memory import memory
from sardonyx.runtime.native.rounds import Outcome, Rounds
from sardonyx.runtime.plan import Value
from sardonyx.runtime.round_sizes import Origin, shape_of
from sardonyx.runtime.sizes import Size, size_content, size_of_content

Array = np.ndarray[Any, Any]

# Rounds that are prepared at once, at most: a loop may end after any of them.
_MOST_ROUNDS = 4096
# The shapes of carried values often settle with the first round: so often it is tried to do rounds in native code.
_TRIES = 2
# So few rounds are done sooner one by one: what they need in common takes as long as some of them.
_FEW_ROUNDS = 2


class Body(Protocol):
    """A graph that the engine runs."""

    def __call__(self, *inputs: Value) -> list[Value]:
        """The graph's outputs."""
        ...

    @property
    def captures(self) -> Sequence[Value]:
        """The outer values that it reads."""
        ...

    def rounds(self, given: Rounds) -> Outcome | None:
        """Some rounds in native code; None where they must be done one by one."""
        ...


class Flow(Protocol):
    """How a node runs its bodies, by the attributes that hold them; `is_chained` where native code can do it, too."""

    is_chained: ClassVar[bool]

    def run_bodies(self, bodies: Mapping[str, Any], inputs: Sequence[Value]) -> Sequence[Value]:
        """The node's outputs for its own inputs."""
        ...


class Item(NamedTuple):
    """What is known of an output of a body: its name, the name of its dtype, and its shape, 0 for an unknown size."""

    name: str
    dtype: str
    shape: tuple[Size, ...]


def _truth(value: Array, name: str) -> bool:
    if np.size(value) != 1:
        raise ValueError(f"the condition {name} must have one element, not {np.size(value)}")
    return bool(np.asarray(value).reshape(()))


class _Stack:
    """The items of a scan output while a loop goes on, refused before they outgrow the machine's memory.

    A body decides how many there are and how large, so their sum is compared with the memory that is left each time
    it has doubled; stacking them needs as much again.
    """

    def __init__(self, item: Item) -> None:
        self.item = item
        self._blocks: list[Array] = []  # with an axis of iterations in front
        self._count = 0
        self._nbytes = 0
        self._next_check = memory.CHECKED_BYTES

    def append(self, item: Array) -> None:
        self.extend(np.asarray(item)[np.newaxis])

    def extend(self, block: Array) -> None:
        """Add the items of some iterations."""
        self._blocks.append(block)
        self._count += len(block)
        self._nbytes += sys.getsizeof(block, 0) + block.nbytes
        if self._nbytes >= self._next_check:
            memory.require(2 * self._nbytes, f"scan output '{self.item.name}' after {self._count} iterations")
            self._next_check = 2 * self._nbytes

    def stacked(self, shape_of: Callable[[Item], tuple[int, ...]]) -> Array:
        """All items; without one, none of the shape that `shape_of` gives. ValueError where their shapes differ."""
        if not self._blocks:
            return np.empty((0, *shape_of(self.item)), np.dtype(self.item.dtype))
        shapes = {block.shape[1:] for block in self._blocks}
        if len(shapes) > 1:
            raise ValueError(f"scan output '{self.item.name}' changes its shape between iterations: {sorted(shapes)}")
        return self._blocks[0] if len(self._blocks) == 1 else np.concatenate(self._blocks)


@dataclass(frozen=True)
class IfFlow:
    """The outputs of one of two bodies."""

    is_chained: ClassVar[bool] = True

    def run_bodies(self, bodies: Mapping[str, Any], inputs: Sequence[Value]) -> Sequence[Value]:
        outputs: list[Value] = bodies["then_branch" if _truth(inputs[0], "of If") else "else_branch"]()
        return outputs


@dataclass(frozen=True)
class CollectingFlow:
    """What loops share that stack what their rounds give: the body's `outputs`, and where a run finds the numbers that
    the symbols in their shapes stand for."""

    outputs: tuple[Item, ...]
    origins: tuple[Origin, ...] = field(default=(), kw_only=True)
    is_chained: ClassVar[bool] = False

    def run_bodies(self, bodies: Mapping[str, Any], inputs: Sequence[Value]) -> Sequence[Value]:
        raise NotImplementedError

    def shape_of(self, body: Body, inputs: Sequence[Value]) -> Callable[[Item], tuple[int, ...]]:
        """What shape an item has that no round made, in a run with these inputs."""
        return lambda item: shape_of(item.shape, self.origins, inputs, body.captures)


@dataclass(frozen=True)
class LoopFlow(CollectingFlow):
    """Runs a body up to M times while its condition holds; carried values go round, scan outputs are stacked.

    `counter` and `condition` are the shapes in which the body takes these, () or (1,).
    """

    counter: tuple[int, ...]
    condition: tuple[int, ...]
    is_chained: ClassVar[bool] = True

    def run_bodies(self, bodies: Mapping[str, Any], inputs: Sequence[Value]) -> Sequence[Value]:
        body = bodies["body"]
        limit = None if inputs[0] is None else int(np.asarray(inputs[0]).reshape(()))
        going = True if len(inputs) < 2 or inputs[1] is None else _truth(inputs[1], "of Loop")
        carried = list(inputs[2:])
        count = len(carried)
        stacks = [_Stack(item) for item in self.outputs[1 + count :]]
        iteration, tries = 0, _TRIES
        while going and (limit is None or iteration < limit):
            if tries and (limit is None or limit - iteration > _FEW_ROUNDS):
                most = _MOST_ROUNDS if limit is None else min(_MOST_ROUNDS, limit - iteration)
                counters = np.arange(iteration, iteration + most).reshape(most, *self.counter)
                conditions = np.ones((most, *self.condition), np.bool_)
                outcome = body.rounds(Rounds(most, [counters, conditions], carried, [], has_condition=True))
                if outcome is not None:
                    iteration, going, carried = iteration + outcome.done, outcome.going, outcome.carried
                    for stack, block in zip(stacks, outcome.collected, strict=True):
                        stack.extend(block)
                    continue
                tries -= 1
            outputs = body(
                np.full(self.counter, iteration, np.int64), np.full(self.condition, going, np.bool_), *carried
            )
            going = _truth(outputs[0], "of the body of Loop")
            carried = outputs[1 : 1 + count]
            for stack, value in zip(stacks, outputs[1 + count :], strict=True):
                stack.append(value)
            iteration += 1
        empty = self.shape_of(body, inputs)
        return [*carried, *(stack.stacked(empty) for stack in stacks)]


@dataclass(frozen=True)
class _Scanning(CollectingFlow):
    """What both forms of Scan share: one pass over `scan_inputs` sequences along their axes."""

    scan_inputs: int

    def _scan(
        self,
        body: Body,
        states: Sequence[Value],
        sequences: Sequence[Array],
        axes: Sequence[int],
        backwards: Sequence[bool],
        length: int,
    ) -> tuple[list[Value], list[_Stack]]:
        """Final states, and the items of each scan output in the order of the iterations."""
        current = list(states)
        stacks = [_Stack(item) for item in self.outputs[len(current) :]]
        moved = [np.moveaxis(sequence, axis, 0) for sequence, axis in zip(sequences, axes, strict=True)]
        fronts = [front[::-1] if reverse else front for front, reverse in zip(moved, backwards, strict=True)]
        step, tries = 0, _TRIES
        while step < length:
            if tries and length - step > _FEW_ROUNDS:
                items = [front[step:] for front in fronts]
                outcome = body.rounds(Rounds(length - step, [], current, items, has_condition=False))
                if outcome is not None:
                    step, current = step + outcome.done, list(outcome.carried)
                    for stack, block in zip(stacks, outcome.collected, strict=True):
                        stack.extend(block)
                    continue
                tries -= 1
            outputs = body(*current, *(np.asarray(front[step]) for front in fronts))
            current = outputs[: len(current)]
            for stack, value in zip(stacks, outputs[len(current) :], strict=True):
                stack.append(value)
            step += 1
        return current, stacks


@dataclass(frozen=True)
class BatchScanFlow(_Scanning):
    """Scan of opset 8: axis 0 is the batch, axis 1 the sequence, each batch entry with its own length."""

    directions: tuple[int, ...]
    is_chained: ClassVar[bool] = False

    def run_bodies(self, bodies: Mapping[str, Any], inputs: Sequence[Value]) -> Sequence[Value]:
        lengths, *rest = inputs
        split = len(rest) - self.scan_inputs
        states, sequences = rest[:split], rest[split:]
        batch, longest = sequences[0].shape[:2]
        backwards = [bool(flag) for flag in self.directions] or [False] * self.scan_inputs
        finals: list[list[Array]] = []
        scans: list[list[Array]] = []
        body = bodies["body"]
        shape_of = self.shape_of(body, inputs)
        for entry in range(batch):
            length = longest if lengths is None else int(lengths[entry])
            own = [sequence[entry, :length] for sequence in sequences]
            final, stacks = self._scan(body, [state[entry] for state in states], own, [0] * len(own), backwards, length)
            finals.append(final)
            scans.append([_padded(stack.stacked(shape_of), longest) for stack in stacks])
        if not batch:
            collected = self.outputs[split:]
            return [*states, *(np.empty((0, longest, *shape_of(one)), np.dtype(one.dtype)) for one in collected)]
        columns = [*zip(*finals, strict=True), *zip(*scans, strict=True)]
        return [np.stack(column) for column in columns]


def _padded(found: Array, length: int) -> Array:
    """Items filled up with zeros to the longest sequence of the batch."""
    result = np.zeros((length, *found.shape[1:]), found.dtype)
    result[: len(found)] = found
    return result


@dataclass(frozen=True)
class ScanFlow(_Scanning):
    """Runs a body over slices of the scan inputs; states go round, scan outputs are stacked along their axes."""

    input_axes: tuple[int, ...]
    input_directions: tuple[int, ...]
    output_axes: tuple[int, ...]
    output_directions: tuple[int, ...]
    is_chained: ClassVar[bool] = True

    def run_bodies(self, bodies: Mapping[str, Any], inputs: Sequence[Value]) -> Sequence[Value]:
        split = len(inputs) - self.scan_inputs
        sequences = list(inputs[split:])
        given = self.input_axes or (0,) * self.scan_inputs
        axes = [normalize_axis_index(axis, one.ndim) for axis, one in zip(given, sequences, strict=True)]
        lengths = {sequence.shape[axis] for sequence, axis in zip(sequences, axes, strict=True)}
        if len(lengths) != 1:
            raise ValueError(f"the scan inputs have different lengths: {sorted(lengths)}")
        backwards = [bool(flag) for flag in self.input_directions] or [False] * self.scan_inputs
        body = bodies["body"]
        final, stacks = self._scan(body, inputs[:split], sequences, axes, backwards, lengths.pop())
        shape_of = self.shape_of(body, inputs)
        results: list[Value] = list(final)
        for index, stack in enumerate(stacks):
            joined = stack.stacked(shape_of)
            if index < len(self.output_directions) and self.output_directions[index]:
                joined = joined[::-1]
            axis = self.output_axes[index] if index < len(self.output_axes) else 0
            results.append(np.moveaxis(joined, 0, normalize_axis_index(axis, joined.ndim)))
        return results


@dataclass(frozen=True)
class SequenceMapFlow:
    """Runs a body on each item of a sequence; further sequences go along item by item, tensors stay whole.

    The body has so many `outputs`.
    """

    outputs: int
    is_chained: ClassVar[bool] = False

    def run_bodies(self, bodies: Mapping[str, Any], inputs: Sequence[Value]) -> Sequence[Value]:
        first, *further = inputs
        results: list[list[Value]] = [[] for _ in range(self.outputs)]
        for index, item in enumerate(first):
            extra = [value[index] if isinstance(value, list) else value for value in further]
            for result, value in zip(results, bodies["body"](item, *extra), strict=True):
                result.append(value)
        return results


_FLOWS: dict[str, type[Any]] = {
    flow.__name__: flow for flow in (IfFlow, LoopFlow, BatchScanFlow, ScanFlow, SequenceMapFlow, FlexAttentionFlow)
}


def flow_content(flow: Flow) -> dict[str, Any]:
    """A flow as JSON."""
    content = {"flow": type(flow).__name__, **vars(flow)}
    if isinstance(flow, CollectingFlow):
        content["outputs"] = [[*item[:2], [size_content(size) for size in item.shape]] for item in flow.outputs]
    return content


def flow_of(content: Mapping[str, Any]) -> Flow:
    """The flow that this content describes."""
    kind = _FLOWS[content["flow"]]
    settings: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in content.items() if name != "flow"
    }
    if isinstance(settings.get("outputs"), tuple):
        settings["outputs"] = tuple(
            Item(name, dtype, tuple(map(size_of_content, shape))) for name, dtype, shape in settings["outputs"]
        )
    if "origins" in settings:
        settings["origins"] = tuple(Origin(*one) for one in settings["origins"])
    flow: Flow = kind(**settings)
    return flow
