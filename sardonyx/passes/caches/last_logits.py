"""Logits of the last position of each row alone: the product over the vocabulary is done for these."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.graph.constants import is_constant
from sardonyx.ops.framework.facts import known
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import Elementwise
from sardonyx.passes.caches.lengths import Nodes
from sardonyx.passes.caches.pairs import DeclinedError
from sardonyx.passes.rule import stamp

NAME = "LastLogits"
LOGITS = "logits"

_AXIS = 1

# Products of rows with weights, whose other inputs have nothing to do with the rows, by domain and operator.
_PRODUCTS = frozenset(
    {
        ("", "MatMul"),
        ("", "MatMulInteger"),
        ("com.microsoft", "FusedMatMul"),
        ("com.microsoft", "MatMulNBits"),
    }
)


def keep_last(model: ir.Model, inference: Inference) -> None:
    """Cut the rows before all that is computed row by row for the logits; the shapes behind that are forgotten.

    DeclinedError for a model without such an output (batch, positions, vocabulary).
    """
    graph = model.graph
    output = next((value for value in graph.outputs if value.name == LOGITS), None)
    fact = None if output is None else inference.fact(output)
    if output is None or fact is None or fact.rank != 3 or output.producer() is None:
        raise DeclinedError(f"the model has no output {LOGITS} of three dimensions")
    nodes = Nodes(graph, model.opset_imports, inference, NAME)
    value, behind = output, []
    while True:
        node = value.producer()
        if node is None or (value is not output and len(value.uses()) > 1):
            break
        source = _rows(node, value, inference)
        if source is None or (value is not output and value.is_graph_output()):
            break
        behind.append(node)
        value = source
    last = _last(nodes, value)
    stamp([last], NAME, [])
    assert fact.shape is not None
    dims = [dim if isinstance(dim, int) else ir.SymbolicDim(str(dim)) for dim in fact.shape if known(dim)]
    shape = ir.Shape([dims[0], 1, dims[-1]]) if len(dims) == 3 else None
    if not behind:
        _become_output(graph, output, last, shape)
        return
    reader = behind[-1]
    graph.insert_before(reader, last)
    for place, read in enumerate(reader.inputs):
        if read is value:
            reader.replace_input_with(place, last.outputs[0])
    for node in behind:
        for result in node.outputs:
            result.shape = None
    output.shape = shape


def _last(nodes: Nodes, value: ir.Value) -> ir.Node:
    """The last row along the axis of positions; one row, whatever is known of their number."""
    return nodes.make("Gather", [value, nodes.constant([-1])], {"axis": _AXIS})


def _become_output(graph: ir.Graph, output: ir.Value, last: ir.Node, shape: ir.Shape | None) -> None:
    """Let a node give the output, which has been something else that keeps no name."""
    producer = output.producer()
    assert producer is not None
    graph.insert_after(producer, last)
    result = last.outputs[0]
    result.name, output.name = output.name, None
    result.type, result.shape = output.type, shape
    places = [place for place, value in enumerate(graph.outputs) if value is output]
    for place in places:
        graph.outputs[place] = result
    output.shape = None


def _rows(node: ir.Node, result: ir.Value, inference: Inference) -> ir.Value | None:
    """The input of which each row gives a row of a node's result, where no other one has to do with rows."""
    if len([value for value in node.outputs if value.name]) != 1:
        return None
    facts = [inference.fact(value) for value in node.inputs]
    if (node.domain, node.op_type) in _PRODUCTS:
        turned = any(name in node.attributes and node.attributes[name].as_int() for name in _TURNED)
        fact, weights = facts[0], facts[1]
        flat = weights is not None and weights.rank == 2
        if turned or fact is None or fact.rank != 3 or not (flat or node.op_type == "MatMulNBits"):
            return None
        if node.op_type == "MatMulInteger" and any(
            one is not None and one.shape not in ((), (1,)) for one in facts[2:3]
        ):
            return None
        return node.inputs[0]
    if not isinstance(inference.operator(node), Elementwise):
        return None
    found = None
    for value, fact in zip(node.inputs, facts, strict=True):
        if value is None:
            continue
        if fact is None or fact.shape is None:
            return None
        if fact.rank is not None and fact.rank < 2:
            continue
        if is_constant(value) and ((fact.rank == 2 and fact.shape[0] == 1) or (fact.rank == 3 and fact.shape[1] == 1)):
            continue
        if found is not None or fact.rank != 3:
            return None
        found = value
    return found


_TURNED = ("transA", "transBatchA", "transBatchB")
