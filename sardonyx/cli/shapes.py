"""What commands need to know of a model's values before it runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import onnx_ir as ir

from sardonyx.cli.model_inputs import Sizes
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.framework.inference import Inference, infer_model


def infer(model: ir.Model, dims: Mapping[str, int] | None = None) -> Inference:
    """Types and shapes of all values; with `dims`, every symbolic dimension of the inputs is a number (default 1)."""
    facts = None
    if dims is not None:
        sizes = Sizes(list(model.graph.inputs), dims)
        facts = [Fact(value.type, None if value.shape is None else sizes.shape(value)) for value in model.graph.inputs]
    return infer_model(model, facts)


def listed_shape(dims: Iterable[Any]) -> str:
    """A shape as people write it: ``batch x 3 x 224``."""
    return " x ".join(str(dim) for dim in dims) or "scalar"
