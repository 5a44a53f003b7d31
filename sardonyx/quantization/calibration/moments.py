"""Means and standard deviations of tensors, which the model itself adds up.

They say how strong a signal is, beside which the rounding to a few bits is noise (`sardonyx.quantization.signal`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, ValueInfoProto, helper

from sardonyx.quantization.calibration import tensors

Array = np.ndarray[Any, Any]

_SUM, _SQUARES, _SIZE = "ReduceSum", "ReduceSumSquare", "Size"


def nodes_of(name: str, info: ValueInfoProto) -> tuple[list[NodeProto], list[ValueInfoProto]]:
    """The nodes that add up the elements of a tensor and their squares, as float32, and count them; and the outputs for
    that: ``<tensor>_ReduceSum``, ``<tensor>_ReduceSumSquare`` and ``<tensor>_Size``."""
    nodes: list[NodeProto] = []
    source = name
    if tensors.element_type(info) == TensorProto.FLOAT16:  # which holds no sum of many squares
        source = f"{name}_Wide"
        nodes.append(helper.make_node("Cast", [name], [source], name=source, to=TensorProto.FLOAT))
    outputs: list[ValueInfoProto] = []
    for kind in (_SUM, _SQUARES, _SIZE):
        result = f"{name}_{kind}"
        attributes = {} if kind == _SIZE else {"keepdims": 0}
        nodes.append(helper.make_node(kind, [source], [result], name=result, **attributes))
        dtype = TensorProto.INT64 if kind == _SIZE else TensorProto.FLOAT
        outputs.append(helper.make_tensor_value_info(result, dtype, []))
    return nodes, outputs


class Moments:
    """The sums of all samples, in float64: of the elements of some tensors, of their squares, and their numbers."""

    def __init__(self, names: Sequence[str]) -> None:
        self._places = {name: place for place, name in enumerate(names)}
        self.sums: Array = np.zeros((3, len(names)))

    def add(self, outputs: Mapping[str, Array]) -> None:
        """Add one sample, by the outputs of `nodes_of`."""
        for row, kind in enumerate((_SUM, _SQUARES, _SIZE)):
            for name, place in self._places.items():
                self.sums[row, place] += float(outputs[f"{name}_{kind}"])

    def mean_and_deviation(self, name: str) -> tuple[float, float] | None:
        """Of a tensor; None where it was not added up, had no elements, or squares beyond float32."""
        place = self._places.get(name)
        if place is None:
            return None
        total, squares, count = self.sums[:, place]
        if not count or not np.isfinite(squares):
            return None
        mean = total / count
        return float(mean), float(np.sqrt(max(squares / count - mean**2, 0.0)))
