"""What a graph is to be: its file, its inputs with their dimensions, what it computes, and the sizes to try it on."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

Sizes = Mapping[str, int]
Arrays = dict[str, np.ndarray]
# Tensors by name to tensors by name, on a PyTorch model.
Call = Callable[[Mapping[str, Any]], Mapping[str, Any]]


@dataclass(frozen=True)
class Input:
    """An input: a dimension is a number, a name, a sum of names, or `?name`: one that a model may fix."""

    name: str
    dims: tuple[int | str, ...]

    def shape(self, sizes: Sizes) -> tuple[int, ...]:
        return tuple(dim if isinstance(dim, int) else total(dim, sizes) for dim in self.dims)


@dataclass(frozen=True)
class Graph:
    """One file.

    `values` gives example inputs of given sizes. `sizes` are those of the example that is traced, then those on which
    the written file must agree with PyTorch; every batch and length of the example is at least 2, as the exporter
    takes a size of 1 for one that stays.
    """

    file: str
    model: Any
    call: Call
    inputs: tuple[Input, ...]
    values: Callable[[Sizes, np.random.Generator], Arrays]
    sizes: Sequence[Sizes]

    def example(self, sizes: Sizes, seed: int = 0) -> dict[str, Any]:
        """Tensors by name; numbers are of the model's type."""
        made = self.values(sizes, np.random.default_rng(seed))
        return {one.name: self._tensor(made[one.name]) for one in self.inputs}

    @property
    def is_open(self) -> bool:
        """Whether there are dimensions that the model may fix."""
        return any(isinstance(dim, str) and dim.startswith("?") for one in self.inputs for dim in one.dims)

    def settled(self) -> Graph:
        """The same with those dimensions fixed to the sizes of the example."""
        first = self.sizes[0]
        fixed: dict[str, int] = {}
        inputs = []
        for one in self.inputs:
            dims = [first[dim[1:]] if isinstance(dim, str) and dim.startswith("?") else dim for dim in one.dims]
            fixed |= {dim[1:]: first[dim[1:]] for dim in one.dims if isinstance(dim, str) and dim.startswith("?")}
            inputs.append(Input(one.name, tuple(dims)))
        return replace(self, inputs=tuple(inputs), sizes=[{**sizes, **fixed} for sizes in self.sizes])

    def _tensor(self, array: np.ndarray) -> Any:
        import torch

        tensor = torch.from_numpy(np.ascontiguousarray(array))
        return tensor.to(self.model.dtype) if tensor.is_floating_point() else tensor


def names(dim: str) -> list[str]:
    """The names of a dimension, in order."""
    return re.findall(r"[A-Za-z_]\w*", dim)


def total(dim: str, sizes: Sizes) -> int:
    """A dimension's size."""
    return sum(sizes[name] for name in names(dim))


def left_padded(batch: int, length: int, padding: int) -> np.ndarray:
    """A mask (batch, length) of int64 whose first row begins with that many blocked positions, the second with one
    fewer, and so on; at least the last position of each is seen."""
    mask = np.ones((batch, length), np.int64)
    for row in range(batch):
        mask[row, : max(min(padding - row, length - 1), 0)] = 0
    return mask


def right_padded(batch: int, length: int, padding: int) -> np.ndarray:
    """The same with what is blocked at the end."""
    return np.ascontiguousarray(left_padded(batch, length, padding)[:, ::-1])


def positions(mask: np.ndarray, count: int) -> np.ndarray:
    """The positions (batch, count) of the last tokens under a mask, counted from each row's first seen one."""
    counted: np.ndarray = np.maximum(mask.cumsum(axis=1) - 1, 0)
    return counted[:, -count:]
