"""Where the matrices of one of many products begin: the strides of the batch axes are arguments of the kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.kernels.products.gemm_epilogue import BATCH_DIMS, EpilogueWriter, Place, TileEpilogue
from sardonyx.compiler.llvm.types import Type

# The words of a kernel's arguments that tell of batches: strides of A and B, and sizes of the two inner axes.
BATCH_NAMES = (*(f"{matrix}_batch{axis}" for matrix in "ab" for axis in range(BATCH_DIMS)), "batch1", "batch2")


class BatchItem:
    """The matrices of one product, by the names of the arguments."""

    def __init__(self, k: Function, given: Mapping[str, Value], number: Value) -> None:
        self.k, self.given = k, given
        inner = number // given["batch2"]
        self.axes = (inner // given["batch1"], inner % given["batch1"], number % given["batch2"])

    def start(self, name: str, scalar: Type) -> Pointer:
        """A matrix's first element."""
        offset = self.axes[0] * self.given[f"{name}_batch0"]
        for axis in range(1, BATCH_DIMS):
            offset = offset + self.axes[axis] * self.given[f"{name}_batch{axis}"]
        return self.k.pointer(self.given[name], scalar).offset(offset)

    def _place(self, name: str, scalar: Type) -> Place:
        return Place(self.start(name, scalar), self.given[f"{name}_stride"])

    def operands(self, epilogue: TileEpilogue) -> tuple[Place, ...]:
        return tuple(self._place(f"operand{index}", operand.type) for index, operand in enumerate(epilogue.operands))

    def outputs(self, epilogue: TileEpilogue, accumulator: Type) -> tuple[Place, ...]:
        return tuple(
            self._place(f"output{index}", epilogue.output_type(index, accumulator))
            for index in range(max(1, len(epilogue.outputs)))
        )

    def writer(
        self, epilogue: TileEpilogue, accumulator: Type, column: Value, masks: Sequence[Value | None]
    ) -> EpilogueWriter:
        """The writer of what begins at a column."""
        return EpilogueWriter(
            self.k, epilogue, self.operands(epilogue), self.outputs(epilogue, accumulator), column, masks
        )
