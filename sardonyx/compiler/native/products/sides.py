"""What an epilogue reads and writes, as arguments of products of two matrices without batch axes."""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.compiler.binding import Address, Argument, Tensor
from sardonyx.compiler.llvm.kernels.products.gemm_epilogue import BATCH_DIMS

# Operands or results, each with the elements between its rows.
Sides = Sequence[tuple[Tensor, int]]


def side_arguments(operands: Sides, results: Sides) -> dict[str, Argument]:
    """Places and steps by the names that the kernels' `argument_names` give them."""
    values: dict[str, Argument] = {}
    for kind, matrices in (("operand", operands), ("output", results)):
        for index, (tensor, step) in enumerate(matrices):
            values[f"{kind}{index}"] = Address(tensor.buffer, tensor.offset)
            values[f"{kind}{index}_stride"] = step
            values.update((f"{kind}{index}_batch{axis}", 0) for axis in range(BATCH_DIMS))
    return values
