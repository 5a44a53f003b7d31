"""Constant folding: what is the same in every run is computed once, while the session is built."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.graph.constants import array_of, graphs_of, is_constant, tensor_of
from sardonyx.graph.types import numpy_dtype
from sardonyx.ops.framework.facts import Dims, Fact, known, of_array, same
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import ControlFlow, nbytes
from sardonyx.ops.framework.result_size import guarded
from sardonyx.passes.base import Context, has_subgraphs, is_named

# A folded result may be this large, or as large as what it is computed from, unless the settings name another limit.
SIZE_LIMIT = 1 << 20

# A model keeps its integers, and those that it makes of its constants: kernels for quantised models look for them.
_KEPT = frozenset({"DequantizeLinear"})

# Numbers of four bits that become float32.
_LARGEST_GROWTH = 8

_SHAPE_DTYPES = frozenset({ir.DataType.INT64, ir.DataType.INT32})


def fold_constants(context: Context) -> int:
    """Replace nodes by constants: Constant nodes, nodes that read constants only, and shape arithmetic.

    Initializers that a caller can override count as inputs. Outputs of a graph stay computed by a node. A constant
    says more than inference knew: the nodes behind it are inferred again on the way.
    """
    changes = 0
    main = context.model.graph
    learned: set[ir.Value] = set()
    for graph in graphs_of(main):
        for node in list(graph):
            if learned and (not learned.isdisjoint(node.inputs) or has_subgraphs(node)):
                learned.update(_inferred_again(node, context.inference))
            if any(value.is_graph_output() for value in node.outputs):
                continue
            if _lifted(graph, node, context):
                changes += 1
                continue
            results = _constant_results(node, context, trust_facts=graph is main)
            if results is not None:
                learned.update(_replace(graph, node, results, context))
                changes += 1
    return changes


def fold_dequantized_vectors(context: Context) -> int:
    """Replace each DequantizeLinear of a constant of one dimension or none: no product reads it as integers, and what
    takes it for a number of each channel looks for constants."""
    changes = 0
    for graph in graphs_of(context.model.graph):
        for node in list(graph):
            if node.op_type not in _KEPT or not all(value is None or is_constant(value) for value in node.inputs):
                continue
            fact = context.inference.facts.get(node.outputs[0])
            if fact is None or fact.rank is None or fact.rank > 1 or node.outputs[0].is_graph_output():
                continue
            results = _computed(node, [fact], context)
            if results is not None:
                _replace(graph, node, results, context)
                changes += 1
    return changes


def _lifted(graph: ir.Graph, node: ir.Node, context: Context) -> bool:
    """Make an initializer of a Constant node that holds a tensor, which stays where it is."""
    if node.op_type != "Constant" or node.domain != "" or "value" not in node.attributes:
        return False
    value, tensor = node.outputs[0], node.attributes["value"].value
    tensor.name = value.name
    constant = ir.Value(name=value.name, type=ir.TensorType(tensor.dtype), shape=tensor.shape, const_value=tensor)
    graph.register_initializer(constant)
    if value in context.inference.facts:
        context.inference.facts[constant] = context.inference.facts[value]
    value.replace_all_uses_with(constant)
    graph.remove(node)
    return True


def _inferred_again(node: ir.Node, inference: Inference) -> list[ir.Value]:
    """Infer a node whose inputs are known better than before; the outputs of which something new is known."""
    before = [inference.facts.get(value) for value in node.outputs]
    inference.node(node)
    return [value for value, old in zip(node.outputs, before, strict=True) if _tells_more(inference.facts[value], old)]


def _tells_more(fact: Fact, old: Fact | None) -> bool:
    """Whether a fact has a type, a dimension or contents that the old one of the same value lacked."""
    if old is None:
        return True
    return (
        (old.type is None and fact.type is not None)
        or _more_known(fact.shape, old.shape)
        or _more_known(fact.elements, old.elements)
        or (fact.constant is not None and old.constant is None)
    )


def _more_known(new: Dims | None, old: Dims | None) -> bool:
    if new is None or old is None:
        return new is not None
    return any(known(a) and not same(a, b) for a, b in zip(new, old, strict=False))


def _constant_results(node: ir.Node, context: Context, trust_facts: bool) -> list[tuple[Any, ir.DataType]] | None:
    """The arrays and types of a node's outputs where they are known now, else None."""
    if context.inference.may_differ(node):
        return None
    facts = [context.inference.facts.get(value) for value in node.outputs]
    if trust_facts and len(facts) == 1 and facts[0] is not None:
        # Inside a loop the declared shapes may hold for its first turn only, hence the main graph alone.
        known = _from_shape_arithmetic(facts[0])
        if known is not None:
            return [known]
    kept = node.op_type in _KEPT and not (node.op_type == "DequantizeLinear" and context.settings.folds_dequantized)
    if kept or not all(value is None or is_constant(value) for value in node.inputs):
        return None
    return _computed(node, facts, context)


def _from_shape_arithmetic(fact: Fact) -> tuple[Any, ir.DataType] | None:
    """The contents that inference found for a small integer tensor (Shape, Gather, Concat and their like)."""
    if fact.dtype not in _SHAPE_DTYPES or fact.shape is None or fact.rank not in (0, 1):
        return None
    numbers = fact.integers()
    if numbers is None or not all(isinstance(dim, int) for dim in fact.shape):
        return None
    shape = tuple(int(dim) for dim in fact.shape if isinstance(dim, int))
    return np.array(numbers, numpy_dtype(fact.dtype)).reshape(shape), fact.dtype


def _limit(node: ir.Node, context: Context) -> float:
    """How many bytes a folded result of a node may have."""
    chosen = context.settings.folding_limit
    if chosen is not None:
        return chosen or math.inf
    read = sum(value.const_value.nbytes for value in node.inputs if value is not None and value.const_value is not None)
    if node.op_type == "DequantizeLinear":
        read *= _LARGEST_GROWTH
    return max(SIZE_LIMIT, read)


def _computed(node: ir.Node, facts: Sequence[Fact | None], context: Context) -> list[tuple[Any, ir.DataType]] | None:
    operator = context.inference.operator(node)
    if isinstance(operator, ControlFlow):
        return None
    limit = _limit(node, context)
    dtypes = []
    for value, fact in zip(node.outputs, facts, strict=True):
        if not is_named(value):
            dtypes.append(ir.DataType.UNDEFINED)
            continue
        if fact is None or fact.dtype is None or not isinstance(fact.type, ir.TensorType):
            return None
        size = nbytes(fact)
        if size is None and fact.dtype != ir.DataType.STRING:
            context.decline(node, "the size of its result is not known before it is computed")
            return None
        if size is not None and size > limit:
            context.decline(node, f"its result of {size:.0f} bytes is above the limit of {limit}")
            return None
        dtypes.append(fact.dtype)
    try:
        call = guarded(operator, operator.run)
        outputs = call(*(None if value is None else array_of(value) for value in node.inputs))
    except Exception as error:  # the node raises it again when it runs, if it ever does
        context.decline(node, f"it fails on its constants: {error}")
        return None
    results = list(zip(outputs, dtypes, strict=False))
    if len(results) < len(node.outputs) or not all(isinstance(array, np.ndarray | np.generic) for array, _ in results):
        return None
    return results


def _replace(
    graph: ir.Graph, node: ir.Node, results: Sequence[tuple[Any, ir.DataType]], context: Context
) -> list[ir.Value]:
    """Put constants in the place of a node; those that say more than was known of its results."""
    learned = []
    for value, (result, dtype) in zip(node.outputs, results, strict=True):
        if not is_named(value) or not value.uses():
            continue
        array = np.asarray(result)
        assert value.name is not None
        constant = ir.Value(
            name=value.name,
            type=ir.TensorType(dtype),
            shape=ir.Shape(array.shape),
            const_value=tensor_of(array, dtype, value.name),
        )
        graph.register_initializer(constant)
        fact = context.inference.facts[constant] = of_array(array, dtype)
        if _tells_more(fact, context.inference.facts.get(value)):
            learned.append(constant)
        ir.convenience.replace_all_uses_with(value, constant)
    graph.remove(node, safe=True)
    return learned
