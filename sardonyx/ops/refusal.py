"""A node that refuses to run: it stands for nodes that sizes have broken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import OWN_DOMAIN, Operator, Value, operator
from sardonyx.runtime.executor import RefusedError


@operator("Refusal", domain=OWN_DOMAIN)
class Refusal(Operator):
    """Raises `RefusedError` with its `message`. Its outputs are what the model declares."""

    inputs: ClassVar[str] = ""
    outputs: ClassVar[str] = "outputs*"
    host_reason: ClassVar[str] = "it ends the run with an error"
    message: str

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        return []

    def run(self, *inputs: Value) -> Sequence[Value]:
        raise RefusedError(self.message)
