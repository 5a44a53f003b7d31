"""The likeliest token of each position, as an output of the model: no caller has to read all logits for it."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.ops.framework.facts import known
from sardonyx.ops.framework.inference import Inference
from sardonyx.passes.caches.last_logits import LOGITS
from sardonyx.passes.caches.lengths import Nodes
from sardonyx.passes.caches.pairs import DeclinedError
from sardonyx.passes.rule import stamp

NAME = "GreedyTokens"
GREEDY_TOKENS = "greedy_tokens"


def add_greedy_tokens(model: ir.Model, inference: Inference) -> None:
    """Add an output, the last one, for the place of the largest logit of each position: the first of equal ones, and
    that of the first NaN where there is one.

    DeclinedError for a model without logits (batch, positions, vocabulary), and for one with an output of this name.
    """
    graph = model.graph
    logits = next((value for value in graph.outputs if value.name == LOGITS), None)
    fact = None if logits is None else inference.fact(logits)
    if logits is None or fact is None or fact.rank != 3:
        raise DeclinedError(f"the model has no output {LOGITS} of three dimensions")
    if any(value.name == GREEDY_TOKENS for node in graph for value in node.outputs):
        raise DeclinedError(f"the model has a value {GREEDY_TOKENS} of its own")
    nodes = Nodes(graph, model.opset_imports, inference, NAME)
    best = nodes.make("ArgMax", [logits], {"axis": -1, "keepdims": 0})
    stamp([best], NAME, [])
    found = best.outputs[0]
    found.name, found.type = GREEDY_TOKENS, ir.TensorType(ir.DataType.INT64)
    assert fact.shape is not None
    dims = [dim if isinstance(dim, int) else ir.SymbolicDim(str(dim)) for dim in fact.shape[:-1] if known(dim)]
    found.shape = ir.Shape(dims) if len(dims) == 2 else None
    graph.append(best)
    graph.outputs.append(found)
