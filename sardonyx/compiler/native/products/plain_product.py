"""One product of two matrices, or of a batch of them, as the kernels other than `gemm` take it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sardonyx.compiler.binding import Address, Argument, Tensor
from sardonyx.compiler.choice.gemm_choice import Problem
from sardonyx.compiler.llvm.kernels.products.gemm_epilogue import BATCH_DIMS, TileEpilogue
from sardonyx.light_dataclass import dataclass


@dataclass(frozen=True)
class Axis:
    """A batch axis or the rows: its size, and the step of every matrix along it (elements; words where packed)."""

    size: int
    steps: tuple[int, ...]


def batch_arguments(names: Sequence[str], axes: Sequence[Axis]) -> dict[str, Argument]:
    """The steps of the matrices of these names along the last batch axes, and the sizes of the inner two."""
    missing = BATCH_DIMS - len(axes)
    values: dict[str, Argument] = {
        f"{name}_batch{axis}": axes[axis - missing].steps[one] if axis >= missing else 0
        for one, name in enumerate(names)
        for axis in range(BATCH_DIMS)
    }
    return values | {f"batch{axis}": axes[axis - missing].size if axis >= missing else 1 for axis in (1, 2)}


# Matrices, each with the elements between its rows.
Sides = Sequence[tuple[Tensor, int]]


@dataclass(eq=False, slots=True)
class PlainProduct:
    """results = epilogue(A x B, operands). Nobody changes one.

    `a` is a matrix whose rows are contiguous, `b` one of contiguous columns or the packed panels of a constant;
    operands and results have contiguous rows. If it `is_turned`, these hold one row, of an element for each row of `a`,
    and `b` is a column. They are the first ones of a batch: its axes have a step for A, B, each
    operand and each result.
    """

    problem: Problem
    a: Tensor
    b: Tensor
    epilogue: TileEpilogue
    operands: Sides
    results: Sides
    batch: Sequence[Axis] = ()
    is_turned: bool = False

    @property
    def arguments(self) -> dict[str, Argument]:
        """The matrices by the names that the kernels' `argument_names` give them."""
        values: dict[str, Argument] = {"a": self.a, "b": self.b, "a_stride": self.a.strides[0]}
        names = ["a", "b"]
        for kind, matrices in (("operand", self.operands), ("output", self.results)):
            for index, (tensor, step) in enumerate(matrices):
                names.append(f"{kind}{index}")
                values[names[-1]] = Address(tensor.buffer, tensor.offset)
                values[f"{names[-1]}_stride"] = step
        sizes: dict[str, Argument] = {"m": self.problem.m, "n": self.problem.n, "k": self.problem.k}
        return values | batch_arguments(names, self.batch) | sizes

    @property
    def reads(self) -> tuple[Tensor, ...]:
        return self.a, self.b, *(tensor for tensor, _ in self.operands)

    @property
    def writes(self) -> tuple[Tensor, ...]:
        return tuple(tensor for tensor, _ in self.results)

    @property
    def nbytes(self) -> float:
        """Bytes read and written, each once."""
        others = [tensor.nbytes for tensor in (*self.reads[2:], *self.writes)]
        return self.problem.batch * (self.a.nbytes + self.b.nbytes) + sum(others)

    @property
    def flops(self) -> float:
        return 2.0 * self.problem.batch * self.problem.m * self.problem.k * self.problem.n

    @property
    def turned(self) -> PlainProduct:
        """The product of one row by contiguous columns with the sides exchanged: these by the row as a column."""
        size_n, size_k = self.problem.n, self.problem.k
        return replace(
            self,
            problem=replace(self.problem, m=size_n, n=1),
            a=self.b.reshaped((size_n, size_k), self.b.strides[::-1]),
            b=self.a.reshaped((size_k, 1), (1, size_k)),
            batch=[Axis(axis.size, (axis.steps[1], axis.steps[0], *axis.steps[2:])) for axis in self.batch],
            is_turned=True,
        )
