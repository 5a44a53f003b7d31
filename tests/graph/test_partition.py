"""Placement of nodes and the borders of partitions."""

from __future__ import annotations

import onnx_ir as ir
from onnx import helper

from sardonyx.graph.load import load_model
from sardonyx.graph.partition import Claims, Partition, partitions, place
from tests.api import session_models as models


def chain() -> ir.Graph:
    """a = x + y; b = a * y; if c: t = relu(b) else t = -a; z = t + w."""
    then = helper.make_graph([helper.make_node("Relu", ["b"], ["t1"])], "then", [], [models.value("t1", 1, None)])
    other = helper.make_graph([helper.make_node("Neg", ["a"], ["t2"])], "else", [], [models.value("t2", 1, None)])
    message = models.model(
        [
            helper.make_node("Add", ["x", "y"], ["a"], name="add"),
            helper.make_node("Mul", ["a", "y"], ["b"], name="mul"),
            helper.make_node("If", ["c"], ["t"], name="if", then_branch=then, else_branch=other),
            helper.make_node("Add", ["t", "w"], ["z"], name="last"),
        ],
        [models.value("x", 1, [3]), models.value("y", 1, [3]), models.value("c", 9, [])],
        [models.value("z", 1, None)],
        [models.weights()],
    )
    return load_model(message).model.graph


def names(values: tuple[ir.Value, ...]) -> list[str | None]:
    return [value.name for value in values]


def test_each_node_goes_to_the_first_provider_that_takes_it() -> None:
    graph = chain()
    nodes = {node.name: node for node in graph}
    claims = {
        "one": Claims({nodes["add"]: "fast"}, {nodes["mul"]: "too slow"}),
        "two": Claims({node: "any" for name, node in nodes.items() if name != "last"}),
    }
    placement, left = place(graph, claims)
    assert {node.name: provider for node, provider in placement.provider.items()} == {
        "add": "one",
        "mul": "two",
        "if": "two",
    }
    assert placement.reason[nodes["add"]] == "fast"
    assert placement.declined[nodes["mul"]] == {"one": "too slow"}
    assert placement.declined[nodes["if"]] == {"one": "not claimed"}
    assert left == [nodes["last"]]


def test_partitions_are_runs_of_nodes() -> None:
    graph = chain()
    nodes = {node.name: node for node in graph}
    placement, _ = place(
        graph,
        {"one": Claims({nodes["add"]: "", nodes["mul"]: "", nodes["last"]: ""}), "two": Claims({nodes["if"]: ""})},
    )
    parts = partitions(list(graph), placement)
    assert [(part.provider, [node.name for node in part.nodes]) for part in parts] == [
        ("one", ["add", "mul"]),
        ("two", ["if"]),
        ("one", ["last"]),
    ]


def test_what_enters_and_leaves_a_partition() -> None:
    add, mul, condition, last = chain()
    first = Partition("one", (add, mul))
    assert (names(first.inputs()), names(first.outputs())) == (["x", "y"], ["a", "b"])
    middle = Partition("two", (condition,))
    assert (set(names(middle.inputs())), names(middle.outputs())) == ({"c", "b", "a"}, ["t"])
    whole = Partition("one", (add, mul, condition, last))
    assert (set(names(whole.inputs())), names(whole.outputs())) == ({"x", "y", "c", "w"}, ["z"])
