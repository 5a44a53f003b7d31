"""The step of a node that runs by itself, through NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from sardonyx.light_dataclass import dataclass
from sardonyx.ops.framework.inference import Inference
from sardonyx.runtime.context import RunContext
from sardonyx.runtime.plan import StepCall


@dataclass(frozen=True, eq=False, slots=True)
class NodeCall:
    """What runs, and the node that it was made of, with what inference knows of its values."""

    function: StepCall
    node: ir.Node
    inference: Inference

    def __call__(self, context: RunContext, inputs: Sequence[Any]) -> Sequence[Any]:
        return self.function(context, inputs)
