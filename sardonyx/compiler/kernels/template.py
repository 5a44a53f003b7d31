"""The interface of native kernels, and the table of them by name.

An operator's `lower` gives `Template("name", parameters, run)`; the class registered here under that name makes it
native. One file holds one family; a file is imported when a session first needs one of its templates.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.llvm.target import Target
from sardonyx.kernel.expr import Expr
from sardonyx.light_dataclass import dataclass
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.framework.registrations import Registrations


@dataclass(frozen=True)
class Epilogue:
    """What is applied to a kernel's result before it is stored.

    In `outputs`, `Input(0)` is the result and `Input(1 + i)` the element of `operands[i]` at the same place, where
    operands broadcast to the result's shape. Each expression is one output of the fused kernel.
    """

    outputs: tuple[Expr, ...]
    operands: tuple[Tensor, ...]


class NativeKernel:
    """One operator's kernel before its sizes are known.

    `parameters` are those of the template. `declines` is asked once, when the session is made; `bind` once for every
    signature of shapes.
    """

    # Whether `bind` takes an epilogue (keyword `epilogue`), and gives the epilogue's outputs instead of its own.
    takes_epilogue: bool = False

    # The input (by index) that holds coordinates of elements along its last axis, where `bind` can do without them if
    # they are those of a slice: it is given the numbers of a `Box` behind the other inputs then. None: there is none.
    places_input: int | None = None

    # Inputs (by index) whose contents must be known when the plan is made: constants, or made from shapes.
    known_inputs: tuple[int, ...] = ()

    # What `rounds` gives on any target.
    rounded_inputs: tuple[int, ...] = ()

    # Whether `bind` can give its first output, of float32 and without an epilogue, in bfloat16 (keyword `rounded`).
    rounds_result: bool = False

    # Whether the only output holds elements of the inputs, in order of which nothing depends but which of them; `bind`
    # may be given all inputs in bfloat16 instead of float32 then, and gives them on so, before an epilogue in float32.
    hands_on: bool = False

    # Whether `bind` makes its outputs, maps [batch, channels, *places], by `Binder.result`.
    writes_slices: bool = False

    # Whether inputs and operands of epilogues whose channels lie together may lie apart from place to place: they are
    # read where they lie.
    reads_slices: bool = False

    # Whether it is a product whose left-hand side may have rows apart, and whose `bind` makes its outputs, matrices, by
    # `Binder.result`.
    spreads_rows: bool = False

    # The axis along which the only output has the inputs one after the other, which may lie there already
    # (`Binder.whole`); None where it is something else.
    joins: int | None = None

    # Where the sizes of the outputs depend on data: of each output, the axis whose size is counted while the kernel
    # runs, or None. Then `bind` gives outputs of the largest size that there may be, which the kernel fills densely,
    # and one value more: the count, one int64. Such a node is a step of its own.
    counted_axes: tuple[int | None, ...] | None = None

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        self.parameters = parameters

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        """Why this kernel cannot take values with these facts (dtypes, ranks, what is constant); None if it can."""
        return None

    def rounds(self, target: Target) -> tuple[int, ...]:
        """Float32 inputs (by index) of which nothing is read but what is left when they are rounded to bfloat16, in
        sessions of that precision. `bind` may be given them in bfloat16 then."""
        return self.rounded_inputs

    def rounds_operands(self, target: Target) -> bool:
        """Whether, in such sessions, results that the epilogue reads may be in bfloat16, too."""
        return False

    def bind(self, binder: Binder, *inputs: Any, **options: Any) -> Sequence[Tensor | None]:
        """Add the steps for inputs of these shapes and give the outputs; an absent optional output is None.

        Each kernel names its own inputs, in the operator's order; one that may be absent is `Tensor | None`. `options`
        are `epilogue` and `rounded`, for kernels that take them. An output may be a view of an input. errors.* or
        ValueError where the shapes contradict the operator.
        """
        raise NotImplementedError

    def after(self, earlier: NativeKernel, made: Sequence[Expr], outputs: Sequence[Expr]) -> JointKernel | None:
        """A kernel that does what `earlier` does and then this one, which alone reads what the other makes, first.

        `made` and `outputs` are the expressions of both epilogues. None where there is no such kernel.
        """
        return None

    def over(self, made: Sequence[Expr]) -> JointKernel | None:
        """The same where the first one is a loop over elements that computes these expressions of its inputs."""
        return None


@dataclass(frozen=True)
class Part:
    """What one of two kernels in one is given; the first input of the second is None."""

    inputs: Sequence[Tensor | None]
    epilogue: Epilogue | None = None


class JointKernel(Protocol):
    """Two kernels in one, the second of which reads what the first one makes."""

    def pays(self, binder: Binder, first: Part, second: Part) -> bool:
        """Whether it can do it for these shapes, and in less time than both by themselves; adds no steps.

        The second epilogue is not known yet. The answer does not depend on how many items a batch has.
        """
        ...

    def bind(self, binder: Binder, first: Part, second: Part) -> Sequence[Tensor | None]:
        """Add the steps and give the outputs of the second one."""
        ...


KernelClass = TypeVar("KernelClass", bound=type[NativeKernel])

_TABLE: dict[str, type[NativeKernel]] = {}


def template(name: str) -> Callable[[KernelClass], KernelClass]:
    """Register a class for the templates called `name`."""

    def register(cls: KernelClass) -> KernelClass:
        if name in _TABLE:
            raise ValueError(f"the template '{name}' is registered twice")
        _TABLE[name] = cls
        return cls

    return register


@functools.cache
def _registrations() -> Sequence[Registrations]:
    packages = ("sardonyx.compiler.kernels", "sardonyx.compiler.native")
    return [Registrations(importlib.import_module(package), "template") for package in packages]


def find_template(name: str) -> type[NativeKernel] | None:
    """The class for the templates called `name`, or None."""
    for one in _registrations():
        one.load(name)
    return _TABLE.get(name)


@functools.cache
def templates() -> Mapping[str, type[NativeKernel]]:
    """Every template by name."""
    for one in _registrations():
        one.load_all()
    return _TABLE
