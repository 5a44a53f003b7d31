"""Seeded inputs of a model of the zoo, for its usual sizes or for others."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from benchmarks.zoo.registry import Model, Tensor

SEED = 7


def make_inputs(model: Model, sizes: Mapping[str, int] | None = None, seed: int = SEED) -> dict[str, np.ndarray]:
    """Inputs by name; `sizes` replaces some or all of the model's usual symbolic dimensions."""
    unknown = set(sizes or {}) - set(model.sizes)
    if unknown:
        raise ValueError(f"{model.name} has no dimension {sorted(unknown)}; it has {sorted(model.sizes)}")
    resolved = {**model.sizes, **(sizes or {})}
    rng = np.random.default_rng(seed)
    return {tensor.name: _fill(tensor, resolved, rng) for tensor in model.inputs}


def _fill(tensor: Tensor, sizes: Mapping[str, int], rng: np.random.Generator) -> np.ndarray:
    shape = tensor.sized(sizes)
    values: np.ndarray
    if tensor.fill == "ids":
        values = rng.integers(int(tensor.low), int(tensor.limit), shape)
    elif tensor.fill == "uniform":
        values = np.asarray(rng.uniform(tensor.low, tensor.limit, shape))
    elif tensor.fill == "ones":
        values = np.ones(shape)
    elif tensor.fill == "zeros":
        values = np.zeros(shape)
    elif tensor.fill == "padding":  # the last eighth of every row is padding
        length = shape[-1]
        values = np.broadcast_to(np.arange(length) < length - length // 8, shape)
    elif tensor.fill == "positions":  # they go on where the cache ends
        values = np.broadcast_to(np.arange(shape[-1]) + sizes.get("past_sequence_length", 0), shape)
    else:
        values = rng.standard_normal(shape, dtype=np.float32)
    return np.array(values, dtype=tensor.dtype, order="C")
