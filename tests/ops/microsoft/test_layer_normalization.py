"""Layer and RMS normalisation against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.microsoft import peer

RNG = np.random.default_rng(3)


def normal(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return (RNG.standard_normal(shape) * 2 + 0.5).astype(dtype)


@pytest.mark.parametrize("axis", [-1, 1, 0])
@pytest.mark.parametrize("bias", [True, False])
def test_layer_normalization_before_opset_17(axis: int, bias: bool) -> None:
    inner = (3, 5, 8)[axis % 3 :]
    peer.compare(
        "LayerNormalization",
        [normal(3, 5, 8), normal(*inner), normal(*inner) if bias else None],
        3,
        {"axis": axis, "epsilon": 1e-3},
        domain="",
        opset=13,
    )


@pytest.mark.parametrize("opset", [13, 21])
@pytest.mark.parametrize("axis", [-1, 1])
def test_simplified_layer_normalization_in_the_default_domain(opset: int, axis: int) -> None:
    inner = (3, 5, 8)[axis % 3 :]
    peer.compare(
        "SimplifiedLayerNormalization", [normal(3, 5, 8), normal(*inner)], 2, {"axis": axis}, domain="", opset=opset
    )


@pytest.mark.parametrize("skip", [(2, 5, 8), (1, 5, 8), (5, 8)])
@pytest.mark.parametrize("optional", range(4))
def test_skip_layer_normalization(skip: tuple[int, ...], optional: int) -> None:
    beta, bias = (normal(8) if optional & bit else None for bit in (1, 2))
    peer.compare(
        "SkipLayerNormalization",
        [normal(2, 5, 8), normal(*skip), normal(8), beta, bias],
        [1, 0, 0, 1],
        {"epsilon": 1e-5},
    )


@pytest.mark.parametrize("shape", [(2, 5, 8), (7, 8)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_skip_simplified_layer_normalization(shape: tuple[int, ...], bias: bool, dtype: type) -> None:
    kind = 1 if dtype == np.float32 else 10
    peer.compare(
        "SkipSimplifiedLayerNormalization",
        [
            normal(*shape, dtype=dtype),
            normal(*shape, dtype=dtype),
            normal(8, dtype=dtype),
            normal(8, dtype=dtype) if bias else None,
        ],
        [kind, 0, 0, kind],
        {"epsilon": 1e-6},
        rtol=5e-3 if dtype == np.float16 else 1e-4,
        atol=2e-3 if dtype == np.float16 else 1e-5,
    )


def test_the_statistics_of_skip_layer_normalization() -> None:
    x, skip = normal(2, 5, 8), normal(2, 5, 8)
    _, mean, inverse, total = peer.run("SkipLayerNormalization", [x, skip, normal(8)], [1, 1, 1, 1])
    wide = x.astype(np.float64) + skip
    np.testing.assert_allclose(mean, wide.mean(-1, keepdims=True), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(inverse, 1 / wide.std(-1, keepdims=True), rtol=1e-4)
    np.testing.assert_allclose(total, wide, rtol=1e-5, atol=1e-6)


def test_a_gamma_of_the_wrong_size_is_named() -> None:
    with pytest.raises(Exception, match="'gamma' is expected to have shape"):
        peer.run("SkipLayerNormalization", [normal(2, 5, 8), normal(2, 5, 8), normal(7)])


@pytest.mark.parametrize("activation", ["silu", "swish", "sigmoid"])
@pytest.mark.parametrize("width", [4, 12])
def test_gated_rms_norm(activation: str, width: int) -> None:
    peer.compare(
        "GatedRMSNorm", [normal(2, 3, 12), normal(width), normal(2, 3, 12)], attributes={"activation": activation}
    )


@pytest.mark.parametrize("branches", [0, 3])
@pytest.mark.parametrize("scale", [None, (12,), (3, 4), (4,)])
def test_branchwise_rms_norm(branches: int, scale: tuple[int, ...] | None) -> None:
    x = normal(2, 5, 12) if branches else normal(2, 5, 3, 4)
    peer.compare(
        "BranchwiseRMSNorm", [x, None if scale is None else normal(*scale)], attributes={"num_branches": branches}
    )
