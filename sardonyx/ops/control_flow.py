"""Operators with bodies: If, Loop, Scan, SequenceMap. The engine runs the bodies as plans of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import onnx_ir as ir

from sardonyx.graph.types import numpy_dtype, type_name
from sardonyx.ops.framework.facts import UNKNOWN, Dim, Dims, Fact, same, tensor, unknown_dim
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import ControlFlow, operator
from sardonyx.ops.shape import axis_of
from sardonyx.runtime.control_flow import (
    BatchScanFlow,
    CollectingFlow,
    Flow,
    IfFlow,
    Item,
    LoopFlow,
    ScanFlow,
    SequenceMapFlow,
)

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


@operator("If")
class If(ControlFlow):
    """The outputs of one of two graphs."""

    then_branch: ir.Graph
    else_branch: ir.Graph

    def flow(self) -> Flow:
        return IfFlow()

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


class Collecting(ControlFlow):
    """An operator that runs its body in rounds and stacks what these give."""

    body: ir.Graph

    @property
    def collected(self) -> Sequence[ir.Value]:
        """The outputs of the body that are stacked, which come last."""
        raise NotImplementedError

    def flow(self) -> CollectingFlow:
        raise NotImplementedError


@operator("Loop")
class Loop(Collecting):
    """Runs a graph up to M times while its condition holds; carried values go round, scan outputs are stacked."""

    @property
    def collected(self) -> Sequence[ir.Value]:
        return self.body.outputs[len(self.body.inputs) - 1 :]

    def flow(self) -> LoopFlow:
        counter, condition = map(_declared_scalar_shape, self.body.inputs[:2])
        return LoopFlow(_items(self.body), counter, condition)

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


def _items(body: ir.Graph) -> tuple[Item, ...]:
    """What a body declares of its outputs."""
    return tuple(map(_declared_item, body.outputs))


def _declared_item(value: ir.Value) -> Item:
    shape = () if value.shape is None else tuple(dim if isinstance(dim, int) else 0 for dim in value.shape)
    return Item(value.name or "", "float32" if value.dtype is None else numpy_dtype(value.dtype).name, shape)


def _with_lead(fact: Fact, lead: Dim) -> Fact:
    _check_stackable(fact)
    return Fact(fact.type, None if fact.shape is None else (lead, *fact.shape))


def _check_stackable(fact: Fact) -> None:
    if fact.type is not None and not isinstance(fact.type, ir.TensorType):
        raise ValueError(f"what the rounds of a loop give to be stacked must be tensors, not {type_name(fact.type)}")


class Scanning(Collecting):
    """What both forms of Scan share."""

    num_scan_inputs: int

    @property
    def collected(self) -> Sequence[ir.Value]:
        return self.body.outputs[len(self.body.inputs) - self.num_scan_inputs :]


@operator("Scan", since=8)
class OldScan(Scanning):
    """Scan of opset 8: axis 0 is the batch, axis 1 the sequence, each batch entry with its own length."""

    directions: tuple[int, ...] = ()

    def flow(self) -> BatchScanFlow:
        return BatchScanFlow(_items(self.body), self.num_scan_inputs, self.directions)

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


@operator("Scan", since=9)
class Scan(Scanning):
    """Runs a graph over slices of the scan inputs; states go round, scan outputs are stacked along their axes."""

    scan_input_axes: tuple[int, ...] = ()
    scan_input_directions: tuple[int, ...] = ()
    scan_output_axes: tuple[int, ...] = ()
    scan_output_directions: tuple[int, ...] = ()

    def flow(self) -> ScanFlow:
        return ScanFlow(
            _items(self.body),
            self.num_scan_inputs,
            self.scan_input_axes,
            self.scan_input_directions,
            self.scan_output_axes,
            self.scan_output_directions,
        )

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
            _check_stackable(fact)
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

    def flow(self) -> Flow:
        return SequenceMapFlow(len(self.body.outputs))

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        outputs = inference.graph(self.body, [_item(fact or UNKNOWN) for fact in inputs])
        return [Fact(None if fact.type is None else ir.SequenceType(fact.type), None) for fact in outputs]


def _item(fact: Fact) -> Fact:
    """The fact of a sequence's items, or of the tensor itself."""
    kind: Any = fact.type
    return Fact(kind.elem_type, None) if isinstance(kind, ir.SequenceType) else fact
