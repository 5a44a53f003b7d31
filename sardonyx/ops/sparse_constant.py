"""A constant that stays a sparse tensor, because the model declares it as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import onnx_ir as ir

from sardonyx.graph.sparse_constants import DOMAIN
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import Operator, Value, operator
from sardonyx.runtime.sparse_value import SparseValue


@operator("SparseConstant", domain=DOMAIN)
class SparseConstant(Operator):
    """`values` [n] at `places` [n] of a tensor of `shape`, in row order."""

    inputs: ClassVar[str] = ""
    outputs: ClassVar[str] = "output"
    host_reason: ClassVar[str] = "a sparse tensor is a Python object"
    values: ir.TensorProtocol
    places: ir.TensorProtocol
    shape: tuple[int, ...]

    def may_differ(self, inputs: Sequence[Fact | None]) -> bool:
        return False

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        return [Fact(ir.SparseTensorType(self.values.dtype), self.shape)]

    def run(self, *inputs: Value) -> Sequence[Value]:
        return (SparseValue(self.shape, self.values.numpy(), self.places.numpy()),)
