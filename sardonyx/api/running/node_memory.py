"""The file in which a session notes the memory of its nodes: ``session.collect_node_memory_stats_to_file``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sardonyx import errors

if TYPE_CHECKING:
    from sardonyx.runtime.node_memory import NodeMemory
    from sardonyx.runtime.trace import Trace

KEY = "session.collect_node_memory_stats_to_file"


def node_memory(source: Any, config: Mapping[str, str], trace: Trace | None) -> NodeMemory | None:
    """What notes the memory, if that is wished for; relative names are files beside the model.

    `Fail` where the folder does not exist.
    """
    name = config.get(KEY, "")
    if not name:
        return None
    from sardonyx.runtime.node_memory import NodeMemory

    path = os.path.join(os.path.dirname(source) if isinstance(source, str) else "", name)
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise errors.Fail(f"Failed to open file: {path!r}: {KEY} must name a file in a folder that exists")
    return NodeMemory(path, trace)
