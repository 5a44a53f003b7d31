"""What a quantization did: a line for each node, the notes, the sizes before and after."""

from __future__ import annotations

import collections
import logging
from dataclasses import dataclass, field

import onnx_ir as ir

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class NodeReport:
    """One node of the original model. `how` is empty where it was left in float, for `reason`."""

    name: str
    op_type: str
    how: str = ""
    reason: str = ""

    @property
    def is_quantized(self) -> bool:
        return bool(self.how)

    def __str__(self) -> str:
        what = f"{self.op_type} {self.name}".rstrip()
        return f"{what}: {self.how}" if self.how else f"{what}: left, {self.reason}"


@dataclass
class QuantizationReport:
    """What became of each node, in the order of the model; sizes are bytes of weights.

    `notes` tell what a user should know beside that: a scale that was raised, a bias that stays float.
    """

    nodes: dict[ir.Node, NodeReport] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    bytes_before: int = 0
    bytes_after: int = 0

    def quantized(self, node: ir.Node, how: str) -> None:
        """A node works on quantised values; `how` names their types, or what became of the node."""
        self.nodes[node] = NodeReport(node.name or "", node.op_type, how=how)

    def left(self, node: ir.Node, reason: str) -> None:
        """A node stays as it was; what was said of it before counts no more."""
        self.nodes[node] = NodeReport(node.name or "", node.op_type, reason=reason)

    def note(self, text: str) -> None:
        """Something that a user should know; logged at WARNING, once."""
        if text not in self.notes:
            self.notes.append(text)
            logger.warning("%s", text)

    @property
    def count(self) -> int:
        """How many nodes are quantised."""
        return sum(one.is_quantized for one in self.nodes.values())

    def reasons(self) -> dict[str, int]:
        """Why nodes were left, most frequent first."""
        counts = collections.Counter(one.reason for one in self.nodes.values() if not one.is_quantized)
        return dict(counts.most_common())

    def lines(self) -> list[str]:
        """The report as text: the nodes, the notes, and the sizes."""
        before, after = (size / 1e6 for size in (self.bytes_before, self.bytes_after))
        summary = (
            f"{self.count} of {len(self.nodes)} nodes quantised; weights {before:.2f} MB before, {after:.2f} MB after"
        )
        return [*map(str, self.nodes.values()), *self.notes, summary]

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def log(self) -> None:
        """Write the report to the log: the summary at INFO, the nodes at DEBUG."""
        *details, summary = self.lines()
        logger.info("%s", summary)
        for line in details:
            logger.debug("%s", line)
