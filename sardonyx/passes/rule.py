"""Rewrite rules: a pattern to look for, a check that may decline with a reason, and what to put in its place.

A pattern is written as nested operators over names::

    op.Where(op.Not("condition"), "yes", "no")

- A name stands for any value; the same name twice means the same value. A name that ends in ``?`` may be absent,
  one that ends in ``!`` is a constant.
- A number stands for a constant with this one element.
- A nested operator stands for a node whose result nobody else reads; the same pattern object used twice means the
  same node. The two inputs of a commutative operator match in either order.
- A nested operator that is ``shared=True`` may have other readers: its node stays for them, unless the rewrite gives
  them another value to read.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from sardonyx.graph.computed_tensor import ComputedTensor
from sardonyx.graph.constants import array_of, is_constant, tensor_of
from sardonyx.graph.types import element_type
from sardonyx.light_dataclass import dataclass
from sardonyx.ops.framework.facts import UNKNOWN, Fact, of_array
from sardonyx.passes.base import Context, Level, Pass, is_named
from sardonyx.runtime.forks import cached_property

Array = np.ndarray[Any, Any]

COMMUTATIVE = frozenset({"Add", "Mul"})

# Metadata keys of a node that a rule made: the rule, and the names of the nodes it replaced.
RULE_KEY = "sardonyx.rule"
SOURCES_KEY = "sardonyx.sources"


@dataclass(frozen=True, eq=False)
class OpPattern:
    """A node of one operator, or of one of several ("Relu|Tanh"), over operands: names, numbers or further patterns.

    The domain may be one of several as well ("|com.microsoft").
    """

    op_type: str
    operands: tuple[str | float | OpPattern, ...]
    domain: str = ""
    shared: bool = False

    @cached_property
    def op_types(self) -> frozenset[str]:
        return frozenset(self.op_type.split("|"))

    @cached_property
    def domains(self) -> frozenset[str]:
        return frozenset(self.domain.split("|"))


class _Operators:
    """`op.Add("x", "y")` is the pattern of an Add node."""

    def __getattr__(self, op_type: str) -> Callable[..., OpPattern]:
        def build(*operands: str | float | OpPattern, domain: str = "", shared: bool = False) -> OpPattern:
            return OpPattern(op_type, operands, domain, shared)

        return build


op = _Operators()


@dataclass(frozen=True)
class _Found:
    """What a pattern has been matched with so far."""

    values: Mapping[str, ir.Value | None] = field(default_factory=dict)
    nodes: Mapping[OpPattern, ir.Node] = field(default_factory=dict)


_NOTHING = _Found()


def _match_node(pattern: OpPattern, node: ir.Node, found: _Found) -> Iterator[_Found]:
    """Every way in which `node` and what it reads fit the pattern."""
    if pattern in found.nodes:
        if found.nodes[pattern] is node:
            yield found
        return
    op_type = node.op_type
    if op_type not in pattern.op_types or node.domain not in pattern.domains or node in found.nodes.values():
        return
    inputs: list[ir.Value | None] = list(node.inputs)
    if len(inputs) > len(pattern.operands):
        return
    inputs += [None] * (len(pattern.operands) - len(inputs))
    started = _Found(found.values, {**found.nodes, pattern: node})
    orders = [inputs]
    if op_type in COMMUTATIVE and len(inputs) == 2:
        orders.append(inputs[::-1])
    for order in orders:
        yield from _match_operands(pattern.operands, order, started)


def _match_operands(
    operands: Sequence[str | float | OpPattern], values: Sequence[ir.Value | None], found: _Found
) -> Iterator[_Found]:
    if not operands:
        yield found
        return
    for matched in _match_operand(operands[0], values[0], found):
        yield from _match_operands(operands[1:], values[1:], matched)


def _match_operand(operand: str | float | OpPattern, value: ir.Value | None, found: _Found) -> Iterator[_Found]:
    if isinstance(operand, OpPattern):
        producer = None if value is None else value.producer()
        if producer is not None and value is producer.outputs[0]:
            yield from _match_node(operand, producer, found)
    elif isinstance(operand, str):
        name = operand.rstrip("?!")
        if value is None and not operand.endswith("?"):
            return
        if operand.endswith("!") and not is_constant(value):
            return
        if name not in found.values:
            yield _Found({**found.values, name: value}, found.nodes)
        elif found.values[name] is value:
            yield found
    elif _is_number(value, operand):
        yield found


def _is_number(value: ir.Value | None, number: float) -> bool:
    """Whether a value is a constant of this one element, to the precision of its type."""
    if value is None or not is_constant(value):
        return False
    array = array_of(value)
    if array.size != 1 or array.dtype == object:
        return False
    tolerance = 1e-3 if array.dtype.itemsize <= 2 else 1e-6
    return abs(float(array.reshape(())) - number) <= tolerance * abs(number)


class Match:
    """A place in a graph that fits a rule's pattern."""

    def __init__(self, root: ir.Node, context: Context, found: _Found = _NOTHING) -> None:
        self.root = root
        self.context = context
        self._found = found

    def covered(self, pattern: OpPattern) -> ir.Node:
        """The node that a part of the pattern stands for."""
        return self._found.nodes[pattern]

    @property
    def parts(self) -> Iterable[tuple[OpPattern, ir.Node]]:
        """The parts of the pattern and the nodes that they cover."""
        return self._found.nodes.items()

    @property
    def nodes(self) -> tuple[ir.Node, ...]:
        """The nodes that the pattern covers, the root first."""
        return tuple(self._found.nodes.values())

    @property
    def shared_nodes(self) -> Collection[ir.Node]:
        """The covered nodes that may have other readers: they stay for these."""
        return [node for pattern, node in self.parts if pattern.shared]

    def node(self, op_type: str) -> ir.Node:
        """The covered node of an operator that occurs once in the pattern."""
        (node,) = (node for node in self.nodes if node.op_type == op_type)
        return node

    def value(self, name: str) -> ir.Value:
        """The value that a name of the pattern stands for; KeyError for one that is absent."""
        value = self._found.values[name]
        if value is None:
            raise KeyError(name)
        return value

    def optional(self, name: str) -> ir.Value | None:
        return self._found.values.get(name)

    def fact(self, name: str) -> Fact:
        """What inference knows of a value."""
        return self.context.inference.facts.get(self.value(name), UNKNOWN)

    def constant(self, name: str) -> Array | None:
        """The contents of a value that is the same in every run, else None."""
        value = self.optional(name)
        return array_of(value) if value is not None and is_constant(value) else None

    def attribute(self, node: ir.Node, name: str, default: Any = None) -> Any:
        """An attribute of a covered node."""
        attribute = node.attributes.get(name)
        return default if attribute is None else attribute.value

    def initializer(self, array: Array, suffix: str) -> ir.Value:
        """A new constant, named after the root's result."""
        graph = self.root.graph
        assert isinstance(graph, ir.Graph)
        name = self._free_name(graph, suffix)
        dtype = element_type(array.dtype)
        value = ir.Value(
            name=name,
            type=ir.TensorType(dtype),
            shape=ir.Shape(array.shape),
            const_value=tensor_of(array, dtype, name),
        )
        graph.register_initializer(value)
        self.context.inference.facts[value] = of_array(array, dtype)
        return value

    def computed(self, make: Callable[[str], ComputedTensor], suffix: str) -> ir.Value:
        """The same for a constant that is computed whenever it is read; `make` gives the one of a name."""
        graph = self.root.graph
        assert isinstance(graph, ir.Graph)
        name = self._free_name(graph, suffix)
        tensor = make(name)
        kind = ir.TensorType(tensor.dtype)
        value = ir.Value(name=name, type=kind, shape=tensor.shape, const_value=tensor)
        graph.register_initializer(value)
        self.context.inference.facts[value] = Fact(kind, tuple(tensor.shape.numpy()))
        return value

    def _free_name(self, graph: ir.Graph, suffix: str) -> str:
        name = f"{self.root.outputs[0].name}_{suffix}"
        while name in graph.initializers:
            name += "_"
        return name

    def new_node(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, Any] | None = None,
        *,
        domain: str = "",
        version: int | None = None,
        outputs: int = 1,
    ) -> ir.Node:
        """A node for the root's place; it takes the root's name."""
        opsets = self.context.model.opset_imports
        if domain not in opsets:
            opsets[domain] = version or 1
        return ir.node(
            op_type,
            inputs,
            attributes or {},
            domain=domain,
            version=version or opsets[domain],
            num_outputs=outputs,
            name=self.root.name,
        )

    def altered(self, inputs: Sequence[ir.Value | None], attributes: Mapping[str, Any] | None = None) -> Replacement:
        """The root with other inputs, those that are absent at the end left out, and some attributes changed."""
        root, read = self.root, list(inputs)
        while read and read[-1] is None:
            read.pop()
        kept = {name: attribute.value for name, attribute in root.attributes.items()}
        node = self.new_node(
            root.op_type,
            read,
            {**kept, **(attributes or {})},
            domain=root.domain,
            version=root.version,
            outputs=len(root.outputs),
        )
        values = {}
        for old, new in zip(root.outputs, node.outputs, strict=True):
            if is_named(old):
                values[old] = new
            else:
                new.name = ""
        return Replacement((node,), values)


@dataclass(frozen=True)
class Replacement:
    """What takes the place of a match when that is more than one node with one result.

    `nodes` in the order in which they run; `values` names, for each old value that has readers, the value that they
    read instead: a result of the new nodes, which takes over the name, or one that the graph has already. The nodes
    are put before `place`, which is the root unless an earlier reader needs them sooner.
    """

    nodes: Sequence[ir.Node]
    values: Mapping[ir.Value, ir.Value]
    place: ir.Node | None = None


class NearMissError(Exception):
    """Raised by a walk at a place that looks right and is not; its text is the reason."""


class Rule(abc.ABC):
    """A rewrite of one pattern.

    `check` gives the reason for leaving a match alone, or None; an empty reason says that there was nothing to do, and
    is not reported. `rewrite` gives the node that takes the root's place,
    a value that the readers of the root's result read instead, or a whole `Replacement`.
    """

    name: ClassVar[str]
    level: ClassVar[Level]
    patterns: ClassVar[tuple[OpPattern, ...]]
    optional: ClassVar[bool] = False  # whether it runs only where the settings name it

    def roots(self) -> Iterable[tuple[str, str]]:
        """The operators, as domain and name, at which a match may be found."""
        return dict.fromkeys(
            (domain, kind)
            for pattern in self.patterns
            for domain in sorted(pattern.domains)
            for kind in sorted(pattern.op_types)
        )

    def matches(self, node: ir.Node, context: Context) -> Iterator[Match]:
        """Every way in which the surroundings of a node fit the rule.

        A rule whose places vary too much for patterns walks the graph here instead: it gives a subclass of `Match`,
        nothing for a node that has nothing to do with the rule, and raises NearMissError for a near miss.
        """
        for pattern in self.patterns:
            for found in _match_node(pattern, node, _NOTHING):
                yield Match(node, context, found)

    def check(self, m: Match) -> str | None:
        return None

    @abc.abstractmethod
    def rewrite(self, m: Match) -> ir.Node | ir.Value | Replacement: ...

    def as_pass(self) -> Pass:
        return Pass(self.name, self.level, lambda context: apply_rule(self, context), self.optional)


def apply_rule(rule: Rule, context: Context) -> int:
    """Rewrite every match of a rule in the model's graphs, those with its own new nodes too; the number of rewrites."""
    roots = list(rule.roots())
    visited: set[ir.Node] = set()
    changes = 0
    while fresh := [node for node in context.index.find(roots) if node not in visited]:
        visited.update(fresh)
        changes += sum(_apply_at(rule, node, context) for node in fresh if node.graph is not None)
    return changes


def _apply_at(rule: Rule, node: ir.Node, context: Context) -> bool:
    try:
        for match in rule.matches(node, context):
            reason = _shared_reason(match) or rule.check(match)
            if reason is None:
                return _put(rule, match)
            if reason:
                context.decline(node, reason)
    except NearMissError as miss:
        context.decline(node, str(miss))
    return False


def _shared_reason(match: Match) -> str | None:
    """Why the covered nodes cannot go away: another graph holds one of them, or somebody else reads a result."""
    covered = set(match.nodes)
    for node in match.nodes:
        if node is match.root:
            continue
        if node.graph is not match.root.graph:
            return f"{node.op_type} is in another graph"
        if node in match.shared_nodes:
            continue
        for value in node.outputs:
            if value.is_graph_output() or any(use.node not in covered for use in value.uses()):
                return f"the result of {node.op_type} is read elsewhere"
    return None


def _put(rule: Rule, match: Match) -> bool:
    root = match.root
    graph = root.graph
    assert isinstance(graph, ir.Graph)
    replacement = rule.rewrite(match)
    if isinstance(replacement, ir.Value):
        replacement = Replacement((), {root.outputs[0]: replacement})
    elif isinstance(replacement, ir.Node):
        replacement = Replacement((replacement,), {root.outputs[0]: replacement.outputs[0]})
    new = {value for node in replacement.nodes for value in node.outputs}
    pairs = replacement.values.items()
    if any(old.is_graph_output() and value not in new and not may_be_output(value, graph) for old, value in pairs):
        match.context.decline(root, "an output of the graph keeps its name")
        return False
    stamp(replacement.nodes, rule.name, match.nodes[::-1])
    for old, value in replacement.values.items():
        if value in new or old.is_graph_output():
            take_over(value, old)
    for node in replacement.nodes:
        graph.insert_before(replacement.place or root, node)
        match.context.added(node)
    for old, value in replacement.values.items():
        ir.convenience.replace_all_uses_with(old, value, replace_graph_outputs=True)
    for node in _readers_first(match.nodes):
        if not any(value.uses() or value.is_graph_output() for value in node.outputs):
            graph.remove(node, safe=True)
    return True


def stamp(nodes: Sequence[ir.Node], rule: str, sources: Sequence[ir.Node]) -> None:
    """Write into new nodes the name of the rule that made them and the names of the nodes that they stand for."""
    names = [old.metadata_props.get(SOURCES_KEY) or old.name or old.op_type for old in sources]
    rules = [old.metadata_props[RULE_KEY] for old in reversed(sources) if RULE_KEY in old.metadata_props]
    for node in nodes:
        node.metadata_props[RULE_KEY] = ",".join(dict.fromkeys([*(",".join(rules).split(",") if rules else ()), rule]))
        node.metadata_props[SOURCES_KEY] = ",".join(names)


def may_be_output(value: ir.Value, graph: ir.Graph) -> bool:
    """Whether a value may take the name of an output of the graph: no input, constant, outer value or other output."""
    producer = value.producer()
    return producer is not None and producer.graph is graph and not value.is_graph_output()


def take_over(new: ir.Value, old: ir.Value) -> None:
    """Give a value the name of the one whose readers it takes, and what is known of it."""
    new.type, new.shape = old.type or new.type, new.shape if old.shape is None else old.shape
    new.name, old.name = old.name, None


def _readers_first(nodes: Sequence[ir.Node]) -> list[ir.Node]:
    """The nodes in an order in which each can be removed after those that read it."""
    left = list(nodes)
    order: list[ir.Node] = []
    while left:
        free = [node for node in left if not any(use.node in left for value in node.outputs for use in value.uses())]
        order += free
        left = [node for node in left if node not in free]
    return order
