"""Caches that a step may append to in place: inputs and outputs that a caller may bind to the same memory."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.api.building.length_limits import asks_shape

# By operator, which of its outputs is which of its inputs with rows written into it.
_CACHES: dict[str, dict[int, int]] = {
    "GroupQueryAttention": {1: 3, 2: 4},
    "SparseAttention": {1: 3, 2: 4},
    "DecoderMaskedMultiHeadAttention": {1: 5, 2: 6},
    "TensorScatter": {0: 0},
}


def shared_caches(graph: ir.Graph) -> list[tuple[str, str, int]]:
    """Inputs that nothing reads but the step that makes the output named beside them, row by row in the same places.

    The third of each is the fewest positions that the step takes: a cache that forgets what has left the window of its
    attention must hold the window.
    """
    found = []
    for output in graph.outputs:
        node = output.producer()
        if node is None or node.op_type not in _CACHES:
            continue
        place = _CACHES[node.op_type].get(node.outputs.index(output))
        past = node.inputs[place] if place is not None and place < len(node.inputs) else None
        if past is not None and past.is_graph_input() and _is_read_once(past) and not past.is_graph_output():
            found.append((past.name or "", output.name or "", _fewest(node)))
    return found


def _fewest(node: ir.Node) -> int:
    if not node.attributes.get_int("sliding_window_cache", 0):
        return 0
    return max(node.attributes.get_int("local_window_size", 0), 0)


def _is_read_once(past: ir.Value) -> bool:
    """Whether one node reads the contents of a value; others may ask for its shape."""
    return sum(not asks_shape(use.node) for use in past.uses()) == 1
