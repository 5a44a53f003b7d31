"""Operations: what is bound of a segment one after the other, and the errors of those that cannot be."""

from __future__ import annotations

import struct
from collections.abc import Callable

from sardonyx import errors
from sardonyx.compiler.binding import Binder
from sardonyx.compiler.computation import Computation
from sardonyx.compiler.fusion import Group
from sardonyx.compiler.pairs import Pair
from sardonyx.compiler.recording import Recording, Tensors
from sardonyx.light_dataclass import dataclass
from sardonyx.runtime.executor import error_of_node


@dataclass(frozen=True, eq=False, slots=True)
class Operation:
    """One thing to bind: the group's nodes, and the numbers of the values that it reads and makes (-1: absent)."""

    group: Group
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    bind: Callable[[Binder, Tensors], Tensors]
    label: str
    structure: int | None  # the same for operations that bind alike; None: it is computed while binding
    computation: Computation | None = None  # what that computes


@dataclass(frozen=True, eq=False, slots=True)
class PairOperation:
    """Two operations as one: `whole` can stand in place of both, where `second` is."""

    pair: Pair
    whole: Operation
    second: Operation


@dataclass(eq=False, slots=True)
class BoundOperation:
    """An operation in one plan, with the values that it reads and makes there."""

    operation: Operation
    inputs: Tensors
    outputs: Tensors = ()
    recording: Recording | None = None  # None: it cannot be replayed, or need not
    end: int = 0  # how many steps the plan has up to here


class OperationError(Exception):
    """An operation that cannot be bound: `cause` is the error of its node."""

    def __init__(self, cause: errors.OnnxRuntimeError, bound: BoundOperation) -> None:
        super().__init__(cause.message)
        self.cause = cause
        self.bound = bound


def failure(operation: Operation, error: Exception) -> errors.OnnxRuntimeError:
    """An error of a kernel, while it is bound or runs, as the error of the node that it comes from."""
    node = (operation.group.anchor or operation.group.nodes[-1]).node
    kind: type[errors.OnnxRuntimeError] = errors.Fail
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, errors.OnnxRuntimeError):
        kind, text = type(error), error.message
    elif isinstance(error, OverflowError | struct.error):
        text = f"a size that follows from its shapes and attributes exceeds 64 bits ({text})"
    elif isinstance(error, MemoryError):
        text = f"Failed to allocate memory for requested buffer: {text}"
    made = ", ".join(f"'{value.name}'" for value in node.outputs if value.name)
    called = f"'{node.name}'" if node.name or not made else f"'' (which makes {made})"
    return error_of_node(kind, node.op_type, called, text)
