"""What a model makes of the length of its caches: a step over them takes it, and tables may be chosen by it."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

# By operator, the input that tells how long the caches are with what is new; what a length passes through on its way.
_LENGTHS = {"GroupQueryAttention": 6}
_PASSING = {"Cast", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Unsqueeze"}
_UNKNOWN = -1
# By operator, what is added to the number that a length is compared with: as the first operand, and as the second.
_COMPARED = {"Greater": (0, -1), "LessOrEqual": (0, -1), "GreaterOrEqual": (-1, 0), "Less": (-1, 0)}


def length_limits(graph: ir.Graph) -> dict[str, list[int] | None]:
    """The inputs whose last dimension tells a step how long its caches are, and what else depends on that length.

    A list has the lengths up to which the model computes the same, as where a longer text has other tables of rotary
    embeddings; it is empty where nothing else depends on it. None stands for what is not known.
    """
    found: dict[str, list[int] | None] = {}
    for node in graph:
        place = _LENGTHS.get(node.op_type)
        if place is None or place >= len(node.inputs):
            continue
        given = _measured_input(node.inputs[place])
        if given is not None and given.name not in found:
            limits = sorted({limit for use in given.uses() if asks_shape(use.node) for limit in _limits(use.node)})
            found[given.name or ""] = None if _UNKNOWN in limits else limits
    return found


def _measured_input(length: ir.Value | None) -> ir.Value | None:
    """The graph's input of whose shape a length is made."""
    while length is not None and (node := length.producer()) is not None:
        if not asks_shape(node) and node.op_type not in _PASSING:
            return None
        length = node.inputs[0]
        if asks_shape(node):
            return length if length is not None and length.is_graph_input() else None
    return None


def _limits(node: ir.Node) -> Iterator[int]:
    """The largest lengths of each kind that the readers of a node's result tell apart."""
    for output in node.outputs:
        for use in output.uses():
            reader, place = use.node, use.idx
            if reader.op_type in _PASSING and place == 0:
                yield from _limits(reader)
            elif reader.op_type in _COMPARED and reader.domain == "":
                number = _number(reader.inputs[1 - place])
                yield _UNKNOWN if number is None else number + _COMPARED[reader.op_type][place]
            elif _LENGTHS.get(reader.op_type) != place:
                yield _UNKNOWN
        if output.is_graph_output():
            yield _UNKNOWN


def _number(value: ir.Value | None) -> int | None:
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    return None if tensor is None or tensor.size != 1 else int(tensor.numpy().item())


def asks_shape(node: ir.Node) -> bool:
    """Whether a node gives the shape of its input."""
    return node.op_type == "Shape" and node.domain == ""
