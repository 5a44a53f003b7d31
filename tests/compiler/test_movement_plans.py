"""Random plans of data movement on several threads against NumPy: barriers, lifetimes, values that share memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.native.movement.concat import Concat
from sardonyx.compiler.native.movement.copy import copy
from sardonyx.compiler.native.movement.gather import Gather
from sardonyx.compiler.native.movement.pad import Pad
from sardonyx.compiler.native.movement.rearrange import Tile
from sardonyx.compiler.native.movement.slices import part_of, transposed
from tests.compiler.steps import new_binder, run_plan

Array = np.ndarray[Any, Any]
Pair = tuple[Tensor, Array]

INPUTS = 3
STEPS = 25
LARGEST = 60_000  # elements of a value


class Plan:
    """A plan under construction and what its values should be."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.binder: Binder = new_binder()
        self.inputs: list[Array] = []
        self.values: list[Pair] = []
        for index in range(INPUTS):
            shape = tuple(int(size) for size in self.rng.choice([1, 2, 16, 32, 64], 3))
            self.inputs.append(self.rng.random(shape, np.float32))
            self.values.append((self.binder.external(index, np.dtype(np.float32), shape), self.inputs[-1]))

    def pick(self) -> Pair:
        """A value, more likely a late one."""
        return self.values[int(len(self.values) * self.rng.random() ** 0.5)]

    def add(self) -> None:
        tensor, array = self.pick()
        action = self.rng.choice(["copy", "turn", "cut", "join", "join", "join", "pad", "tile", "gather"])
        made: Pair | None = getattr(self, action)(tensor, array)
        if made is not None and 0 < made[1].size <= LARGEST:
            self.values.append(made)

    def copy(self, tensor: Tensor, array: Array) -> Pair:
        return copy(self.binder, tensor), array

    def turn(self, tensor: Tensor, array: Array) -> Pair:
        order = [int(axis) for axis in self.rng.permutation(3)]
        turned = transposed(tensor, order)
        return copy(self.binder, turned) if self.rng.random() < 0.7 else turned, array.transpose(order)

    def cut(self, tensor: Tensor, array: Array) -> Pair | None:
        axis = int(self.rng.integers(3))
        if array.shape[axis] < 2:
            return None
        size = int(self.rng.integers(1, array.shape[axis]))
        return part_of(tensor, axis, 0, size), array.take(range(size), axis)

    def join(self, tensor: Tensor, array: Array) -> Pair | None:
        axis = int(self.rng.choice([0, 0, 1, 2]))
        parts = [(tensor, array)]
        for other, contents in self.values[::-1]:
            fits = all(a == b or i == axis for i, (a, b) in enumerate(zip(contents.shape, array.shape, strict=True)))
            if fits and len(parts) < 3 and self.rng.random() < 0.8:
                parts.append((other, contents))
        joined = np.concatenate([contents for _, contents in parts], axis)
        if joined.size > LARGEST:
            return None
        (result,) = Concat({"axis": axis}).bind(self.binder, *[one for one, _ in parts])
        return result, joined

    def pad(self, tensor: Tensor, array: Array) -> Pair | None:
        pads = self.rng.integers(0, 3, 6)
        widths = [(int(pads[axis]), int(pads[axis + 3])) for axis in range(3)]
        mode = str(self.rng.choice(["constant", "edge", "wrap"]))
        result = np.pad(array, widths, mode)  # type: ignore[call-overload]
        if result.size > LARGEST:
            return None
        (made,) = Pad({"mode": mode}).bind(self.binder, tensor, self.binder.constant(pads))
        return made, result

    def tile(self, tensor: Tensor, array: Array) -> Pair | None:
        times = self.rng.integers(1, 3, 3)
        if array.size * times.prod() > LARGEST:
            return None
        (made,) = Tile({}).bind(self.binder, tensor, self.binder.constant(times))
        return made, np.tile(array, times)

    def gather(self, tensor: Tensor, array: Array) -> Pair:
        axis = int(self.rng.integers(3))
        indices = self.rng.integers(0, array.shape[axis], 5)
        known = self.binder.constant(indices)
        unknown = Tensor(known.dtype, known.shape, known.strides, known.buffer)
        (made,) = Gather({"axis": axis}).bind(self.binder, tensor, unknown)
        return made, array.take(indices, axis)


@pytest.mark.parametrize("seed", range(40))
def test_random_plans(seed: int) -> None:
    plan = Plan(seed)
    for _ in range(STEPS):
        plan.add()
    chosen = [plan.pick() for _ in range(4)]
    bound = plan.binder.finish([tensor for tensor, _ in chosen], INPUTS, copy)
    for threads in (1, 2, 2):
        found = run_plan(bound, plan.inputs, threads)
        for result, (_, expected) in zip(found, chosen, strict=False):
            np.testing.assert_array_equal(result, expected)
        assert not found[len(chosen) :] or not found[-1].any()
