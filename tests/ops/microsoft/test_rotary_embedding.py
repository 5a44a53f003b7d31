"""Rotary embeddings against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sardonyx
from tests.ops.microsoft import peer

RNG = np.random.default_rng(4)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def caches(rows: int, half: int) -> tuple[np.ndarray, np.ndarray]:
    angle = RNG.random((rows, half)).astype(np.float32) * 6
    return np.cos(angle), np.sin(angle)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("four_axes", [False, True])
@pytest.mark.parametrize("offset", [False, True])
def test_rotary_embedding(interleaved: int, four_axes: bool, offset: bool) -> None:
    x = normal(2, 3, 5, 8) if four_axes else normal(2, 5, 24)
    positions = np.array([3]) if offset else RNG.integers(0, 10, (2, 5))
    peer.compare("RotaryEmbedding", [x, positions, *caches(10, 4)], attributes={"interleaved": interleaved})


@pytest.mark.parametrize("interleaved", [0, 1])
def test_only_the_first_channels_turn(interleaved: int) -> None:
    peer.compare(
        "RotaryEmbedding",
        [normal(2, 5, 36), RNG.integers(0, 10, (2, 5)), *caches(10, 4)],
        attributes={"interleaved": interleaved, "num_heads": 3, "rotary_embedding_dim": 8},
    )


def test_a_position_outside_of_the_cache_is_named() -> None:
    with pytest.raises(Exception, match="'cos_cache' has 4 rows; positions go from 4 to 4"):
        peer.run("RotaryEmbedding", [normal(1, 1, 8), np.array([[4]]), *caches(4, 4)])


@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("four_axes", [False, True])
@pytest.mark.parametrize("interleaved", [0, 1])
def test_three_positions(layout: int, four_axes: bool, interleaved: int) -> None:
    x = normal(2, 3, 5, 16) if four_axes else normal(2, 5, 48)
    peer.compare(
        "MRotaryEmbedding",
        [x, RNG.integers(0, 10, (3, 2, 5)), *caches(10, 8)],
        attributes={"mrope_section": [4, 2, 2], "mrope_layout": layout, "interleaved": interleaved, "num_heads": 3},
    )


@pytest.mark.parametrize("op", ["RotaryEmbedding", "MRotaryEmbedding"])
def test_the_scale_concerns_three_positions_only(op: str) -> None:
    attributes: dict[str, Any] = {"scale": 2.0, "num_heads": 3, "rotary_embedding_dim": 16}
    positions = RNG.integers(0, 10, (2, 5))
    if op == "MRotaryEmbedding":
        attributes["mrope_section"] = [4, 2, 2]
        positions = RNG.integers(0, 10, (3, 2, 5))
    peer.compare(op, [normal(2, 5, 72), positions, *caches(10, 8)], attributes=attributes)


def test_gemma_rotary_embedding() -> None:
    angle = normal(2, 5, 8)
    given = [normal(2, 3, 5, 8).astype(np.float16) for _ in range(4)]
    found = peer.run("GemmaRotaryEmbedding", [angle, *given], [10, 10])
    cos, sin = np.cos(angle)[:, None].astype(np.float64), np.sin(angle)[:, None].astype(np.float64)
    for ours, (x, half) in zip(found, (given[:2], given[2:]), strict=True):
        np.testing.assert_allclose(ours, x * cos + half * sin, rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize("kernels", ["", "numpy"])
@pytest.mark.parametrize("shape", [(2, 0, 24), (0, 5, 24), (2, 3, 0, 8)])
def test_nothing_to_turn(shape: tuple[int, ...], kernels: str) -> None:
    given = [normal(*shape), np.zeros((shape[0], shape[-2]), np.int64), *caches(10, 4)]
    model = peer.one_node("RotaryEmbedding", given, 1)
    options = sardonyx.SessionOptions()
    options.add_session_config_entry("sardonyx.cpu.kernels", kernels)
    (found,) = sardonyx.InferenceSession(model.SerializeToString(), options).run(None, peer.feeds(model, given))
    assert found.shape == shape
