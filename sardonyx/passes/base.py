"""What every pass works on and what it reports."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field

import onnx_ir as ir

from sardonyx.graph.constants import subgraphs
from sardonyx.ops.framework.inference import Inference
from sardonyx.passes.node_index import NodeIndex


class Level(enum.IntEnum):
    """How far rewriting goes; the numbers are those of onnxruntime's `GraphOptimizationLevel`."""

    DISABLED = 0
    BASIC = 1
    EXTENDED = 2
    LAYOUT = 3
    ALL = 99


# The pass that makes integer operators of those between DequantizeLinear and QuantizeLinear.
QDQ = "QDQSelectorActionTransformer"
# The pass that keeps weights of four bits packed, whose products round their rows to bytes.
PACKED_PRODUCTS = "DQMatMulToMatMulNBits"


@dataclass(frozen=True)
class PassReport:
    """What one pass did. `declined` tells, for each place that looked right, why it was left alone."""

    name: str
    level: Level
    changes: int
    declined: tuple[str, ...] = ()
    seconds: float = 0.0


@dataclass
class Context:
    """A model while it is rewritten; `inference` knows every value of it, and a pass keeps it so.

    A pass that adds nodes tells `added`, which infers them and lets later passes find them.
    """

    model: ir.Model
    inference: Inference
    declined: list[str] = field(default_factory=list)
    _index: NodeIndex | None = None

    @property
    def index(self) -> NodeIndex:
        """The nodes of the model by operator."""
        if self._index is None:
            self._index = NodeIndex(self.model.graph)
        return self._index

    def added(self, node: ir.Node) -> None:
        """Know a node that a pass has put into a graph."""
        if self._index is not None:
            self._index.add(node)
        self.inference.node(node)

    def decline(self, node: ir.Node, reason: str) -> None:
        self.declined.append(f"{node.op_type} ({node.name or node.outputs[0].name}): {reason}")


@dataclass(frozen=True)
class Pass:
    """One named step of the pipeline; `run` gives the number of changes.

    The name is that of onnxruntime's transformer of the same effect, where it has one, so that lists of disabled
    optimizers mean the same here.
    """

    name: str
    level: Level
    run: Callable[[Context], int]


_DRAWS_NUMBERS = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}
)
_KNOWN_DOMAINS = frozenset({"", "ai.onnx.ml", "com.microsoft"})


def is_pure(node: ir.Node) -> bool:
    """Whether equal inputs always give equal outputs, and nothing else happens.

    Operators of unknown domains may keep state, nodes with subgraphs may hold operators that draw numbers, and a
    Dropout with more than its data may be in training mode.
    """
    if node.domain not in _KNOWN_DOMAINS or node.op_type in _DRAWS_NUMBERS:
        return False
    if node.op_type.endswith("Dropout") and len(node.inputs) > 1:
        return False
    return node.domain != "com.microsoft" or node.op_type not in {"Sampling", "BeamSearch", "GreedySearch"}


def has_subgraphs(node: ir.Node) -> bool:
    return any(True for _ in subgraphs(node))


def is_named(value: ir.Value) -> bool:
    """Whether an output of a node is really given; an empty name stands for an output that nobody wants."""
    return value.name != ""
