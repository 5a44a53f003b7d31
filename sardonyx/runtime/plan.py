"""The plan: what a session executes, as a flat table of steps over numbered slots.

All decisions are taken while the plan is built. A step names the slots that it reads and writes and the slots whose
last reader it is; nothing in it refers to the graph, so that a native executor can take the same table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, Literal

from sardonyx.light_dataclass import dataclass
from sardonyx.runtime.context import RunContext
from sardonyx.runtime.sizes import Size, evaluate

# A tensor (NumPy array), a sequence (list), a map (dict), an absent optional (None).
Value = Any

StepCall = Callable[[RunContext, Sequence[Value]], Sequence[Value]]

ABSENT = -1  # the slot of an optional input that is not given, or of an output that nobody wants


@dataclass(frozen=True, slots=True)
class Slot:
    """A place for one value of a run: what is known of it before the run.

    `dims` are None where even the rank is unknown; one of them is None where that dimension is known only after the
    step that writes it. `bits` is the width of one element, None for what is not a tensor of numbers.
    """

    name: str
    bits: int | None = None
    dims: tuple[Size | None, ...] | None = None

    def nbytes(self, symbols: Mapping[str, int]) -> int | None:
        """Bytes of the value for given symbols; None where they are not known before the run."""
        if self.bits is None or self.dims is None:
            return None
        count = 1
        for dim in self.dims:
            if dim is None:
                return None
            try:
                count *= max(0, evaluate(dim, symbols))  # an expression may undershoot where a symbol is 0
            except KeyError:
                return None
        return -(-count * self.bits // 8)


@dataclass(frozen=True, slots=True)
class Step:
    """One unit of work: `call` reads `inputs` and gives one value for each of `outputs`.

    A segment stands for many nodes, in native code; it names the node in its own errors and traces its own steps.
    A native step is one node whose results have sizes that only its kernel finds out.
    """

    name: str  # the node's own name, or <OpType>_<index> where it has none
    op_type: str
    provider: str
    kind: Literal["kernel", "view", "host", "segment", "native"]
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

    slots: tuple[Slot, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    constants: Mapping[int, Value]
    steps: tuple[Step, ...]
    captures: tuple[int, ...] = field(default=())
