"""Causal convolutions with state against onnxruntime, and packed sequences against single ones."""

from __future__ import annotations

import numpy as np
import pytest

import sardonyx
from tests.ops.microsoft import peer

RNG = np.random.default_rng(8)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("activation", ["none", "silu"])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("past", [True, False])
@pytest.mark.parametrize("length", [1, 5])
@pytest.mark.parametrize("channels_last", [0, 1])
def test_one_axis(activation: str, dilation: int, past: bool, length: int, channels_last: int) -> None:
    state = (2, 3 * dilation, 6) if channels_last else (2, 6, 3 * dilation)
    peer.compare(
        "CausalConvWithState",
        [
            normal(2, length, 6) if channels_last else normal(2, 6, length),
            normal(6, 1, 4),
            normal(6),
            normal(*state) if past else None,
        ],
        2,
        {"activation": activation, "dilation": dilation, "channels_last": channels_last},
    )


@pytest.mark.parametrize("channels_last", [0, 1])
def test_one_tap_has_no_state(channels_last: int) -> None:
    x, past = normal(2, 5, 6), normal(2, 0, 6)
    if not channels_last:
        x, past = normal(2, 6, 5), normal(2, 6, 0)
    peer.compare("CausalConvWithState", [x, normal(6, 1, 1), None, past], 2, {"channels_last": channels_last})


def test_an_input_of_unknown_rank_has_a_state() -> None:
    given = [normal(2, 6, 5), normal(6, 1, 4)]
    model = peer.one_node("CausalConvWithState", given, 2)
    for value in model.graph.input:
        value.type.tensor_type.ClearField("shape")
    for value in model.graph.output:
        value.type.Clear()
    found = sardonyx.InferenceSession(model.SerializeToString()).run(None, peer.feeds(model, given))
    peer.check(found, peer.run("CausalConvWithState", given, 2), 0, 0)


def test_a_vector_has_no_positions() -> None:
    with pytest.raises(Exception, match="'input' is expected to have at least 3 dimensions, got 1"):
        peer.run("CausalConvWithState", [normal(6), normal(6, 1, 4)], 2)


@pytest.mark.parametrize("length", [2, 5])
def test_each_slot_of_a_window_is_the_state_of_a_prefix(length: int) -> None:
    x, weight, past = normal(2, 6, length), normal(6, 1, 4), normal(3, 2, 6, 3)
    y, window = peer.run("CausalConvWithState", [x, weight, None, past], 2, {"state_window": 3})
    for slot in range(3):
        end = length - 3 + slot + 1
        if end <= 0:
            assert not window[slot].any()
            continue
        prefix = np.ascontiguousarray(x[..., :end])
        expected, state = peer.run("CausalConvWithState", [prefix, weight, None, past[-1].copy()], 2)
        np.testing.assert_array_equal(window[slot], state)
        np.testing.assert_allclose(y[..., :end], expected, rtol=1e-6)


def test_packed_sequences_equal_single_ones() -> None:
    weight, bias, state = normal(6, 1, 4), normal(6), normal(2, 6, 3)
    packed, sums = normal(7, 6), np.array([0, 2, 7], np.int32)
    captures = np.array([1, 3], np.int32)
    y, final, update = peer.run(
        "VarlenCausalConvWithState",
        [packed, weight, sums, bias, state, captures],
        3,
        {"activation": "silu", "state_update_capacity": 2},
    )
    for entry, (start, end) in enumerate([(0, 2), (2, 7)]):
        own = np.ascontiguousarray(packed[start:end].T[None])
        expected, present = peer.run(
            "CausalConvWithState", [own, weight, bias, state[entry : entry + 1].copy()], 2, {"activation": "silu"}
        )
        np.testing.assert_allclose(y[start:end].T, expected[0], rtol=1e-6)
        np.testing.assert_array_equal(final[entry], present[0])
    np.testing.assert_array_equal(update, [[packed[0], np.zeros(6)], packed[2:4]])


def test_offsets_that_do_not_cover_the_tokens_are_refused() -> None:
    with pytest.raises(Exception, match="does not divide 7 tokens into sequences"):
        peer.run(
            "VarlenCausalConvWithState",
            [normal(7, 6), normal(6, 1, 4), np.array([0, 2, 6], np.int32), None, normal(2, 6, 3)],
            2,
        )
