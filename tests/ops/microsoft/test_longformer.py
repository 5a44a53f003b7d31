"""LongformerAttention against the layer of transformers, and by formula."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

from tests.ops.microsoft import peer

BATCH, LENGTH, HEADS, SIZE, WINDOW = 2, 12, 2, 4, 2
WIDTH = HEADS * SIZE


def inputs(masked: int, chosen: list[tuple[int, int]], dtype: Any = np.float32) -> list[np.ndarray]:
    """`masked` tokens at the end of the first entry; `chosen` are the global ones."""
    generator = np.random.default_rng(2)
    mask, flags = np.zeros((BATCH, LENGTH)), np.zeros((BATCH, LENGTH), np.int32)
    mask[0, LENGTH - masked :] = -10000
    for place in chosen:
        flags[place] = 1
    shapes = [(BATCH, LENGTH, WIDTH), (WIDTH, 3 * WIDTH), (3 * WIDTH,), (), (WIDTH, 3 * WIDTH), (3 * WIDTH,)]
    floats = [generator.standard_normal(shape) if shape else mask for shape in shapes]
    return [*(array.astype(dtype) for array in floats), flags]


CHOSEN = [[], [(0, 0), (0, 1), (1, 0)], [(0, 5), (1, 2), (1, 11)]]


@pytest.mark.parametrize("masked", [0, 3])
@pytest.mark.parametrize("chosen", CHOSEN)
def test_against_transformers(masked: int, chosen: list[tuple[int, int]]) -> None:
    torch = pytest.importorskip("torch")
    importlib.import_module("benchmarks.zoo.architectures")  # makes torchvision's import succeed beside a CPU torch
    longformer = pytest.importorskip("transformers.models.longformer.modeling_longformer")
    settings = pytest.importorskip("transformers").LongformerConfig(
        hidden_size=WIDTH, num_attention_heads=HEADS, attention_window=[2 * WINDOW], attention_probs_dropout_prob=0.0
    )
    given = inputs(masked, chosen)
    layer = longformer.LongformerSelfAttention(settings, 0).eval()
    for (weight, bias), names in (
        ((given[1], given[2]), ("query", "key", "value")),
        ((given[4], given[5]), ("query_global", "key_global", "value_global")),
    ):
        parts = zip(names, np.split(weight, 3, axis=1), np.split(bias, 3), strict=True)
        for name, matrix, vector in parts:
            getattr(layer, name).weight.data = torch.from_numpy(matrix.T.copy())
            getattr(layer, name).bias.data = torch.from_numpy(vector.copy())
    kinds = torch.from_numpy(given[3] + 10000.0 * given[6])
    with torch.no_grad():
        expected = layer(
            torch.from_numpy(given[0]),
            attention_mask=kinds,
            is_index_masked=kinds < 0,
            is_index_global_attn=kinds > 0,
            is_global_attn=bool((kinds > 0).any()),
        )[0]
    (found,) = peer.run("LongformerAttention", given, 1, {"num_heads": HEADS, "window": WINDOW})
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_by_formula(dtype: Any) -> None:
    given = inputs(3, CHOSEN[2], dtype)
    (found,) = peer.run("LongformerAttention", given, 1, {"num_heads": HEADS, "window": WINDOW})
    x, weight, bias, mask, global_weight, global_bias, flags = (array.astype(np.float64) for array in given)
    expected = np.zeros(x.shape)
    for entry, row in np.ndindex(BATCH, LENGTH):
        if mask[entry, row] < 0:
            continue
        everywhere = flags[entry, row] > 0
        parts = x[entry] @ (global_weight if everywhere else weight) + (global_bias if everywhere else bias)
        q, k, v = (part.reshape(LENGTH, HEADS, SIZE) for part in np.split(parts, 3, axis=1))
        near = np.abs(np.arange(LENGTH) - row) <= WINDOW
        seen = np.flatnonzero((everywhere | near | (flags[entry] > 0)) & (mask[entry] >= 0))
        scores = np.einsum("hd,khd->hk", q[row], k[seen]) / np.sqrt(SIZE)
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        expected[entry, row] = np.einsum("hk,khd->hd", shares, v[seen]).ravel()
    tolerance = 1e-5 if dtype == np.float32 else 5e-3
    np.testing.assert_allclose(found.astype(np.float64), expected, rtol=tolerance, atol=tolerance)


def test_shapes_that_do_not_fit_are_refused() -> None:
    given = inputs(0, [])
    given[3] = given[3][:, :5]
    with pytest.raises(Exception, match="'mask' \\(2, 5\\)"):
        peer.run("LongformerAttention", given, 1, {"num_heads": HEADS, "window": WINDOW})
    with pytest.raises(Exception, match="'window' must not be negative"):
        peer.run("LongformerAttention", inputs(0, []), 1, {"num_heads": HEADS, "window": -1})
