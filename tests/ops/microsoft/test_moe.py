"""Mixture of experts against onnxruntime, and in float64 for the layouts that it lacks on the CPU."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.microsoft import peer

RNG = np.random.default_rng(8)
EXPERTS, WIDTH, INNER = 4, 8, 6


def normal(*shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) / 2).astype(np.float32)


def experts(fusion: int = 1) -> list[np.ndarray]:
    rows = fusion * INNER
    return [normal(EXPERTS, rows, WIDTH), normal(EXPERTS, rows), normal(EXPERTS, WIDTH, INNER), normal(EXPERTS, WIDTH)]


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "identity"])
@pytest.mark.parametrize("normalized", [0, 1])
@pytest.mark.parametrize("shape", [(6,), (2, 3)])
def test_experts(activation: str, normalized: int, shape: tuple[int, ...]) -> None:
    attributes = {"k": 2, "activation_type": activation, "normalize_routing_weights": normalized}
    peer.compare("MoE", [normal(*shape, WIDTH), normal(6, EXPERTS), *experts()], attributes=attributes)


SWIGLU = {"k": 2, "activation_type": "swiglu", "activation_alpha": 1.7, "activation_beta": 1.0, "swiglu_limit": 0.5}


def test_swiglu_of_alternate_rows() -> None:
    given = [normal(6, WIDTH), normal(6, EXPERTS), *experts(2)]
    peer.compare("MoE", given, attributes={**SWIGLU, "swiglu_fusion": 1})


def test_the_other_layouts_of_swiglu_hold_the_same_rows() -> None:
    x, logits, (w1, b1, w2, b2) = normal(6, WIDTH), normal(6, EXPERTS), experts(2)
    (expected,) = peer.run("MoE", [x, logits, w1, b1, w2, b2], attributes={**SWIGLU, "swiglu_fusion": 1})
    halves = [np.concatenate([array[:, ::2], array[:, 1::2]], axis=1) for array in (w1, b1)]
    (found,) = peer.run("MoE", [x, logits, *halves, w2, b2], attributes={**SWIGLU, "swiglu_fusion": 2})
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    apart = [w1[:, ::2].copy(), b1[:, ::2].copy(), w2, b2, w1[:, 1::2].copy(), b1[:, 1::2].copy()]
    (found,) = peer.run("MoE", [x, logits, *apart], attributes=SWIGLU)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_sparse_mixers_route_as_ever() -> None:
    given = [normal(6, WIDTH), normal(6, EXPERTS), *experts()]
    peer.compare("MoE", given, attributes={"k": 2, "activation_type": "silu", "use_sparse_mixer": 1})
    with pytest.raises(Exception, match="use_sparse_mixer needs k = 2, not 3"):
        peer.run("MoE", given, attributes={"k": 3, "use_sparse_mixer": 1})


def test_more_experts_than_there_are_is_refused() -> None:
    with pytest.raises(Exception, match="does not fit 6 tokens and k = 5"):
        peer.run("MoE", [normal(6, WIDTH), normal(6, EXPERTS), *experts()], attributes={"k": 5})
