"""Several reductions of one tensor over the same axes, which share one pass over its elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from sardonyx import errors
from sardonyx.kernel.evaluate import working_dtype
from sardonyx.kernel.expr import Input
from sardonyx.kernel.program import Arrangement, Host, Kernel
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import OWN_DOMAIN, Array, Cost, Operator, Value, describe, operator
from sardonyx.ops.reduction import (
    ReduceL1,
    ReduceL2,
    ReduceMax,
    ReduceMin,
    ReduceSum,
    ReduceSumSquare,
    Reduction,
)
from sardonyx.ops.row_kernels import Contents, Shapes, is_computable, not_computable, rows_template

# Those that go over a row once.
JOINABLE: dict[str, type[Reduction]] = {
    cls.__name__: cls for cls in (ReduceL1, ReduceL2, ReduceMax, ReduceMin, ReduceSum, ReduceSumSquare)
}


@operator("Reductions", domain=OWN_DOMAIN)
class Reductions(Operator):
    """Result number i is that of ONNX's reduction `kinds[i]`, with the reduced dimensions as ones if `kept[i]`.

    The data, the axes (an attribute or the second input) and `noop_with_empty_axes` are as there.
    """

    inputs: ClassVar[str] = "data, axes?"
    outputs: ClassVar[str] = "reduced*"
    host_reason: ClassVar[str] = "a reduction"
    kinds: tuple[str, ...]
    kept: tuple[int, ...]
    axes: tuple[int, ...] | None = None
    noop_with_empty_axes: int = 0

    def __init__(self, node: ir.Node, version: int) -> None:
        super().__init__(node, version)
        counts = {len(self.kinds), len(self.kept), len(node.outputs)}
        if len(counts) > 1 or not JOINABLE.keys() >= set(self.kinds):
            raise errors.InvalidGraph(
                f"This is an invalid model. In Node, {describe(node)}, Error each output needs one of "
                f"{', '.join(JOINABLE)} in 'kinds' and a number in 'kept'; there are {len(node.outputs)} outputs, "
                f"the kinds {list(self.kinds)} and {len(self.kept)} numbers."
            )
        self._parts = [JOINABLE[kind](node, version) for kind in self.kinds]
        for part, kept in zip(self._parts, self.kept, strict=True):
            part.keepdims = kept

    def may_differ(self, inputs: Sequence[Fact | None]) -> bool:
        return False

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        x = inputs[0]
        if x is None or not is_computable(x):
            return Host(self.run, not_computable([x]))
        known = (1,) if len(inputs) > 1 and inputs[1] is not None else ()
        element = Input(x, 0).cast(working_dtype(x))
        results = [part.of_row(element).cast(x) for part in self._parts]
        return rows_template([x], results, self._arranged, self.run, known)

    def _arranged(self, shapes: Shapes, contents: Contents) -> Arrangement:
        each = [part.arranged(shapes, contents) for part in self._parts]
        return Arrangement(each[0].inputs, each[0].axes, tuple(one.outputs[0] for one in each))

    def run(self, x: Array, axes: Array | None = None) -> Sequence[Value]:
        return [result for part in self._parts for result in part.run(x, axes)]

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        return [fact for part in self._parts for fact in part.infer(inputs, inference)]

    def cost(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact]) -> Cost:
        one = self._parts[0].cost(inputs, outputs)
        return Cost(None if one.flops is None else len(self._parts) * one.flops, one.bytes)
