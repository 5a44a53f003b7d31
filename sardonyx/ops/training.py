"""Gradient of ai.onnx.preview.training: the derivative of one value of the enclosing graph by others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from sardonyx import errors
from sardonyx.light_dataclass import dataclass
from sardonyx.ops.constant import array_of
from sardonyx.ops.framework.facts import UNKNOWN, Fact
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import Array, Operator, Value, attribute_value, operator
from sardonyx.ops.framework.registry import operator_of
from sardonyx.ops.training_rules import RULES

_KEPT = "sardonyx.gradient"


@dataclass(frozen=True)
class Recording:
    """The part of a graph between the bound values and the one to differentiate, apart from the graph itself."""

    nodes: tuple[ir.Node, ...]  # in execution order, over values of their own, found by name
    constants: Mapping[str, Array]


@operator("Gradient", domain="ai.onnx.preview.training")
class Gradient(Operator):
    """dy/dx for each of `xs`: reverse-mode differentiation of the nodes that lead from `xs` and `zs` to `y`.

    The inputs are the values of `xs` and then of `zs`. The nodes are recorded when the operator is first made, so
    that rewrites of the graph do not change what is differentiated.
    """

    host_reason = "reverse-mode differentiation of a part of the graph"
    xs: tuple[str, ...]
    y: str
    zs: tuple[str, ...] = ()

    def __init__(self, node: ir.Node, version: int) -> None:
        super().__init__(node, version)
        if len(node.inputs) != len(self.xs) + len(self.zs):
            raise ValueError(f"Gradient has {len(node.inputs)} inputs for {len(self.xs)} xs and {len(self.zs)} zs")
        if _KEPT not in node.meta:
            node.meta[_KEPT] = record(node, {*self.xs, *self.zs}, self.y)
        self.recording: Recording = node.meta[_KEPT]

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        facts = [fact or UNKNOWN for fact in inputs[: len(self.xs)]]
        return [Fact(fact.type, fact.shape) for fact in facts]

    def run(self, *inputs: Value) -> Sequence[Value]:
        values: dict[str, Array] = {**self.recording.constants}
        values.update(zip((*self.xs, *self.zs), inputs, strict=True))
        for node in self.recording.nodes:
            arguments = [None if value is None else values[value.name or ""] for value in node.inputs]
            outputs = operator_of(node).run(*arguments)
            values.update((value.name or "", item) for value, item in zip(node.outputs, outputs, strict=False))
        result = values[self.y]
        adjoints: dict[str, Array] = {self.y: np.ones(result.shape, result.dtype)}
        for node in reversed(self.recording.nodes):
            self._propagate(node, values, adjoints)
        return [adjoints.get(name, np.zeros_like(values[name])) for name in self.xs]

    def _propagate(self, node: ir.Node, values: Mapping[str, Array], adjoints: dict[str, Array]) -> None:
        """Add what a node's output contributes to the adjoints of its inputs."""
        upstream = adjoints.get(node.outputs[0].name or "")
        if upstream is None:
            return
        names = ["" if value is None else value.name or "" for value in node.inputs]
        arguments = [values[name] if name else None for name in names]
        attributes = {name: attribute_value(attribute) for name, attribute in node.attributes.items()}
        found = RULES[node.op_type](upstream, arguments, values[node.outputs[0].name or ""], attributes)
        for name, part in zip(names, found, strict=False):
            if name and part is not None:
                part = np.asarray(part).astype(values[name].dtype, copy=False)
                adjoints[name] = adjoints[name] + part if name in adjoints else part


def record(gradient: ir.Node, bound: set[str], target: str) -> Recording:
    """The nodes that lead from the bound names to `target`; a typed error names what cannot be differentiated."""
    graph = gradient.graph
    producers = {value.name: node for node in graph or () for value in node.outputs}
    initializers = {} if graph is None else {value.name: value for value in graph.initializers.values()}
    needed: dict[ir.Node, None] = {}
    constants: dict[str, Array] = {}
    pending = [target]
    while pending:
        name = pending.pop()
        if name in bound or name in constants:
            continue
        node = producers.get(name)
        if node is not None:
            if node not in needed:
                needed[node] = None
                pending.extend(value.name or "" for value in node.inputs if value is not None and value.name)
        elif name in initializers and (held := initializers[name].const_value) is not None:
            constants[name] = array_of(held)
        else:
            raise errors.InvalidGraph(
                f"Gradient of '{target}' needs the value of '{name}', which is neither computed from "
                f"{sorted(bound)} nor constant; add it to zs"
            )
    order = [node for node in graph or () if node in needed]
    for node in order:
        if node.op_type != "Constant" and (node.domain != "" or node.op_type not in RULES):
            raise errors.NotImplemented(
                f"Gradient of '{target}' goes through {node.op_type} ('{node.name}'), which has no derivative here"
            )
    return Recording(
        tuple(_detached(node) for node in order if node.op_type != "Constant"),
        {
            **constants,
            **{node.outputs[0].name or "": operator_of(node).run()[0] for node in order if node.op_type == "Constant"},
        },
    )


def _detached(node: ir.Node) -> ir.Node:
    """A copy of a node over values of its own."""
    return ir.Node(
        node.domain,
        node.op_type,
        [None if value is None else ir.Value(name=value.name) for value in node.inputs],
        list(node.attributes.values()),
        outputs=[ir.Value(name=value.name) for value in node.outputs],
        version=node.version,
        name=node.name,
    )
