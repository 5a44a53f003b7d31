"""The plan of a graph: slots for its values, the steps of its partitions in order, and when each value dies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

import onnx_ir as ir

from sardonyx.compiler.sizes import size_of
from sardonyx.graph.partition import Partition
from sardonyx.light_dataclass import dataclass
from sardonyx.ops.framework.inference import Inference
from sardonyx.runtime.plan import ABSENT, Plan, Slot, Step, Value
from sardonyx.runtime.settings import DEFAULT, RunSettings


class PartitionCompiler(Protocol):
    """What the planner needs of a provider."""

    def compile(self, partition: Partition, compilation: Compilation) -> list[Step]: ...


@dataclass(frozen=True)
class CompiledGraph:
    """A plan, and the values of enclosing graphs that it reads, in the order of `plan.captures`."""

    plan: Plan
    captured: tuple[ir.Value, ...]


class Compilation:
    """Everything a provider may ask while it compiles a partition of one graph."""

    def __init__(
        self,
        graph: ir.Graph,
        inference: Inference,
        compile_graph: Callable[[ir.Graph], CompiledGraph],
        constant: Callable[[ir.Value], Value],
        settings: RunSettings = DEFAULT,
    ) -> None:
        """`constant` gives the contents of an initializer."""
        self.graph = graph
        self.inference = inference
        self.compile_graph = compile_graph
        self.settings = settings
        self._constant = constant
        self._slots: dict[ir.Value, int] = {}
        self._captured: list[ir.Value] = []
        self._index = {node: index for index, node in enumerate(graph)}
        self._local = {
            *graph.inputs,
            *graph.initializers.values(),
            *(value for node in graph for value in node.outputs),
        }

    def slot(self, value: ir.Value | None) -> int:
        """The slot of a value of this graph or of an enclosing one; ABSENT for a missing value."""
        if value is None or value.name == "":
            return ABSENT
        known = self._slots.get(value)
        if known is None:
            known = self._slots[value] = len(self._slots)
            if value not in self._local:
                self._captured.append(value)
        return known

    def slots(self, values: Iterable[ir.Value | None]) -> tuple[int, ...]:
        return tuple(self.slot(value) for value in values)

    def constant(self, value: ir.Value) -> Value | None:
        """The contents of a value that no run can change: an initializer that is no graph input; else None."""
        if not value.is_initializer() or value.is_graph_input():
            return None
        return self._constant(value)

    def is_constant(self, value: ir.Value) -> bool:
        """Whether `constant` has contents for a value."""
        return value.is_initializer() and not value.is_graph_input()

    def node_index(self, node: ir.Node) -> int:
        return self._index[node]

    def node_name(self, node: ir.Node) -> str:
        """The node's name, or <OpType>_<index> where it has none."""
        return node.name or f"{node.op_type}_{self._index[node]}"

    def slot_table(self) -> tuple[Slot, ...]:
        """Every slot given out so far, with what inference knows of its value."""
        return tuple(self._describe(value) for value in self._slots)

    def _describe(self, value: ir.Value) -> Slot:
        fact = self.inference.fact(value)
        name = value.name or ""
        if fact is None or not isinstance(fact.type, ir.TensorType) or fact.type.dtype == ir.DataType.STRING:
            return Slot(name)
        dims = None if fact.shape is None else tuple(size_of(dim) for dim in fact.shape)
        return Slot(name, int(fact.type.dtype.bitwidth), dims)

    @property
    def captured(self) -> tuple[ir.Value, ...]:
        return tuple(self._captured)


def build_plan(
    compilation: Compilation,
    parts: Sequence[Partition],
    provider: Callable[[str], PartitionCompiler],
) -> CompiledGraph:
    """Compile every partition and join the steps into the plan of the graph; `provider` has the provider of a name."""
    graph = compilation.graph
    inputs = compilation.slots(graph.inputs)
    steps = [step for part in parts for step in provider(part.provider).compile(part, compilation)]
    outputs = compilation.slots(graph.outputs)
    graph_inputs = set(graph.inputs)
    read = {slot for step in steps for slot in step.inputs}.union(outputs)
    constants = {
        compilation.slot(value): compilation.constant(value)
        for value in graph.initializers.values()
        if value not in graph_inputs and (compilation.slot(value) in read or value.is_graph_output())
    }
    captured = compilation.captured
    plan = Plan(
        slots=compilation.slot_table(),
        inputs=inputs,
        outputs=outputs,
        constants=constants,
        steps=_with_releases(steps, {*outputs, *constants}),
        captures=compilation.slots(captured),
    )
    return CompiledGraph(plan, captured)


def _with_releases(steps: Sequence[Step], kept: set[int]) -> tuple[Step, ...]:
    """Each step with the slots whose last reader it is, except those that stay."""
    last: dict[int, int] = {}
    for index, step in enumerate(steps):
        for slot in (*step.inputs, *step.outputs):
            if slot != ABSENT and slot not in kept:
                last[slot] = index
    release: dict[int, list[int]] = {}
    for slot, index in last.items():
        release.setdefault(index, []).append(slot)
    return tuple(replace(step, release=tuple(release.get(index, ()))) for index, step in enumerate(steps))
