"""Which nodes must stay float32 for a float16 model to give nearly the same results: found by running it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import ModelProto, NodeProto

from sardonyx import errors
from sardonyx.api.enums import GraphOptimizationLevel
from sardonyx.api.options.session_options import SessionOptions
from sardonyx.api.session import InferenceSession
from sardonyx.transformers.graph_order import graphs_of, sort_nodes
from sardonyx.transformers.half_conversion import convert_float_to_float16
from sardonyx.transformers.half_numbers import LARGEST, SMALLEST
from sardonyx.transformers.half_ports import DEFAULT_OP_BLOCK_LIST

Array = np.ndarray[Any, Any]
Validate: TypeAlias = Callable[[Sequence[Array], Sequence[Array]], bool]

logger = logging.getLogger(__name__)

# Operators that compute nothing with floats: to leave them in float32 never helps.
_MOVES = frozenset({"Constant", "Gather", "Identity", "Reshape", "Shape", "Squeeze", "Transpose", "Unsqueeze"})


def auto_mixed_precision(
    model: str | os.PathLike[str] | ModelProto,
    feed_dict: Mapping[str, Array],
    validate_fn: Validate | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    keep_io_types: bool | Collection[str] = False,
    *,
    min_positive_val: float = SMALLEST,
    max_finite_val: float = LARGEST,
    op_block_list: Collection[str] | None = None,
    node_block_list: Collection[str] | None = None,
) -> ModelProto:
    """A float16 model in which as few nodes as needed stay float32 for the results to be near those in float32.

    `feed_dict` are inputs of the float32 model, with which it and each attempt are run. What "near" means is said by
    `validate_fn(wanted, found)`, or by `rtol` and `atol` for every element of every output (one of them is enough).
    The other arguments are those of `convert_float_to_float16`; blocked nodes stay blocked.

    The search halves the nodes, in order, as QuickXplain does (U. Junker, AAAI 2004): with k nodes that must stay out
    of n, it makes about 2 k (1 + log2(n / k)) attempts, and leaving out any one of those it finds spoils the results.
    ValueError without a measure, `errors.Fail` where even a model with no node converted fails it.
    """
    near = validate_fn or _within(rtol, atol)
    proto = onnx.load(os.fspath(model)) if not isinstance(model, ModelProto) else _copy(model)
    sort_nodes(proto.graph)
    _name_nodes(proto)
    wanted = _run(proto, feed_dict)
    fixed = list(node_block_list or ())
    operators = DEFAULT_OP_BLOCK_LIST if op_block_list is None else op_block_list

    def converted(blocked: Sequence[str]) -> ModelProto:
        return convert_float_to_float16(
            proto,
            min_positive_val,
            max_finite_val,
            keep_io_types,
            op_block_list=operators,
            node_block_list=[*fixed, *blocked],
        )

    def passes(blocked: Sequence[str]) -> bool:
        ok = near(wanted, _run(converted(blocked), feed_dict))
        logger.debug("%d nodes in float32: %s", len(blocked), "near enough" if ok else "too far off")
        return ok

    candidates = [
        node.name
        for node in proto.graph.node
        if node.op_type not in _MOVES and node.op_type not in operators and node.name not in fixed
    ]
    if passes(()):
        return converted(())
    if not passes(candidates):
        raise errors.Fail(
            "Mixed precision: the results are too far off even where every node computes in float32, as inputs, "
            "outputs and weights are rounded; keep them with keep_io_types=True, or allow larger differences"
        )
    blocked = _needed(candidates, (), passes)
    logger.info("%d of %d nodes stay float32: %s", len(blocked), len(proto.graph.node), ", ".join(blocked))
    return converted(blocked)


def _needed(part: Sequence[str], others: Sequence[str], passes: Callable[[Sequence[str]], bool]) -> list[str]:
    """Those of `part` that must be blocked where `others` are; blocking `part` and `others` passes."""
    if len(part) == 1:
        return list(part)
    half = len(part) // 2
    first, second = part[:half], part[half:]
    late = [] if passes([*others, *first]) else _needed(second, [*others, *first], passes)
    early = [] if passes([*others, *late]) else _needed(first, [*others, *late], passes)
    return [*early, *late]


def _within(rtol: float | None, atol: float | None) -> Validate:
    if rtol is None and atol is None:
        raise ValueError("auto_mixed_precision needs a measure: give validate_fn, rtol or atol")

    def near(wanted: Sequence[Array], found: Sequence[Array]) -> bool:
        return all(
            np.allclose(np.float64(theirs), np.float64(ours), rtol or 0.0, atol or 0.0, equal_nan=True)
            for ours, theirs in zip(wanted, found, strict=True)
            if ours.dtype.kind in "fiub"
        )

    return near


def _run(proto: ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    """The outputs, of nodes run one by one: joined into one kernel they round less, elsewhere they may not be.

    Float inputs are given in the type that the model takes.
    """
    options = SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = GraphOptimizationLevel.ORT_DISABLE_ALL
    session = InferenceSession(proto, options, providers=["CPUExecutionProvider"])
    halves = {item.name for item in session.get_inputs() if item.type == "tensor(float16)"}
    with np.errstate(over="ignore"):
        given = {name: np.float16(array) if name in halves else array for name, array in feeds.items()}
    return [np.asarray(array) for array in session.run(None, given)]


def _copy(model: ModelProto) -> ModelProto:
    copy = ModelProto()
    copy.CopyFrom(model)
    return copy


def _name_nodes(proto: ModelProto) -> None:
    """Give every node a name of its own: blocked nodes are told by their names."""
    seen: set[str] = set()
    nodes: list[NodeProto] = [node for graph in graphs_of(proto.graph) for node in graph.node]
    for index, node in enumerate(nodes):
        if not node.name or node.name in seen:
            node.name = f"{node.op_type}_{index}_of_{len(nodes)}"
        seen.add(node.name)
