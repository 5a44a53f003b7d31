"""Operators with bodies: If, Loop, Scan, SequenceMap. The engine runs the bodies as plans of their own."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

from sardonyx.graph.types import numpy_dtype
from sardonyx.ops.framework.facts import UNKNOWN, Dim, Dims, Fact, same, tensor, unknown_dim
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import Array, ControlFlow, Value, operator
from sardonyx.ops.shape import axis_of
from sardonyx.runtime.memory import memory
from sardonyx.runtime.native.rounds import Outcome, Rounds


class Body(Protocol):
    """A graph that the engine runs."""

    def __call__(self, *inputs: Value) -> list[Value]:
        """The graph's outputs."""
        ...

    def rounds(self, given: Rounds) -> Outcome | None:
        """Some rounds in native code; None where they must be done one by one."""
        ...


# Rounds that are prepared at once, at most: a loop may end after any of them.
_MOST_ROUNDS = 4096
# The shapes of carried values often settle with the first round: so often it is tried to do rounds in native code.
_TRIES = 2
# So few rounds are done sooner one by one: what they need in common takes as long as some of them.
_FEW_ROUNDS = 2

# Facts of carried values settle after a few rounds: each round only forgets dimensions.
_ROUNDS = 4


def join(a: Fact, b: Fact) -> Fact:
    """What holds for both of two facts."""
    kind = a.type if a.type == b.type else None
    if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
        return Fact(kind, None)
    return Fact(kind, tuple(x if same(x, y) else unknown_dim() for x, y in zip(a.shape, b.shape, strict=True)))


def _forgotten(fact: Fact) -> Fact:
    """The fact without contents, which change from one iteration to the next."""
    return replace(fact, elements=None, constant=None)


def _truth(value: Array, name: str) -> bool:
    if np.size(value) != 1:
        raise ValueError(f"the condition {name} must have one element, not {np.size(value)}")
    return bool(np.asarray(value).reshape(()))


def _empty(output: ir.Value, lead: int = 0) -> Array:
    """No elements, with the type and as much of the shape as a body's output declares."""
    shape = () if output.shape is None else tuple(dim if isinstance(dim, int) else 0 for dim in output.shape)
    dtype = np.dtype(np.float32) if output.dtype is None else numpy_dtype(output.dtype)
    return np.empty((lead, *shape), dtype)


@operator("If")
class If(ControlFlow):
    """The outputs of one of two graphs."""

    then_branch: ir.Graph
    else_branch: ir.Graph

    def run_bodies(self, bodies: Mapping[str, Any], inputs: Sequence[Value]) -> Sequence[Value]:
        outputs: list[Value] = bodies["then_branch" if _truth(inputs[0], "of If") else "else_branch"]()
        return outputs

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        yes, no = (inference.branch(graph) for graph in (self.then_branch, self.else_branch))
        if yes is None or no is None:
            found = no if yes is None else yes
            if found is None:
                raise inference.broken[self.then_branch]
            return found
        if len(yes) != len(no):
            raise ValueError(f"then_branch has {len(yes)} outputs and else_branch {len(no)}")
        for index, (one, other) in enumerate(zip(yes, no, strict=True)):
            if (
                isinstance(one.type, ir.TensorType)
                and isinstance(other.type, ir.TensorType)
                and one.dtype != other.dtype
            ):
                raise ValueError(
                    f"output {index} has elements of type {one.dtype} in then_branch and {other.dtype} in else_branch"
                )
        condition = inputs[0].integers() if inputs[0] is not None else None
        if condition is not None and len(condition) == 1:
            return [_forgotten(fact) for fact in (yes if condition[0] else no)]
        return [join(one, other) for one, other in zip(yes, no, strict=True)]


def _settle(
    body: ir.Graph,
    before: Sequence[Fact],
    carried: Sequence[Fact],
    after: Sequence[Fact],
    skip: int,
    inference: Inference,
) -> tuple[list[Fact], list[Fact]]:
    """Facts of carried values that hold in every iteration, and of all outputs of the body.

    The body's inputs are `before`, the carried values, `after`; its carried outputs come behind the first `skip`.
    """
    current = [_forgotten(fact) for fact in carried]
    outputs: list[Fact] = []
    for attempt in range(_ROUNDS):
        outputs = inference.graph(body, [*before, *current, *after])
        produced = outputs[skip : skip + len(current)]
        joined = [join(one, other) for one, other in zip(current, produced, strict=True)]
        if attempt == _ROUNDS - 2:
            joined = [fact if fact == old else Fact(fact.type, None) for fact, old in zip(joined, current, strict=True)]
        if all(_alike(one, other) for one, other in zip(joined, current, strict=True)):
            break
        current = joined
    return current, outputs


def _alike(a: Fact, b: Fact) -> bool:
    """Equal facts, where an unknown dimension stays an unknown dimension."""
    return a.type == b.type and (a.shape == b.shape)


class ScanOutput:
    """The items of a scan output while a loop goes on, refused before they outgrow the machine's memory.

    A body decides how many there are and how large, so their sum is compared with the memory that is left each time
    it has doubled; stacking them needs as much again.
    """

    def __init__(self, value: ir.Value) -> None:
        self.value = value
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
            memory.require(2 * self._nbytes, f"scan output '{self.value.name}' after {self._count} iterations")
            self._next_check = 2 * self._nbytes

    def stacked(self) -> Array:
        """All items; ValueError where their shapes differ."""
        if not self._blocks:
            return _empty(self.value)
        shapes = {block.shape[1:] for block in self._blocks}
        if len(shapes) > 1:
            raise ValueError(f"scan output '{self.value.name}' changes its shape between iterations: {sorted(shapes)}")
        return self._blocks[0] if len(self._blocks) == 1 else np.concatenate(self._blocks)


@operator("Loop")
class Loop(ControlFlow):
    """Runs a graph up to M times while its condition holds; carried values go round, scan outputs are stacked."""

    body: ir.Graph

    def run_bodies(self, bodies: Mapping[str, Any], inputs: Sequence[Value]) -> Sequence[Value]:
        body = bodies["body"]
        limit = None if inputs[0] is None else int(np.asarray(inputs[0]).reshape(()))
        going = True if len(inputs) < 2 or inputs[1] is None else _truth(inputs[1], "of Loop")
        carried = list(inputs[2:])
        count = len(carried)
        stacks = [ScanOutput(value) for value in self.body.outputs[1 + count :]]
        counter_shape = _declared_scalar_shape(self.body.inputs[0])
        condition_shape = _declared_scalar_shape(self.body.inputs[1])
        iteration, tries = 0, _TRIES
        while going and (limit is None or iteration < limit):
            if tries and (limit is None or limit - iteration > _FEW_ROUNDS):
                most = _MOST_ROUNDS if limit is None else min(_MOST_ROUNDS, limit - iteration)
                counters = np.arange(iteration, iteration + most).reshape(most, *counter_shape)
                conditions = np.ones((most, *condition_shape), np.bool_)
                outcome = body.rounds(Rounds(most, [counters, conditions], carried, [], has_condition=True))
                if outcome is not None:
                    iteration, going, carried = iteration + outcome.done, outcome.going, outcome.carried
                    for stack, block in zip(stacks, outcome.collected, strict=True):
                        stack.extend(block)
                    continue
                tries -= 1
            outputs = body(
                np.full(counter_shape, iteration, np.int64), np.full(condition_shape, going, np.bool_), *carried
            )
            going = _truth(outputs[0], "of the body of Loop")
            carried = outputs[1 : 1 + count]
            for stack, value in zip(stacks, outputs[1 + count :], strict=True):
                stack.append(value)
            iteration += 1
        return [*carried, *(stack.stacked() for stack in stacks)]

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        counter, going = tensor(ir.DataType.INT64, ()), tensor(ir.DataType.BOOL, ())
        carried = [fact or UNKNOWN for fact in inputs[2:]]
        if len(self.body.inputs) != 2 + len(carried):
            raise ValueError(f"the body of Loop has {len(self.body.inputs)} inputs, not {2 + len(carried)}")
        settled, outputs = _settle(self.body, [counter, going], carried, [], 1, inference)
        scans = [_with_lead(fact, unknown_dim()) for fact in outputs[1 + len(carried) :]]
        return [*settled, *scans]


def _declared_scalar_shape(value: ir.Value) -> tuple[int, ...]:
    """() or (1,): as the body declares its counter and condition."""
    return (1,) if value.shape is not None and len(value.shape) == 1 else ()


def _with_lead(fact: Fact, lead: Dim) -> Fact:
    return Fact(fact.type, None if fact.shape is None else (lead, *fact.shape))


class Scanning(ControlFlow):
    """What both forms of Scan share: one pass over the sequences along their axes."""

    body: ir.Graph
    num_scan_inputs: int

    def scan(
        self,
        body: Body,
        states: Sequence[Value],
        sequences: Sequence[Array],
        axes: Sequence[int],
        backwards: Sequence[bool],
        length: int,
    ) -> tuple[list[Value], list[ScanOutput]]:
        """Final states, and the items of each scan output in the order of the iterations."""
        current = list(states)
        stacks = [ScanOutput(value) for value in self.body.outputs[len(current) :]]
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


@operator("Scan", since=8)
class OldScan(Scanning):
    """Scan of opset 8: axis 0 is the batch, axis 1 the sequence, each batch entry with its own length."""

    directions: tuple[int, ...] = ()

    def run_bodies(self, bodies: Mapping[str, Any], inputs: Sequence[Value]) -> Sequence[Value]:
        lengths, *rest = inputs
        split = len(rest) - self.num_scan_inputs
        states, sequences = rest[:split], rest[split:]
        batch, longest = sequences[0].shape[:2]
        backwards = [bool(flag) for flag in self.directions] or [False] * self.num_scan_inputs
        finals: list[list[Array]] = []
        scans: list[list[Array]] = []
        for entry in range(batch):
            length = longest if lengths is None else int(lengths[entry])
            own = [sequence[entry, :length] for sequence in sequences]
            final, stacks = self.scan(
                bodies["body"], [state[entry] for state in states], own, [0] * len(own), backwards, length
            )
            finals.append(final)
            scans.append([_padded(stack.stacked(), longest) for stack in stacks])
        columns = [*zip(*finals, strict=True), *zip(*scans, strict=True)]
        return [np.stack(column) for column in columns]

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        facts = [fact or UNKNOWN for fact in inputs[1:]]
        split = len(facts) - self.num_scan_inputs
        inner = [_without(fact, (0,)) for fact in facts[:split]]
        items = [_without(fact, (0, 1)) for fact in facts[split:]]
        lead: Dims = (unknown_dim(), unknown_dim())
        known = next((fact.shape for fact in facts[split:] if fact.shape is not None), None)
        lead = known[:2] if known is not None else lead
        settled, outputs = _settle(self.body, [], inner, items, 0, inference)
        scans = [_with_lead(_with_lead(fact, lead[1]), lead[0]) for fact in outputs[split:]]
        return [*(_with_lead(fact, lead[0]) for fact in settled), *scans]


def _without(fact: Fact, axes: Sequence[int]) -> Fact:
    if fact.shape is None:
        return Fact(fact.type, None)
    return Fact(fact.type, tuple(dim for axis, dim in enumerate(fact.shape) if axis not in axes))


def _padded(found: Array, length: int) -> Array:
    """Items filled up with zeros to the longest sequence of the batch."""
    result = np.zeros((length, *found.shape[1:]), found.dtype)
    result[: len(found)] = found
    return result


@operator("Scan", since=9)
class Scan(Scanning):
    """Runs a graph over slices of the scan inputs; states go round, scan outputs are stacked along their axes."""

    scan_input_axes: tuple[int, ...] = ()
    scan_input_directions: tuple[int, ...] = ()
    scan_output_axes: tuple[int, ...] = ()
    scan_output_directions: tuple[int, ...] = ()

    def run_bodies(self, bodies: Mapping[str, Any], inputs: Sequence[Value]) -> Sequence[Value]:
        split = len(inputs) - self.num_scan_inputs
        sequences = list(inputs[split:])
        axes = [axis_of(axis, seq.ndim) for axis, seq in zip(self._axes(), sequences, strict=True)]
        lengths = {sequence.shape[axis] for sequence, axis in zip(sequences, axes, strict=True)}
        if len(lengths) != 1:
            raise ValueError(f"the scan inputs have different lengths: {sorted(lengths)}")
        backwards = [bool(flag) for flag in self.scan_input_directions] or [False] * self.num_scan_inputs
        final, stacks = self.scan(bodies["body"], inputs[:split], sequences, axes, backwards, lengths.pop())
        results: list[Value] = list(final)
        for index, stack in enumerate(stacks):
            joined = stack.stacked()
            if index < len(self.scan_output_directions) and self.scan_output_directions[index]:
                joined = joined[::-1]
            axis = self.scan_output_axes[index] if index < len(self.scan_output_axes) else 0
            results.append(np.moveaxis(joined, 0, axis_of(axis, joined.ndim)))
        return results

    def _axes(self) -> tuple[int, ...]:
        return self.scan_input_axes or (0,) * self.num_scan_inputs

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        facts = [fact or UNKNOWN for fact in inputs]
        split = len(facts) - self.num_scan_inputs
        items: list[Fact] = []
        length: Dim = unknown_dim()
        for fact, given in zip(facts[split:], self._axes(), strict=True):
            if fact.shape is None:
                items.append(Fact(fact.type, None))
                continue
            axis = axis_of(given, len(fact.shape))
            length = fact.shape[axis]
            items.append(_without(fact, (axis,)))
        settled, outputs = _settle(self.body, [], facts[:split], items, 0, inference)
        results = list(settled)
        for index, fact in enumerate(outputs[split:]):
            if fact.shape is None:
                results.append(Fact(fact.type, None))
                continue
            given = self.scan_output_axes[index] if index < len(self.scan_output_axes) else 0
            axis = axis_of(given, len(fact.shape) + 1)
            results.append(Fact(fact.type, (*fact.shape[:axis], length, *fact.shape[axis:])))
        return results


@operator("SequenceMap", since=17)
class SequenceMap(ControlFlow):
    """Runs a graph on each item of a sequence; further sequences go along item by item, tensors stay whole."""

    body: ir.Graph

    def run_bodies(self, bodies: Mapping[str, Any], inputs: Sequence[Value]) -> Sequence[Value]:
        first, *further = inputs
        results: list[list[Value]] = [[] for _ in self.body.outputs]
        for index, item in enumerate(first):
            extra = [value[index] if isinstance(value, list) else value for value in further]
            for result, value in zip(results, bodies["body"](item, *extra), strict=True):
                result.append(value)
        return results

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        outputs = inference.graph(self.body, [_item(fact or UNKNOWN) for fact in inputs])
        return [Fact(None if fact.type is None else ir.SequenceType(fact.type), None) for fact in outputs]


def _item(fact: Fact) -> Fact:
    """The fact of a sequence's items, or of the tensor itself."""
    kind: Any = fact.type
    return Fact(kind.elem_type, None) if isinstance(kind, ir.SequenceType) else fact
