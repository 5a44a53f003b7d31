"""The work of a model's nodes, by which a search weighs what leaving one in float costs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import onnx_ir as ir

from sardonyx.ops.framework.facts import UNKNOWN
from sardonyx.ops.framework.inference import infer_model
from sardonyx.quantization.search.comparison import Feeds
from sardonyx.quantization.search.recipe import named_model


def work_of(model: Path, feeds: Feeds, names: Collection[str]) -> Mapping[str, float]:
    """Operations of each of these nodes of the main graph for inputs of these sizes, in the order of the graph.

    A node whose operations are not known counts 1.
    """
    loaded = named_model(model).model
    by_name = {value.name: value for value in loaded.graph.inputs}
    for name, array in feeds.items():
        if name in by_name:
            by_name[name].shape = ir.Shape(array.shape)
    inference = infer_model(loaded, lenient=True)
    work: dict[str, float] = {}
    for node in loaded.graph:
        if (node.name or "") not in names:
            continue
        outputs = [inference.facts.get(value, UNKNOWN) for value in node.outputs]
        flops = inference.operator(node).cost([inference.fact(value) for value in node.inputs], outputs).flops
        work[node.name or ""] = max(float(flops), 1.0) if isinstance(flops, int | float) else 1.0
    return work
