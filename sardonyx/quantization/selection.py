"""Which nodes a caller asked to have quantised."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Collection, Iterable

import onnx_ir as ir

from sardonyx.graph.constants import nodes_of, subgraphs
from sardonyx.quantization.refusal import InvalidQuantization

logger = logging.getLogger(__name__)

# What shows that somebody has quantised activations of a model already. A DequantizeLinear or MatMulNBits by itself
# stands for a weight that is stored quantised, beside which activations may still be quantised.
_QUANTIZED = frozenset(
    {
        "ConvInteger",
        "DynamicQuantizeLSTM",
        "DynamicQuantizeLinear",
        "DynamicQuantizeMatMul",
        "MatMulInteger",
        "MatMulIntegerToFloat",
        "QAttention",
        "QEmbedLayerNormalization",
        "QGemm",
        "QuantizeLinear",
    }
)
_MOST_NAMES = 5


class Selection:
    """The nodes that were asked for, by name and by operator; `InvalidQuantization` for a list that matches nothing."""

    def __init__(
        self,
        graph: ir.Graph,
        operators: Collection[str],
        nodes_to_quantize: Collection[str] | None = None,
        nodes_to_exclude: Collection[str] | None = None,
        bodies: bool = False,
    ) -> None:
        self.operators = frozenset(operators)
        self.included = frozenset(nodes_to_quantize or ())
        self.excluded = frozenset(nodes_to_exclude or ())
        self._main = graph
        self._bodies = bodies
        nodes = list(nodes_of(graph))
        self._around = {inner: node for node in nodes for inner in subgraphs(node)}
        names = {node.name for node in nodes if node.name}
        check_names("nodes_to_quantize", self.included, names)
        check_names("nodes_to_exclude", self.excluded, names)
        found = {node.op_type for node in nodes}
        if nodes and self.operators.isdisjoint(found):
            held = f"the model has {_listed(found, len(found))}"
            if len(self.operators) > _MOST_NAMES:  # nobody gives such lists
                raise InvalidQuantization(
                    f"No node can be quantised: {held}, and the operators to quantise are {_listed(self.operators)}. "
                    "Name others in op_types_to_quantize"
                )
            raise InvalidQuantization(f"op_types_to_quantize = {_listed(self.operators)} matches no node: {held}")

    def why_not(self, node: ir.Node) -> str | None:
        """Why a node was not asked for; None for one that was."""
        if self.is_excluded(node):
            return "excluded by name (nodes_to_exclude)"
        if self.included and node.name not in self.included:
            return "not among nodes_to_quantize"
        if node.op_type not in self.operators:
            return f"operator {node.op_type} not asked for"
        if node.graph is not self._main and not self._bodies:
            return "in a body of a control flow node (extra option EnableSubgraph quantises these)"
        return None

    def is_excluded(self, node: ir.Node) -> bool:
        """Whether the caller wants a node exact, by its name or that of a node that it is in."""
        current: ir.Node | None = node
        while current is not None:
            if current.name in self.excluded:
                return True
            current = None if current.graph is None else self._around.get(current.graph)
        return False


def require_float(graph: ir.Graph) -> None:
    """`InvalidQuantization` for a model whose activations are quantised already."""
    for node in nodes_of(graph):
        if node.op_type in _QUANTIZED or node.op_type.startswith("QLinear"):
            raise InvalidQuantization(
                f"The model is quantised already: node {node.name or '(no name)'} is a {node.op_type}. Quantise the "
                "float model that it was made from"
            )


def check_names(argument: str, given: Collection[str], names: Collection[str]) -> None:
    """`InvalidQuantization` where no name of a list is that of a node; a warning where some are not."""
    unknown = sorted(set(given) - set(names))
    if unknown and len(unknown) < len(given):
        logger.warning("%s: the model has no node %s", argument, _listed(unknown))
    elif unknown:
        raise InvalidQuantization(
            f"{argument} = {_listed(unknown)} matches no node of the model.{nearest(unknown[0], names)} "
            f"It has {_listed(names) or 'no nodes with names'}"
        )


def nearest(name: str, known: Iterable[str]) -> str:
    """The sentence that names what a misspelt name may stand for; empty where nothing is near."""
    found = difflib.get_close_matches(name, list(known), n=3)
    return f" Did you mean {' or '.join(found)}?" if found else ""


def _listed(names: Iterable[str], most: int = _MOST_NAMES) -> str:
    ordered = sorted(names)
    more = len(ordered) - most
    return ", ".join(ordered[:most]) + (f" and {more} more" if more > 0 else "")
