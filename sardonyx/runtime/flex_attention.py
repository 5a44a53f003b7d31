"""Attention whose scores and probabilities pass through graphs of the model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from sardonyx.light_dataclass import dataclass
from sardonyx.runtime.plan import Value

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class FlexAttentionFlow:
    """prob_mod(softmax(score_mod(scale * Q K'))) V; queries (batch, heads, queries, size), keys and values with as many
    heads or fewer, each for a group of consecutive heads.

    `scale` None stands for 1 / sqrt(size). The graphs get `precision`, the name of a dtype; None stands for float32,
    or float64 where the queries are.
    """

    scale: float | None
    precision: str | None
    is_chained: ClassVar[bool] = False

    def run_bodies(self, bodies: Mapping[str, Any], inputs: Sequence[Value]) -> Sequence[Value]:
        query, key, value = inputs
        wide = np.dtype(np.float64 if query.dtype == np.float64 else np.float32)
        stage = np.dtype(self.precision or wide)
        precise = np.result_type(wide, np.float64 if stage == np.float64 else np.float32)
        group = query.shape[1] // max(1, key.shape[1])
        key, value = (np.repeat(each.astype(precise), group, axis=1) for each in (key, value))
        scale = 1.0 / math.sqrt(query.shape[3]) if self.scale is None else self.scale
        scores = np.matmul(query.astype(precise) * precise.type(scale), np.swapaxes(key, -1, -2))
        scores = _modified(bodies, "score_mod", scores.astype(stage)).astype(precise)
        with np.errstate(invalid="ignore"):
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True, initial=-np.inf))
            weights = weights / weights.sum(axis=-1, keepdims=True)
        weights = _modified(bodies, "prob_mod", weights.astype(stage)).astype(precise)
        return [np.matmul(weights, value).astype(query.dtype)]


def _modified(bodies: Mapping[str, Any], name: str, given: Array) -> Array:
    """What a graph makes of the scores; ValueError where that has another shape."""
    if name not in bodies:
        return given
    (found,) = bodies[name](given)
    if np.shape(found) != given.shape:
        raise ValueError(f"{name} makes shape {np.shape(found)} of {given.shape}")
    return np.asarray(found)
