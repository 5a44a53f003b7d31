"""One product of two matrices without batch axes, as the kernels other than `gemm` take it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sardonyx.compiler.binding import Address, Argument, Tensor
from sardonyx.compiler.choice.gemm_choice import Problem
from sardonyx.compiler.llvm.kernels.products.gemm_epilogue import BATCH_DIMS, Addressing, TileEpilogue

# Matrices, each with the elements between its rows.
Sides = Sequence[tuple[Tensor, int]]


@dataclass(eq=False, slots=True)
class PlainProduct:
    """results = epilogue(A x B, operands). Nobody changes one.

    `a` is a matrix whose rows are contiguous, `b` one of contiguous columns or the packed panels of a constant;
    operands and results have contiguous rows.
    """

    problem: Problem
    a: Tensor
    b: Tensor
    epilogue: TileEpilogue
    operands: Sides
    results: Sides

    @property
    def arguments(self) -> dict[str, Argument]:
        """The matrices by the names that the kernels' `argument_names` give them."""
        values: dict[str, Argument] = {"a": self.a, "b": self.b, "a_stride": self.a.strides[0]}
        for kind, matrices in (("operand", self.operands), ("output", self.results)):
            for index, (tensor, step) in enumerate(matrices):
                values[f"{kind}{index}"] = Address(tensor.buffer, tensor.offset)
                values[f"{kind}{index}_stride"] = step
                values.update((f"{kind}{index}_batch{axis}", 0) for axis in range(BATCH_DIMS))
        return values | {"m": self.problem.m, "n": self.problem.n, "k": self.problem.k}

    @property
    def reads(self) -> tuple[Tensor, ...]:
        return self.a, self.b, *(tensor for tensor, _ in self.operands)

    @property
    def writes(self) -> tuple[Tensor, ...]:
        return tuple(tensor for tensor, _ in self.results)

    @property
    def nbytes(self) -> float:
        """Bytes read and written, each once."""
        return sum([tensor.nbytes for tensor in (*self.reads, *self.writes)])

    @property
    def flops(self) -> float:
        return 2.0 * self.problem.m * self.problem.k * self.problem.n

    @property
    def turned(self) -> PlainProduct:
        """The product of one row by contiguous columns as that of these by the row, which becomes a column."""
        size_n, size_k = self.problem.n, self.problem.k
        operands = tuple(replace(one, addressing=_TURNED[one.addressing]) for one in self.epilogue.operands)
        return replace(
            self,
            problem=replace(self.problem, m=size_n, n=1),
            a=self.b.reshaped((size_n, size_k), self.b.strides[::-1]),
            b=self.a.reshaped((size_k, 1), (1, size_k)),
            epilogue=replace(self.epilogue, operands=operands),
            operands=[(tensor, 1) for tensor, _ in self.operands],
            results=[(tensor, 1) for tensor, _ in self.results],
        )


# How what is added to one row is added to a column.
_TURNED: dict[Addressing, Addressing] = {"full": "full", "row": "full", "column": "scalar", "scalar": "scalar"}
