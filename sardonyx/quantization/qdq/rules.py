"""The rule of each operator, and the whole way from a job to a model with pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx_ir as ir

from sardonyx.quantization.job import Job
from sardonyx.quantization.qdq import clamp, layout
from sardonyx.quantization.qdq.convolution import convolution
from sardonyx.quantization.qdq.gather import gather
from sardonyx.quantization.qdq.insertion import Insertion
from sardonyx.quantization.qdq.matmul import gemm, matmul
from sardonyx.quantization.qdq.normalization import normalization
from sardonyx.quantization.qdq.other import everything
from sardonyx.quantization.qdq.plan import Plan
from sardonyx.quantization.qdq.stored import Stored
from sardonyx.quantization.qdq.where import where
from sardonyx.quantization.ranges import Ranges
from sardonyx.quantization.weights import Weights

# A rule notes in the plan what is stored quantised, or says why a node is left as it is.
Rule = Callable[[Plan, ir.Node], str | None]

RULES: Mapping[str, Rule | Callable[[Plan, ir.Node], None]] = {
    "AveragePool": layout.same_numbers,
    "BatchNormalization": normalization,
    "Clip": clamp.clamp,
    "Conv": convolution,
    "ConvTranspose": convolution,
    "CumSum": everything,
    "Flatten": layout.same_numbers,
    "Gather": gather,
    "GatherElements": gather,
    "Gemm": gemm,
    "InstanceNormalization": normalization,
    "LayerNormalization": normalization,
    "MatMul": matmul,
    "MaxPool": layout.max_pool,
    "Pad": layout.pad,
    "Relu": clamp.clamp,
    "Reshape": layout.same_numbers,
    "Resize": layout.resize,
    "Slice": layout.same_numbers,
    "Split": layout.split,
    "Squeeze": layout.same_numbers,
    "TopK": layout.same_numbers,
    "Transpose": layout.same_numbers,
    "Unsqueeze": layout.same_numbers,
    "Where": where,
}


def quantize(job: Job) -> None:
    """Bring the model of a job into the QDQ format."""
    plan, ranges, weights = Plan(job), Ranges(job), Weights(job)
    taken = []
    for node in job.nodes():
        reason = RULES.get(node.op_type, everything)(plan, node)
        if reason is None:
            taken.append(node)
        else:
            job.report.left(node, reason)
    clamp.adjust(plan, ranges)
    clamp.leave_out(plan, ranges)
    stored = Stored(plan, ranges, weights)
    told = [(node, plan.told(node)) for node in taken if node.graph is not None]
    Insertion(plan, stored, weights).run()
    for node, how in told:
        if how:
            job.report.quantized(node, how)
