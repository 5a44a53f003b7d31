"""What every pass works on and what it reports."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import field

import onnx_ir as ir

from sardonyx.graph.constants import subgraphs
from sardonyx.light_dataclass import dataclass
from sardonyx.ops.framework.inference import Inference
from sardonyx.passes.node_index import NodeIndex


class Level(enum.IntEnum):
    """How far rewriting goes; the numbers are those of onnxruntime's `GraphOptimizationLevel`."""

    DISABLED = 0
    BASIC = 1
    EXTENDED = 2
    LAYOUT = 3
    ALL = 99


class MaskFormat(enum.Enum):
    """What attention that is written for others has in the place of a padding mask."""

    RAW = "raw"  # the mask itself, (batch, keys) of int32
    NONE = "none"  # nothing: the caller says that there is no padding


@dataclass(frozen=True)
class Settings:
    """What a session or another caller chooses beside the level and the passes that are left out.

    `enabled` names those of the optional passes that run. A folded constant has at most `folding_limit` bytes, 0
    standing for any number; without it, 1 MiB or what it is computed from. Integers behind a DequantizeLinear stay
    integers unless `folds_dequantized`; with `drops_quantization`, real numbers that are quantised and dequantised are
    left as they are. A product of weights of four bits with one scale for each column, or one for all, becomes a
    product by blocks of `packed_block` rows, -1 standing for the largest that fits; `rounds_packed` lets such products
    round their rows to bytes where onnxruntime does. With `fuses_any_floats` attention of other types than float32 becomes
    one node, too, which rounds less often than its parts do. Passes are repeated while they
    change something: none at `loop_level` 0, those of level LAYOUT and above at 1, those of EXTENDED and above at 2.
    """

    enabled: frozenset[str] = frozenset()
    folding_limit: int | None = None
    folds_dequantized: bool = False
    drops_quantization: bool = False
    packed_block: int = 32
    rounds_packed: bool = True
    loop_level: int = 1
    mask_format: MaskFormat = MaskFormat.RAW
    fuses_any_floats: bool = False


DEFAULT = Settings()

# The pass that makes integer operators of those between DequantizeLinear and QuantizeLinear.
QDQ = "QDQSelectorActionTransformer"
# The passes that keep weights of few bits packed.
PACKED_PRODUCTS = "DQMatMulToMatMulNBits"
TURNED_PACKED_PRODUCTS = "DQMatMulNBitsFusion"
# The sizes of blocks that such products take.
PACKED_BLOCKS = frozenset({16, 32, 64, 128, 256})
# The passes that join quantisations and take them out.
DOUBLE_QDQ = "DoubleQDQPairsRemover"
QDQ_CLEANUP = "QDQFinalCleanupTransformer"


@dataclass(frozen=True)
class PassReport:
    """What one pass did. `declined` tells, for each place that looked right, why it was left alone."""

    name: str
    level: Level
    changes: int
    declined: tuple[str, ...] = ()
    seconds: float = 0.0

    def followed_by(self, later: PassReport) -> PassReport:
        """What the pass did when it ran once more."""
        return PassReport(
            self.name, self.level, self.changes + later.changes, later.declined, self.seconds + later.seconds
        )


@dataclass
class Context:
    """A model while it is rewritten; `inference` knows every value of it, and a pass keeps it so.

    A pass that adds nodes tells `added`, which infers them and lets later passes find them.
    """

    model: ir.Model
    inference: Inference
    settings: Settings = DEFAULT
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
    optimizers mean the same here. One that is `optional` runs where `Settings.enabled` names it.
    """

    name: str
    level: Level
    run: Callable[[Context], int]
    optional: bool = False


def has_subgraphs(node: ir.Node) -> bool:
    return any(True for _ in subgraphs(node))


def is_named(value: ir.Value) -> bool:
    """Whether an output of a node is really given; an empty name stands for an output that nobody wants."""
    return value.name != ""
