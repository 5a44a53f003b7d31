"""Replaces each call of a model-local function by the function's body.

A body keeps the operator versions that its function imports: they are stamped on its nodes before. Functions that
call each other are expanded callees first, so every body is copied flat.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx
import onnx_ir as ir

from sardonyx import errors

# A model of nested functions can describe more nodes than any memory holds.
MOST_NODES = 2_000_000

_Identifier = tuple[str, str, str]


def inline_functions(model: ir.Model) -> tuple[ir.Function, ...]:
    """Expand every call, in the main graph and in the functions themselves, and take these out of the model.

    `errors.InvalidGraph` for functions that call themselves, `errors.Fail` for calls that do not fit or grow
    beyond all bounds. A function named like an operator of ONNX does not replace that operator.
    """
    functions = {name: body for name, body in model.functions.items() if not _is_operator(name, model)}
    if functions:
        order = _callees_first(functions)
        _check_growth(model, functions, order)
        names = _Names(model)
        for identifier in order:
            _expand(functions[identifier].graph, functions, names)
        _expand(model.graph, functions, names)
    definitions = tuple(model.functions.values())
    model.functions.clear()
    return definitions


def _is_operator(identifier: _Identifier, model: ir.Model) -> bool:
    domain, name, _ = identifier
    return bool(onnx.defs.has(name, model.opset_imports.get(domain, 1), domain))


def _called(graph: ir.Graph | ir.Function, functions: Mapping[_Identifier, ir.Function]) -> Iterator[_Identifier]:
    for node in graph.all_nodes():
        identifier = node.op_identifier()
        if identifier in functions:
            yield identifier


def _callees_first(functions: Mapping[_Identifier, ir.Function]) -> list[_Identifier]:
    if not functions:
        return []
    import graphlib  # which few models need

    calls = {name: set(_called(body, functions)) for name, body in functions.items()}
    try:
        return list(graphlib.TopologicalSorter(calls).static_order())
    except graphlib.CycleError as error:
        chain = " -> ".join(f"{domain}:{name}" for domain, name, _ in error.args[1])
        raise errors.InvalidGraph(
            f"Model local function definitions must not be recursive. Cycle detected: {chain}"
        ) from None


def _check_growth(model: ir.Model, functions: Mapping[_Identifier, ir.Function], order: list[_Identifier]) -> None:
    sizes: dict[_Identifier, int] = {}

    def size(graph: ir.Graph | ir.Function) -> int:
        return sum(1 for _ in graph.all_nodes()) + sum(sizes[name] for name in _called(graph, functions))

    for identifier in order:
        sizes[identifier] = size(functions[identifier])
    total = size(model.graph)
    if total > MOST_NODES:
        raise errors.Fail(
            f"The model has {total} nodes once its functions are expanded; at most {MOST_NODES} are allowed"
        )


class _Names:
    """Gives names that nothing else in the model has."""

    def __init__(self, model: ir.Model) -> None:
        self._taken: set[str] = set()
        self._next: dict[str, int] = {}
        for graph in (model.graph, *model.graph.subgraphs()):
            self._taken.update(value.name or "" for value in graph.inputs)
            self._taken.update(graph.initializers)
        for node in model.graph.all_nodes():
            self._taken.update(value.name or "" for value in node.outputs)
            self._taken.add(node.name or "")

    def fresh(self, wish: str) -> str:
        name = wish
        while name in self._taken:
            count = self._next[wish] = self._next.get(wish, 0) + 1
            name = f"{wish}_{count}"
        self._taken.add(name)
        return name


def _expand(graph: ir.Graph, functions: Mapping[_Identifier, ir.Function], names: _Names) -> None:
    for node in list(graph.all_nodes()):
        function = functions.get(node.op_identifier())
        if function is not None:
            _replace(node, function, names)


def replace_call(call: ir.Node, function: ir.Function, model: ir.Model) -> list[ir.Node]:
    """Put a copy of the function's body, whose nodes have their versions, in the place of one call: the new nodes."""
    return _replace(call, function, _Names(model))


def _replace(call: ir.Node, function: ir.Function, names: _Names) -> list[ir.Node]:
    """Put a copy of the function's body in the place of a call: the new nodes."""
    if len(call.inputs) > len(function.inputs) or len(call.outputs) > len(function.outputs):
        raise errors.Fail(
            f'In Node, ("{call.name or ""}", {call.op_type}, "{call.domain}", -1) : the call has {len(call.inputs)} '
            f"inputs and {len(call.outputs)} outputs, its function has {len(function.inputs)} and "
            f"{len(function.outputs)}"
        )
    given: dict[ir.Value, ir.Value | None] = dict.fromkeys(function.inputs)
    given.update(zip(function.inputs, call.inputs, strict=False))
    copy = _Copy(given, _attributes(call, function), names, f"{call.name or call.op_type}/")
    nodes = [copy.node(node) for node in function]
    used: set[ir.Value] = set()
    for old, inner in zip(call.outputs, function.outputs, strict=False):
        if old.name == "":
            continue
        new = copy.values.get(inner)
        if new is None:
            raise errors.Fail(
                f"The output '{inner.name}' of the function {function.domain}:{function.name} is not given"
            )
        if new.producer() not in nodes or new in used:  # an input handed through, or one result twice
            identity = ir.Node(
                "", "Identity", [new], num_outputs=1, version=1, name=names.fresh(f"{copy.prefix}Identity")
            )
            nodes.append(identity)
            new = identity.outputs[0]
        used.add(new)
        new.name, new.type, new.shape = old.name, old.type or new.type, old.shape or new.shape
        old.replace_all_uses_with(new, replace_graph_outputs=True)
    graph = call.graph
    assert graph is not None
    graph.insert_before(call, nodes)
    graph.remove(call)
    return nodes


def _attributes(call: ir.Node, function: ir.Function) -> dict[str, ir.Attr]:
    """What the body's attribute references stand for: the call's values, else the function's defaults."""
    defaults = {name: attribute for name, attribute in function.attributes.items() if attribute.value is not None}
    return {**defaults, **call.attributes}


class _Copy:
    """Copies nodes, with other values and attributes in place of the function's own."""

    def __init__(
        self, values: dict[ir.Value, ir.Value | None], attributes: Mapping[str, ir.Attr], names: _Names, prefix: str
    ) -> None:
        self.values = values
        self.attributes = attributes
        self.names = names
        self.prefix = prefix

    def node(self, node: ir.Node) -> ir.Node:
        attributes = [self.attribute(name, attribute) for name, attribute in node.attributes.items()]
        copied = ir.Node(
            node.domain,
            node.op_type,
            [None if value is None else self.values.get(value, value) for value in node.inputs],
            [attribute for attribute in attributes if attribute is not None],
            overload=node.overload,
            num_outputs=len(node.outputs),
            version=node.version,
            name=self.names.fresh(f"{self.prefix}{node.name or node.op_type}"),
            doc_string=node.doc_string,
            metadata_props=dict(node.metadata_props),
        )
        for old, new in zip(node.outputs, copied.outputs, strict=True):
            self.name(old, new)
        return copied

    def name(self, old: ir.Value, new: ir.Value) -> None:
        """Describe `new` as `old` is, under a name of its own, and let it stand for `old`."""
        new.name = self.names.fresh(f"{self.prefix}{old.name}") if old.name else ""
        new.type, new.shape, new.const_value = old.type, old.shape, old.const_value
        self.values[old] = new

    def attribute(self, name: str, attribute: ir.Attr) -> ir.Attr | None:
        """The attribute of a copied node; None where it refers to one that the call leaves out."""
        if attribute.is_ref():
            assert attribute.ref_attr_name is not None
            found = self.attributes.get(attribute.ref_attr_name)
            if found is None:
                return None
            if found.is_ref():
                return ir.RefAttr(name, found.ref_attr_name or "", found.type)
            if found.type != attribute.type:
                raise errors.InvalidGraph(
                    f"This is an invalid model. Attribute '{name}' of type {attribute.type.name} refers to "
                    f"'{attribute.ref_attr_name}' of type {found.type.name}"
                )
            return ir.Attr(name, found.type, found.value)
        if attribute.type == ir.AttributeType.GRAPH:
            return ir.AttrGraph(name, self.graph(attribute.as_graph()))
        if attribute.type == ir.AttributeType.GRAPHS:
            return ir.AttrGraphs(name, [self.graph(graph) for graph in attribute.as_graphs()])
        return ir.Attr(name, attribute.type, attribute.value)

    def graph(self, graph: ir.Graph) -> ir.Graph:
        for value in (*graph.inputs, *graph.initializers.values()):
            if value not in self.values:
                self.name(value, ir.Value())
        inputs = [self.own(value) for value in graph.inputs]
        initializers = [self.own(value) for value in graph.initializers.values()]
        nodes = [self.node(node) for node in graph]
        return ir.Graph(
            inputs,
            [self.own(value) for value in graph.outputs],
            nodes=nodes,
            initializers=initializers,
            name=graph.name,
        )

    def own(self, value: ir.Value) -> ir.Value:
        found = self.values.get(value)
        assert found is not None, "a graph's own values are always copied"
        return found
