"""The kinds of kernels that a provider executes.

`Pointwise` is a loop over an expression, `Reduction` one over rows of elements, `Template` a kernel known by name,
`View` a new description of the same memory, `Host` a call into Python: the universal fallback, which always carries
the reason why no kernel was made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sardonyx.kernel.expr import Expr, Input, Reduce, RowIndex, arguments
from sardonyx.light_dataclass import dataclass


@dataclass(frozen=True)
class Pointwise:
    """Each output element from the elements of all inputs at the same place; inputs broadcast as NumPy's do."""

    inputs: tuple[np.dtype[Any], ...]
    outputs: tuple[Expr, ...]


@dataclass(frozen=True)
class Reduction:
    """Expressions over rows: `Reduce` in them combines the elements of a row.

    Inputs broadcast as those of `Pointwise` do; the dimensions that make up a row are chosen when it is applied. An
    output is an element of the common shape, or a value of the row (`is_row_value`): then that shape without, or with
    1 in place of, the row's dimensions.
    """

    inputs: tuple[np.dtype[Any], ...]
    outputs: tuple[Expr, ...]


class Arrangement(NamedTuple):
    """How a `Reduction` goes over tensors of given shapes.

    `inputs` are the shapes under which its inputs are read, the same elements in the same order; `axes` are the
    dimensions of their broadcast shape that make the rows; `outputs` are the shapes of the results.
    """

    inputs: tuple[tuple[int, ...], ...]
    axes: tuple[int, ...]
    outputs: tuple[tuple[int, ...], ...]


def is_row_value(expr: Expr) -> bool:
    """Whether an expression is the same for all elements of a row: no input enters it but through a `Reduce`."""
    if isinstance(expr, Reduce):
        return True
    return not isinstance(expr, Input | RowIndex) and all(is_row_value(arg) for arg in arguments(expr))


@dataclass(frozen=True)
class View:
    """Outputs that read the first input's memory under another shape or other strides.

    `apply` takes the kernel's inputs as arrays and gives the view, or a copy where no strides can express it;
    a tuple of them where there are several outputs. `is_reshape` says that the one result holds the elements in
    row-major order under another shape, whatever the strides are.
    """

    apply: Callable[..., Any]
    is_reshape: bool = False


@dataclass(frozen=True)
class Host:
    """A Python function from input values to output values; `reason` says why it is not a kernel."""

    call: Callable[..., Sequence[Any]]
    reason: str


@dataclass(frozen=True)
class Template:
    """A kernel that a provider has by name, such as ``matmul``, with its parameters.

    `run` is its meaning in NumPy, for providers (and dtypes) that have no such kernel.
    """

    name: str
    parameters: Mapping[str, Any]
    run: Callable[..., Sequence[Any]]


Kernel = Pointwise | View | Host | Template
