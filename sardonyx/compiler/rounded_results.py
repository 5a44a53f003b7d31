"""Results that only products in bfloat16 read: stored in bfloat16, rounded where they are made.

Such a product rounds its left-hand side before it multiplies. Where nobody else reads that, it is rounded as it is
stored: the same numbers in half the memory, without a step that reads and writes them once more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from sardonyx.compiler.fusion import Group
from sardonyx.compiler.gemm_choice import bf16_product
from sardonyx.compiler.llvm.target import Target

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_FLOAT32 = np.dtype(np.float32)


def round_results(
    groups: Sequence[Group],
    dtype_of: Callable[[ir.Value], np.dtype[Any] | None],
    outer_readers: Mapping[ir.Value, bool],
    target: Target,
) -> None:
    """Round the results of groups that all of their readers round, for a session whose precision is bfloat16.

    `outer_readers` tells of a value whether somebody outside of these groups reads it.
    """
    if bf16_product(target) is None:
        return
    kept = {value for group in groups for value in _read_as_they_are(group, target)}

    def is_rounded(value: ir.Value) -> bool:
        return dtype_of(value) == _FLOAT32 and value not in kept and not outer_readers.get(value)

    for group in groups:
        for value, expr in group.values.items():
            if is_rounded(value):
                group.values[value] = expr.cast(_BFLOAT16)
        if not group.values and group.anchor is not None and group.anchor.native is not None:
            group.rounded = group.anchor.native.rounds_result and is_rounded(group.anchor.node.outputs[0])


def _read_as_they_are(group: Group, target: Target) -> list[ir.Value]:
    """The values that a group reads without rounding them first."""
    if group.anchor is None or group.anchor.native is None:
        return group.inputs
    rounds = group.anchor.native.rounds(target)
    given = [value for place, value in enumerate(group.anchor.node.inputs) if place not in rounds]
    return [value for value in (*given, *group.operands) if value is not None]
