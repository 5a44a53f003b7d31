"""The order of a partition's nodes: as much as possible in one segment, host steps between segments."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

import onnx_ir as ir

from sardonyx.compiler.lowering import ALONE, Lowered


def split(items: Sequence[Lowered], steering: Container[ir.Value] = ()) -> list[list[Lowered]]:
    """Turns of native items and of host items, alternately, beginning with native ones (maybe none).

    Each turn of native items holds everything that can run before the next host step, or before the next turn where
    it reads one of the values in `steering` that the turn makes. Values that no item makes are there from the start.
    """
    waiting = {value for item in items for value in item.node.outputs}
    needs = {item: [value for value in read_by(item.node) if value in waiting] for item in items}
    left = list(items)
    turns: list[list[Lowered]] = []
    on_host = False
    while left:
        turn: list[Lowered] = []
        rest: list[Lowered] = []
        made: set[ir.Value] = set()
        for item in left:
            fits = (item.role in ALONE) is on_host
            if fits and not any(value in waiting or value in made for value in needs[item]):
                turn.append(item)
                made.update(value for value in item.node.outputs if not on_host and value in steering)
                waiting.difference_update(item.node.outputs)
            else:
                rest.append(item)
        turns.append(turn)
        left = rest
        on_host = not on_host
    return turns


def borrowed(turn: Sequence[Lowered], known: Mapping[ir.Value, Lowered]) -> list[Lowered]:
    """Known nodes of earlier turns whose results this turn needs while binding, in an order in which they can run.

    They are worked out again, from shapes that the turn's own inputs have; `known` has the maker of each known value.
    """
    own = set(turn)
    found: dict[Lowered, None] = {}

    def visit(item: Lowered) -> None:
        for value in item.node.inputs:
            maker = known.get(value) if value is not None else None
            if maker is not None and maker not in own and maker not in found:
                if not maker.reads_shapes:
                    visit(maker)
                found[maker] = None

    for item in turn:
        visit(item)
    return list(found)


def read_by(node: ir.Node) -> list[ir.Value]:
    """The values that a node and its subgraphs read from around it."""
    read = [value for value in node.inputs if value is not None and value.name != ""]
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            inner = attribute.as_graph()
            nodes = list(inner.all_nodes())
            read.extend(value for one in nodes for value in one.inputs if value is not None)
            read.extend(value for value in inner.outputs if value is not None)
    return read
