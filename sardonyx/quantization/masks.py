"""Masks of attention: values so low that a Softmax makes zeros of them.

Eight bits cannot hold such a value and the scores beside it: with -10000 in a range the scores would be steps of 40
apart. So what holds a mask stays float.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.graph.constants import nodes_of

# No score is as low; masks are -10000, the lowest number of float16, that of float32, or minus infinity.
_LOWEST_SCORE = -5000.0
_SOFTMAX = frozenset({"Softmax", "LogSoftmax"})
# What scores and masks go through on their way.
_WAYS = frozenset(
    {
        "Add",
        "Cast",
        "Clip",
        "Concat",
        "Expand",
        "Identity",
        "Max",
        "Min",
        "Mul",
        "Reshape",
        "Slice",
        "Split",
        "Squeeze",
        "Sub",
        "Transpose",
        "Unsqueeze",
        "Where",
    }
)


def masked(graph: ir.Graph, ranges: Mapping[str, Any]) -> set[str]:
    """The names of the values with a mask in their calibrated range that a Softmax reads, in the end."""
    waiting = [node.inputs[0] for node in nodes_of(graph) if node.op_type in _SOFTMAX]
    seen: set[ir.Value | None] = {None}
    found: set[str] = set()
    while waiting:
        value = waiting.pop()
        if value in seen or value is None:
            continue
        seen.add(value)
        known = ranges.get(value.name or "")
        if known is not None and not _holds_mask(known):
            continue
        if known is not None:
            found.add(value.name or "")
        producer = value.producer()
        if producer is not None and producer.op_type in _WAYS:
            waiting.extend(producer.inputs)
    return found


def _holds_mask(known: Any) -> bool:
    try:
        low = float(np.min(known.range_value[0]))
    except (AttributeError, TypeError, ValueError):
        return False  # a range that whoever reads it refuses
    return low < _LOWEST_SCORE
