"""Which provider runs which node: the log lines that callers search for, and the records they ask for."""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx import log
from sardonyx.light_dataclass import dataclass

_ORIGIN = "placement"


@dataclass(frozen=True, slots=True)
class AssignedNode:
    """A node, the provider that runs it, and what the providers before that one answered."""

    name: str
    op_type: str
    domain: str
    provider: str
    declined: tuple[tuple[str, str], ...] = ()


def log_placement(nodes: Sequence[AssignedNode], providers: Sequence[str], logger: log.Logger) -> None:
    """Write the placement of all nodes, those of subgraphs included; `providers` are the session's, by priority."""
    used = [name for name in providers if any(node.provider == name for node in nodes)]
    if logger.is_enabled(log.Severity.VERBOSE):
        _log_nodes(nodes, used, logger)
    preferred = [name for name in providers if name != "CPUExecutionProvider"]
    if preferred and any(node.provider not in preferred for node in nodes):
        logger.warning(
            "Some nodes were not assigned to the preferred execution providers which may or may not have an negative "
            "impact on performance. e.g. ORT explicitly assigns shape related ops to CPU to improve perf.",
            _ORIGIN,
        )
        if not logger.is_enabled(log.Severity.VERBOSE):
            logger.warning("Rerunning with verbose output on a non-minimal build will show node assignments.", _ORIGIN)


def _log_nodes(nodes: Sequence[AssignedNode], used: Sequence[str], logger: log.Logger) -> None:
    logger.verbose("Node placements", _ORIGIN)
    if len(used) == 1:
        logger.verbose(f" All nodes placed on [{used[0]}]. Number of nodes: {len(nodes)}", _ORIGIN)
        logger.verbose(f"All nodes have been placed on [{used[0]}].", _ORIGIN)
    for name in used:
        own = [node for node in nodes if node.provider == name]
        if len(used) > 1:
            logger.verbose(f" Node(s) placed on [{name}]. Number of nodes: {len(own)}", _ORIGIN)
            for node in own:
                logger.verbose(f"  {node.op_type} ({node.name})", _ORIGIN)
        # The form of older versions, which programs search for as well.
        listed = ", ".join(f"{node.op_type} ({node.name})" for node in own)
        logger.verbose(f"Provider: [{name}]: [{listed}]", _ORIGIN)
    for node in nodes:
        for provider, reason in node.declined:
            logger.verbose(f"{provider} declined {node.op_type} ({node.name}): {reason}", _ORIGIN)
