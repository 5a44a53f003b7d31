"""Linear attention against onnxruntime; the packed operator against the padded one."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.microsoft import peer

RNG = np.random.default_rng(8)
BATCH, LENGTH, SIZE, VALUE_SIZE = 2, 5, 4, 6


def normal(*shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) / 2).astype(np.float32)


def gates(rule: str, heads: int, channels: int) -> list[np.ndarray | None]:
    decay = -RNG.random((BATCH, LENGTH, heads * channels)).astype(np.float32)
    beta = RNG.random((BATCH, LENGTH, heads)).astype(np.float32)
    return [decay if rule.startswith("gated") else None, beta if rule.endswith("delta") else None]


@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
@pytest.mark.parametrize("heads", [(2, 2), (4, 2), (2, 4)])
@pytest.mark.parametrize("channels", [1, SIZE])
def test_rules(rule: str, heads: tuple[int, int], channels: int) -> None:
    asked, kept = heads
    given = [
        normal(BATCH, LENGTH, asked * SIZE),
        normal(BATCH, LENGTH, kept * SIZE),
        normal(BATCH, LENGTH, kept * VALUE_SIZE),
        normal(BATCH, kept, SIZE, VALUE_SIZE),
        *gates(rule, kept, channels),
    ]
    attributes = {"q_num_heads": asked, "kv_num_heads": kept, "update_rule": rule}
    peer.compare("LinearAttention", given, 2, attributes)


@pytest.mark.parametrize("window", [2, 7])
def test_each_slot_of_a_window_is_the_state_of_a_prefix(window: int) -> None:
    given = [normal(BATCH, LENGTH, 2 * SIZE), normal(BATCH, LENGTH, 2 * SIZE), normal(BATCH, LENGTH, 2 * VALUE_SIZE)]
    past = normal(window, BATCH, 2, SIZE, VALUE_SIZE)
    rest = gates("gated_delta", 2, 1)
    attributes = {"q_num_heads": 2, "kv_num_heads": 2, "scale": 0.3}
    y, states = peer.run("LinearAttention", [*given, past, *rest], 2, {**attributes, "state_window": window})
    for slot in range(window):
        end = LENGTH - window + slot + 1
        if end <= 0:
            assert not states[slot].any()
            continue
        prefix = [None if x is None else x[:, :end].copy() for x in (*given, *rest)]
        expected, state = peer.run("LinearAttention", [*prefix[:3], past[-1].copy(), *prefix[3:]], 2, attributes)
        np.testing.assert_allclose(states[slot], state, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(y[:, :end], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("with_beta", [True, False])
def test_gate(with_beta: bool) -> None:
    given = [normal(2, 5, 3) * 8, normal(3), -RNG.random(3).astype(np.float32), normal(2, 5, 3) if with_beta else None]
    peer.compare("LinearAttentionGate", given, 2 if with_beta else 1)


def test_a_missing_decay_is_named() -> None:
    given = [normal(1, 2, 4), normal(1, 2, 4), normal(1, 2, 4)]
    with pytest.raises(Exception, match="needs the input 'decay'"):
        peer.run("LinearAttention", given, 2, {"q_num_heads": 1, "kv_num_heads": 1})


@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
@pytest.mark.parametrize("layout", ["uniform", "sums", "packed", "four axes"])
def test_packed_tokens_equal_padded_ones(rule: str, layout: str) -> None:
    q, k, v = normal(BATCH, LENGTH, 2, SIZE), normal(BATCH, LENGTH, 2, SIZE), normal(BATCH, LENGTH, 4, VALUE_SIZE)
    decay, beta = gates(rule, 4, 1)
    past = normal(BATCH, 4, SIZE, VALUE_SIZE)
    expected, present = peer.run(
        "LinearAttention",
        [
            q.reshape(BATCH, LENGTH, -1),
            np.repeat(k, 2, 2).reshape(BATCH, LENGTH, -1),
            v.reshape(BATCH, LENGTH, -1),
            past,
            decay,
            beta,
        ],
        2,
        {"q_num_heads": 2, "kv_num_heads": 4, "update_rule": rule},
    )
    tokens = BATCH * LENGTH
    flat = [x.reshape(tokens, *x.shape[2:]) for x in (q, k, v)]
    if layout == "packed":
        flat = [np.concatenate([x.reshape(tokens, -1) for x in flat], -1), None, None]
    elif layout == "four axes":
        flat = [q, k, v]
    sums = np.array([0, LENGTH, tokens], np.int32) if layout == "sums" else None
    shape = (BATCH, LENGTH, 4) if layout == "four axes" else (tokens, 4)
    found, final = peer.run(
        "GatedDeltaNet",
        [
            *flat,
            sums,
            *(None if x is None else x.reshape(shape) for x in (decay, beta)),
            np.swapaxes(past, -1, -2).copy(),
        ],
        2,
        {"update_rule": rule},
    )
    np.testing.assert_allclose(found.reshape(expected.shape), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(final, np.swapaxes(present, -1, -2), rtol=1e-4, atol=1e-5)
