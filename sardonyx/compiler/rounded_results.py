"""Results that only products in bfloat16 read: stored in bfloat16, rounded where they are made.

Such a product rounds its left-hand side before it multiplies. Where nobody else reads that, it is rounded as it is
stored: the same numbers in half the memory, without a step that reads and writes them once more. Convolutions wait for
memory where they write many places of few products each: what is added to their sums is rounded as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from sardonyx.compiler.choice.gemm_choice import bf16_product
from sardonyx.compiler.fusion import Group
from sardonyx.compiler.llvm.target import Target
from sardonyx.kernel.expr import Input

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_FLOAT32 = np.dtype(np.float32)


def round_results(
    groups: Sequence[Group],
    dtype_of: Callable[[ir.Value], np.dtype[Any] | None],
    outer_readers: Mapping[ir.Value, bool],
    target: Target,
) -> None:
    """Round the results of groups that all of their readers round, for a session whose precision is bfloat16.

    `outer_readers` tells of a value whether somebody outside of these groups reads it. What hands elements on as they
    are reads rounded ones where its result would be rounded.
    """
    if bf16_product(target) is None:
        return
    rounded = {
        value
        for group in groups
        for value in _made(group)
        if dtype_of(value) == _FLOAT32 and not outer_readers.get(value)
    }
    while kept := rounded.intersection(value for group in groups for value in _kept(group, target, rounded)):
        rounded -= kept

    for group in groups:
        for value, expr in group.values.items():
            if value in rounded:
                group.values[value] = expr.cast(_BFLOAT16)
        if not group.values and group.anchor is not None and group.anchor.native is not None:
            group.rounded = group.anchor.native.rounds_result and group.anchor.node.outputs[0] in rounded


def _made(group: Group) -> Sequence[ir.Value]:
    """The values of a group that may be made in bfloat16."""
    if group.values:
        return list(group.values)
    native = None if group.anchor is None else group.anchor.native
    if group.anchor is None or native is None or not (native.rounds_result or native.hands_on):
        return []
    return group.anchor.node.outputs[:1]


def _kept(group: Group, target: Target, rounded: AbstractSet[ir.Value]) -> Sequence[ir.Value]:
    """The values that must not be rounded for a group's sake, where those that are `rounded` may be."""
    native = None if group.anchor is None else group.anchor.native
    if group.anchor is None or native is None:
        return group.inputs
    given = [value for value in group.anchor.node.inputs if value is not None]
    if native.hands_on and all(isinstance(expr, Input) for expr in group.values.values()):
        # What is handed on is rounded before or after that: all of it, or nothing.
        every = [*given, *group.outputs]
        return group.operands if rounded >= set(every) else every if not group.values else group.inputs
    rounds = native.rounds(target)
    read = [value for place, value in enumerate(group.anchor.node.inputs) if place not in rounds]
    operands = () if native.rounds_operands(target) else group.operands
    return [value for value in (*read, *operands) if value is not None]
