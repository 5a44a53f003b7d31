"""Operators over tokens that are given none, at every level: empty outputs, and states as they were."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from tests.ops.levels import assert_results
from tests.ops.one_node import model_of

RNG = np.random.default_rng(14)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def zeros(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return np.zeros(shape, dtype)


STATE = normal(2, 2, 4, 3)
CACHE = normal(2, 2, 5, 4)
INITIAL = normal(2, 2, 3)
# Inputs of a node, what it gives, and its attributes.
CASES: dict[str, tuple[list[np.ndarray | None], list[np.ndarray], dict[str, Any]]] = {
    "GatedDeltaNet": (
        [zeros(2, 0, 2, 3), zeros(2, 0, 2, 3), zeros(2, 0, 2, 4), None, zeros(2, 0, 2), zeros(2, 0, 2), STATE],
        [zeros(2, 0, 2, 4), STATE],
        {},
    ),
    "LinearAttention": (
        [zeros(2, 0, 6), zeros(2, 0, 6), zeros(2, 0, 8), STATE.swapaxes(2, 3).copy()],
        [zeros(2, 0, 8), STATE.swapaxes(2, 3)],
        {"q_num_heads": 2, "kv_num_heads": 2, "update_rule": "linear"},
    ),
    "MultiHeadAttention": (
        [zeros(2, 0, 8), zeros(2, 0, 8), zeros(2, 0, 8), None, None, None, CACHE, CACHE],
        [zeros(2, 0, 8), CACHE, CACHE],
        {"num_heads": 2},
    ),
    "PackedAttention": (
        [zeros(0, 8), normal(8, 24), normal(24), zeros(1, 0, dtype=np.int32), zeros(2, dtype=np.int32)],
        [zeros(0, 8)],
        {"num_heads": 2},
    ),
    "GatedRelativePositionBias": (
        [zeros(2, 0, 8), normal(8), zeros(1, 2, 0, 0), normal(4, 8), normal(8), normal(1, 2, 1, 1)],
        [zeros(2, 2, 0, 0)],
        {"num_heads": 2},
    ),
    "GroupNorm": ([zeros(0, 4, 2, 8), normal(8), normal(8)], [zeros(0, 4, 2, 8)], {"groups": 2, "activation": 0}),
    "CausalConvWithState": (
        [zeros(2, 0, 6), normal(6, 1, 3), None, np.ones((2, 2, 6), np.float32)],
        [zeros(2, 0, 6), np.ones((2, 2, 6), np.float32)],
        {"channels_last": 1},
    ),
}
LAYERS = {"RNN": 1, "GRU": 3, "LSTM": 4}


def check(operator: str, domain: str, given: list[Any], wanted: list[np.ndarray], attributes: dict[str, Any]) -> None:
    names = [f"x{index}" if array is not None else "" for index, array in enumerate(given)]
    outputs = [f"y{index}" for index in range(len(wanted))]
    node = helper.make_node(operator, names, outputs, domain=domain, **attributes)
    feeds = {name: array for name, array in zip(names, given, strict=True) if name}
    for named in (False, True):
        shapes = {
            name: [f"{name}_{axis}" if size == 0 else size for axis, size in enumerate(array.shape)]
            for name, array in feeds.items()
            if named
        }
        assert_results(model_of([node], feeds, outputs, shapes=shapes, domains={"com.microsoft": 1}), [feeds], [wanted])


@pytest.mark.parametrize("operator", CASES)
def test_no_tokens(operator: str) -> None:
    given, wanted, attributes = CASES[operator]
    check(operator, "com.microsoft", given, wanted, attributes)


@pytest.mark.parametrize("operator", LAYERS)
def test_recurrent_layers_keep_their_states(operator: str) -> None:
    gates = LAYERS[operator]
    given = [zeros(0, 2, 3), normal(2, 3 * gates, 3), normal(2, 3 * gates, 3), None, None, INITIAL]
    wanted = [zeros(0, 2, 2, 3), INITIAL]
    attributes = {"hidden_size": 3, "direction": "bidirectional"}
    check(operator, "", given, wanted, attributes)


@pytest.mark.parametrize("operator", LAYERS)
def test_recurrent_layers_of_no_batch(operator: str) -> None:
    gates = LAYERS[operator]
    given = [zeros(4, 0, 3), normal(1, 3 * gates, 3), normal(1, 3 * gates, 3)]
    check(operator, "", given, [zeros(4, 1, 0, 3), zeros(1, 0, 3)], {"hidden_size": 3})
