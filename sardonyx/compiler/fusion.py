"""Which native nodes share a kernel.

Nodes are taken in order. A pointwise node joins the group that makes one of its inputs where both go over the same
elements and nothing outside lies between them: a loop (pointwise nodes, with at most one set of reductions) or a
template that takes an epilogue. Everything else starts a group of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.compiler.lowering import Lowered
from sardonyx.kernel.expr import Apply, Expr, Input, substitute, walk
from sardonyx.kernel.program import Pointwise
from sardonyx.light_dataclass import dataclass
from sardonyx.ops.framework.facts import Dims

# A kernel with more operations or operands than this gains nothing from growing. Single numbers, such as the scales of
# quantised values, are no memory that is gone through.
MOST_OPERATIONS = 96
MOST_OPERANDS = 12
MOST_NUMBERS = 32
MOST_EPILOGUE_OUTPUTS = 2


@dataclass(eq=False)
class Group:
    """Nodes that run as one kernel.

    `values` gives, for each value that the group computes pointwise, its expression; the result of `anchor`, the
    template that leads the group, is an `Input` there. Once grouping is over, `Input(i)` stands for `operands[i]` in
    a loop, and in a template for the result (0) or `operands[i - 1]`. A kernel of two templates is led by the second
    one, and `before` is the group of the first.
    """

    nodes: list[Lowered]
    shape: Dims | None
    values: dict[ir.Value, Expr] = field(default_factory=dict)
    anchor: Lowered | None = None
    operands: list[ir.Value] = field(default_factory=list)
    outputs: list[ir.Value] = field(default_factory=list)  # those that somebody outside reads
    before: Group | None = None
    rounded: bool = False  # whether the first output of a template without an epilogue is stored in bfloat16

    @property
    def takes_pointwise(self) -> bool:
        if self.shape is None:
            return False
        return bool(self.values)

    @property
    def result(self) -> ir.Value | None:
        """The value that the anchor itself computes."""
        return None if self.anchor is None else self.anchor.node.outputs[0]

    @property
    def inputs(self) -> list[ir.Value]:
        """What the group reads, in the order in which its kernel takes it."""
        own = [] if self.anchor is None else _given(self.anchor)
        return [*own, *self.operands]


@dataclass(slots=True)
class _Extent:
    """How large the kernel of a group is: its operations, and the values that it reads from outside."""

    operations: int
    reads: set[ir.Value]


Shapes = Callable[[ir.Value], Dims | None]
DTypes = Callable[[ir.Value], np.dtype[Any] | None]


def fuse(
    items: Sequence[Lowered],
    shape_of: Shapes,
    dtype_of: DTypes,
    outer_readers: Mapping[ir.Value, bool],
    *,
    joins: bool = True,
) -> list[Group]:
    """Groups of native nodes (views and known nodes are groups of their own), in an order in which they can run.

    `outer_readers` tells of a value whether somebody outside of `items` reads it. Unless it `joins` nodes, each is a
    group of its own.
    """
    return _Fusion(items, shape_of, dtype_of, outer_readers, joins).run()


class _Fusion:
    def __init__(
        self, items: Sequence[Lowered], shape_of: Shapes, dtype_of: DTypes, outer: Mapping[ir.Value, bool], joins: bool
    ) -> None:
        self.items = _read_ones(items, outer)
        self.joins = joins
        self.shape_of = shape_of
        self.dtype_of = dtype_of
        self.outer = outer
        self.groups: list[Group] = []
        self.extents: dict[Group, _Extent] = {}  # of the groups that take pointwise nodes
        self.maker: dict[ir.Value, Group] = {}
        self.readers: dict[ir.Value, list[Lowered]] = {}
        self.numbers: dict[ir.Value, int] = {}  # while groups grow, Input(n) stands for the value number n
        self.leaves: list[ir.Value] = []
        for item in self.items:
            for value in _given(item):
                self.readers.setdefault(value, []).append(item)

    def run(self) -> list[Group]:
        for item in self.items:
            is_loop = isinstance(item.kernel, Pointwise) and item.role == "native"
            group = self._joined(item) if is_loop and self.joins else None
            if group is None:
                group = self._started(item)
                self.groups.append(group)
            for value in item.node.outputs:
                if value.name != "":
                    self.maker[value] = group
        for group in self.groups:
            made = {value for item in group.nodes for value in item.node.outputs if value.name != ""}
            order = list(group.values) if group.values else list(group.nodes[0].node.outputs)
            group.outputs = [value for value in order if value in made and self._is_read_outside(value, group.nodes)]
            if group.values:
                self._number(group)
        return self._in_order()

    def _leaf(self, value: ir.Value, dtype: np.dtype[Any]) -> Expr:
        if value not in self.numbers:
            self.numbers[value] = len(self.leaves)
            self.leaves.append(value)
        return Input(dtype, self.numbers[value])

    def _number(self, group: Group) -> None:
        """Give the group its operands and renumber the leaves of its expressions."""
        exprs = [group.values[value] for value in group.outputs]
        read = dict.fromkeys(self.leaves[expr.index] for expr in walk(exprs) if isinstance(expr, Input))
        group.operands = [value for value in read if value is not group.result]
        first = 0 if group.anchor is None else 1
        place = {value: first + index for index, value in enumerate(group.operands)}
        if group.result is not None:
            place[group.result] = 0
        renumbered = substitute(exprs, lambda leaf: Input(leaf.dtype, place[self.leaves[leaf.index]]))
        group.values = dict(zip(group.outputs, renumbered, strict=True))

    def _started(self, item: Lowered) -> Group:
        """A group with this node alone."""
        first = item.node.outputs[0]
        shape = self.shape_of(first) if first.name != "" else None
        if item.role == "native" and isinstance(item.kernel, Pointwise):
            group = Group([item], shape, self._expressions(item, {}))
            self.extents[group] = _extent(item)
            return group
        group = Group([item], shape, anchor=item)
        named = [value for value in item.node.outputs if value.name != ""]
        if item.native is not None and item.native.takes_epilogue and named == [first]:
            dtype = self.dtype_of(first)
            if dtype is not None:
                group.values = {first: self._leaf(first, dtype)}
                self.extents[group] = _Extent(0, set())
        return group

    def _expressions(self, item: Lowered, inside: Mapping[ir.Value, Expr]) -> dict[ir.Value, Expr]:
        """What a pointwise node computes, over leaves and over the expressions of values that are `inside`."""
        assert isinstance(item.kernel, Pointwise)
        given = _given(item)

        def replaced(leaf: Input) -> Expr:
            value = given[leaf.index]
            return inside[value] if value in inside else self._leaf(value, leaf.dtype)

        exprs = substitute(item.kernel.outputs, replaced)
        return {value: expr for value, expr in zip(item.node.outputs, exprs, strict=False) if value.name != ""}

    def _joined(self, item: Lowered) -> Group | None:
        """The group that takes this pointwise node in, after the merge; None where none does."""
        shape = self.shape_of(item.node.outputs[0])
        if shape is None:
            return None
        makers = dict.fromkeys(self.maker[value] for value in _given(item) if value in self.maker)
        fitting = [one for one in makers if one.takes_pointwise and one.shape is not None and _same(one.shape, shape)]
        # A template's epilogue is the better place: its result need not be read again. Of several, the last one.
        fitting.sort(key=lambda group: (group.anchor is not None, self.groups.index(group)), reverse=True)
        added = _extent(item)
        for group in fitting:
            extent = self._extended(group, added)
            if self._is_small(extent) and self._can_take(group, item):
                group.values.update(self._expressions(item, group.values))
                group.nodes.append(item)
                self.extents[group] = extent
                if group.anchor is None:
                    for other in fitting:
                        if other is not group and other.anchor is None and self._can_merge(group, other):
                            self._merge(group, other)
                return group
        return None

    def _is_small(self, extent: _Extent) -> bool:
        numbers = sum(self.shape_of(value) == () for value in extent.reads)
        few = len(extent.reads) - numbers <= MOST_OPERANDS and numbers <= MOST_NUMBERS
        return extent.operations <= MOST_OPERATIONS and few

    def _extended(self, group: Group, added: _Extent) -> _Extent:
        """The extent of a group with one more node."""
        own = self.extents[group]
        read = {value for value in added.reads if value not in group.values}
        return _Extent(own.operations + added.operations, own.reads | read)

    def _can_take(self, group: Group, item: Lowered) -> bool:
        if group.anchor is not None:
            still_read = [value for value in group.values if self._is_read_outside(value, [*group.nodes, item])]
            if len(still_read) + 1 > MOST_EPILOGUE_OUTPUTS:
                return False
        others = [value for value in _given(item) if value not in group.values]
        return not any(self._depends(self.maker.get(value), group) for value in others)

    def _is_read_outside(self, value: ir.Value, inside: Sequence[Lowered]) -> bool:
        return bool(self.outer.get(value)) or any(reader not in inside for reader in self.readers.get(value, ()))

    def _depends(self, start: Group | None, wanted: Group) -> bool:
        """Whether `start` needs, directly or not, something that `wanted` makes."""
        seen: set[Group] = set()
        stack = [start] if start is not None else []
        while stack:
            group = stack.pop()
            if group is wanted:
                return True
            if group not in seen:
                seen.add(group)
                stack.extend(self._feeding(group))
        return False

    def _feeding(self, group: Group) -> list[Group]:
        """The groups that a group reads from."""
        read = dict.fromkeys(value for item in group.nodes for value in _given(item))
        makers = dict.fromkeys(self.maker[value] for value in read if value in self.maker)
        return [maker for maker in makers if maker is not group]

    def _can_merge(self, group: Group, other: Group) -> bool:
        """Whether the loop `other`, which feeds the loop `group`, can be computed inside it."""
        first, second = self.extents[group], self.extents[other]
        if not self._is_small(_Extent(first.operations + second.operations, first.reads | second.reads)):
            return False
        between = [one for one in self._feeding(group) if one is not other]
        return not any(self._depends(one, other) for one in between) and not self._depends(other, group)

    def _merge(self, group: Group, other: Group) -> None:
        """Move everything of the loop `other` into the loop `group`."""

        def replaced(leaf: Input) -> Expr:
            return other.values.get(self.leaves[leaf.index], leaf)

        own = dict(zip(group.values, substitute(list(group.values.values()), replaced), strict=True))
        first, second = self.extents[group], self.extents.pop(other)
        reads = {value for value in first.reads if value not in other.values} | second.reads
        self.extents[group] = _Extent(first.operations + second.operations, reads)
        group.values = {**other.values, **own}
        group.nodes = [*other.nodes, *group.nodes]
        for value in other.values:
            self.maker[value] = group
        self.groups.remove(other)

    def _in_order(self) -> list[Group]:
        """The groups, each after those that it reads from; as near to the nodes' order as possible."""
        done: set[Group] = set()
        order: list[Group] = []
        for start in self.groups:
            stack = [start]
            while stack:
                group = stack[-1]
                if group in done:
                    stack.pop()
                    continue
                waiting = [one for one in self._feeding(group) if one not in done]
                if waiting:
                    stack.extend(waiting)
                else:
                    stack.pop()
                    done.add(group)
                    order.append(group)
        return order


def _extent(item: Lowered) -> _Extent:
    """The extent of a pointwise node by itself."""
    assert isinstance(item.kernel, Pointwise)
    named = zip(item.node.outputs, item.kernel.outputs, strict=False)
    found = walk([expr for value, expr in named if value.name != ""])
    given = _given(item)
    reads = {given[expr.index] for expr in found if isinstance(expr, Input)}
    return _Extent(sum(isinstance(expr, Apply) for expr in found), reads)


def _same(a: Dims, b: Dims) -> bool:
    """Whether two shapes are equal whatever the symbols are."""
    return len(a) == len(b) and all(_same_dim(one, other) for one, other in zip(a, b, strict=True))


def _same_dim(a: object, b: object) -> bool:
    if isinstance(a, int) or isinstance(b, int):
        return a == b
    value, other = getattr(a, "value", None), getattr(b, "value", None)
    return value is not None and value == other


def _read_ones(items: Sequence[Lowered], outer: Mapping[ir.Value, bool]) -> list[Lowered]:
    """The items without native nodes whose results nobody reads: models may have such, and no pass need remove them."""
    read: set[ir.Value] = set()
    kept: list[Lowered] = []
    for item in reversed(items):
        if item.role != "native" or any(outer.get(value) or value in read for value in item.node.outputs):
            kept.append(item)
            read.update(_given(item))
    return kept[::-1]


def _given(item: Lowered) -> list[ir.Value]:
    """The inputs that a node has."""
    return [value for value in item.node.inputs if _is_given(value)]  # type: ignore[misc]


def _is_given(value: ir.Value | None) -> bool:
    return value is not None and value.name != ""
