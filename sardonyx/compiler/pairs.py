"""Pairs of groups that may run as one kernel, the second of which alone reads what the first one makes.

Whether that is faster depends on sizes. So both groups stay as they are, and binding takes the pair in place of them
where it pays.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from sardonyx.compiler.binding import Tensor
from sardonyx.compiler.fusion import Group
from sardonyx.compiler.kernels.template import Epilogue, JointKernel, Part
from sardonyx.compiler.native.rows.rows import common_shape
from sardonyx.light_dataclass import dataclass


@dataclass(frozen=True, eq=False)
class Pair:
    """`first`, led by a template or a loop, makes the first input of the template that leads `second`, and nothing
    else that is read."""

    first: Group
    second: Group
    kernel: JointKernel

    @property
    def group(self) -> Group:
        """Both as one group."""
        second = self.second
        nodes = [*self.first.nodes, *second.nodes]
        return Group(nodes, second.shape, second.values, second.anchor, second.operands, second.outputs, self.first)

    @property
    def reads(self) -> list[ir.Value | None]:
        """The values that both groups read, without the one between them."""
        return [*_reads(self.first), *_reads(self.second)[1:]]

    def parts(self, inputs: Sequence[Tensor | None]) -> tuple[Part, Part]:
        """What each kernel is given, of the values that both groups read in their order, without the one between."""
        count = len(_reads(self.first))
        return part_of(self.first, inputs[:count]), part_of(self.second, [None, *inputs[count:]])


def pairs_of(groups: Sequence[Group], outer_readers: Mapping[ir.Value, bool]) -> list[Pair]:
    """The pairs among groups of a segment; `outer_readers` tells of a value whether somebody outside reads it."""
    makers = {value: group for group in groups for value in group.outputs}
    readers = collections.Counter(value for group in groups for value in group.inputs)
    found: list[Pair] = []
    for second in groups:
        if second.anchor is None or second.anchor.native is None or not second.anchor.node.inputs:
            continue
        between = second.anchor.node.inputs[0]
        first = None if between is None else makers.get(between)
        if first is None or between is None:
            continue
        if any(first in (pair.first, pair.second) for pair in found):
            continue
        if readers[between] > 1 or outer_readers.get(between) or len(first.outputs) > 1 or not first.values:
            continue
        kernel = _joint(first, second)
        if kernel is not None:
            found.append(Pair(first, second, kernel))
    return found


def _joint(first: Group, second: Group) -> JointKernel | None:
    """The kernel of a pair, if there is one."""
    assert second.anchor is not None
    assert second.anchor.native is not None
    native, made = second.anchor.native, tuple(first.values.values())
    if first.anchor is None:
        return native.over(made)
    earlier = first.anchor.native
    return None if earlier is None else native.after(earlier, made, tuple(second.values.values()))


def part_of(group: Group, inputs: Sequence[Tensor | None]) -> Part:
    """What the template or the loop of a group is given, of the values that the group reads in their order."""
    if group.anchor is None:
        return Part(inputs)
    own = len(group.anchor.node.inputs)
    operands = tuple(tensor for tensor in inputs[own:] if tensor is not None)
    return Part(inputs[:own], Epilogue(tuple(group.values.values()), operands) if group.values else None)


def check_operands(made: Sequence[Tensor | None], given: Part) -> None:
    """ValueError where a result is combined with something that is larger."""
    operands = () if given.epilogue is None else given.epilogue.operands
    shape = made[0].shape if made[0] is not None else ()
    if common_shape([shape, *(tensor.shape for tensor in operands)]) != shape:
        raise ValueError(f"a result of the shape {shape} is combined with {[one.shape for one in operands]}")


def _reads(group: Group) -> list[ir.Value | None]:
    own = [] if group.anchor is None else group.anchor.node.inputs
    return [*own, *group.operands]
