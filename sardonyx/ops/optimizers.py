"""Optimizers of ai.onnx.preview.training: Adam."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sardonyx.ops.framework.operator import Array, Operator, Value, operator


@operator("Adam", domain="ai.onnx.preview.training")
class Adam(Operator):
    """One step for each tensor X, from R, T and all X, then all G, all V and all H, to all X, all V and all H.

    Outputs have the type of X: onnx.reference gives double for a single tensor and float for several, whatever the
    inputs are.
    """

    host_reason = "a few passes in NumPy"
    alpha: float = float(np.float32(0.9))
    beta: float = float(np.float32(0.999))
    epsilon: float = float(np.float32(1e-6))
    norm_coefficient: float = 0.0
    norm_coefficient_post: float = 0.0

    def run(self, rate: Array, count: Array, *tensors: Array) -> Sequence[Value]:
        if rate.size != 1 or count.size != 1:
            raise ValueError(f"R and T must have one element each, not {rate.size} and {count.size}")
        if not tensors or len(tensors) % 4:
            raise ValueError(f"after R and T there must be X, G, V and H of each tensor, not {len(tensors)} inputs")
        step, updates = rate.item(), count.item()
        if updates > 0:
            step *= math.sqrt(1 - self.beta**updates) / (1 - self.alpha**updates)
        each = len(tensors) // 4
        groups = (tensors[start : start + each] for start in range(0, len(tensors), each))
        results = [self._step(step, *arrays) for arrays in zip(*groups, strict=True)]
        return tuple(result[place] for place in range(3) for result in results)

    def _step(self, step: float, x: Array, gradient: Array, mean: Array, square: Array) -> tuple[Array, Array, Array]:
        gradient = self.norm_coefficient * x + gradient
        mean = self.alpha * mean + (1 - self.alpha) * gradient
        square = self.beta * square + (1 - self.beta) * gradient * gradient
        x = (1 - self.norm_coefficient_post) * (x - step * mean / (np.sqrt(square) + self.epsilon))
        return np.asarray(x), np.asarray(mean), np.asarray(square)
