"""Decoders with and without a past in one file: the caller of a session says once which of the two it runs."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.passes.branches import BRANCHES, inline
from sardonyx.passes.caches.pairs import DeclinedError

USE_CACHE = "use_cache_branch"


def take_branch(model: ir.Model, uses_cache: bool) -> None:
    """Put one branch of each If that the input `use_cache_branch` decides in its place.

    That input goes, and inputs that the other branch alone has read. DeclinedError where there is no such input.
    """
    graph = model.graph
    given = next((value for value in graph.inputs if value.name == USE_CACHE), None)
    deciding = [] if given is None else [use.node for use in given.uses()]
    if given is None or not deciding or any(node.op_type != "If" or node.graph is not graph for node in deciding):
        raise DeclinedError(f"no If of the model is decided by an input {USE_CACHE}")
    read = {value for value in graph.inputs if value.uses()}
    for node in deciding:
        inline(graph, node, node.attributes[BRANCHES[0 if uses_cache else 1]].as_graph(), USE_CACHE)
    for value in list(graph.inputs):
        if value in read and not value.uses() and not value.is_graph_output():
            graph.inputs.remove(value)
