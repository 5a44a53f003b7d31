"""A provider as a third party writes one: it takes Add and Mul of float tensors and runs each partition as one step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.compiler.planner import Compilation
from sardonyx.graph.partition import Claims, Partition
from sardonyx.ops.framework.inference import Inference
from sardonyx.providers.base import ExecutionProvider
from sardonyx.providers.options import option
from sardonyx.runtime.context import RunContext
from sardonyx.runtime.plan import Step

_FUNCTIONS = {"Add": np.add, "Mul": np.multiply}


@dataclass(frozen=True)
class Options:
    """What a caller may set."""

    scale: float = option(1.0, "Factor for every result.", minimum=0.5, maximum=4)
    device_id: int = option(0, "Which unit to use.", minimum=0)
    verbose: bool = option(False, "Say more.")
    mode: str = option("fast", "Arithmetic.", choices=("fast", "exact"))


class FusedArithmetic(ExecutionProvider):
    """Takes Add and Mul of float tensors."""

    name = "FusedArithmeticExecutionProvider"
    options_type = Options

    def claim(self, graph: ir.Graph, inference: Inference) -> Claims:
        taken: dict[ir.Node, str] = {}
        declined: dict[ir.Node, str] = {}
        for node in graph:
            fact = inference.fact(node.outputs[0])
            if node.op_type not in _FUNCTIONS:
                declined[node] = f"{node.op_type} is no arithmetic of two operands"
            elif fact is None or fact.dtype != ir.DataType.FLOAT:
                declined[node] = "only float tensors are taken"
            else:
                taken[node] = "arithmetic of two float tensors"
        return Claims(taken, declined)

    def compile(self, partition: Partition, compilation: Compilation) -> list[Step]:
        inputs, outputs = partition.inputs(), partition.outputs()
        scale = np.float32(self.options.scale)

        def call(context: RunContext, values: Sequence[Any]) -> Sequence[Any]:
            known = dict(zip(inputs, values, strict=True))
            for node in partition.nodes:
                first, second = (known[value] for value in node.inputs if value is not None)
                known[node.outputs[0]] = _FUNCTIONS[node.op_type](first, second) * scale
            return [known[value] for value in outputs]

        first = partition.nodes[0]
        return [
            Step(
                name=f"fused_{'_'.join(node.op_type for node in partition.nodes)}_{compilation.node_index(first)}",
                op_type="FusedArithmetic",
                provider=self.name,
                kind="kernel",
                inputs=compilation.slots(inputs),
                outputs=compilation.slots(outputs),
                call=call,
                node_index=compilation.node_index(first),
            )
        ]


class Absent(FusedArithmetic):
    """A provider that never can run."""

    name = "AbsentExecutionProvider"

    @classmethod
    def is_available(cls) -> str | None:
        return "its hardware is not in this machine"
