"""What follows from shapes and constants alone: computed while a plan is bound, over arrays of NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.compiler.binding import Array, Binder, Tensor
from sardonyx.compiler.interpret import render
from sardonyx.compiler.lowering import Lowered
from sardonyx.compiler.picked_sizes import PickedSizes
from sardonyx.kernel.dtypes import NARROW_FLOATS, TINY_INTEGERS
from sardonyx.kernel.evaluate import PRIMITIVES
from sardonyx.kernel.expr import Apply, Expr, Input
from sardonyx.kernel.program import Kernel, Pointwise
from sardonyx.light_dataclass import dataclass
from sardonyx.ops.gather_scatter import Gather
from sardonyx.runtime.context import RunContext
from sardonyx.runtime.memory import memory

_QUIET = RunContext()

Given = Sequence[Any]


@dataclass(frozen=True, eq=False, slots=True)
class Computation:
    """A function of the arrays of its inputs, None for those that are absent; of their shapes where it `reads_shapes`
    alone. It gives arrays."""

    run: Callable[[Given], Sequence[Array]]
    reads_shapes: bool = False

    def bind(self, binder: Binder, inputs: Sequence[Tensor | None]) -> Sequence[Tensor]:
        """Its results as constants of a plan."""
        given = [None if one is None else one.shape if self.reads_shapes else one.array for one in inputs]
        return [binder.computed(array) for array in self.run(given)]


def of_sizes(sizes: Sequence[PickedSizes], read: Sequence[ir.Value | None]) -> Computation:
    """How sizes of the values `read` become constants."""
    pairs = [(one, [read.index(source) for source in one.sources]) for one in sizes]
    return Computation(lambda shapes: [one.read([shapes[place] for place in chosen]) for one, chosen in pairs], True)


def of_node(item: Lowered, dtype_of: Callable[[ir.Value], np.dtype[Any] | None]) -> Computation:
    """What a node makes whose inputs are known, or of which it reads the shape and the type alone."""
    if item.reads_shapes:
        (source,) = item.node.inputs
        dtype, call = None if source is None else dtype_of(source), item.operator.run
        assert dtype is not None

        def read_shape(shapes: Given) -> Sequence[Array]:
            stand_in = np.ndarray(shapes[0], dtype, np.zeros((), dtype), 0, (0,) * len(shapes[0]))
            return [np.asarray(result) for result in call(stand_in)]

        return Computation(read_shape, True)
    assert item.kernel is not None
    if not any(value is not None and value.name != "" for value in item.node.inputs):
        return Computation(_once(item.kernel))
    compute = _computing(item.kernel)
    if not isinstance(item.operator, Gather):
        return Computation(compute)
    part = item.operator.part  # such as the positions of so many words

    def gather(arrays: Given) -> Sequence[Array]:
        found = part(*arrays)
        return compute(arrays) if found is None else [np.asarray(found)]

    return Computation(gather)


def _once(kernel: Kernel) -> Callable[[Given], Sequence[Array]]:
    """What a kernel without inputs gives, computed when it is first asked for."""
    compute = _computing(kernel)
    kept: list[Sequence[Array]] = []

    def run(arrays: Given) -> Sequence[Array]:
        if not kept:
            kept.append(compute(arrays))
        return kept[0]

    return run


def _computing(kernel: Kernel) -> Callable[[Given], Sequence[Array]]:
    """A kernel's function of arrays."""
    call = render(kernel)

    def run(arrays: Given) -> Sequence[Array]:
        return [np.asarray(array) for array in call(_QUIET, arrays)]

    direct = _direct(kernel) if isinstance(kernel, Pointwise) else None
    if direct is None:
        return run
    function, places, dtype = direct

    def compute(arrays: Given) -> Sequence[Array]:
        given = [array for array in arrays if array is not None]
        most = dtype.itemsize
        for array in given:
            most *= array.size
        if most >= memory.CHECKED_BYTES:
            return run(arrays)
        with np.errstate(all="ignore"):
            found = np.asarray(function(*[given[place] for place in places]))
        return [found] if found.dtype == dtype else run(arrays)

    return compute


def _direct(kernel: Pointwise) -> tuple[Callable[..., Any], list[int], np.dtype[Any]] | None:
    """One of NumPy's functions that computes the kernel, the inputs that it takes, and the type of its result; None
    where there is none."""
    if len(kernel.outputs) != 1 or any(dtype in NARROW_FLOATS or dtype in TINY_INTEGERS for dtype in kernel.inputs):
        return None
    (expr,) = kernel.outputs
    if not isinstance(expr, Apply) or not _takes_all(expr.args, len(kernel.inputs)):
        return None
    places, dtype = [one.index for one in expr.args if isinstance(one, Input)], expr.dtype
    if dtype in NARROW_FLOATS or dtype in TINY_INTEGERS:
        return None
    if expr.primitive != "cast":
        return PRIMITIVES[expr.primitive], places, dtype
    if kernel.inputs[places[0]].kind == "f" and dtype.kind in "iu":
        return None
    return lambda array: array.astype(dtype), places, dtype


def _takes_all(arguments: Sequence[Expr], count: int) -> bool:
    """Whether they are the inputs, of which there are so many, and all of them."""
    return {one.index if isinstance(one, Input) else -1 for one in arguments} == set(range(count))
