"""Values inside of a model that a caller wants to see: outputs behind its own."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from sardonyx import errors
from sardonyx.graph.constants import graphs_of

# How many names are given for one that is not there, and how alike they are.
_MOST_NEAR, _NEAR = 3, 0.7


def add_outputs(model: ir.Model, names: Sequence[str]) -> None:
    """Make outputs of the values with these names, in their order; those that are outputs stay where they are.

    InvalidArgument for a name that no value of the main graph has, with the nearest names.
    """
    if not names:
        return
    graph = model.graph
    there = {value.name for value in graph.outputs}
    values = {value.name: value for node in graph for value in node.outputs if value.name}
    values |= {value.name: value for value in graph.inputs if value.name}
    values |= dict(graph.initializers)
    for name in dict.fromkeys(names):
        if name in there:
            continue
        if name not in values:
            raise errors.InvalidArgument(f"extra_outputs: {_unknown(graph, name, list(values))}")
        graph.outputs.append(values[name])


def _unknown(graph: ir.Graph, name: str, known: Sequence[str]) -> str:
    """Why a name is that of no value that can be an output, and which was meant."""
    for node in graph:
        if name and node.name == name:
            made = ", ".join(value.name for value in node.outputs if value.name)
            return f"{name} is a node, not a value; it makes {made}"
    for inner in list(graphs_of(graph))[1:]:
        if any(value.name == name for node in inner for value in node.outputs):
            return f"{name} lies in the graph {inner.name!r} of a control flow node, from which only its results come"
    import difflib  # which few models need

    near = difflib.get_close_matches(name, known, n=_MOST_NEAR, cutoff=_NEAR)
    hint = f"did you mean {' or '.join(near)}?" if near else "`sardonyx explain --all` lists the nodes that make some"
    return f"the model has no value {name or repr(name)}: {hint}"
