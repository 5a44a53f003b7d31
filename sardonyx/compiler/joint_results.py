"""Results of Concats that are written by what makes their parts.

Where channels come last in memory, the parts of a Concat along the channels take turns in every place of its result. A
kernel whose rows may lie apart writes its result there, and what else reads that value reads rows that lie apart: no
part is copied. Concats of Concats share one memory, and so do those that begin with the parts of an earlier one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from sardonyx.compiler.bound_step import Buffer, Tensor, row_major
from sardonyx.light_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Slice:
    """Where a value lies in a Concat's result: from channel `first` on in each of its rows of so many `channels`. Or in
    memory of its own whose rows are longer.

    `root` is the number of that result; it makes no difference to kernels.
    """

    root: int = field(compare=False)
    first: int
    channels: int

    def nbytes(self, dtype: np.dtype[Any], shape: Sequence[int]) -> int:
        """Bytes of the whole result of which a value [batch, *places, channels] is a part."""
        return math.prod(shape[:-1]) * self.channels * dtype.itemsize

    def within(self, whole: Buffer, dtype: np.dtype[Any], shape: Sequence[int]) -> Tensor:
        """The value [batch, *places, channels] in the memory of the whole result."""
        shape = tuple(shape)
        strides = row_major((*shape[:-1], self.channels))
        return Tensor(dtype, shape, strides, whole, self.first * dtype.itemsize)

    def holds(self, tensor: Tensor) -> bool:
        """Whether a value [batch, channels, *places] lies so, in memory for the whole result and nothing else."""
        buffer, rank = tensor.buffer, len(tensor.shape)
        if rank < 3 or buffer.kind != "arena" or buffer.home is not None:
            return False
        order = (0, *range(2, rank), 1)
        shape = [tensor.shape[axis] for axis in order]
        wanted = self.within(buffer, tensor.dtype, shape)
        lies = tuple(tensor.strides[axis] for axis in order)
        return (
            buffer.nbytes == self.nbytes(tensor.dtype, shape)
            and (lies, tensor.offset) == (wanted.strides, wanted.offset)
            and tensor.size > 0
        )


class Rooms:
    """The results of Concats in one plan that have memory before they are bound. `slices` says which values lie there,
    by their numbers."""

    def __init__(self, slices: Mapping[int, Slice]) -> None:
        self._slices = slices
        self._known: dict[int, Buffer] = {}

    def slices(self, outputs: Sequence[int]) -> tuple[Slice | None, ...]:
        """Where values of these numbers are to lie; empty where none of them is a part."""
        found = tuple([self._slices.get(number) for number in outputs])
        return found if any(found) else ()

    def memory(self, one: Slice | None) -> Buffer | None:
        """The memory of the whole result, if something lies there already."""
        return None if one is None else self._known.get(one.root)

    def take(self, outputs: Sequence[int], made: Sequence[Tensor | None]) -> None:
        """Put what an operation made together with the other parts."""
        for number, tensor in zip(outputs, made, strict=False):
            one = self._slices.get(number)
            if one is None or tensor is None or not one.holds(tensor):
                continue
            whole = self._known.setdefault(one.root, tensor.buffer)
            if whole is not tensor.buffer and whole.nbytes == tensor.buffer.nbytes:
                tensor.buffer.home = whole
