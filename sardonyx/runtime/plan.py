"""The plan: what a session executes, as a flat table of steps over numbered slots.

All decisions are taken while the plan is built. A step names the slots that it reads and writes and the slots whose
last reader it is; nothing in it refers to the graph, so that a native executor can take the same table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sardonyx.runtime.context import RunContext

# A tensor (NumPy array), a sequence (list), a map (dict), an absent optional (None).
Value = Any

StepCall = Callable[[RunContext, Sequence[Value]], Sequence[Value]]

ABSENT = -1  # the slot of an optional input that is not given, or of an output that nobody wants


@dataclass(frozen=True, slots=True)
class Step:
    """One unit of work: `call` reads `inputs` and gives one value for each of `outputs`."""

    name: str  # the node's own name, or <OpType>_<index> where it has none
    op_type: str
    provider: str
    kind: Literal["kernel", "view", "host"]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    call: StepCall
    node_index: int = 0
    reason: str = ""  # why this is a host step; empty for kernels and views
    release: tuple[int, ...] = ()  # slots that no later step reads


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps in execution order and the slots through which values enter and leave.

    `inputs` and `captures` are filled by the caller (captures are values of an enclosing graph), `constants` are
    there from the start, `outputs` are read at the end. No step writes a slot that another one wrote.
    """

    slot_names: tuple[str, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    constants: Mapping[int, Value]
    steps: tuple[Step, ...]
    captures: tuple[int, ...] = field(default=())
