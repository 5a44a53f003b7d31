"""Optional values: Optional, OptionalHasElement, OptionalGetElement. An absent value is None, a present one itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.ops.framework.facts import UNKNOWN, Fact, tensor
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import Operator, Value, operator


@operator("Optional", since=15)
class Optional(Operator):
    """The input as an optional value; without an input, an absent one of the type that the attribute states."""

    host_reason = "it moves no data"
    type: Any = None

    def run(self, value: Value = None) -> Sequence[Value]:
        return (value,)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        given = inputs[0] if inputs else None
        if given is None:
            kind = getattr(self.type, "type", None)
            return [Fact(None if kind is None else ir.OptionalType(kind), None)]
        return [Fact(None if given.type is None else ir.OptionalType(given.type), given.shape)]


@operator("OptionalHasElement", since=15)
class OptionalHasElement(Operator):
    """Whether the value is present."""

    host_reason = "it moves no data"

    def run(self, value: Value = None) -> Sequence[Value]:
        return (np.array(value is not None),)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        return [tensor(ir.DataType.BOOL, ())]


@operator("OptionalGetElement", since=15)
class OptionalGetElement(Operator):
    """The value that is present; an error where it is absent."""

    host_reason = "it moves no data"

    def run(self, value: Value = None) -> Sequence[Value]:
        if value is None:
            raise ValueError("the optional value is absent: guard OptionalGetElement with OptionalHasElement")
        return (value,)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        given = inputs[0] or UNKNOWN
        kind = given.type.elem_type if isinstance(given.type, ir.OptionalType) else given.type
        return [Fact(kind, given.shape)]
