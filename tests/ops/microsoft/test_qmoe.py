"""QMoE against onnxruntime's MoE of the same real weights, and against itself for the layouts that has not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.microsoft import peer

EXPERTS, WIDTH, INNER, TOKENS = 4, 32, 64, 6


def inputs(
    bits: int, block: int | None, fused: bool, bias: bool, zero_points: bool, shape: tuple[int, ...]
) -> list[Any]:
    generator = np.random.default_rng(1)
    rows = 2 * INNER if fused else INNER

    def scales(count: int, length: int) -> np.ndarray:
        size = (EXPERTS, count) if block is None else (EXPERTS, count, length // block)
        return ((generator.random(size) + 0.5) * 0.2 / 2**bits).astype(np.float32)

    def zeros(count: int, length: int) -> np.ndarray | None:
        if not zero_points:
            return None
        size = (EXPERTS, count * bits // 8) if block is None else (EXPERTS, count, -(-(length // block) * bits // 8))
        return generator.integers(0, 256, size).astype(np.uint8)

    def vector(count: int) -> np.ndarray | None:
        return generator.standard_normal((EXPERTS, count)).astype(np.float32) if bias else None

    return [
        generator.standard_normal(shape).astype(np.float32),
        generator.standard_normal((TOKENS, EXPERTS)).astype(np.float32),
        generator.integers(0, 256, (EXPERTS, rows, WIDTH * bits // 8)).astype(np.uint8),
        scales(rows, WIDTH),
        vector(rows),
        generator.integers(0, 256, (EXPERTS, WIDTH, INNER * bits // 8)).astype(np.uint8),
        scales(WIDTH, INNER),
        vector(WIDTH),
        None,
        None,
        None,
        zeros(rows, WIDTH),
        zeros(WIDTH, INNER),
    ]


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("block", [None, 16, 32])
@pytest.mark.parametrize("activation", ["swiglu", "silu", "relu", "gelu", "identity"])
@pytest.mark.parametrize("zero_points", [True, False])
def test_against_onnxruntime(bits: int, block: int | None, activation: str, zero_points: bool) -> None:
    fused = activation == "swiglu"
    given = inputs(bits, block, fused, True, zero_points, (2, 3, WIDTH))
    attributes: dict[str, Any] = {
        "k": 2,
        "expert_weight_bits": bits,
        "activation_type": activation,
        "normalize_routing_weights": 1,
    }
    if block:
        attributes["block_size"] = block
    if fused:
        attributes.update(swiglu_fusion=1, activation_alpha=1.702, activation_beta=1.0, swiglu_limit=7.0)
    (found,) = peer.run("QMoE", given, 1, attributes, constants=[2, 3, 4, 5, 6, 7, 11, 12])
    exact = in_real_numbers(given, bits, attributes)
    np.testing.assert_allclose(found, exact, atol=1e-5 * np.abs(exact).max())


def in_real_numbers(given: list[Any], bits: int, attributes: dict[str, Any]) -> np.ndarray:
    """onnxruntime's MoE; its QMoE quantises what 8-bit experts read in blocks."""

    def real(packed: np.ndarray, scales: np.ndarray, zeros: np.ndarray | None) -> np.ndarray:
        def codes(array: np.ndarray) -> np.ndarray:
            parts = [array >> shift & 2**bits - 1 for shift in range(0, 8, bits)]
            return np.stack(parts, axis=-1).reshape(*array.shape[:-1], -1).astype(np.float64)

        q = codes(packed)
        steps = scales.astype(np.float64).reshape(*q.shape[:2], -1)
        origins = 2.0 ** (bits - 1) if zeros is None else codes(zeros).reshape(EXPERTS, -1)
        if zeros is not None:
            # A row's blocks begin with a byte; a zero point for each row fills bytes across the rows.
            blocks = origins.reshape(*q.shape[:2], -1)[..., : steps.shape[-1]]
            origins = np.repeat(blocks, q.shape[-1] // steps.shape[-1], axis=-1)
        return ((q - origins) * np.repeat(steps, q.shape[-1] // steps.shape[-1], axis=-1)).astype(np.float32)

    first, second = real(given[2], given[3], given[11]), real(given[5], given[6], given[12])
    inputs_ = [given[0], given[1], first, given[4], second, given[7]]
    plain = {name: value for name, value in attributes.items() if name not in ("expert_weight_bits", "block_size")}
    model = peer.one_node("MoE", inputs_, 1, plain)
    return np.asarray(peer.onnxruntime(model, peer.feeds(model, inputs_))[0])


@pytest.mark.parametrize("normalize", [0, 1])
def test_router_weights(normalize: int) -> None:
    given = [*inputs(4, None, False, False, False, (TOKENS, WIDTH)), None]
    given.append(np.random.default_rng(2).random((TOKENS, EXPERTS)).astype(np.float32))
    attributes = {"k": 2, "activation_type": "silu", "normalize_routing_weights": normalize}
    peer.compare("QMoE", given, 1, attributes, constants=[2, 3, 5, 6], atol=1e-4)


def test_halves_and_alternate_rows_are_the_same_experts() -> None:
    given = inputs(4, None, True, True, False, (TOKENS, WIDTH))
    attributes = {"k": 3, "activation_type": "swiglu", "activation_alpha": 1.5}
    (alternate,) = peer.run("QMoE", given, 1, {**attributes, "swiglu_fusion": 1})
    order = np.concatenate([np.arange(0, 2 * INNER, 2), np.arange(1, 2 * INNER, 2)])
    halves = list(given)
    for index in (2, 3, 4):
        halves[index] = given[index][:, order]
    (found,) = peer.run("QMoE", halves, 1, {**attributes, "swiglu_fusion": 2})
    np.testing.assert_allclose(found, alternate, rtol=1e-4, atol=1e-4)
    apart = list(halves)
    for index in (2, 3, 4):
        apart[index], apart[index + 6] = np.split(halves[index], 2, axis=1)
    (separate,) = peer.run("QMoE", apart, 1, attributes)
    np.testing.assert_allclose(separate, alternate, rtol=1e-4, atol=1e-4)


def test_sparse_mixers_route_as_ever() -> None:
    given = inputs(4, None, False, True, False, (TOKENS, WIDTH))
    attributes = {"k": 2, "activation_type": "silu", "use_sparse_mixer": 1}
    peer.compare("QMoE", given, 1, attributes, constants=[2, 3, 4, 5, 6, 7], atol=1e-4)
    with pytest.raises(Exception, match="use_sparse_mixer=1 with k=3"):
        peer.run("QMoE", given, 1, {**attributes, "k": 3})


def test_other_weights_are_declined() -> None:
    given = inputs(4, None, False, False, False, (TOKENS, WIDTH))
    with pytest.raises(Exception, match="quant_type='fp8'"):
        peer.run("QMoE", given, 1, {"quant_type": "fp8"})
