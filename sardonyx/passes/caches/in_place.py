"""A decoder whose caches are written in place: the rewrite as a whole.

Before the passes of a session, all pasts get one length (`agree`). Once attention is one node, what grows with that
length gets a capacity instead, and the length becomes an input (`keep_in_place`).
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.ops.framework.facts import Dim
from sardonyx.ops.framework.inference import Inference, infer_model
from sardonyx.passes.base import Context, Settings
from sardonyx.passes.caches.attending import Attending
from sardonyx.passes.caches.lengths import CAPACITY, PAST_LENGTH, Lengths, Nodes, Sizes
from sardonyx.passes.caches.pairs import Cache, DeclinedError, agree, caches_of
from sardonyx.passes.caches.places import Places
from sardonyx.passes.caches.walk import Walk
from sardonyx.passes.cleanup import eliminate_identity, remove_unused
from sardonyx.passes.constant_folding import fold_constants
from sardonyx.passes.sharing import eliminate_common_subexpressions, share_constants, share_sizes


def prepare(model: ir.Model) -> str:
    """Let all pasts have one length, before anything else is known; how the model calls it.

    DeclinedError where the model has no caches that rows are appended to.
    """
    graph = model.graph
    if any(value.name == PAST_LENGTH for value in graph.inputs):
        raise DeclinedError(f"the model has an input {PAST_LENGTH} of its own")
    caches = caches_of(graph)
    if not caches:
        appending = next((node for node in graph if node.op_type == "GroupQueryAttention"), None)
        if appending is not None:
            raise DeclinedError(
                f"GroupQueryAttention ({appending.name}) writes into caches of any length as it is: bind its past and "
                "its present to one buffer, and give a mask as long as the buffer"
            )
        raise DeclinedError("no node appends rows to an input and makes an output of the result")
    return agree(graph, caches)


def keep_in_place(model: ir.Model, inference: Inference, past: str, settings: Settings) -> tuple[Inference, int]:
    """Rewrite a model after its other passes; what is known of it then, and the number of caches.

    DeclinedError leaves it half rewritten.
    """
    graph = model.graph
    caches = caches_of(graph)
    if not caches:
        raise DeclinedError("no node is left that appends rows to an input and makes an output of the result")
    sizes = Sizes(past, _new_rows(caches[0], inference))
    pasts = [cache.past for cache in caches]
    written = list(graph)
    nodes = Nodes(graph, model.opset_imports, inference)
    lengths = Lengths(graph, nodes, caches, sizes)
    walk = Walk(graph, inference, sizes, nodes, lengths, pasts)
    attending, places = Attending(walk), Places(walk)
    for node in written:
        if node.graph is graph and walk.touches(node) and not (attending.node(node) or places.node(node)):
            walk.node(node)
    _check(graph, walk, pasts)
    _declare(graph, walk, pasts)
    made = infer_model(model)
    context = Context(model, made, settings)
    remove_unused(context)
    eliminate_identity(context)
    fold_constants(context)
    share_constants(context)
    eliminate_common_subexpressions(context)
    share_sizes(context)
    remove_unused(context)
    return made, len(caches)


def _new_rows(cache: Cache, inference: Inference) -> Dim:
    """How many rows a node appends to a cache."""
    node = cache.node
    place = 1 if node.op_type == "Concat" else {4: 1, 5: 2, 6: 1, 7: 2}[list(node.inputs).index(cache.past)]
    new = node.inputs[place]
    fact = inference.fact(new)
    if fact is None or fact.shape is None:
        raise DeclinedError(f"the shape of what {node.op_type} ({node.name}) appends is not known")
    axis = cache.axis if len(fact.shape) == 4 else 1
    return fact.shape[axis]


def _check(graph: ir.Graph, walk: Walk, pasts: list[ir.Value]) -> None:
    """DeclinedError where a cache is not written, or anything else that an output shows grows."""
    for past in pasts:
        if past not in walk.written:
            raise DeclinedError(f"nothing is appended to input {past.name}")
    presents = set(walk.written.values())
    for output in graph.outputs:
        if output in presents:
            continue
        if output in walk.long or walk.is_size(output):
            raise DeclinedError(f"output {output.name} grows with the caches")


def _declare(graph: ir.Graph, walk: Walk, pasts: list[ir.Value]) -> None:
    """Declare the new shapes of inputs, and forget those of all other values, which are inferred anew."""
    for value in graph.inputs:
        if value.shape is None:
            continue
        axes = walk.written_axes(value) if value in pasts else walk.axes(value)
        dims = [ir.SymbolicDim(CAPACITY) if axis in axes else dim for axis, dim in enumerate(value.shape)]
        value.shape = ir.Shape(dims)
    for node in graph.all_nodes():
        for value in node.outputs:
            value.shape = None
