"""Windows while binding: which dimensions they slide over, and what a call of a kernel over windows is given."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from sardonyx.compiler.binding import Argument, Binder, Tensor
from sardonyx.compiler.llvm.kernels.rows.row_access import lanes_for, types_within
from sardonyx.compiler.llvm.kernels.windows.finish import Finish, OperandForm
from sardonyx.compiler.llvm.kernels.windows.folds import Fold, Locate
from sardonyx.compiler.llvm.kernels.windows.frame import DIMENSIONS
from sardonyx.compiler.llvm.library import Emit
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import F32, type_of
from sardonyx.compiler.native.rows.rows import elements_per_chunk
from sardonyx.kernel.canonical import canonical
from sardonyx.kernel.expr import Expr
from sardonyx.light_dataclass import dataclass
from sardonyx.ops.windows import Windows
from sardonyx.runtime.memory import memory

# What it takes to say which taps of a window lie inside along a dimension.
_BYTES_PER_TAP = 80

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


@dataclass(frozen=True, eq=False)
class WindowCall:
    """Windows over `x` [batch, *sizes, channels], folded, finished and written to `results` [batch, *places, channels].

    In `outputs` the first inputs are what the fold gives, the others the elements of `operands`, which have the shape
    of the results with a stride of 0 where they are repeated. `weights` are those of `Correlate`, as it wants them.
    `operations` are those for one element of the result.
    """

    x: Tensor
    windows: Windows
    fold: Fold
    outputs: tuple[Expr, ...]
    operands: tuple[Tensor, ...]
    results: tuple[Tensor, ...]
    operations: float
    weights: Tensor | None = None
    numbers: tuple[int, ...] = ()  # for `Locate`: from one element of a map to the next along each dimension

    @property
    def reads(self) -> tuple[Tensor, ...]:
        return (self.x, *self.operands, *(() if self.weights is None else (self.weights,)))

    @property
    def taps(self) -> int:
        return math.prod(self.windows.kernel)

    def matrices(self, slide: Slide, *, by_rows: bool) -> dict[str, Argument]:
        """The input, operands and results with their byte strides, by the names that the kernels' arguments have.

        The `step` of a tensor is that between channels for kernels that go along rows, else that between places.
        """
        tensors = {"x": self.x} | {f"operand{index}": operand for index, operand in enumerate(self.operands)}
        tensors |= {f"output{index}": result for index, result in enumerate(self.results)}
        words: dict[str, Argument] = {}
        for name, tensor in tensors.items():
            strides = slide.strides(name, tensor)
            step = tensor.strides[-1] * tensor.dtype.itemsize if by_rows else strides[f"{name}_w"]
            words |= {name: tensor, **strides, f"{name}_step": step}
        return words

    def finish(self, slide: Slide, *, by_rows: bool, flushes: bool = False) -> Finish:
        """The last step, whose vectors lie along the places of a row or along the channels.

        `flushes`: what it rounds to bfloat16 may lose denormal numbers.
        """
        forms = []
        for operand in self.operands:
            along_row, along_channels = slide.strides("", operand)["_w"] != 0, operand.strides[-1] != 0
            moves = (along_row, along_channels) if by_rows else (along_channels, along_row)
            forms.append(OperandForm(operand.dtype.name, *moves))
        flushes = flushes and any(tensor.dtype == _BFLOAT16 for tensor in self.results)
        return Finish(canonical(self.outputs), tuple(forms), flushes=flushes)

    def add_step(
        self,
        binder: Binder,
        emit: Emit,
        spec: Any,
        words: Mapping[str, Argument],
        items: int,
        per_chunk: int,
        detail: str,
        scratch: int = 0,
    ) -> None:
        """Add the step of a kernel that does `items` pieces of work, so many in a chunk.

        `words` are the arguments that `spec` names, but for those two.
        """
        values = {**words, "items": items, "per_chunk": per_chunk}
        binder.step(
            emit,
            spec,
            [values[name] for name in spec.argument_names()],
            reads=self.reads,
            writes=self.results,
            chunks=-(-items // per_chunk),
            scratch=scratch,
            flops=self.operations * self.results[0].size,
            detail=detail,
        )

    @property
    def elements_per_chunk(self) -> int:
        """Elements of the result that are worth a claim."""
        first = self.results[0]
        moved = (self.x.nbytes + sum(result.nbytes for result in self.results)) / first.size
        return elements_per_chunk(first.size, moved, self.operations)

    def lanes(self, target: Target, count: int) -> int:
        """Elements of a vector: those of a register, or fewer where there are not `count` along it."""
        types = [type_of(np.dtype(one.dtype)) for one in (self.x, *self.operands)]
        named = [one for one in (*types, *types_within(self.outputs)) if one is not None]
        full = target.lanes(F32) if isinstance(self.fold, Locate) else lanes_for(target, named)
        return min(full, 1 << (count.bit_length() - 1))


@dataclass(frozen=True)
class Slide:
    """The spatial dimensions that matter, as many as kernels count, slowest first; None stands for one of size 1."""

    windows: Windows
    dimensions: tuple[int | None, ...]

    @staticmethod
    def of(windows: Windows) -> Slide:
        """ValueError where more dimensions matter than kernels count."""
        sizes = zip(windows.size, windows.kernel, windows.output, windows.begin, strict=True)
        found = [axis for axis, sizes_ in enumerate(sizes) if sizes_ != (1, 1, 1, 0)]
        if len(found) > len(DIMENSIONS):
            raise ValueError(f"windows over {len(found)} dimensions, but kernels count {len(DIMENSIONS)}")
        return Slide(windows, (*(None for _ in range(len(DIMENSIONS) - len(found))), *found))

    def each(self, numbers: Sequence[int], default: int) -> list[int]:
        """One number of every dimension that kernels count."""
        return [default if axis is None else numbers[axis] for axis in self.dimensions]

    @property
    def is_flat(self) -> bool:
        """Whether only two dimensions matter at most."""
        return self.dimensions[0] is None

    @property
    def size(self) -> list[int]:
        return self.each(self.windows.size, 1)

    @property
    def output(self) -> list[int]:
        return self.each(self.windows.output, 1)

    @property
    def kernel(self) -> list[int]:
        return self.each(self.windows.kernel, 1)

    @property
    def stride(self) -> list[int]:
        return self.each(self.windows.strides, 1)

    @property
    def dilation(self) -> list[int]:
        return self.each(self.windows.dilations, 1)

    def words(self, turns: int) -> dict[str, int]:
        """The kernels' arguments that describe windows; `turns` stands for the kernel's last size."""
        begin = self.each(self.windows.begin, 0)
        kernel = [*self.kernel[:-1], turns]
        named = {"size": self.size, "out": self.output, "kernel": kernel, "begin": begin}
        words = {
            f"{what}_{of}": number
            for what, numbers in named.items()
            for of, number in zip(DIMENSIONS, numbers, strict=True)
        }
        for what, numbers in (("stride", self.stride), ("dilation", self.dilation)):
            words |= {f"{what}_{of}": number for of, number in zip(DIMENSIONS[:-1], numbers, strict=False)}
        return words

    def taps(self, binder: Binder) -> dict[str, Argument]:
        """Tables of the slower dimensions, as arguments: for each window its first tap inside and the end of them."""
        words: dict[str, Argument] = {}
        begin = self.each(self.windows.begin, 0)
        memory.require_tables(_BYTES_PER_TAP * sum(self.output[:-1]), "the places of windows")
        for place, of in enumerate(DIMENSIONS[:-1]):
            start = np.arange(self.output[place]) * self.stride[place] - begin[place]
            spread, size, kernel = self.dilation[place], self.size[place], self.kernel[place]
            first = -(np.minimum(start, 0) // spread)
            last = np.minimum(-(np.minimum(start - size, 0) // spread), kernel)
            table = np.stack([first, last], axis=1).astype(np.int64)
            words[f"taps_{of}"] = binder.constant(table)
        return words

    def strides(self, name: str, tensor: Tensor) -> dict[str, int]:
        """The byte strides of a tensor [batch, *sizes, channels], as the arguments called `name`."""
        item = tensor.dtype.itemsize
        steps = {f"{name}_n": tensor.strides[0] * item}
        for of, step in zip(DIMENSIONS, self.each(tensor.strides[1:-1], 0), strict=True):
            steps[f"{name}_{of}"] = step * item
        return steps


def written_out(kernel: int, most: int) -> int:
    """How many taps of a row are written out, so that the others are whole turns of them."""
    return max(count for count in range(1, min(kernel, most) + 1) if kernel % count == 0)
