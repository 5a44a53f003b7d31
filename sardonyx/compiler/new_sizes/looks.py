"""What a kernel can see of its inputs, as numbers that are equal for tensors that look the same."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence

from sardonyx.compiler.binding import Buffer, Tensor

Tensors = Sequence["Tensor | None"]

# Looks of tensors that are numbered; beyond, they get new numbers.
MOST_LOOKS = 65536


class Looks:
    """Numbers for all that a kernel can see of a tensor but its contents: equal ones for tensors that look the same.

    No number is given twice, so that those that were forgotten mean nothing else later.
    """

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._next = itertools.count(1).__next__

    def number(self, tensor: Tensor) -> int:
        """The number of a tensor, which keeps it: its buffer's kind and size do not change while anybody asks."""
        buffer = tensor.buffer
        known = tensor.is_known
        look = buffer.kind, buffer.nbytes, tensor.dtype, tensor.shape, tensor.strides, tensor.offset, known
        number = self._numbers.get(look)
        if number is None:
            if len(self._numbers) >= MOST_LOOKS:
                self._numbers.clear()
            number = self._numbers.setdefault(look, self._next())  # one number, whichever thread comes first
        tensor.number = number
        return number

    def of_one(self, tensor: Tensor) -> int:
        """The number of a tensor, which may have it already."""
        return tensor.number or self.number(tensor)

    def of(self, inputs: Tensors) -> Hashable:
        """All that a kernel can see of its inputs but their contents; which of them share a buffer, too."""
        numbers = tuple([0 if tensor is None else tensor.number or self.number(tensor) for tensor in inputs])
        buffers = [tensor.buffer for tensor in inputs if tensor is not None]
        if len(set(buffers)) == len(buffers) and not any(buffer.home for buffer in buffers):
            return numbers
        places: dict[Buffer, int] = {}
        shared: list[Hashable] = []
        for buffer in buffers:
            place = places.get(buffer)
            if place is None:
                place = places[buffer] = len(places)
                if buffer.home is not None:
                    root, start = buffer.settled()
                    shared.append((places.setdefault(root, len(places)), root.kind, root.nbytes, start))
            shared.append(place)
        return numbers, tuple(shared)
