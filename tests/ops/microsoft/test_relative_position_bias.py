"""Relative position biases against the formula of T5 in torch and the formula of the gate."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.ops.microsoft import peer

RNG = np.random.default_rng(8)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("bidirectional", [0, 1])
def test_buckets_are_those_of_t5(bidirectional: int) -> None:
    torch = pytest.importorskip("torch")
    table, length = normal(32, 3), 150
    (found,) = peer.run(
        "RelativePositionBias",
        [table, np.array([length]), np.array([length])],
        attributes={"max_distance": 128, "is_bidirectional": bidirectional},
    )
    distance = torch.arange(length)[None] - torch.arange(length)[:, None]
    count = 16 if bidirectional else 32
    away = distance.abs() if bidirectional else (-distance).clamp(min=0)
    share = torch.log(away.clamp(min=1).float() / (count // 2)) / math.log(128 / (count // 2))
    far = (count // 2 + (share * (count - count // 2)).long()).clamp(max=count - 1)
    places = (torch.where(away < count // 2, away, far) + (distance > 0) * (count if bidirectional else 0)).numpy()
    np.testing.assert_array_equal(found[0], table[places].transpose(2, 0, 1))


def test_gate() -> None:
    heads, size, length = 3, 4, 5
    query, query_bias, position = (
        normal(2, length, heads * size),
        normal(heads * size),
        normal(1, heads, length, length),
    )
    weight, bias, scale = normal(size, 8), normal(8), normal(1, heads, 1, 1)
    (found,) = peer.run(
        "GatedRelativePositionBias", [query, query_bias, position, weight, bias, scale], attributes={"num_heads": heads}
    )
    split = (query + query_bias).astype(np.float64).reshape(2, length, heads, size).transpose(0, 2, 1, 3)
    y = split @ weight + bias
    u = 1 / (1 + np.exp(-y[..., :4].sum(-1, keepdims=True)))
    r = 1 / (1 + np.exp(-y[..., 4:].sum(-1, keepdims=True)))
    np.testing.assert_allclose(found, (u * (r * scale - 1) + 2) * position, rtol=1e-4, atol=1e-5)
