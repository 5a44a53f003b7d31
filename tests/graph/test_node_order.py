"""Orders of nodes: each is one in which the graph can run, and has the property that it is chosen for."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from sardonyx.graph.node_order import by_memory, by_priority, reorder


def node(kind: str, inputs: list[ir.Value], name: str) -> ir.Node:
    return ir.Node("", kind, inputs, num_outputs=1, name=name)


def graph_of(inputs: list[ir.Value], outputs: list[ir.Value], nodes: list[ir.Node]) -> ir.Graph:
    return ir.Graph(inputs, outputs, nodes=nodes, opset_imports={"": 20})


def names(nodes: list[ir.Node]) -> list[str | None]:
    return [one.name for one in nodes]


def branches(count: int) -> ir.Graph:
    """Values that are large, made one after the other, each reduced to a small one afterwards, and their sums."""
    x = ir.Value(name="x")
    large = [node("Expand", [x], f"large{i}") for i in range(count)]
    small = [node("ReduceSum", [large[i].outputs[0]], f"small{i}") for i in range(count)]
    sums = [small[0]]
    for i in range(1, count):
        sums.append(node("Add", [sums[-1].outputs[0], small[i].outputs[0]], f"sum{i}"))
    return graph_of([x], [sums[-1].outputs[0]], [*large, *small, *sums[1:]])


def size_of(value: ir.Value) -> int:
    producer = value.producer()
    return 1000 if producer is not None and producer.op_type == "Expand" else 1


def test_the_order_by_memory_reduces_each_value_before_the_next_is_made() -> None:
    graph = branches(3)
    order = names(by_memory(graph, size_of))
    assert sorted(map(str, order)) == sorted(str(one.name) for one in graph)
    for i in range(2):
        assert order.index(f"small{i}") < order.index(f"large{i + 1}") or order.index(f"small{i + 1}") < order.index(
            f"large{i}"
        )


def test_the_order_by_memory_is_the_written_one_where_that_needs_no_more() -> None:
    x = ir.Value(name="x")
    first = node("Relu", [x], "first")
    second = node("Neg", [x], "second")
    both = node("Add", [first.outputs[0], second.outputs[0]], "both")
    graph = graph_of([x], [both.outputs[0]], [first, second, both])
    assert names(by_memory(graph, lambda value: 8)) == ["first", "second", "both"]


def test_the_order_by_priority_reads_sizes_first() -> None:
    x, y = ir.Value(name="x"), ir.Value(name="y")
    less = node("Neg", [x], "less")
    more = node("Exp", [less.outputs[0]], "more")
    early = node("Shape", [y], "early")
    late = node("Shape", [more.outputs[0]], "late")
    total = node("Add", [early.outputs[0], late.outputs[0]], "total")
    graph = graph_of([x, y], [total.outputs[0]], [less, more, early, late, total])
    assert names(by_priority(graph)) == ["early", "less", "more", "late", "total"]


def test_nodes_wait_for_what_is_read_inside_of_others() -> None:
    condition, x = ir.Value(name="condition"), ir.Value(name="x")
    outer = node("Neg", [x], "outer")
    inner = node("Abs", [outer.outputs[0]], "inner")
    body = graph_of([], [inner.outputs[0]], [inner])
    handed = graph_of([], [outer.outputs[0]], [])
    choice = ir.Node(
        "",
        "If",
        [condition],
        [ir.AttrGraph("then_branch", body), ir.AttrGraph("else_branch", handed)],
        num_outputs=1,
        name="choice",
    )
    graph = graph_of([condition, x], [choice.outputs[0]], [outer, choice])
    assert names(by_priority(graph)) == names(by_memory(graph, size_of)) == ["outer", "choice"]


def test_a_graph_takes_another_order_of_its_own_nodes_only() -> None:
    graph = branches(2)
    wanted = by_memory(graph, size_of)
    reorder(graph, wanted)
    assert list(graph) == wanted
    assert all(one.graph is graph for one in wanted)
    with pytest.raises(ValueError, match="every node"):
        reorder(graph, wanted[1:])


@pytest.mark.parametrize("seed", range(5))
def test_every_order_is_one_in_which_the_graph_can_run(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = [ir.Value(name="x")]
    nodes: list[ir.Node] = []
    for index in range(40):
        chosen = [values[int(place)] for place in rng.integers(0, len(values), 2)]
        nodes.append(node(str(rng.choice(["Add", "Shape", "Mul"])), chosen, f"n{index}"))
        values.append(nodes[-1].outputs[0])
    graph = graph_of(values[:1], values[-2:], nodes)
    sizes = {value: int(rng.integers(1, 100)) for value in values}
    for order in (by_priority(graph), by_memory(graph, sizes.__getitem__)):
        assert set(order) == set(nodes)
        done = {values[0]}
        for one in order:
            assert set(one.inputs) <= done
            done.update(one.outputs)
